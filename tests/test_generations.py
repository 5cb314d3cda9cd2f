"""Graphs of generation 3 and the training side's arithmetic through Session, operator by operator."""

import json
import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import lingeronnx as lo
from lingeronnx.formats import FORMATS, integer_format
from lingeronnx.graph import ir
from lingeronnx.platforms import PLATFORMS
from lingeronnx.platforms.arithmetic import Arithmetic, Recurrent, Requantize
from lingeronnx.run.generations import generation
from tests.examples import examples
from tests.naive import conv as naive_conv
from tests.naive import curves, training
from tests.naive.elementwise import each
from tests.naive.fixed import rsh, sat
from tests.test_conformance import golden

CHIPS = [row.name for row in PLATFORMS if row.packing is not None]
MODES = ("floor_add", "floor", "round", "ceil")
#: Operators by their name in generation 1 -> in generation 3. Quant, Dequant and Gather have one name.
THIRD = {
    "Conv1dInt": "QConv1d", "Conv2dInt": "QConv2d", "ConvTranspose2dInt": "QConvTranspose2d", "LinearInt": "QLinear",
    "BatchNorm2dInt": "QBatchNorm2d", "LayerNormInt": "QLayerNorm", "AvgPool2dInt": "QAvgPool2d", "BmmInt": "QBmm",
    "iqAdd": "QAdd", "iqMul": "QMul", "iqCat": "QCat", "iqSigmoid": "QSigmoid", "iqTanh": "QTanh",
    "SoftmaxInt": "QSoftmax", "GluInt": "QGLU", "LSTMInt": "QLSTM", "GRUInt": "QGRU",
}  # fmt: skip
few = examples(20)


def model(nodes, inputs, constants=(), outputs=("y",), domain="linger"):
    """A model of integer inputs {name: array} and nodes (type, inputs, outputs, attributes)."""
    made = [
        helper.make_node(kind, ins, outs, name=f"{kind}_{outs[0]}", domain=at, **attrs)
        for kind, ins, outs, attrs, at in nodes
    ]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    graph = helper.make_graph(made, "g", values, results, tensors)
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid(domain, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=7))


def declared(graph, **outputs):
    """The protobuf form with these types of outputs: name=(element type, shape)."""
    proto = ir.to_proto(graph)
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, *told) for name, told in outputs.items())
    return proto


def run(kind, attrs, *arrays, platform="venus", mode="floor_add", constants=(), domain="linger", arithmetic=None):
    """One operator on integers."""
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    attrs = {"platform": platform, "quant_mode": mode, **attrs}
    graph = model([(kind, [*inputs, *dict(constants)], ["y"], attrs, domain)], inputs, constants, domain=domain)
    session = lo.Session(graph, arithmetic)
    ((_, array, scale),) = session.taps(inputs, ["y"])
    assert scale == attrs["scale_o"]
    return array


def some(seed, *shape, extremes=False):
    """Random int8."""
    rng = np.random.default_rng(seed)
    return (
        rng.choice([-128, -127, -1, 0, 1, 127], shape).astype(np.int8)
        if extremes
        else rng.integers(-128, 128, shape).astype(np.int8)
    )


def same(got, want, dtype=np.int8):
    assert got.dtype == dtype
    assert got.tolist() == np.asarray(want).tolist()


# ---- which arithmetic ------------------------------------------------------------------------------------------------

ADD = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0, "x_bits": 8, "y_bits": 8, "o_bits": 8}


def test_the_domain_decides():
    """Averages of another scale: the training side rescales them, the executor of venus does not."""
    x = np.full((1, 1, 2, 2), 10, np.int8)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2], "scale_x": 16.0, "scale_o": 32.0}
    assert run("QAvgPool2d", attrs, x).item() == 20
    assert run("QAvgPool2d", attrs, x, arithmetic="executor").item() == 10
    assert run("AvgPool2dInt", attrs, x, domain="thinker").item() == 10
    assert run("AvgPool2dInt", attrs, x, domain="thinker", arithmetic="training").item() == 20


def test_names_of_the_first_generation_keep_the_executor():
    """Domain `linger` with operators called in the old way is generation 1."""
    x = {"x": some(0, 1, 4)}
    for kind, number in (("QAdd", 3), ("iqAdd", 1)):
        graph = model([(kind, ["x", "x"], ["y"], ADD, "linger")], x)
        assert generation(graph) == number
    assert (
        generation(model([("Quant", ["x"], ["y"], {"scale_x": 1.0}, "linger")], {"x": np.zeros((1, 2), np.float32)}))
        == 3
    )
    assert generation(model([("QAdd", ["x", "x"], ["y"], ADD, "thinker")], x, domain="thinker")) == 1


def test_the_executor_ignores_the_rounding():
    """3 / 2 down is 1 while training, 2 on the chip."""
    x = np.full((1, 4), 3, np.int8)
    attrs = {**ADD, "scale_y": 8.0, "scale_o": 8.0}
    y = np.zeros((1, 4), np.int8)
    assert run("QAdd", attrs, x, y, mode="floor")[0, 0] == 1
    assert run("QAdd", attrs, x, y, mode="floor", arithmetic="executor")[0, 0] == 2


@pytest.mark.parametrize(
    ("word", "error", "says"),
    [("chip", lo.ConfigError, "'executor' or 'training'"), ("training", lo.ModelError, "not known")],
)
def test_what_is_refused(word, error, says):
    x = {"x": some(0, 1, 4)}
    graph = model([("iqSub", ["x", "x"], ["y"], ADD, "thinker")], x, domain="thinker")
    with pytest.raises(error, match=says):
        lo.Session(graph, word).run(None, x)


def test_a_float_graph_has_no_arithmetic():
    graph = model([("Relu", ["x"], ["y"], {}, "")], {"x": np.zeros((1, 2), np.float32)})
    with pytest.raises(lo.ConfigError, match="no integer operator"):
        lo.Session(graph, "training")


def test_an_unknown_rounding():
    with pytest.raises(lo.ModelError, match="quant_mode = 'down'"):
        run("QAdd", ADD, some(0, 1, 2), some(1, 1, 2), mode="down")


@pytest.mark.parametrize("kind", ("QGelu", "QSwish", "QGlobalAveragePool2d"))
def test_what_the_executor_has_not(kind):
    x = some(0, 1, 2, 3, 3)
    with pytest.raises(lo.ModelError, match="venusA has no such operator; it exists in arithmetic='training' only"):
        run(kind, {"scale_x": 16.0, "scale_o": 16.0}, x, platform="venusA", arithmetic="executor")


def test_curves_that_the_first_generation_had_not():
    x = some(0, 1, 4).astype(np.int16)
    attrs = {"scale_x": 2048.0, "scale_o": 128.0}
    run("iqSigmoid", attrs, x, domain="thinker", arithmetic="training")
    with pytest.raises(lo.ModelError, match="arcs, in a graph of generation 1"):
        run("iqSigmoid", attrs, x, domain="thinker", arithmetic="training", platform="arcs")


def test_tables_are_complete():
    """Every operator of generation 3 is computed on every chip; the training side takes no executor's word for it."""
    for row in PLATFORMS:
        if row.packing is not None:
            assert set(THIRD) <= set(row.training[3])
        for table in row.training.values():
            scaled = [how for name, how in table.items() if how != Arithmetic() and name != "Requant"]
            assert all(how.requantize == Requantize(shifts=True, rounding=None) for how in scaled)
            assert all(how.trained for how in scaled if isinstance(how, Recurrent))


# ---- operators -------------------------------------------------------------------------------------------------------


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.sampled_from(MODES), st.integers(3, 8), st.integers(2, 6))
def test_weights(seed, platform, mode, q_x, q_o):
    x, w, b = some(seed, 1, 3, 5, 4), some(seed + 1, 4, 3, 2, 2), np.arange(4, dtype=np.int32) * 77 - 99
    scales = {"scale_x": 2.0**q_x, "scale_w": 2.0**5, "scale_o": 2.0**q_o, "x_bits": 8, "w_bits": 8, "o_bits": 8}
    exact = naive_conv.conv(x, w, b, (1 << 30, 30, 40), (1, 1), (0, 0, 0, 0), (1, 1), 1).astype(int)
    want = each(lambda v: training.shifted(v, q_x + 5 - q_o, 8, mode), exact)
    attrs = {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1], "group": 1, **scales}
    same(run("QConv2d", attrs, x, platform=platform, mode=mode, constants={"w": w, "b": b}), want)
    rows, flat = x.reshape(1, 15, 4), some(seed, 6, 4)
    exact = naive_conv.linear(rows, flat, None, (1 << 30, 30, 40)).astype(int)
    want = each(lambda v: training.shifted(v, q_x + 5 - q_o, 8, mode), exact)
    same(run("QLinear", scales, rows, platform=platform, mode=mode, constants={"w": flat}), want)


def test_weights_shift_left():
    """Where the chips shift nothing, or give zeros, the training side multiplies."""
    x, w = some(1, 1, 2, 3, 3), np.ones((2, 2, 1, 1), np.int8)
    attrs = {"kernel_shape": [1, 1], "scale_x": 1.0, "scale_w": 1.0, "scale_o": 2.0}
    want = np.clip(np.repeat(x.astype(int).sum(1, keepdims=True), 2, 1) * 2, -128, 127)
    for platform in CHIPS:
        same(run("QConv2d", attrs, x, platform=platform, constants={"w": w}), want)


def test_wide_results():
    """o_bits means what it says: on the executor a convolution writes int8 whatever it is."""
    x, w = np.full((1, 1, 1, 1), 100, np.int8), np.full((1, 1, 1, 1), 100, np.int8)
    attrs = {"kernel_shape": [1, 1], "scale_x": 1.0, "scale_w": 1.0, "scale_o": 1.0, "o_bits": 16}
    got = run("QConv2d", attrs, x, constants={"w": w})
    assert (got.dtype, got.item()) == (np.int16, 10000)


@few
@given(st.integers(0, 9999), st.sampled_from(MODES), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_pairs(seed, mode, q_x, q_y, q_o):
    x, y = some(seed, 2, 5, 6), some(seed + 1, 2, 5, 6, extremes=True)
    attrs = {**ADD, "scale_x": 2.0**q_x, "scale_y": 2.0**q_y, "scale_o": 2.0**q_o}
    want = each(lambda a, b: training.add(a, b, q_x - q_o, q_y - q_o, 8, mode), x, y)
    same(run("QAdd", attrs, x, y, mode=mode), want)
    want = each(lambda a, b: training.shifted(a * b, q_x + q_y - q_o, 8, mode), x, y)
    same(run("QMul", attrs, x, y, mode=mode), want)
    exact = naive_conv.matmul(x, y.swapaxes(1, 2), (1 << 30, 30, 40)).astype(int)
    want = each(lambda v: training.shifted(v, q_x + q_y - q_o, 8, mode), exact)
    for kind in ("QBmm", "QMatmul"):
        same(run(kind, attrs, x, np.ascontiguousarray(y.swapaxes(1, 2)), mode=mode), want)


def test_the_sum_is_not_cut_twice():
    """127 * 2 - 128: the executor saturates the first operand."""
    x, y = np.full((1, 1), 127, np.int8), np.full((1, 1), -128, np.int8)
    attrs = {**ADD, "scale_x": 8.0}
    assert run("QAdd", attrs, x, y, platform="arcs").item() == 126
    assert run("QAdd", attrs, x, y, platform="arcs", arithmetic="executor").item() == -1


def test_first_generation_division():
    x, y = np.int8([[50, -50, 3, 0]]), np.int8([[7, 7, 0, 0]])
    attrs = {"scale_x": 8.0, "scale_y": 8.0, "scale_o": 4.0}
    want = [[training.quotient(int(a), int(b), 8.0, 8.0, 4.0, 8) for a, b in zip(x[0], y[0], strict=True)]]
    same(run("iqDiv", attrs, x, y, domain="thinker", arithmetic="training"), want)
    assert want == [[29, -29, 127, 0]]


@few
@given(st.integers(0, 9999), st.sampled_from(MODES), st.integers(3, 6), st.integers(3, 6))
def test_cat(seed, mode, q_x, q_o):
    x, y = some(seed, 2, 3, 4), some(seed + 1, 2, 2, 4)
    attrs = {"axis": 1, "scale_x_0": 2.0**q_x, "scale_x_1": 16.0, "scale_o": 2.0**q_o, "x_0_bits": 8, "x_1_bits": 8}
    parts = [each(lambda v, s=s: training.shifted(v, s, 8, mode), a) for a, s in ((x, q_x - q_o), (y, 4 - q_o))]
    same(run("QCat", attrs, x, y, mode=mode, platform="venusA"), np.concatenate(parts, 1))


@few
@given(st.integers(0, 9999), st.sampled_from(MODES), st.booleans(), st.sampled_from((-1, 3)), st.integers(-2, 2))
def test_averages(seed, mode, padded, divisor, shift):
    x = some(seed, 2, 3, 5, 7)
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**shift, "x_bits": 8, "o_bits": 8}
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1,
             "count_include_pad": int(padded), "divisor_override": divisor, **scales}  # fmt: skip
    want = training.mean(x, (3, 2), (2, 2), (1, 1, 1, 1), shift, 8, mode, True, padded, max(divisor, 0))
    same(run("QAvgPool2d", attrs, x, mode=mode), want)
    want = training.mean(x, (5, 7), (1, 1), (0,) * 4, shift, 8, mode, False, True, 0)
    same(run("QGlobalAveragePool2d", scales, x, mode=mode), want)
    line = np.ascontiguousarray(x[:, :, 0])
    want = training.mean(line[:, :, None], (1, 3), (1, 3), (0,) * 4, shift, 8, mode, False, True, 0)[:, :, 0]
    same(run("QAvgPool1d", {"kernel_shape": [3], "strides": [3], **scales}, line, mode=mode), want)


@few
@given(
    st.integers(0, 9999),
    st.integers(-1, 9),
    st.integers(4, 9),
    st.sampled_from(MODES),
    st.sampled_from(("sigmoid", "tanh")),
    st.sampled_from((np.int8, np.int16)),
)
def test_curve_of_venus(seed, q, q_o, mode, function, dtype):
    """Q11 in, without saturation; any scale out."""
    x = np.random.default_rng(seed).integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (2, 40)).astype(dtype)
    attrs = {"scale_x": 2.0**q, "scale_o": 2.0**q_o, "x_bits": 8 * x.itemsize, "o_bits": 8}
    want = each(lambda v: training.shifted(training.bare(function, "venus", rsh(v, q - 11), 16), 15 - q_o, 8, mode), x)
    same(run("QSigmoid" if function == "sigmoid" else "QTanh", attrs, x, mode=mode), want)


@few
@given(
    st.integers(0, 9999),
    st.integers(-1, 12),
    st.sampled_from(("arcs", "venusA")),
    st.sampled_from((8, 16)),
    st.sampled_from(("sigmoid", "tanh")),
)
def test_curve_of_the_others(seed, q, platform, bits, function):
    """Q27 in, rounded once to o_bits - 1 fractional bits, half up whatever the node says."""
    x = some(seed, 2, 60)
    attrs = {"scale_x": 2.0**q, "scale_o": 2.0 ** (bits - 1), "x_bits": 8, "o_bits": bits}
    want = each(lambda v: curves.curve(function, platform, sat(rsh(v, q - 27), 32), bits), x)
    kind = "QSigmoid" if function == "sigmoid" else "QTanh"
    same(run(kind, attrs, x, platform=platform, mode="ceil"), want, np.int8 if bits == 8 else np.int16)
    with pytest.raises(lo.ModelError, match="scale_o = 2;"):
        run(kind, {**attrs, "scale_o": 2.0}, x, platform=platform)


@few
@given(
    st.integers(0, 9999),
    st.integers(0, 10),
    st.integers(2, 8),
    st.sampled_from(MODES),
    st.sampled_from(("gelu", "swish")),
)
def test_gelu_and_swish(seed, q, q_o, mode, function):
    x = some(seed, 1, 80)

    def one(v):
        y = sat(rsh(curves.piece(function, "venusA", sat(rsh(v, q - 27), 32)), 27), 32)
        return training.shifted(y, 27 - q_o, 8, mode)

    attrs = {"scale_x": 2.0**q, "scale_o": 2.0**q_o, "x_bits": 8, "o_bits": 8}
    same(run("QGelu" if function == "gelu" else "QSwish", attrs, x, mode=mode, platform="venusA"), each(one, x))


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.integers(0, 2), st.sampled_from(MODES))
def test_softmax(seed, platform, axis, mode):
    x = some(seed, 2, 3, 5)
    attrs = {"axis": axis, "scale_x": 16.0, "scale_o": 128.0, "x_bits": 8, "o_bits": 8}
    way = {"venus": "newton", "arcs": "divide"}.get(platform, "fused")
    want = np.zeros(x.shape, object)
    for place in np.ndindex(*(n for a, n in enumerate(x.shape) if a != axis)):
        row = (*place[:axis], slice(None), *place[axis:])
        q15 = curves.softmax([int(v) for v in x[row]], 2.0**21, way, (1 << 30, 30, 32))
        want[row] = [training.shifted(v, 8, 8, mode) for v in q15]
    same(run("QSoftmax", attrs, x, platform=platform, mode=mode), want)


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.sampled_from(MODES))
def test_layer_norm(seed, platform, mode):
    rng = np.random.default_rng(seed)
    x, gamma, beta = some(seed, 2, 3, 8), some(seed + 1, 8), rng.integers(-(2**22), 2**22, 8).astype(np.int32)
    attrs = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 32.0, "scale_y_normal": 32768.0, "x_bits": 8, "w_bits": 8,
             "o_bits": 8}  # fmt: skip
    epsilon = math.floor(1e-5 * 16.0**2 * 64 + 0.5)
    want = np.zeros(x.shape, object)
    for i, j in np.ndindex(2, 3):
        accs = curves.layer_norm(
            [int(v) for v in x[i, j]], *([int(v) for v in a] for a in (gamma, beta)), epsilon, 15, (1 << 30, 30, 40)
        )
        want[i, j] = [training.shifted(v, 15 + 6 - 5, 8, mode) for v in accs]
    same(run("QLayerNorm", attrs, x, platform=platform, mode=mode, constants={"w": gamma, "b": beta}), want)


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.integers(1, 2), st.integers(2, 8), st.sampled_from(MODES))
def test_glu(seed, platform, dim, q, mode):
    x = some(seed, 2, 4, 6)

    def gate(v):
        if platform == "venus":
            return training.bare("sigmoid", "venus", rsh(v, q - 11), 16)
        return rsh(curves.curve("sigmoid", platform, sat(rsh(v, q - 27), 32), 32), 16)

    a, b = np.split(x.astype(int), 2, dim)
    want = each(lambda v, w: training.shifted(v * gate(w), q + 15 - 4, 8, mode), a, b)
    attrs = {"dim": dim, "scale_x": 2.0**q, "scale_o": 16.0, "x_bits": 8, "o_bits": 8}
    same(run("QGLU", attrs, x, platform=platform, mode=mode), want)


def test_batch_norm_of_rows():
    x, w, b = some(3, 4, 6), some(4, 6), np.arange(6, dtype=np.int32) * 100
    attrs = {"scale_x": 16.0, "scale_w": 16.0, "scale_o": 16.0, "x_bits": 8, "w_bits": 8, "o_bits": 8}
    want = each(lambda v, f, s: training.shifted(v * f + s, 4, 8, "floor_add"), x, w, b)
    same(run("QBatchNorm1d", attrs, x, constants={"w": w, "b": b}), want)


def test_embedding():
    table, ids = some(5, 9, 3), np.array([[1, 8, 0]], np.int64)
    graph = model([("Gather", ["w", "i"], ["y"], {"scale_x": 8.0, "scale_o": 8.0}, "linger")], {"i": ids}, {"w": table})
    same(lo.Session(graph).run(None, {"i": ids})[0], table[ids])


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def layer(seed, gates, units=3, size=4, times=5):
    """x, weights and biases by name."""
    rng = np.random.default_rng(seed)
    w, r = some(seed, gates * units, size), some(seed + 1, gates * units, units)
    b, d = (rng.integers(-3000, 3000, gates * units).astype(np.int32) for _ in range(2))
    return some(seed + 2, 1, times, size), {"w": w, "r": r, "b": b, "d": d}


def recurrent(kind, x, held, platform, outputs, domain="linger", arithmetic=None, **attrs):
    """Every output of one layer, by name."""
    given = {"input_size": 4, "hidden_size": 3, "num_layers": 1, "batch_first": 1, "go_forward": 1, "o_bits": 8}
    scales = {"scale_x": 32.0, "scale_iw": 128.0, "scale_h": 32.0, "scale_hw": 64.0, "scale_o": 32.0}
    given |= {"platform": platform, **scales, **attrs}
    graph = model([(kind, ["x", *held], outputs, given, domain)], {"x": x}, held, outputs, domain)
    session = lo.Session(graph, arithmetic)
    return {name: array for name, array, _ in session.taps({"x": x})}


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.booleans())
def test_lstm(seed, platform, forward):
    """venus has gates of 15 bits, the others compute what their executor does; h and c are real."""
    x, held = layer(seed, 4)
    got = recurrent("QLSTM", x, held, platform, ["y", "h", "c"], go_forward=int(forward), scale_c=32768.0)
    arrays = [a.tolist() for a in held.values()]
    if platform == "venus":
        y, h, c = training.lstm(x.tolist(), *arrays, (12 - 11, 11 - 11), (25, 8), None, "q15", forward)
    else:
        from tests.naive.recurrent import lstm

        y, h, c = lstm(x.tolist(), *arrays, 12 - 27, 11 - 27, (1 << 30, 55, 8), "q27", platform, forward)
    same(got["y"], y)
    assert got["h"].tolist() == (np.array(h, np.float32) / 32).tolist()
    assert got["c"].tolist() == (np.array(c, np.float32) / np.float32(2**15)).tolist()
    assert set(got) == {"x", "y", "h", "c"}


@few
@given(st.integers(0, 9999), st.sampled_from(CHIPS), st.booleans())
def test_gru(seed, platform, forward):
    x, held = layer(seed, 3)
    got = recurrent("QGRU", x, held, platform, ["y", "h"], go_forward=int(forward))
    kind, sums = {"venus": ("q15", 11), "arcs": ("before", 27)}.get(platform, ("common", 12))
    y, h = training.gru(
        x.tolist(),
        *(a.tolist() for a in held.values()),
        (12 - sums, 11 - sums),
        5,
        8,
        None,
        sums if kind == "common" else 27,
        kind,
        platform,
        forward,
    )
    same(got["y"], y)
    assert got["h"].tolist() == (np.array(h, np.float32) / 32).tolist()


@pytest.mark.slow
@few
@given(st.integers(0, 9999), st.sampled_from((16.0, 32.0, 64.0)))
def test_layers_of_the_first_generation(seed, scale_o):
    """The output is requantized to scale_o, and from there to scale_h for the next step."""
    x, held = layer(seed, 4)
    q = int(math.log2(scale_o))
    told = {"domain": "thinker", "arithmetic": "training", "scale_o": scale_o}
    got = recurrent("LSTMInt", x, held, "venus", ["y", "h", "c"], **told)
    arrays = [a.tolist() for a in held.values()]
    y, _, c = training.lstm(x.tolist(), *arrays, (1, 0), (14 - q, 8), (q - 5, 8), "q7", True)
    same(got["y"], y)
    assert got["c"].tolist() == (np.array(c, np.float32) / np.float32(2**14)).tolist()
    x, held = layer(seed, 3)
    got = recurrent("GRUInt", x, held, "venus", ["y", "h"], **told)
    arrays = [a.tolist() for a in held.values()]
    same(got["y"], training.gru(x.tolist(), *arrays, (1, 0), q, 8, (q - 5, 8), 27, "q7", "venus", True)[0])


def test_a_layer_that_says_two_things():
    """The training side leaves the output at scale_h, the file says scale_o: no answer is the file's meaning."""
    x, held = layer(0, 4)
    with pytest.raises(lo.ModelError, match="scale_o = 64, scale_h = 32"):
        recurrent("QLSTM", x, held, "venus", ["y", "h", "c"], scale_o=64.0)
    attrs = {"input_size": 4, "hidden_size": 3, "batch_first": 1, "scale_x": 1.0, "scale_h": 1.0, "scale_iw": 1.0,
             "scale_hw": 1.0}  # fmt: skip
    graph = model([("LSTMInt", ["x", *held], ["y"], attrs, "thinker")], {"x": x}, held, domain="thinker")
    session = lo.Session(graph, "training")
    with pytest.raises(lo.ModelError, match="no scale_o"):
        session.run(None, {"x": x})


@pytest.mark.parametrize("kind", (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8))
def test_states_may_be_declared_real(kind):
    """The vendor's exports declare float states; a sequence declared float is wrong all the same."""
    x, held = layer(0, 3)
    attrs = {"input_size": 4, "hidden_size": 3, "batch_first": 1, "scale_x": 32.0, "scale_iw": 1.0, "scale_h": 32.0,
             "scale_hw": 1.0, "scale_o": 32.0, "o_bits": 8, "has_hidden": 0}  # fmt: skip
    graph = model([("QGRU", ["x", *held], ["y", "h"], attrs, "linger")], {"x": x}, held, ["y", "h"])
    proto = declared(graph, y=(onnx.TensorProto.INT8, [1, 5, 3]), h=(kind, [1, 1, 3]))
    lo.check_model(proto)
    got = lo.Session(ir.from_proto(proto)).run(None, {"x": x})[1]
    assert got.dtype == (np.float32 if kind == onnx.TensorProto.FLOAT else np.int8)
    wrong = declared(graph, y=(onnx.TensorProto.FLOAT, [1, 5, 3]), h=(kind, [1, 1, 3]))
    with pytest.raises(lo.ModelError, match="elem type"):
        lo.check_model(wrong)


def test_schemas_of_what_the_executor_has_not():
    x = {"x": some(0, 1, 2, 4, 4)}
    attrs = {"scale_x": 16.0, "scale_o": 16.0, "x_bits": 8, "o_bits": 8, "platform": "venusA"}
    kinds = ("QGelu", "QSwish", "QGlobalAveragePool2d")
    chain = [(kind, [f"t{i}" if i else "x"], [f"t{i + 1}"], attrs, "linger") for i, kind in enumerate(kinds)]
    lo.check_model(declared(model(chain, x, outputs=["t3"]), t3=(onnx.TensorProto.INT8, [1, 2, 1, 1])))
    wrong = model([("QGelu", ["x"], ["y"], {**attrs, "scale_y": 1.0}, "linger")], x)
    with pytest.raises(lo.ModelError, match="scale_y"):
        lo.check_model(declared(wrong, y=(onnx.TensorProto.INT8, [1, 2, 4, 4])))


def test_time_first():
    """To the training side batch_first = 0 is [T, N, I], whatever the sizes."""
    x, held = layer(3, 4)
    one = recurrent("QLSTM", x, held, "venus", ["y", "h", "c"])
    turned = recurrent("QLSTM", np.ascontiguousarray(x.swapaxes(0, 1)), held, "venus", ["y", "h", "c"], batch_first=0)
    assert np.array_equal(one["y"].swapaxes(0, 1), turned["y"])


# ---- whole networks --------------------------------------------------------------------------------------------------

LINGER3 = golden() / "linger3"


@pytest.mark.skipif(not (LINGER3 / "index.json").is_file(), reason="the networks are not at hand")
@pytest.mark.parametrize("number", (0, 1))
def test_network_of_the_training_side(number):
    """Every tensor of every sample, and the real outputs, bit for bit."""
    entry = json.loads((LINGER3 / "index.json").read_text())[number]
    vectors = np.load(LINGER3 / entry["io"])
    session = lo.Session(LINGER3 / entry["model"])
    lo.check_model(LINGER3 / entry["model"])
    (given,) = session.get_inputs()
    taps = {
        name: array for name, array, _ in session.taps({given.name: vectors["input"].reshape(-1, *given.shape[1:])})
    }
    assert len(taps[given.name]) == entry["samples"]
    writers = {v.name: node for node in session.model.graph for v in node.outputs}
    for name in entry["tensors"]:
        held = writers[name].inputs[0].name if writers[name].op_type == "Dequant" else name
        want = vectors[f"int_{name}"]
        assert np.array_equal(taps[held].reshape(want.shape), want), name
    (output,) = session.get_outputs()
    assert np.array_equal(taps[output.name].reshape(vectors["output"].shape), vectors["output"])


def test_names_of_generation_three():
    """The formats say what generation 3 calls its operators; a node of either name is the same operator."""
    assert {form.name: form.third for form in FORMATS if form.third not in (None, form.name)} == THIRD
    for first, third in THIRD.items():
        (node,) = model([(third, ["x"], ["y"], {}, "linger")], {"x": some(0, 1, 2)}).graph
        assert integer_format(node).name == first
