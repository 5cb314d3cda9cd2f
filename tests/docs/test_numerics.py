"""docs/reference/numerics.md: its examples are run, and its worked pixel goes through the simulator
and the plain classes.

benchmarks/results/activations.md, the part of docs/reference/numerics.md with the same figures and
the pictures are what the command computes.
"""

import doctest
import importlib.util
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.luna.faults import LunaFault
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.targets import PLATFORMS
from tests.each import check_each
from tests.reference.test_reference import single

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "numerics.md").read_text()
RENEW = "run python benchmarks/activation_error.py --write --plots"


def examples():
    """Run the page's examples in the order they stand; return the names they defined."""
    names = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)):
        test = doctest.DocTestParser().get_doctest(
            block, names, f"block {number}", "docs/reference/numerics.md", 0
        )
        assert test.examples
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(test, clear_globs=False)
        assert not runner.failures, f"block {number} of docs/reference/numerics.md"
        names = test.globs
    return names


def test_worked_pixel():
    """The numbers of the 3x3 example, on every platform, both ways."""
    names = examples()
    x, w = (np.array(names[key], np.int8)[None, None] for key in "xw")
    scales = {
        "scale_x": 2.0 ** names["q_x"],
        "scale_w": 2.0 ** names["q_w"],
        "scale_o": 2.0 ** names["q_o"],
    }
    bias = np.array([names["bias"]], np.int32)

    def check(platform):
        model = single(
            "Conv2dInt", [x], [w, bias], platform=platform, kernel_shape=[3, 3], **scales
        )
        (simulated,) = lo.Session(ir.from_proto(model)).run(None, {"x0": x})
        operators = lo.reference_ops(platform)
        (plain,) = ReferenceEvaluator(model, new_ops=operators).run(None, {"x0": x})
        assert simulated.item() == plain.item() == names["y"] == 24

    check_each(check, [target.name for target in PLATFORMS])


def test_worked_pixel_with_zero_points():
    """The same pixel from integers that are 3 larger, to a scale where -128 stands for 0: 24 -
    128.
    """
    found = examples()
    x, w = (np.array(found[key], np.int8)[None, None] for key in "xw")
    x[x == 127] = 124  # so that 3 more fits
    bias = np.array([found["bias"] + 3 * found["w"][1][0]], np.int32)
    scales = {
        "scale_x": 2.0 ** found["q_x"],
        "scale_w": 2.0 ** found["q_w"],
        "scale_o": 2.0 ** found["q_o"],
    }
    zeros = {"zero_point_x": 3, "zero_point_o": -128}
    model = single(
        "Conv2dInt", [x + 3], [w, bias], platform="generic", kernel_shape=[3, 3], **scales, **zeros
    )
    (simulated,) = lo.Session(ir.from_proto(model)).run(None, {"x0": x + 3})
    (plain,) = ReferenceEvaluator(model, new_ops=lo.reference_ops("generic")).run(
        None, {"x0": x + 3}
    )
    assert simulated.item() == plain.item() == -104
    assert "is `24 - 128 = -104`" in TEXT


def test_ratio_by_hand():
    """The multiplier of the `generic` example, through a linear layer of one weight."""
    found = examples()
    for acc, want in ((12345, 34), (-12345, -34), (179, 0), (180, 1), (10**6, 127)):
        assert min((acc * found["M"] + 2 ** (found["s"] - 1)) >> found["s"], 127) == want
        model = single(
            "LinearInt",
            [np.zeros((1, 1), np.int8)],
            [np.ones((1, 1), np.int8), np.array([acc], np.int32)],
            platform="generic",
            scale_x=20.5,
            scale_w=310.25,
            scale_o=17.75,
        )
        (simulated,) = lo.Session(ir.from_proto(model)).run(None, {"x0": np.zeros((1, 1), np.int8)})
        assert simulated.item() == want


def test_ties():
    """The sentence about ties and saturation below the example."""
    for acc, want in ((384, 2), (-384, -1), (32640, 127)):
        model = single(
            "LinearInt",
            [np.zeros((1, 1), np.int8)],
            [np.ones((1, 1), np.int8), np.array([acc], np.int32)],
            scale_x=32.0,
            scale_w=128.0,
            scale_o=16.0,
        )
        (simulated,) = lo.Session(ir.from_proto(model)).run(None, {"x0": np.zeros((1, 1), np.int8)})
        assert simulated.item() == want


def test_every_operator_is_told():
    """Each integer operator is on the page."""
    missing = [form.name for form in INTEGER_OPS if form.name not in TEXT]
    assert not missing, f"docs/reference/numerics.md says nothing of {missing}"


def test_every_fault_is_told():
    """Each fault of a platform row is in the page's last table, and that table names no other."""
    told = set(re.findall(r"`([a-z0-9-]+)`", TEXT.rpartition("| fault |")[2]))
    faults = {fault.key for fault in LunaFault}
    assert faults - told == set(), "add a line to the last table of docs/reference/numerics.md"
    assert told <= faults


# ---- the figures of curves and rows ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def errors():
    """Return the module behind the command."""
    spec = importlib.util.spec_from_file_location(
        "activation_error", ROOT / "benchmarks" / "activation_error.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_figures_are_todays(errors):
    """Both pages say what the command measures now."""
    assert (ROOT / "benchmarks" / "results" / "activations.md").read_text() == errors.page(), RENEW
    assert errors.inserted(TEXT) == TEXT, RENEW
    assert errors.summary() in TEXT
    with pytest.raises(ValueError, match="has no part between"):
        errors.inserted("a page")


def test_pictures_are_todays(errors):
    """Each picture of the pages was drawn from the lines that the command computes now."""
    linked = set(re.findall(r"\]\((activations_\w+\.svg)\)", TEXT))
    assert linked == set(errors.PICTURES)
    for name in linked:
        drawn = (ROOT / "docs" / "reference" / name).read_text()
        assert errors.digest(name) in drawn, RENEW
        assert len(drawn) < 100_000


@pytest.mark.slow
def test_pictures_can_be_drawn(errors, tmp_path):
    """The same lines make the same file, and it holds the labels as text."""
    pytest.importorskip("matplotlib")
    name = "activations_operators.svg"
    errors.draw(name, tmp_path)
    first = (tmp_path / name).read_text()
    errors.draw(name, tmp_path)
    assert (tmp_path / name).read_text() == first
    assert errors.digest(name) in first
    assert "venus, arcs" in first


def test_tables_are_exact_on_generic(errors):
    """On `generic` the error is at most half a count, at every scale, for every integer."""

    def check(name, exponent):
        assert np.abs(errors.operator_error(name, "generic", exponent)).max() <= 0.5

    check_each(check, product(("Sigmoid", "Tanh", "SiLU", "GELU"), errors.EXPONENTS))
