"""Sigmoid, tanh, SiLU, GELU, tables, softmax, log-softmax, layer normalisation and constant
operands, from the float
operator to its integers, on every platform.
"""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.ir.float_ops import BINARY_FUNCTIONS, UNARY_FUNCTIONS
from lingeronnx.operators.activation_tables.lowering.lookup_table import evaluate_float_node
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from tests.nets import Net
from tests.packability import evaluate_result
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")


def model(nodes, shape, opset=17, seen=(), **arrays):
    """Return the model of `nodes` (x -> y) between an identity Conv-free input and a MatMul that
    keeps it integer.
    """
    rng = np.random.default_rng(7)
    size = shape[-1]
    arrays = {
        "w0": np.eye(size, dtype=np.float32),
        "w1": rng.standard_normal((size, size)),
        **arrays,
    }
    first = helper.make_node("MatMul", ["x", "w0"], ["a"], name="before")
    last = helper.make_node("MatMul", ["b", "w1"], ["y"], name="after")
    held = [
        numpy_helper.from_array(
            np.asarray(a, np.float32 if np.asarray(a).dtype.kind == "f" else None), n
        )
        for n, a in arrays.items()
    ]
    results = ("y", *(f"{n}_seen" for n in seen))
    graph = helper.make_graph(
        [first, *nodes, last, *(helper.make_node("Relu", [n], [f"{n}_seen"]) for n in seen)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", *shape]) for n in results],
        held,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return ir.from_proto(proto)


def one(op_type, *constants, opset=17, shape=(6, 8), seen=(), **attributes):
    """Return a model of one operator on `a`, with constants after it."""
    arrays = {f"c{i}": c for i, c in enumerate(constants)}
    node = helper.make_node(op_type, ["a", *arrays], ["b"], name="it", **attributes)
    return model([node], shape, opset, seen, **arrays)


def samples(shape, count=64, seed=0, gain=2.0):
    return {
        "x": (gain * np.random.default_rng(seed).standard_normal((count, *shape))).astype(
            np.float32
        )
    }


def integers(found, name="b", feed=None):
    """Return (real value of the integers, scale) of tensor `name` in the integer graph, and the
    float twin.
    """
    taps = {n: (a, s) for n, a, s in found.session().taps(feed)}
    array, scale = taps[name]
    return array / scale, scale


def compare(graph, platform, feed, **settings):
    """Quantize; return what the integers of b mean, what b is on the integers of a, and b's
    scale.
    """
    found = quantize(graph, feed, platform=platform, effort="fast", **settings)
    got, scale = integers(found, "b", feed)
    taps = {n: (a, s) for n, a, s in found.session().taps(feed)}
    a, a_scale = taps["a"]
    reference = {
        n: v for n, v, _ in FloatRunner(graph, ["b"]).run({"x": (a / a_scale).astype(np.float32)})
    }["b"]
    assert found.report.float_nodes == []
    return got, reference, scale


# ---- tables ----------------------------------------------------------------------------------------------------------

OPSET_20 = {"Gelu": 20, "Mish": 18}
SINGLE = sorted(kind for kind in UNARY_FUNCTIONS if kind not in ("Relu", "Swish"))


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ("max-value", "q-value"))
@pytest.mark.parametrize("kind", SINGLE)
def test_generic_tables_are_exact(kind, mode):
    """Law: every entry is the float function of the integer's real value, rounded half up and
    saturated.
    """
    seen = ("a", "b") if kind == "Neg" else ()  # else a layer takes up its sign
    graph = one(kind, opset=OPSET_20.get(kind, 17), seen=seen)
    feed = samples((6, 8))
    if kind in ("Log", "Sqrt", "Reciprocal"):
        feed["x"] = np.abs(feed["x"]) + np.float32(0.5)
    got, want, scale = compare(graph, "generic", feed, mode=mode)
    exact = np.clip(np.floor(want.astype(np.float64) * scale + 0.5), -128, 127) / scale
    off = np.abs(got - exact) * scale
    assert off.max() <= 1.001  # the float run of the reference may fall on the other side of a tie
    assert (off > 0.5).mean() < 0.002


@pytest.mark.parametrize("kind", sorted(set(BINARY_FUNCTIONS) - {"Max", "Min"}))
def test_arithmetic_with_one_number(kind):
    """On three axes no BatchNormalization takes the constant up, nor a layer where the tensor is
    seen: a table does.
    """
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node(kind, ["r", "c0"], ["b"])]
    graph = model(nodes, (6, 8), seen=("a", "b"), c0=np.float32(2.0 if kind == "Pow" else 1.7))
    got, want, scale = compare(graph, "generic", samples((6, 8)))
    assert np.abs(got - np.clip(want, -128 / scale, 127 / scale)).max() <= 0.501 / scale + 1e-6


def test_undefined_values_saturate():
    """1 / 0 and log 0 saturate, the root of a negative number is 0."""
    for kind, want in (("Reciprocal", np.inf), ("Log", -np.inf)):
        graph = one(kind)
        node = next(n for n in graph.graph if n.op_type == kind)
        assert evaluate_float_node(graph, node, np.zeros(1))[0] == want
    graph = one("Sqrt")
    assert np.isnan(
        evaluate_float_node(
            graph, next(n for n in graph.graph if n.op_type == "Sqrt"), np.array([-1.0])
        )[0]
    )
    feed = {"x": np.abs(samples((6, 8))["x"]) + np.float32(0.5)}
    found = quantize(one("Reciprocal"), feed, platform="generic", effort="fast")
    table = next(n for n in found.graph.graph if n.op_type == "iqTable")
    entries = ir.const_value(table.inputs[1])
    assert entries[128] == 127


@pytest.mark.parametrize("platform", CHIPS)
def test_chips_have_no_tables(platform):
    """The node stays in float, and the report names it."""
    found = quantize(one("Softplus"), samples((6, 8)), platform=platform, effort="fast")
    assert [(n.op_type, n.why) for n in found.report.float_nodes] == [
        ("Softplus", f"{platform} has no operator for Softplus")
    ]


# ---- sigmoid and tanh ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", (0.02, 0.5, 2.0, 20.0))
@pytest.mark.parametrize(
    ("kind", "platform"),
    [("Sigmoid", chip) for chip in CHIPS] + [("Tanh", "venus"), ("Tanh", "generic")],
)
def test_sigmoid_and_tanh(kind, platform, gain):
    """Within a count of Q7 of the real function, at whatever scale the input has."""
    got, want, scale = compare(one(kind), platform, samples((6, 8), gain=gain))
    assert scale == 128.0 or platform == "generic"
    assert np.abs(got - want).max() * scale <= 1.3


@pytest.mark.parametrize("platform", ("arcs", "venusA"))
def test_tanh_that_is_not_right(platform):
    """The report names the fault, where no sigmoid may stand in for it."""
    made = quantize(one("Tanh"), samples((6, 8)), platform=platform, effort="fast", fit=False)
    (node,) = made.report.float_nodes
    assert node.why == "iqTanh reads int16 as int32: it stays in float"


@pytest.mark.parametrize("shape", ((3, 4, 8), (2, 300), (131, 31)))
def test_sigmoid_on_axes_that_venus_a_does_not_gate(shape):
    """GluInt gates the last of two or three axes, up to 128 long: the same numbers in rows of
    another length.
    """
    found = quantize(one("Sigmoid", shape=shape), samples(shape), platform="venusA", effort="fast")
    assert found.report.float_nodes == []
    assert found.report.chip_ready
    assert found.report.outputs["y"]["sqnr"] > 25


def test_sigmoid_of_a_prime_number_of_places_stays_on_venus_a():
    found = quantize(
        one("Sigmoid", shape=(131,)), samples((131,)), platform="venusA", effort="fast"
    )
    (node,) = found.report.float_nodes
    assert "at most 128 elements; here [N,131]" in node.why


def test_a_final_sigmoid_is_the_host_s():
    """What ends the network is computed in float after the last Dequant."""
    graph = model([helper.make_node("Identity", ["a"], ["b"])], (6, 8))
    graph = ir.from_proto(ir.to_proto(graph))
    proto = ir.to_proto(graph)
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node.append(helper.make_node("Sigmoid", ["z"], ["y"], name="last"))
    for platform in (*CHIPS, "generic"):
        report = quantize(
            ir.from_proto(proto), samples((6, 8)), platform=platform, effort="fast"
        ).report
        assert [n.node for n in report.host_part] == ["last"]
        assert not report.float_nodes


# ---- SiLU, GELU ------------------------------------------------------------------------------------------------------


def silu(shape=(6, 8)):
    return model(
        [helper.make_node("Sigmoid", ["a"], ["s"]), helper.make_node("Mul", ["a", "s"], ["b"])],
        shape,
    )


@pytest.mark.parametrize("gain", (0.5, 2.0, 8.0))
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
def test_silu(platform, gain):
    """One count of the output, and what seven bits of the gate leave of the largest number."""
    got, want, scale = compare(silu(), platform, samples((6, 8), gain=gain))
    assert np.abs(got - want).max() <= 1.0 / scale + np.abs(want).max() / 128


@pytest.mark.parametrize("shape", ((8,), (6, 8), (3, 6, 8)))
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
def test_gelu(platform, shape):
    """On generic by a table; on chips by a sigmoid, 0.021 more."""
    if platform == "venusA" and len(shape) == 3:
        pytest.skip("GluInt gates two or three axes")
    got, want, scale = compare(one("Gelu", opset=20, shape=shape), platform, samples(shape))
    more = 0 if platform == "generic" else 0.021 + 0.5 / scale + np.abs(want).max() / 128
    assert np.abs(got - want).max() <= 0.51 / scale + more


# ---- HardSigmoid, HardSwish ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", (0.5, 3.0, 150.0))
@pytest.mark.parametrize("kind", ("HardSigmoid", "HardSwish"))
@pytest.mark.parametrize("platform", CHIPS)
def test_hard_gates(platform, kind, gain):
    """One count of the output, and of the gate: half a count of 7 bits, or its end, and half a
    percent of slope.
    """
    got, want, scale = compare(one(kind, shape=(3, 6, 8)), platform, samples((3, 6, 8), gain=gain))
    size = 1.0 if kind == "HardSigmoid" else np.abs(want).max()
    assert np.abs(got - want).max() <= 0.51 / scale + size * (1 / 128 + 1 / 200)


@pytest.mark.parametrize("gain", (1.0, 40.0))
@pytest.mark.parametrize(
    ("alpha", "beta"), ((1.7, 0.1), (-0.3, 0.5), (0.2, 1.2), (0.2, -0.2), (-0.2, 2.0), (0.5, -1.0))
)
@pytest.mark.parametrize("platform", CHIPS)
def test_hard_gate_of_any_line(platform, alpha, beta, gain):
    """Rising and falling lines with their bends on both sides of 0 or on one; alpha has half a
    percent of error where the line is furthest from beta.
    """
    model = one("HardSigmoid", alpha=alpha, beta=beta)
    got, want, scale = compare(model, platform, samples((6, 8), gain=gain))
    reach = max(abs(beta), abs(1 - beta))
    assert np.abs(got - want).max() <= 0.51 / scale + 1 / 128 + reach / 200


@pytest.mark.parametrize(("alpha", "beta"), ((0.0, 0.5), (70.0, 0.5), (0.2, 2.5), (0.2, -1.5)))
def test_hard_gate_that_stays_in_float(alpha, beta):
    """A flat or very steep line, or one far from 0."""
    model = one("HardSigmoid", alpha=alpha, beta=beta)
    found = quantize(model, samples((6, 8)), platform="venus", effort="fast")
    assert [n.why for n in found.report.float_nodes] == ["venus has no operator for HardSigmoid"]


# ---- softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", (-1, 1, 2))
@pytest.mark.parametrize("platform", ("arcs", "venusA", "generic"))
def test_softmax(platform, axis):
    """Within a count; other axes by way of two transposes."""
    got, want, scale = compare(one("Softmax", axis=axis, shape=(6, 8)), platform, samples((6, 8)))
    assert scale >= 128 or platform == "generic"
    assert np.abs(np.minimum(got, 127 / scale) - np.minimum(want, 127 / scale)).max() * scale <= 0.6


def test_softmax_of_venus():
    """It could not be measured: it stays in float, and the report says so."""
    (node,) = quantize(
        one("Softmax", axis=-1), samples((6, 8)), platform="venus", effort="fast"
    ).report.float_nodes
    assert "could not be measured" in node.why


@pytest.mark.parametrize("platform", ("venusA", "generic"))
def test_log_softmax(platform):
    """Within a count, and 64 counts of Q15 of the table without interpolation."""
    got, want, scale = compare(one("LogSoftmax", axis=-1), platform, samples((6, 8)))
    assert (got - want).max() * scale <= 0.51 + 65 / 2**15 * scale
    assert (want - got).max() * scale <= 0.51 + 2 / 2**15 * scale


@pytest.mark.parametrize("platform", ("arcs", "venus"))
def test_log_softmax_that_is_not_right(platform):
    report = quantize(
        one("LogSoftmax", axis=-1), samples((6, 8)), platform=platform, effort="fast"
    ).report
    assert [n.op_type for n in report.float_nodes] == ["LogSoftmax"]


# ---- layer normalisation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", (-1, -2))
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
def test_layer_norm(platform, axis):
    """Within a count of the output, the rounding of the factor and 2^-9 of the normalised
    number.
    """
    rng, shape = np.random.default_rng(1), (6, 8)
    gamma = rng.uniform(0.5, 1.5, shape[axis:]).astype(np.float32)
    graph = one(
        "LayerNormalization", gamma, rng.standard_normal(shape[axis:]).astype(np.float32), axis=axis
    )
    got, want, scale = compare(graph, platform, samples(shape))
    top = 127 / scale
    error = np.abs(np.clip(got, -top, top) - np.clip(want, -top, top)).max()
    assert error <= 0.6 / scale + math.sqrt(48) * (1 / 128 + 2**-9)


@pytest.mark.parametrize("platform", CHIPS)
def test_layer_norm_needs_its_placement(monkeypatch, platform):
    """The packer's work area is too small: with the printed arguments nothing that lives lies
    behind it.

    That is without the BatchNorm2dInt for which it plans more.
    """
    monkeypatch.setattr(
        "lingeronnx.luna.backend_passes.work_area_padding._is_safe", lambda graph, row: True
    )
    graph = one("LayerNormalization", np.ones(8, np.float32), np.zeros(8, np.float32), axis=-1)
    found = quantize(graph, samples((6, 8)), platform=platform, effort="fast")
    assert found.report.chip_ready
    verdict = evaluate_result(found, platform)
    assert verdict.problems == verdict.past
    assert not judge(ir.to_proto(found.graph), platform, f"-p {platform.lower()}").right
    node = next(n for n in found.graph.graph if n.op_type == "LayerNormInt")
    assert ir.const_value(node.inputs[1]).dtype == (np.int16 if platform == "venus" else np.int8)


def test_layer_norm_beside_a_softmax():
    """A softmax must not be in external memory; neither is, as its work area is large enough for
    both.
    """
    nodes = [
        helper.make_node("LayerNormalization", ["a", "c0", "c1"], ["n"], axis=-1),
        helper.make_node("Softmax", ["n"], ["b"], axis=-1),
    ]
    graph = model(nodes, (6, 8), c0=np.ones(8, np.float32), c1=np.zeros(8, np.float32))
    found = quantize(graph, samples((6, 8)), platform="arcs", effort="fast")
    assert evaluate_result(found, "arcs").problems == []
    assert "psram" not in found.report.packer


# ---- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ("Add", "Mul"))
@pytest.mark.parametrize("shape", ((8,), (6, 1), (6, 8), (1, 6, 8)))
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
def test_constant_operand(platform, shape, kind):
    """A position embedding: every element has a constant of its own."""
    constant = np.random.default_rng(3).uniform(0.5, 1.5, shape).astype(np.float32)
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node(kind, ["c0", "r"], ["b"])]
    graph = model(nodes, (6, 8), seen=("a", "b"), c0=constant)
    found = quantize(graph, samples((6, 8)), platform=platform, effort="fast")
    assert not found.report.float_nodes
    got, scale = integers(found, "b", samples((6, 8)))
    want = {n: v for n, v, _ in FloatRunner(graph, ["b"]).run(samples((6, 8)))}["b"]
    top = 127 / scale
    assert np.abs(got - np.clip(want, -128 / scale, top)).max() <= 2.0 / scale + 0.05


# ---- matrix products of four axes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
def test_heads(platform):
    """Products of four axes; on chips the heads take the batch's place between two reshapes."""
    shape = (2, 8, 8)
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("MatMul", ["r", "a"], ["b"])]
    got, want, scale = compare(model(nodes, shape), platform, samples(shape))
    assert np.abs(got - np.clip(want, -128 / scale, 127 / scale)).max() <= 0.51 / scale


# ---- what the packer takes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", (0.02, 2.0, 20.0))
@pytest.mark.parametrize(
    "graph",
    (
        one("Sigmoid"),
        one("Tanh"),
        silu(),
        one("Gelu", opset=20),
        one("LayerNormalization", np.ones(8, np.float32), np.zeros(8, np.float32), axis=-1),
        one("LayerNormalization", np.full(8, 1e-6, np.float32), axis=-1),
    ),
    ids=("sigmoid", "tanh", "silu", "gelu", "norm", "norm of small factors"),
)
def test_venus_takes_it(graph, gain):
    """What is written for venus breaks none of its rules."""
    found = quantize(graph, samples((6, 8), gain=gain), platform="venus", effort="fast")
    assert evaluate_result(found, "venus").problems == []


def test_layer_norm_of_the_third_generation():
    """QLayerNorm says that its normalised number has 15 fractional bits, its summand too; in either
    arithmetic.
    """
    x = np.random.default_rng(0).integers(-128, 128, (1, 6, 8), dtype=np.int8)
    constants = {"w": np.full(8, 64, np.int8), "b": np.full(8, 1 << 20, np.int32)}
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    nodes = [
        helper.make_node("Quant", ["x"], ["q"], domain="linger", scale_x=16.0, data_bits=8),
        helper.make_node(
            "QLayerNorm",
            ["q", "w", "b"],
            ["y"],
            domain="linger",
            x_bits=8,
            w_bits=8,
            o_bits=8,
            scale_x=16.0,
            scale_w=64.0,
            scale_o=32.0,
            scale_y_normal=32768.0,
            platform="venusA",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 6, 8])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [1, 6, 8])],
        held,
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("linger", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    (got,) = Session(model).run(None, {"x": x})
    assert np.array_equal(Session(model, arithmetic="executor").run(None, {"x": x})[0], got)
    centred = x - x.mean(axis=-1, keepdims=True)
    want = 32 * (centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True)) + 0.5)
    assert np.abs(got - want).max() <= 0.6


@pytest.mark.parametrize("kind", ["LeakyRelu", "PRelu"])
def test_half_lines_are_one_table_where_there_is_one(kind):
    """On generic one rounding to the output's scale; the scale in front is the one that costs least
    behind it.
    """
    net = Net(3, 8, 8, seed=2)
    c = net.conv("x", (6, 3, 3, 3), out="c")
    if kind == "LeakyRelu":
        net.node(kind, c, alpha=0.1, out="y")
    else:
        net.node(kind, c, net.const(np.float32([0.1]).reshape(1, 1, 1)), out="y")
    x = np.random.default_rng(0).standard_normal((32, 3, 8, 8), np.float32)
    made = quantize(net.graph("y"), {"x": x}, platform="generic", effort="fast")
    (table,) = [node for node in made.graph.graph if node.op_type == "iqTable"]
    assert [
        n.op_type for n in made.graph.graph if n.op_type in ("Relu", "iqAdd", "BatchNorm2dInt")
    ] == []
    before, behind = made.plan.tensors["c"].scale, made.plan.tensors["y"].scale
    assert before >= behind, (
        "the negative side, a tenth of which counts, must not make the positive one coarse"
    )
    x = np.arange(-128, 128) / before
    counts = np.floor(np.where(x < 0, float(np.float32(0.1)) * x, x) * behind + 0.5)
    np.testing.assert_array_equal(
        ir.const_value(table.inputs[1]).reshape(-1), np.clip(counts, -128, 127)
    )


def test_a_chip_writes_a_prelu_finer_than_its_input():
    """Most of the input's range is negative and shrinks: the output's scale is finer, and the first
    term is shifted left by a factor. Every integer is that of the formula.
    """
    net = Net(3, 8, 8, seed=2)
    weight = net.rng.standard_normal((6, 3, 3, 3)).astype(np.float32)
    c = net.node("Conv", "x", net.const(weight), net.const(np.full(6, -25, np.float32)), out="c")
    slopes = np.float32([0.1, 0.02, -0.05, 0.0, 0.01, 0.03])
    net.node("PRelu", c, net.const(slopes.reshape(6, 1, 1)), out="y")
    x = np.random.default_rng(0).standard_normal((32, 3, 8, 8), np.float32)
    result = quantize(net.graph("y"), {"x": x}, platform="venus", effort="fast")
    before, after = result.plan.tensors["c"].scale, result.plan.tensors["y"].scale
    assert after >= 4 * before
    assert not any("cannot shift left" in note for note in result.report.notes)
    assert result.report.chip_ready
    c, y = Session(result.graph).run(["c", "y"], {"x": x})
    ((factors, exponent),) = [
        (ir.const_value(node.inputs[1]), math.log2(ir.get_attr(node, "scale_w")))
        for node in result.graph.graph
        if node.op_type == "BatchNorm2dInt" and "scaled" in node.outputs[0].name
    ]
    shift = int(math.log2(after / before))
    for expected, value, factor in zip(
        np.moveaxis(y * after, 1, 0), np.moveaxis(c.astype(np.int64), 1, 0), factors, strict=True
    ):
        upper = np.clip(np.maximum(value, 0) << shift, -128, 127)
        product = np.minimum(np.maximum(-value, 0), 127) * int(factor)
        lower = np.floor(product / 2.0 ** (exponent - shift) + 0.5)
        want = np.clip(upper + np.clip(lower, -128, 127), -128, 127)
        np.testing.assert_array_equal(expected, want)
