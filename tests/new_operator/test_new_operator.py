"""Law: a new operator is one call, and the files that it takes are counted here; nothing else
learns of it.

A net is quantized for a chip that has the operator of this folder, simulated, computed by a plain
class and trained through, while a chip without it goes on as before. A function of one number is
one entry of a table: it is put into a copy of the sources, and no other file differs.
"""

import ast
import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators.integer_ops import RELU
from lingeronnx.targets import PLATFORMS
from tests.nets import Net, samples

from . import NIMBUS, known
from .kernel import Squash
from .operator import SQUASH, SquashRule
from .plain import PlainSquash

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: Files that are written for an operator with a kernel of its own, this test included; for a function of one number,
#: with a test. `lingeronnx platforms --markdown` then writes docs/reference/operators.md anew.
WITH_A_KERNEL, FUNCTION = 6, 2


@pytest.fixture
def nimbus():
    """Let the operator be known in a test; return the chip that has it."""
    with known():
        yield NIMBUS


def net():
    """Softsign between two layers."""
    made = Net(4, 6, 6, seed=8)
    a = made.node("Softsign", made.conv("x", (6, 4, 3, 3), pads=[1] * 4))
    return made.graph(made.conv(a, (3, 6, 1, 1), out="y"))


def test_it_is_quantized_simulated_and_checked(nimbus):
    model = net()
    result = lo.quantize(model, samples(model), platform=nimbus, effort="fast")
    assert result.report.integer_macs == 1.0
    assert not result.report.float_nodes
    assert [node.op_type for node in result.graph.graph].count("iqSquash") == 1
    lo.check_model(result.graph)
    feeds = samples(model, 3, seed=1)
    (got,) = result.session().run(["y"], feeds)
    plain = ReferenceEvaluator(ir.to_proto(result.graph), new_ops=lo.reference_ops(nimbus))
    for i in range(3):
        (want,) = plain.run(["y"], {"x": feeds["x"][i : i + 1]})
        assert np.array_equal(got[i : i + 1], want)
    (real,) = lo.Session(model).run(["y"], feeds)
    assert np.corrcoef(real.reshape(-1), got.reshape(-1))[0, 1] > 0.99


def test_it_has_a_fake_quantizer(nimbus):
    torch = pytest.importorskip("torch")
    from lingeronnx.torch.qat.qat_module import QatModule

    model = net()
    result = lo.quantize(model, samples(model), platform=nimbus, effort="fast")
    feeds = samples(model, 2, seed=1)
    bridge = QatModule(result.float_graph, result.plan, nimbus, feeds)
    follow = dict(bridge.integers({"x": torch.from_numpy(feeds["x"])}))
    held = {name: array for name, array, scale in result.session().taps(feeds) if scale is not None}
    (node,) = (node for node in result.graph.graph if node.op_type == "iqSquash")
    assert str(node.outputs[0].name) in held
    for name, array in held.items():
        assert np.array_equal(follow[name].detach().numpy(), array), name


@pytest.mark.parametrize("target", PLATFORMS, ids=lambda target: target.name)
def test_others_go_on_as_before(nimbus, target):
    """Two rules claim Softsign, and neither knows of the other: each platform gets what it has."""
    model = net()
    result = lo.quantize(model, samples(model), platform=target, effort="fast")
    kinds = [node.op_type for node in result.graph.graph]
    assert "iqSquash" not in kinds
    assert ("iqTable" if target.can_run("iqTable") else "Softsign") in kinds


def test_it_is_forgotten():
    """Behind the block everything is as it was: a graph that has the operator is refused, and it
    may come again.
    """
    model = net()
    for _ in range(2):
        with known():
            result = lo.quantize(model, samples(model), platform=NIMBUS, effort="fast")
            lo.check_model(result.graph)
        with pytest.raises(lo.ModelError, match="iqSquash"):
            lo.check_model(result.graph)
        assert "iqSquash" not in {plain.__name__ for plain in lo.reference_ops(NIMBUS)}
        left = lo.quantize(model, samples(model), platform=NIMBUS, effort="fast")
        assert [node.op_type for node in left.report.float_nodes] == ["Softsign"]


def test_what_is_taken_or_does_not_fit(nimbus):
    """One line each."""
    with pytest.raises(
        lo.ConfigError, match="^operator 'iqSquash': the name 'iqSquash' is taken; choose another$"
    ):
        known()

    class Other(type(SQUASH)):
        """Of another name."""

        name = "iqOther"

    with pytest.raises(
        lo.ConfigError, match="^operator 'iqOther': its rule writes 'iqSquash'; give the rule that"
    ):
        lo.extended(Other(), rule=SquashRule())
    with pytest.raises(
        lo.ConfigError,
        match="^operator 'iqOther': its plain class computes iqSquash; give the class",
    ):
        lo.extended(Other(), reference=PlainSquash)
    with pytest.raises(
        lo.ConfigError, match="^operator 'iqOther': Squash has a fake quantizer already"
    ):
        lo.extended(Other(), fake={Squash: print})
    with pytest.raises(lo.ConfigError, match="'Relu' is taken"):
        lo.extended(RELU)


# ---- what is touched -----------------------------------------------------------------------------------------------


def test_the_files_of_an_operator():
    """They are those of this folder: they reach for nothing private to register, and no other file
    knows of it.
    """
    files = sorted(HERE.glob("*.py"))
    assert len(files) == WITH_A_KERNEL
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            told = [node.attr] if isinstance(node, ast.Attribute) else []
            told += (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            assert not any(re.match("_[^_]", word) for word in told), (
                f"{path.name}: {ast.unparse(node)}"
            )
    for package in ("lingeronnx", "simulator"):
        for path in (ROOT / package).rglob("*.py"):
            assert "iqSquash" not in path.read_text(), path


#: The entry of a function that the table cannot compute, before and after.
WITHOUT, ENTRY = (
    '"Asinh": _Op(is_unary_elementwise=True),',
    '"Asinh": _Op(unary_function=lambda x, attr: np.arcsinh(x)),',
)

SCRIPT = """
import numpy as np
import lingeronnx as lo
from lingeronnx.analysis.check.operators_page import render_operators_markdown
from tests.nets import Net, samples

made = Net(5, 8, seed=8)
folded = made.node("Reshape", "x", made.const(np.array([-1, 8])))
weight = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float32)
bent = made.node("Asinh", made.node("MatMul", folded, made.const(weight)))
model = made.graph(made.node("Reshape", bent, made.const(np.array([-1, 5, 6])), out="y"))
feeds = samples(model)
result = lo.quantize(model, feeds, platform="generic", effort="fast")
print(lo.__file__)
print([node.op_type for node in result.float_graph.graph], [node.op_type for node in result.graph.graph])
print(result.report.outputs["y"]["sqnr"])
print("Asinh" in render_operators_markdown())
"""


def changed(one, other):
    """Return the files in which two folders differ."""
    found = filecmp.dircmp(one, other, ignore=["__pycache__"])
    assert not found.funny_files
    inner = (
        f"{name}/{path}"
        for name in found.subdirs
        for path in changed(f"{one}/{name}", f"{other}/{name}")
    )
    return [*found.left_only, *found.right_only, *found.diff_files, *inner]


def read_output(text, folder):
    """Read what the script prints with the sources of a folder: operator types, SQNR, whether the
    page lists Asinh.
    """
    file, kinds, sqnr, listed = text.splitlines()
    assert Path(file).is_relative_to(folder)
    return kinds, float(sqnr), listed == "True"


def run(folder):
    """Run the script with the sources of a folder in a process of its own."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return read_output(done.stdout, folder)


def test_a_function_of_one_number_is_one_entry(tmp_path, capsys):
    """One line in one file: a table computes it, and passes know it; without it it stays in
    float.
    """
    exec(SCRIPT, {})
    kinds, _, listed = read_output(capsys.readouterr().out, ROOT)
    assert "'Asinh'" in kinds.split("]")[1]
    assert not listed
    for package in ("lingeronnx", "simulator"):  # with the compiled files, which stay valid
        shutil.copytree(ROOT / package, tmp_path / package)
    path = tmp_path / "lingeronnx" / "ir" / "float_ops.py"
    text = path.read_text()
    assert text.count(WITHOUT) == 1
    path.write_text(text.replace(WITHOUT, ENTRY))
    kinds, sqnr, listed = run(tmp_path)
    assert listed  # in the page that is written from the tables
    assert (
        kinds == "['Linear', 'Asinh'] ['Quant', 'LinearInt', 'iqTable', 'Dequant']"
    )  # no Reshape is left
    assert sqnr > 30
    touched = changed(ROOT / "lingeronnx", tmp_path / "lingeronnx")
    touched += changed(ROOT / "simulator", tmp_path / "simulator")
    assert touched == ["ir/float_ops.py"]
    assert len(touched) + 1 == FUNCTION  # and a test
