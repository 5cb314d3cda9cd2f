"""Widths other than 8 bits on `generic`: activations and weights of 4 and 16, per tensor, and wide
or float outputs.
"""

from pathlib import Path

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Plan
from lingeronnx.operators._reference_arithmetic import fixed_point_multiplier
from lingeronnx.quantization.lower import extract_plan
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.oracles.conv import conv, linear
from tests.oracles.fixed import sat
from tests.passes.helpers import graph, rand

MODELS = Path(__file__).resolve().parents[2] / "models"
WIDTHS = [(16, 16), (16, 8), (8, 4), (4, 8), (4, 4)]
MODES = ("q-value", "max-value")


def small(relu=True):
    net = nets.Net(2, 5, 5, seed=8)
    c = net.conv("x", (3, 2, 3, 3), pads=[1, 0, 1, 0], strides=[2, 1], out="c")
    r = net.node("Relu", c, out="r") if relu else c
    return net.graph(net.linear(net.node("Flatten", r, out="f"), (27, 4), out="y"))


def consts(graph):
    return {name: ir.const_value(value) for name, value in graph.graph.initializers.items()}


def storage(bits):
    return np.dtype(np.int8 if bits <= 8 else np.int16)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits, weight_bits", WIDTHS)
def test_integers_are_those_of_the_definition(bits, weight_bits, mode):
    """The whole net in Python integers: quantize, multiply, requantize by M and s, from the graph's
    attributes.
    """
    model = small()
    feed = nets.samples(model, 3)
    widths = {"bits": bits, "weight_bits": weight_bits}
    result = lo.quantize(
        model, feed, platform="generic", mode=mode, weight_scales="tensor", **widths
    )
    nodes = {node.op_type: node for node in result.graph.graph}
    held = consts(result.graph)
    seen = {name: array for name, array, _ in result.session().taps(feed)}

    def f32(node, key):
        return float(np.float32(ir.get_attr(node, key)))

    def triple(node):
        ratio = f32(node, "scale_o") / (f32(node, "scale_x") * f32(node, "scale_w"))
        return (*fixed_point_multiplier(ratio), bits)

    quant = nodes["Quant"]
    assert ir.get_attr(quant, "data_bits") == bits
    real = feed["x"].astype(np.float64) * f32(quant, "scale_x")
    x = np.vectorize(lambda v: sat(int(np.floor(v + 0.5)), bits))(real)
    assert np.array_equal(seen[quant.outputs[0].name], x)
    layer = nodes["Conv2dInt"]
    weight, bias = (held[ir.input_name(layer, i)] for i in (1, 2))
    assert weight.dtype == storage(weight_bits)
    assert np.abs(weight.astype(int)).max() <= 2 ** (weight_bits - 1)
    assert bias.dtype == (np.int64 if max(bits, weight_bits) > 8 else np.int32)
    c = conv(x, weight, bias, triple(layer), (2, 1), (1, 0, 1, 0), (1, 1), 1)
    assert np.array_equal(seen["c"], c)
    assert seen["c"].dtype == storage(bits)
    last = nodes["LinearInt"]
    weight, bias = (held[ir.input_name(last, i)] for i in (1, 2))
    y = linear(np.maximum(c, 0).reshape(3, -1), weight, bias, triple(last))
    assert np.array_equal(seen[ir.output_name(last)], y)
    assert np.array_equal(
        seen["y"], (y.astype(np.float64) / f32(last, "scale_o")).astype(np.float32)
    )


@pytest.mark.sweep
@pytest.mark.parametrize("bits", (4, 16))
@pytest.mark.parametrize("net", mark_rest_slow(2, nets.NETS), ids=lambda net: net.__name__)
def test_every_net_and_the_plan_round_trip(net, bits):
    """Law: the plan read back from the graph is the one it was made with, width by width."""
    settings = {"bits": bits, "weight_bits": bits, "effort": "fast" if bits == 16 else "normal"}
    result = nets.quantized(net(), platform="generic", mode="max-value", **settings)
    assert result.report.integer_macs > 0.4
    for seen in result.report.outputs.values():
        assert seen["sqnr"] > (60 if bits == 16 else 0)
    back = extract_plan(ir.from_proto(ir.to_proto(result.graph)))
    for name, q in back.tensors.items():
        assert q.bits == result.plan.tensors[name].bits, name
        assert np.array_equal(np.float32(q.scales), np.float32(result.plan.tensors[name].scales))
    again = Plan.from_json(result.plan.to_json())
    assert again == result.plan
    for name, array, scale in result.session().taps(nets.samples(net(), 2)):
        if scale is not None and name in result.plan.tensors:
            assert np.abs(array.astype(int)).max() <= 2 ** (bits - 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_accuracy(mode):
    """16 bits are all but float; 4-bit weights still know the digits."""
    model, calib, test = (
        str(MODELS / name) for name in ("digits_cnn.onnx", "digits_calib.npz", "digits_test.npz")
    )

    def measure(metric, **widths):
        session = lo.quantize(model, calib, platform="generic", mode=mode, **widths).session()
        return lo.evaluate(session, test, metric=metric, baseline=model).value

    assert measure("sqnr", bits=16, weight_bits=16, effort="fast") > 60
    assert measure("top1", weight_bits=4) > 90


# ---- widths of single tensors ----------------------------------------------------------------------------------------


def test_overrides_of_widths():
    model = small()
    feed = nets.samples(model)
    fast = {"platform": "generic", "effort": "fast"}
    result = lo.quantize(model, feed, **fast, overrides={"Conv_c": {"bits": 16, "weight_bits": 4}})
    bits = {name: q.bits for name, q in result.plan.tensors.items()}
    assert bits == {"x": 8, "c": 16, "r": 16, "f": 16, "y": 8, "k0": 4, "k2": 8}
    held = consts(result.graph)
    assert np.abs(held["k0"]).max() <= 8
    taps = {name: array.dtype for name, array, _ in result.session().taps(feed)}
    assert (taps["x_q"], taps["c"], taps["f"], taps["y_q"]) == (
        np.int8,
        np.int16,
        np.int16,
        np.int8,
    )
    narrow = lo.quantize(model, feed, **fast).report.outputs["y"]["sqnr"]
    wide = lo.quantize(
        model, feed, **fast, overrides={"type:Conv": {"bits": 16, "weight_bits": 16}}
    )
    assert wide.report.outputs["y"]["sqnr"] > narrow
    assert extract_plan(wide.graph).tensors["f"].bits == 16


def test_a_sum_and_a_concatenation_of_different_widths():
    net = nets.Net(3, 6, 6, seed=4)
    a = net.conv("x", (4, 3, 3, 3), pads=[1] * 4, out="a")
    b = net.conv("x", (4, 3, 3, 3), pads=[1] * 4, out="b")
    s = net.node("Add", a, b, out="s")
    model = net.graph(net.conv(net.node("Concat", s, a, axis=1, out="k"), (2, 8, 1, 1), out="y"))
    feed = nets.samples(model)
    widths = {"a": {"bits": 16}, "s": {"bits": 16}, "k": {"bits": 16}}
    result = lo.quantize(model, feed, platform="generic", effort="fast", overrides=widths)
    assert {n: result.plan.tensors[n].bits for n in "xabsky"} == {
        "x": 8,
        "a": 16,
        "b": 8,
        "s": 16,
        "k": 16,
        "y": 8,
    }
    sizes = {n: a.dtype.itemsize for n, a, _ in result.session().taps(feed) if n in "absk"}
    assert sizes == {"a": 2, "b": 1, "s": 2, "k": 2}
    assert extract_plan(result.graph).tensors["k"].bits == 16


# ---- outputs that leave the integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", (16, 32, "float"))
def test_out_bits(mode, width):
    """Wide or float, the last layer loses (next to) nothing that its accumulator has."""
    model = small()
    feed = nets.samples(model)
    settings = {"platform": "generic", "mode": mode, "effort": "fast"}
    result = lo.quantize(model, feed, **settings, overrides={"y": {"out_bits": width}})
    narrow = lo.quantize(model, feed, **settings)
    assert result.report.outputs["y"]["sqnr"] > narrow.report.outputs["y"]["sqnr"] + 1
    node = next(n for n in result.graph.graph if n.op_type == "LinearInt")
    exact = float(np.float32(ir.get_attr(node, "scale_x"))) * float(
        np.float32(ir.get_attr(node, "scale_w"))
    )
    taps = {name: (array, scale) for name, array, scale in result.session().taps(feed)}
    held = consts(result.graph)
    total = (
        taps["f"][0].astype(np.int64) @ held[ir.input_name(node, 1)].T.astype(np.int64)
        + held[ir.input_name(node, 2)]
    )
    if width == "float":
        assert not {"scale_o", "o_bits"} & set(node.attributes)
        assert node.outputs[0].name == "y"
        assert np.array_equal(taps["y"][0], (total / exact).astype(np.float32))
        assert "y" not in result.plan.tensors
    else:
        assert ir.get_attr(node, "o_bits") == width
        assert taps[f"y_q{width}"][0].dtype == np.dtype(f"int{width}")
        assert result.plan.tensors["y"].bits == width
        assert np.abs(taps["y"][0] - total / exact).max() <= 0.51 / result.plan.tensors["y"].scale
    assert extract_plan(result.graph).tensors.keys() == result.plan.tensors.keys()
    again = lo.quantize(model, feed, **settings, plan=Plan.from_json(result.plan.to_json()))
    assert (
        ir.to_proto(again.graph).SerializeToString()
        == ir.to_proto(result.graph).SerializeToString()
    )


def test_float_output_on_a_chip():
    """The format has a LinearInt without scale_o, the packer does not: the report says so. A host
    may go on.
    """
    net = nets.Net(2, 5, 5, seed=8)
    f = net.node("Flatten", net.node("Relu", net.conv("x", (3, 2, 3, 3))))
    model = net.graph(net.node("Softmax", net.linear(f, (27, 4), out="z"), out="y", axis=-1))
    feed = nets.samples(model)
    result = lo.quantize(model, feed, overrides={"z": {"out_bits": "float"}})
    assert not result.report.chip_ready
    assert [(f.level, f.value) for f in result.report.findings] == [
        ("packs", "o_bits, scale_o missing")
    ]
    assert (
        result.report.outputs["y"]["sqnr"]
        >= lo.quantize(model, feed).report.outputs["y"]["sqnr"] - 0.5
    )
    assert [n.op_type for n in result.graph.graph][-2:] == ["LinearInt", "Softmax"]
    assert list(lo.check(result.graph)) == []


@pytest.mark.parametrize(
    "platform, overrides, words",
    [
        (
            "generic",
            {"c": {"out_bits": 16}},
            "only a fully connected layer with no integer consumer",
        ),
        ("generic", {"y": {"out_bits": 24}}, "out_bits"),
        (
            "generic",
            {"c": {"bits": 12}},
            "override c: bits 12 on platform generic: it supports 4, 8, 16 bits only",
        ),
        ("venus", {"y": {"out_bits": 16}}, "override y: out_bits 16 on platform venus"),
        (
            "venus",
            {"Conv_c": {"weight_bits": 4}},
            "override Conv_c: weight_bits 4 on platform venus",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(platform, overrides, words):
    model = small()
    with pytest.raises(ConfigError) as caught:
        lo.quantize(model, nets.samples(model), platform=platform, overrides=overrides)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- every operator keeps the width ----------------------------------------------------------------------------------

WIDE = {
    "PRelu": ("y = PRelu(x, s)", {"s": np.array([0.03, 0.3, 1.5], np.float32).reshape(3, 1, 1)}),
    "LeakyRelu": ("y = LeakyRelu<alpha = 0.03>(x)", {}),
    "Add": ("y = Add(x, x)", {}),
    "Sub of a constant": (
        "y = Sub(k, x)",
        {"k": np.array([1.5, -0.3, 0.1], np.float32).reshape(3, 1, 1)},
    ),
    "Mul": ("y = Mul(x, x)", {}),
    "Sigmoid": ("s = Sigmoid(x) y = Relu(s)", {}),
    "Tanh": ("t = Tanh(x) y = Neg(t)", {}),
    "Gelu": ("y = Gelu(x)", {}),
    "mean": ("y = ReduceMean<keepdims = 1>(x, a)", {"a": np.array([2, 3])}),
    "Concat": ("y = Concat<axis = 1>(x, x)", {}),
}


@pytest.mark.parametrize("name", WIDE)
def test_sixteen_bits_are_kept(name):
    """Nothing on the way of an operator, put together of others or not, falls back to eight
    bits.
    """
    text, held = WIDE[name]
    model = graph(f"g (float[N,3,4,8] x) => (float y) {{ {text} }}", opset=20, **held)
    feed = {"x": rand(8, 3, 4, 8)}
    result = lo.quantize(model, feed, platform="generic", bits=16, weight_bits=16, effort="fast")
    widths = {array.dtype for _, array, scale in result.session().taps(feed) if scale is not None}
    assert widths == {np.dtype(np.int16)}
    assert not result.report.float_nodes
    assert result.report.outputs["y"]["sqnr"] > 60
