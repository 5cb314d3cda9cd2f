"""Integer graphs as QuantizeLinear and DequantizeLinear: onnxruntime's integers beside the
simulator's.
"""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.interchange.qdq.difference import measure_differences
from lingeronnx.interchange.qdq.qdq_writer import SCALES_KEY, scale_from_step, write_qdq
from lingeronnx.ir import ir
from simulator import instruction_sets as instructions
from tests import nets
from tests.nets import NETS, Net, quantized, samples
from tests.targets.luna.dialects.helpers import model, some

FREE = {"platform": "generic", "mode": "max-value", "weight_scales": "channel"}
MOVED = {**FREE, "activations": "asymmetric"}


def integers(proto, feeds, names, optimized):
    """What onnxruntime computes for the tensors `names`."""
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(list(names), feeds), strict=True))


def counts(made, found, feeds):
    """The largest difference of each tensor, each operator given the same integers."""
    return {row.tensor: row.max_steps for row in measure_differences(made, found, feeds)}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    ({"platform": "venus"}, {"platform": "generic"}, FREE, MOVED),
    ids=("venus", "powers", "free", "zero points"),
)
@pytest.mark.parametrize("net", NETS, ids=lambda net: net.__name__)
def test_one_count_for_each_requantization(net, settings):
    """Law: from the same integers every operator gives the same ones, but for ties."""
    made = quantized(net(), **settings, effort="fast").graph
    found = write_qdq(made)
    proto = ir.to_proto(found.graph)
    onnx.checker.check_model(proto, full_check=True)
    assert [opset.version for opset in proto.opset_import] == [13]
    rows = counts(made, found, {name: a[:4] for name, a in samples(made).items()})
    assert len(rows) > 4
    assert max(rows.values()) <= 1, rows


@pytest.mark.parametrize("optimized", (False, True))
def test_the_oracle_is_onnxruntime_alone(optimized):
    """One convolution, worked out here in plain Python from the file's own numbers, optimizer on
    and off.
    """
    net = Net(2, 3, 3)
    made = quantized(net.graph(net.conv("x", (2, 2, 3, 3), out="y")), effort="fast", **FREE).graph
    found = write_qdq(made)
    proto = ir.to_proto(found.graph)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    by_output = {name: node for node in proto.graph.node for name in node.output}
    conv = next(node for node in proto.graph.node if node.op_type == "Conv")
    x, w, b = (by_output[name] for name in conv.input)
    assert [a.i for a in w.attribute if a.name == "axis"] == [0]
    assert held[b.input[0]].dtype == np.int32
    after = next(node for node in proto.graph.node if node.input[0] == conv.output[0])
    feed = np.random.default_rng(1).normal(size=(5, 2, 3, 3)).astype(np.float32)
    [got] = integers(proto, {"x": feed}, [after.output[0]], optimized).values()
    want = np.zeros((5, 2))
    for n in range(5):
        xs = np.clip(np.rint(feed[n] / held[x.input[1]]), -128, 127)
        for o in range(2):
            total = int((xs * held[w.input[0]][o]).sum()) + int(held[b.input[0]][o])
            real = total * float(held[x.input[1]]) * float(held[w.input[1]][o])
            want[n, o] = np.clip(np.rint(real / held[after.input[1]]), -128, 127)
    np.testing.assert_array_equal(got.reshape(5, 2), want)


def sums_are_exact():
    """Whether onnxruntime's products of bytes are: without instructions for them sums of two
    saturate in 16 bits.
    """
    return (best := instructions.get_instruction_set()) is not None and best.name in (
        "avx512-vnni",
        "avx-vnni",
    )


@pytest.mark.parametrize("optimized", (False, True))
def test_whole_models_agree(optimized):
    """The classes of the digits, and all numbers within a few counts after nine layers."""
    exact = not optimized or sums_are_exact()
    made = lo.quantize(
        "models/digits_cnn.onnx", "models/digits_calib.npz", platform="generic", effort="fast"
    )
    found = write_qdq(made.graph)
    with np.load("models/digits_test.npz") as data:
        feed = data["input"]
    want = made(feed)
    got = integers(ir.to_proto(found.graph), {"input": feed}, ["logits"], optimized)["logits"]
    scale = made.plan.tensors["logits"].scale
    assert np.abs((got - want) * scale).max() <= (3 if exact else 8)
    assert (got.argmax(1) == want.argmax(1)).mean() >= 0.995


@pytest.mark.parametrize(
    ("name", "between"),
    (
        ("lstm", {"LSTMInt"}),
        ("gru", {"GRUInt"}),
        ("attention", {"SoftmaxInt", "LayerNormInt", "iqTable"}),
    ),
)
def test_what_is_real_between_is_named(name, between):
    """Recurrent layers, softmax and layer norms are computed in real numbers, and told with their
    difference.
    """
    made = lo.quantize(
        f"models/digits_{name}.onnx", "models/digits_calib.npz", platform="generic", effort="fast"
    )
    with np.load("models/digits_test.npz") as data:
        feed = {"input": data["input"][:64]}
    rows = measure_differences(made.graph, write_qdq(made.graph), feed)
    assert {row.operator for row in rows if row.computes_in_float} <= between
    assert (
        max(row.mean for row in rows) < 0.5
    )  # a step that went another way goes on from there: the worst is more
    assert max(row.max_steps for row in rows if not row.computes_in_float) <= 1
    notes = lo.convert(made.graph, "qdq").notes
    for operator in {row.operator for row in rows if row.computes_in_float}:
        assert any(
            operator in note and "computed in float" in note and "steps" in note for note in notes
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kind"),
    (({"bits": 16}, onnx.TensorProto.INT16), ({"weight_bits": 4}, onnx.TensorProto.INT4)),
    ids=("16", "4"),
)
def test_other_widths_take_opset_21(settings, kind):
    made = quantized(nets.plain(), platform="generic", effort="fast", **settings).graph
    found = write_qdq(made)
    proto = ir.to_proto(found.graph)
    onnx.checker.check_model(proto, full_check=True)
    assert [opset.version for opset in proto.opset_import] == [21]
    assert kind in {t.data_type for t in proto.graph.initializer}
    assert max(counts(made, found, samples(made)).values()) <= 1


def test_tables():
    """A known function is written as such; what is not known is looked up, which is exact."""
    net = Net(4, 6, 6)
    a = net.node("Softsign", net.conv("x", (4, 4, 1, 1)))
    b = net.node("Elu", net.conv(a, (4, 4, 1, 1)), alpha=0.7)
    made = quantized(
        net.graph(net.conv(b, (4, 4, 1, 1), out="y")), platform="generic", effort="fast"
    ).graph
    found = write_qdq(made)
    kinds = {node.op_type for node in found.graph.graph}
    assert {"Softsign", "Gather"} <= kinds
    rows = {row.tensor: row for row in measure_differences(made, found, samples(made))}
    assert rows[b].max_steps == 0
    assert rows[a].max_steps <= 1


def test_operators_of_vendors():
    """What the quantizer does not write itself: GluInt, ShuffleChannel, Split with dims, a
    BatchNorm2dInt.
    """
    x = some(0, 1, 4, 4, 6)
    two = {"scale_x": 16.0, "scale_o": 16.0}
    graph = model(
        [
            ("Quant", ["x"], ["q"], {"scale_x": 16.0, "data_bits": 8}, "thinker"),
            ("ShuffleChannel", ["q"], ["s"], {"groups": 2}, "thinker"),
            ("GluInt", ["s"], ["g"], {"dim": -1, **two}, "thinker"),
            ("iqPad", ["g", "pads"], ["p"], {"mode": "constant"}, "thinker"),
            (
                "iqMul",
                ["p", "p"],
                ["m"],
                {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 8.0},
                "thinker",
            ),
            ("Dequant", ["m"], ["y"], {"scale_o": 8.0}, "thinker"),
        ],
        {"x": x.astype(np.float32)},
        domain="thinker",
        constants={"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    )
    graph.metadata_props["lingeronnx.platform"] = "generic"
    found = write_qdq(graph)
    rows = counts(
        graph, found, {"x": np.random.default_rng(0).normal(size=x.shape).astype(np.float32)}
    )
    assert set(rows) == {"q", "s", "g", "p", "m"}
    assert max(rows.values()) <= 1


def test_scales_are_kept_to_the_last_bit():
    """Those that y_scale does not give back stand in the metadata; powers of two need none."""
    made = quantized(nets.plain(), effort="fast", **FREE)
    graph = write_qdq(made.graph).graph
    exact = json.loads(graph.metadata_props[SCALES_KEY])
    steps = {n.inputs[1].name for n in graph.graph if n.op_type == "DequantizeLinear"}
    read = {
        s
        for name in steps
        for s in np.ravel(
            exact.get(name, scale_from_step(ir.const_value(graph.graph.initializers[name])))
        )
    }
    assert {s for q in made.plan.tensors.values() for s in q.scales.flat} <= {
        float(np.float32(s)) for s in read
    }
    assert (
        SCALES_KEY
        not in write_qdq(quantized(nets.plain(), effort="fast").graph).graph.metadata_props
    )


def test_host_nodes_are_raised():
    """A Softmax of opset 12 takes all axes from one on; in opset 13 it must still do so."""
    net = Net(2, 4, 4, opset=12)
    net.node("Softmax", net.conv("x", (3, 2, 1, 1), out="c"), axis=1, out="s")
    net.node("ReduceSum", "s", axes=[1, 3], keepdims=0, out="y")
    graph = net.graph("y")
    made = quantized(
        graph, platform="venus", skip=["type:Softmax", "type:ReduceSum"], effort="fast"
    )
    feed = {name: a[:1] for name, a in samples(graph).items()}
    proto = ir.to_proto(write_qdq(made.graph).graph)
    got = integers(proto, feed, ["y"], False)["y"]
    np.testing.assert_allclose(got, made.session().run(["y"], feed)[0], atol=0.02)
    assert {node.op_type for node in proto.graph.node} >= {"Softmax", "ReduceSum"}


def test_qoperator_gives_the_same():
    made = quantized(nets.residual(), effort="fast", **FREE)
    plain, held = (ir.to_proto(lo.convert(made.graph, to).graph) for to in ("qdq", "qoperator"))
    onnx.checker.check_model(held, full_check=True)
    assert {"QLinearConv"} <= {node.op_type for node in held.graph.node}
    assert sum(n.op_type == "Conv" for n in held.graph.node) == 0
    feed = samples(made.graph)
    for optimized in (False, True):
        a, b = (integers(proto, feed, ["y"], optimized)["y"] for proto in (plain, held))
        assert np.abs(a - b).max() * made.plan.tensors["y"].scale <= (
            1.01 if sums_are_exact() else 10
        )


# ---- refusals and commands -------------------------------------------------------------------------------------------


def test_refusals():
    x = {"x": some(0, 1, 4)}
    quant = ("Quant", ["x"], ["q"], {"scale_x": 16.0, "data_bits": 8}, "thinker")
    most = model(
        [quant, ("ArgMax", ["q"], ["y"], {"axis": 1}, "")],
        {"x": np.zeros((1, 4), np.float32)},
        domain="thinker",
    )
    with pytest.raises(
        lo.ModelError, match="ArgMax ArgMax_y: standard operators have no counterpart"
    ):
        lo.convert(most, "qdq")
    add = {"scale_x": 1.0, "scale_y": 1.0, "scale_o": 1.0}
    fed = model([("iqAdd", ["x", "x"], ["y"], add, "thinker")], x, domain="thinker")
    with pytest.raises(lo.ModelError, match="input 'x' is fed in integers at scale 1"):
        lo.convert(fed, "qdq")
    with pytest.raises(lo.ModelError, match="no integer operators to convert"):
        lo.convert(nets.plain(), "qdq")


def run(*args):
    return CliRunner().invoke(cli.main, list(map(str, args)))


def test_commands(tmp_path):
    """quantize --format qdq writes what quantize and convert --to qdq write, with the same notes
    but for the data.
    """
    source, straight, first, second = (tmp_path / f"{name}.onnx" for name in "abcd")
    ir.save(nets.plain(), source)
    given = ["quantize", source, "--platform", "generic", "--effort", "fast"]
    done = run(*given, "-o", straight, "--format", "qdq")
    assert done.exit_code == 0, done.output
    assert "at most 1 step from the simulator" in " ".join(done.output.split())
    assert run(*given, "-o", first).exit_code == 0
    done = run("convert", first, "-o", second, "--to", "qdq", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["to"] == "qdq"
    assert straight.read_bytes() == second.read_bytes()
    assert not (tmp_path / "b_chip.onnx").exists()
    done = run("convert", first, "-o", tmp_path / "e.onnx", "--to", "tflite")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "thinker, linger, qdq or qoperator" in done.output
    assert not (tmp_path / "e.onnx").exists()


def test_a_width_that_the_platform_does_not_write_is_refused():
    """The Quant of venus writes 8 bits whatever its attribute says: QuantizeLinear would hold other
    integers.
    """
    made = quantized(nets.plain(), platform="venus", effort="fast").graph
    proto = ir.to_proto(made)
    quant = next(node for node in proto.graph.node if node.op_type == "Quant")
    next(attribute for attribute in quant.attribute if attribute.name == "data_bits").i = 16
    with pytest.raises(
        lo.ModelError, match="data_bits = 16; a Quant of this target always outputs 8"
    ):
        lo.convert(ir.from_proto(proto), "qdq")
