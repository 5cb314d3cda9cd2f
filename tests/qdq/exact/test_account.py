"""Files of whole graphs: every output the simulator's, bit for bit, in onnxruntime with its own
settings.
"""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.common.errors import ConfigError
from lingeronnx.interchange.qdq.exact.exact_file import ExactFile
from lingeronnx.interchange.qdq.exact.verification import random_feeds
from lingeronnx.interchange.qdq.exact.write import write_exact
from lingeronnx.ir import ir
from tests.case_selection import mark_rest_slow
from tests.nets import NETS, Net, quantized
from tests.passes.test_attention import attention
from tests.qdq.exact.helpers import session
from tests.targets.luna.dialects.helpers import model

FREE = {"platform": "generic", "mode": "max-value", "weight_scales": "channel"}
MOVED = {**FREE, "activations": "asymmetric"}


def equal(graph, found):
    """How many of a few samples give the same outputs, in onnxruntime with its own settings."""
    simulator, opened = lo.Session(graph), session(found)
    names = [value.name for value in opened.get_outputs()]
    feeds = [*random_feeds(graph, True, 3), *random_feeds(graph, False, 3)]
    return [
        all(
            np.array_equal(a, b)
            for a, b in zip(opened.run(names, f), simulator.run(names, f), strict=True)
        )
        for f in feeds
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("platform", mark_rest_slow(1, ("venus", "arcs", "venusA")))
@pytest.mark.parametrize("net", mark_rest_slow(3, NETS), ids=lambda net: net.__name__)
def test_nets_on_chips_need_no_functions(net, platform):
    """Law: convolutions, sums, pools, concatenations and linear layers are exact by amounts
    alone.
    """
    made = quantized(net(), platform=platform, effort="fast").graph
    found = write_exact(made, functions=False)
    onnx.checker.check_model(ir.to_proto(found.standard.graph), full_check=True)
    assert found.tie_offsets
    whole = {why for _, why in found.inexact.values()}
    assert all("no power of two" in why and "divides" in why for why in whole)
    with_functions = write_exact(made, functions=True)
    assert not with_functions.inexact
    assert all(equal(made, with_functions.standard.graph))


@pytest.mark.sweep
@pytest.mark.parametrize("settings", (FREE, MOVED), ids=("free", "zero points"))
@pytest.mark.parametrize("net", mark_rest_slow(2, NETS), ids=lambda net: net.__name__)
def test_free_scales_take_functions(net, settings):
    """Law: with scales of any size and zero points every integer is the simulator's, by
    functions.
    """
    made = quantized(net(), effort="fast", **settings).graph
    found = write_exact(made, functions=True)
    assert found.function_of
    assert not found.inexact
    file = ExactFile(made, functions=True)
    assert file.all_equal
    assert write_exact(made, functions=False).inexact


@pytest.mark.sweep
@pytest.mark.parametrize("platform", mark_rest_slow(1, ("venus", "arcs", "venusA")))
@pytest.mark.parametrize("name", ("lstm", "gru", "attention"))
def test_sequences(name, platform):
    """Recurrent layers and attention, every sample bit for bit, the batch open."""
    made = lo.quantize(
        f"models/digits_{name}.onnx", "models/digits_calib.npz", platform=platform, effort="fast"
    )
    file = ExactFile(made.graph, functions=True)
    assert not file.written.inexact
    assert file.all_equal
    with np.load("models/digits_test.npz") as data:
        x = data["input"][:20]
    simulator, opened = lo.Session(made.graph), session(file.graph)
    (name,) = (value.name for value in opened.get_outputs())
    assert file.batch == ""
    assert np.array_equal(opened.run(None, {"input": x})[0], simulator.run([name], {"input": x})[0])


def test_full_weights_do_not_saturate():
    """Weights and inputs at the ends of their range: onnxruntime's integer kernels cut such sums on
    some processors.
    """
    net = Net(16, 6, 6)
    rng = np.random.default_rng(0)
    weight = np.where(rng.random((8, 16, 3, 3)) < 0.5, -1.0, 0.992).astype(np.float32)
    made = quantized(
        net.graph(net.node("Conv", "x", net.const(weight), out="y")),
        effort="fast",
        platform="venus",
    ).graph
    file = ExactFile(made, functions=True)
    assert file.all_equal
    assert sum(one.count for one in file.compared.values()) == 32


def test_large_sums_are_written_as_integers():
    """A linear layer whose sums leave float32: refused without functions, exact with them."""
    net = Net(2100, 1, 1)
    rng = np.random.default_rng(1)
    weight = np.sign(rng.standard_normal((2100, 3))).astype(np.float32)
    made = quantized(
        net.graph(net.node("MatMul", net.node("Flatten", "x"), net.const(weight), out="y")),
        effort="fast",
        platform="generic",
    ).graph
    [(operator, why)] = write_exact(made, functions=False).inexact.values()
    assert operator == "LinearInt"
    assert "float32 is exact up to 16777216" in why
    assert all(equal(made, write_exact(made, functions=True).standard.graph))


# ---- the command -----------------------------------------------------------------------------------------------------


def converted(path, *options):
    return CliRunner().invoke(
        cli.main, ["convert", str(path), "-o", str(path.with_name("exact.onnx")), *options]
    )


def test_command(tmp_path):
    path = tmp_path / "quant.onnx"
    quantized(attention(13), platform="arcs", effort="fast").save(path)
    plain = converted(path, "--to", "qdq", "--exact")
    assert plain.exit_code == 0, plain.output
    assert "NOT exact" in plain.output
    assert "`--functions`" in plain.output
    whole = converted(path, "--to", "qdq", "--exact", "--functions", "--json")
    assert whole.exit_code == 0, whole.output
    notes = "\n".join(json.loads(whole.stdout)["notes"])
    assert "NOT exact" not in notes
    assert "16 of 16 samples like calibration data" in notes
    assert "SoftmaxInt" in notes
    onnx.checker.check_model(str(tmp_path / "exact.onnx"))
    for options, word in (
        (("--to", "thinker", "--exact"), "exact is for qdq"),
        (("--to", "qoperator", "--exact"), "exact is for qdq"),
        (("--to", "qdq", "--functions"), "functions need exact"),
    ):
        done = converted(path, *options)
        assert done.exit_code == 1
        assert word in done.output
        assert len(done.output.strip().splitlines()) == 1


def test_call_refuses_what_the_command_refuses():
    with pytest.raises(ConfigError, match="exact is for qdq"):
        lo.convert("models/digits_cnn.onnx", "linger", exact=True)


def test_a_training_graph_is_named():
    """Its rounding is not the chip's; nothing is said to be exact."""
    x = {"x": np.zeros((1, 4), np.float32)}
    graph = model(
        [
            ("Quant", ["x"], ["q"], {"scale_x": 16.0, "data_bits": 8}, "linger"),
            ("Dequant", ["q"], ["y"], {"scale_o": 16.0}, "linger"),
        ],
        x,
        domain="linger",
    )
    found = write_exact(graph, functions=True)
    assert found.inexact == {"q": ("Quant", "it rounds as the training library does")}
