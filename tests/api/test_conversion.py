"""Graphs of one generation written as the other: nothing lost on the way, nothing else computed on
the chip.
"""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.ir import ir
from lingeronnx.runtime.integer.dialects import detect_dialect
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.nets import NETS, Net
from tests.targets.luna.dialects.helpers import ADD, layer, model, recurrent, some

CHIPS = ("venus", "arcs", "venusA")


def quantized(net, platform):
    """Quantize on random samples without effort."""
    return nets.quantized(net, platform=platform, effort="fast")


def nodes(graph):
    """What a graph says, node by node."""

    def names(values):
        return [v.name if v is not None else "" for v in values]

    return [
        (
            n.domain,
            n.op_type,
            n.name,
            names(n.inputs),
            names(n.outputs),
            {k: ir.get_attr(n, k) for k in n.attributes},
        )
        for n in graph.graph
    ]


def constants(graph):
    return {
        name: (str(a.dtype), a.tolist())
        for name, v in graph.graph.initializers.items()
        if (a := ir.const_value(v)) is not None
    }


def integers(graph, feed, arithmetic="executor"):
    """Every integer tensor of a run."""
    taps = lo.Session(graph, arithmetic).taps(feed)
    return {name: array for name, array, scale in taps if scale is not None}


def curves():
    """Sigmoid between two layers."""
    net = Net(8, 6, 6, seed=9)
    a = net.conv("x", (8, 8, 3, 3), pads=[1] * 4)
    return net.graph(net.conv(net.node("Sigmoid", a), (4, 8, 1, 1), out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("net", mark_rest_slow(2, NETS), ids=lambda net: net.__name__)
def test_there_and_back(net, platform):
    """Law: the executor computes the same integers in either generation, and two conversions give
    the same graph.
    """
    made = quantized(net(), platform=platform).graph
    before = ir.to_proto(made).SerializeToString()
    # Requant: in front of what venusA's iqCat cannot shift; iqPad: where venus would move the pads
    # of a convolution
    newer = [n.op_type for n in made.graph if n.op_type in ("Requant", "iqPad")]
    if newer:
        with pytest.raises(lo.ModelError, match=f"no counterpart in domain linger: {newer[0]} "):
            lo.convert(made, "linger")
        return
    there = lo.convert(made, "linger").graph
    assert ir.to_proto(made).SerializeToString() == before
    assert detect_dialect(there) == 3
    assert {n.domain for n in there.graph} <= {"", "linger"}
    assert there.ir_version == 7
    lo.check_model(there)
    feed = nets.samples(made, 2)
    want, got = integers(made, feed), integers(there, feed)
    assert want.keys() == got.keys()
    assert all(np.array_equal(want[name], got[name]) for name in want)
    back = lo.convert(there, "thinker").graph
    assert nodes(back) == nodes(made)
    assert constants(back) == constants(made)
    assert dict(back.graph.opset_imports) == dict(made.graph.opset_imports)
    lo.check_model(back)


@pytest.mark.parametrize("platform", CHIPS)
def test_what_the_training_side_computes_for_ours(platform):
    """Where no average is taken and no operand of a sum is saturated, both arithmetics are one."""
    made = quantized(nets.depthwise(), platform=platform).graph
    there = lo.convert(made, "linger").graph
    feed = nets.samples(made, 3)
    want, got = integers(made, feed), integers(there, feed, None)
    assert all(np.array_equal(want[name], got[name]) for name in want)


def test_curves_take_int8():
    """The Requant in front of a curve of venus goes, and comes back under the name of its input."""
    made = quantized(curves(), platform="venus").graph
    assert "Requant" in {n.op_type for n in made.graph}
    there = lo.convert(made, "linger")
    kinds = [n.op_type for n in there.graph.graph]
    assert "QSigmoid" in kinds
    assert "Requant" not in kinds
    assert any("Requant" in note for note in there.notes)
    feed = nets.samples(made, 2)
    want, got = integers(made, feed), integers(there.graph, feed)
    assert all(np.array_equal(want[name], got[name]) for name in got)
    back = lo.convert(there.graph, "thinker")
    assert any("reads int16" in note for note in back.notes)
    again = integers(back.graph, feed)
    assert all(np.array_equal(want[name], again[name]) for name in got)
    assert [n.op_type for n in back.graph.graph] == [n.op_type for n in made.graph]
    lo.check_model(back.graph)


def test_layer_norm_has_another_format():
    """Five bits more in the summand and in the result; the way back is the same graph."""
    gamma, beta = some(1, 6), np.array([5, -7, 100, 0, 1, -1], np.int32)
    x = {"x": some(0, 1, 3, 6)}
    attrs = {
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 32.0,
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
        "platform": "arcs",
        "platform_quant": "luna_quant",
        "quant_mode": "floor_add",
    }
    made = model(
        [("LayerNormInt", ["x", "w", "b"], ["y"], attrs, "thinker")],
        x,
        {"w": gamma, "b": beta},
        domain="thinker",
    )
    there = lo.convert(made, "linger")
    assert any("15 fractional bits" in note for note in there.notes)
    (node,) = there.graph.graph
    assert ir.const_value(node.inputs[2]).tolist() == (beta * 32).tolist()
    assert ir.get_attr(node, "scale_y_normal") == 32768.0
    back = lo.convert(there.graph, "thinker")
    assert any("10 fractional bits" in note for note in back.notes)
    assert nodes(back.graph) == nodes(made)
    assert constants(back.graph) == constants(made)
    large = model(
        [("LayerNormInt", ["x", "w", "b"], ["y"], attrs, "thinker")],
        x,
        {"w": gamma, "b": beta + 2**27},
        domain="thinker",
    )
    with pytest.raises(lo.ModelError, match=r"LayerNormInt .* does not fit in 32 bits"):
        lo.convert(large, "linger")


@pytest.mark.slow
@pytest.mark.parametrize("platform", CHIPS)
def test_layers(platform):
    """An LSTM: names, packer's attributes, the sizes of the states."""
    x, held = layer(0, 4)
    attrs = {
        "input_size": 4,
        "hidden_size": 3,
        "num_layers": 1,
        "batch_first": 1,
        "go_forward": 1,
        "x_bits": 8,
        "w_bits": 8,
        "o_bits": 8,
        "scale_x": 32.0,
        "scale_iw": 128.0,
        "scale_h": 32.0,
        "scale_hw": 64.0,
        "scale_o": 32.0,
        "scale_c": 32768.0,
        "has_hidden": 0,
        "has_cell": 0,
        "platform": platform,
        "quant_mode": "floor_add",
    }
    made = model(
        [("QLSTM", ["x", *held], ["y", "h", "c"], attrs, "linger")], {"x": x}, held, ["y", "h", "c"]
    )
    there = lo.convert(made, "thinker").graph
    (node,) = there.graph
    assert (node.domain, node.op_type, ir.get_attr(node, "platform_quant")) == (
        "thinker",
        "LSTMInt",
        "luna_quant",
    )
    assert ir.get_attr(node, "batch_first") == (
        1 if platform == "venus" else 0
    )  # as the packer of the others wants it
    want = recurrent("QLSTM", x, held, platform, ["y", "h", "c"], arithmetic="executor")
    got = integers(there, {"x": x})
    assert np.array_equal(got["y"], want["y"])
    back = lo.convert(there, "linger").graph
    (again,) = back.graph
    same = {key: ir.get_attr(again, key) for key in again.attributes}
    assert same == attrs
    assert np.array_equal(integers(back, {"x": x}, None)["y"], integers(made, {"x": x}, None)["y"])


def test_a_global_average_gets_a_window():
    x = {"x": some(0, 1, 2, 3, 5)}
    attrs = {
        "scale_x": 16.0,
        "scale_o": 32.0,
        "x_bits": 8,
        "o_bits": 8,
        "platform": "arcs",
        "quant_mode": "floor_add",
    }
    found = lo.convert(
        model([("QGlobalAveragePool2d", ["x"], ["y"], attrs, "linger")], x), "thinker"
    )
    (node,) = found.graph.graph
    assert ir.get_attr(node, "kernel_shape") == [3, 5]
    assert any("changes the scale" in note for note in found.notes)


def test_another_rounding_is_told():
    x = {"x": some(0, 1, 4)}
    found = lo.convert(
        model([("QAdd", ["x", "x"], ["y"], {**ADD, "quant_mode": "floor"}, "linger")], x), "thinker"
    )
    assert any("quant_mode is floor" in note for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "attrs", "says"),
    [
        ("QGelu", {}, "QGelu QGelu_y$"),
        ("QSigmoid", {"scale_o": 64.0}, "scale_o = 64, not 128"),
        (
            "QAvgPool2d",
            {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 0},
            "padding does not count",
        ),
        ("QAvgPool2d", {"kernel_shape": [2, 2], "divisor_override": 3}, "divides by 3"),
        ("QGLU", {"dim": 1}, "does not gate the last axis"),
        ("QAvgPool1d", {"kernel_shape": [2]}, "of lines"),
        ("QMatmul", {"scale_y": 16.0}, "three axes"),
        ("QBatchNorm1d", {"scale_w": 16.0}, "four axes"),
    ],
)
def test_no_counterpart_in_the_first_generation(kind, attrs, says):
    x = {"x": some(0, 1, 4, 6) if kind in ("QAvgPool1d", "QBatchNorm1d") else some(0, 1, 4, 6, 6)}
    inputs = ["x", "x"] if kind in ("QMatmul", "QBatchNorm1d") else ["x"]
    graph = model([(kind, inputs, ["y"], {"scale_x": 16.0, "scale_o": 16.0, **attrs}, "linger")], x)
    with pytest.raises(lo.ModelError, match=says):
        lo.convert(graph, "thinker")


def test_every_obstacle_is_named_in_one_line():
    x = {"x": some(0, 1, 4)}
    graph = model(
        [
            ("iqSub", ["x", "x"], ["a"], ADD, "thinker"),
            ("iqAdd", ["a", "x"], ["b"], ADD, "thinker"),
            ("iqTable", ["b", "x"], ["y"], {"scale_x": 1.0, "scale_o": 1.0}, "thinker"),
        ],
        x,
        domain="thinker",
    )
    with pytest.raises(lo.ModelError) as caught:
        lo.convert(graph, "linger")
    assert str(caught.value) == "no counterpart in domain linger: iqSub iqSub_a, iqTable iqTable_y"


def test_what_is_no_conversion():
    """A float graph, one for generic, one of that generation, another word."""
    with pytest.raises(lo.ModelError, match="no integer operators to convert"):
        lo.convert(nets.plain(), "linger")
    made = quantized(nets.plain(), platform="generic").graph
    with pytest.raises(lo.ModelError, match="a graph for generic"):
        lo.convert(made, "linger")
    done = lo.convert(made, "thinker")
    assert nodes(done.graph) == nodes(made)
    assert "already" in done.notes[0]
    with pytest.raises(lo.ConfigError, match="it is thinker, linger, qdq or qoperator$"):
        lo.convert(made, "onnx")


# ---- the command -----------------------------------------------------------------------------------------------------


def command(*args):
    return CliRunner().invoke(cli.main, ["convert", *map(str, args)])


def test_command(tmp_path):
    """Notes on stdout, or one JSON object; the input is as it was."""
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    quantized(nets.plain(), platform="arcs").save(source)
    before = source.read_bytes()
    done = command(source, "-o", target, "--to", "linger")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == f"{source} -> {target}"
    assert "training side's arithmetic" in done.output
    assert source.read_bytes() == before
    assert {e.domain for e in onnx.load(target).opset_import} == {"", "linger"}
    done = command(target, "-o", source, "--to", "thinker", "--json")
    assert json.loads(done.stdout)["to"] == "thinker"
    lo.check_model(source)


def test_command_writes_nothing_on_errors(tmp_path):
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    graph = model(
        [("iqSub", ["x", "x"], ["y"], ADD, "thinker")], {"x": some(0, 1, 4)}, domain="thinker"
    )
    ir.save(graph, source)
    for to in ("linger", "onnx"):
        done = command(source, "-o", target, "--to", to)
        assert done.exit_code == 1
        assert done.output.startswith("error: ")
        assert done.output.count("\n") == 1
        assert not target.exists()
    assert command(source, "-o", source, "--to", "linger").exit_code == 1


def test_quantize_writes_either(tmp_path):
    """--format linger is quantize and convert; what cannot be converted writes nothing."""
    ir.save(nets.plain(), tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **nets.samples(nets.plain(), 8))
    given = [
        "quantize",
        str(tmp_path / "net.onnx"),
        "--calib",
        str(tmp_path / "calib.npz"),
        "--effort",
        "fast",
    ]
    files = {}
    for name, more in (
        ("thinker", ()),
        ("linger", ("--format", "linger")),
        ("generic", ("--format", "linger")),
    ):
        files[name] = tmp_path / f"{name}.onnx"
        platform = ("--platform", "generic" if name == "generic" else "arcs")
        done = CliRunner().invoke(cli.main, [*given, *platform, *more, "-o", str(files[name])])
        assert done.exit_code == (name == "generic"), done.output
    want, got = lo.convert(files["thinker"], "linger").graph, ir.load(files["linger"])
    assert nodes(got) == nodes(want)
    assert not files["generic"].exists()


def test_states_change_their_place():
    """In front of the states generation 1 has lengths, an empty place; with lengths there is no
    counterpart.
    """
    x, held = layer(0, 4)
    states = {"h0": some(7, 1, 1, 3), "c0": np.array([[[100, -200, 30000]]], np.int32)}
    attrs = {
        "input_size": 4,
        "hidden_size": 3,
        "num_layers": 1,
        "batch_first": 1,
        "go_forward": 1,
        "o_bits": 8,
        "scale_x": 32.0,
        "scale_iw": 128.0,
        "scale_h": 32.0,
        "scale_hw": 64.0,
        "scale_o": 32.0,
        "has_hidden": 1,
        "has_cell": 1,
        "scale_c": 32768.0,
        "platform": "arcs",
        "quant_mode": "floor_add",
    }
    feed = {"x": x, **states}
    made = model([("QLSTM", [*feed, *held], ["y"], attrs, "linger")], feed, held)
    there = lo.convert(made, "thinker").graph
    (node,) = there.graph
    assert [v.name if v is not None else "" for v in node.inputs] == ["x", "", "h0", "c0", *held]
    back = lo.convert(there, "linger").graph
    assert nodes(back)[0][3:] == nodes(made)[0][3:]
    assert np.array_equal(integers(back, feed, None)["y"], integers(made, feed, None)["y"])
    alone = lo.Session(
        model(
            [("QLSTM", ["x", *held], ["y"], {**attrs, "has_hidden": 0, "has_cell": 0}, "linger")],
            {"x": x},
            held,
        )
    ).run(None, {"x": x})[0]
    assert not np.array_equal(integers(made, feed, None)["y"], alone)
    lengths = model(
        [("LSTMInt", ["x", "n", *held], ["y"], attrs, "thinker")],
        {"x": x, "n": np.array([3], np.int64)},
        held,
        domain="thinker",
    )
    with pytest.raises(lo.ModelError, match=r"\(it has sequence lengths\)"):
        lo.convert(lengths, "linger")
