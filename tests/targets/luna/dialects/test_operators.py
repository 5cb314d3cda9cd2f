"""Operators of generation 3 with the training side's arithmetic, one by one through Session."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lingeronnx as lo
from tests.oracles import conv as naive_conv
from tests.oracles import curves, training
from tests.oracles.elementwise import each
from tests.oracles.fixed import rsh, sat
from tests.targets.luna.dialects.helpers import ADD, CHIPS, MODES, few, model, run, same, some


@few
@given(
    st.integers(0, 9999),
    st.sampled_from(CHIPS),
    st.sampled_from(MODES),
    st.integers(3, 8),
    st.integers(2, 6),
)
def test_weights(seed, platform, mode, q_x, q_o):
    x, w, b = (
        some(seed, 1, 3, 5, 4),
        some(seed + 1, 4, 3, 2, 2),
        np.arange(4, dtype=np.int32) * 77 - 99,
    )
    scales = {
        "scale_x": 2.0**q_x,
        "scale_w": 2.0**5,
        "scale_o": 2.0**q_o,
        "x_bits": 8,
        "w_bits": 8,
        "o_bits": 8,
    }
    exact = naive_conv.conv(x, w, b, (1 << 30, 30, 40), (1, 1), (0, 0, 0, 0), (1, 1), 1).astype(int)
    want = each(lambda v: training.shifted(v, q_x + 5 - q_o, 8, mode), exact)
    attrs = {
        "kernel_shape": [2, 2],
        "strides": [1, 1],
        "pads": [0] * 4,
        "dilations": [1, 1],
        "group": 1,
        **scales,
    }
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


@pytest.mark.slow
@few
@given(
    st.integers(0, 9999),
    st.sampled_from(MODES),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
)
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
    want = [
        [
            training.quotient(int(a), int(b), 8.0, 8.0, 4.0, 8)
            for a, b in zip(x[0], y[0], strict=True)
        ]
    ]
    same(run("iqDiv", attrs, x, y, domain="thinker", arithmetic="training"), want)
    assert want == [[29, -29, 127, 0]]


@few
@given(st.integers(0, 9999), st.sampled_from(MODES), st.integers(3, 6), st.integers(3, 6))
def test_cat(seed, mode, q_x, q_o):
    x, y = some(seed, 2, 3, 4), some(seed + 1, 2, 2, 4)
    attrs = {
        "axis": 1,
        "scale_x_0": 2.0**q_x,
        "scale_x_1": 16.0,
        "scale_o": 2.0**q_o,
        "x_0_bits": 8,
        "x_1_bits": 8,
    }
    parts = [
        each(lambda v, s=s: training.shifted(v, s, 8, mode), a)
        for a, s in ((x, q_x - q_o), (y, 4 - q_o))
    ]
    same(run("QCat", attrs, x, y, mode=mode, platform="venusA"), np.concatenate(parts, 1))


@few
@given(
    st.integers(0, 9999),
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from((-1, 3)),
    st.integers(-2, 2),
)
def test_averages(seed, mode, padded, divisor, shift):
    x = some(seed, 2, 3, 5, 7)
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**shift, "x_bits": 8, "o_bits": 8}
    attrs = {
        "kernel_shape": [3, 2],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "ceil_mode": 1,
        "count_include_pad": int(padded),
        "divisor_override": divisor,
        **scales,
    }
    want = training.mean(
        x, (3, 2), (2, 2), (1, 1, 1, 1), shift, 8, mode, True, padded, max(divisor, 0)
    )
    same(run("QAvgPool2d", attrs, x, mode=mode), want)
    want = training.mean(x, (5, 7), (1, 1), (0,) * 4, shift, 8, mode, False, True, 0)
    same(run("QGlobalAveragePool2d", scales, x, mode=mode), want)
    line = np.ascontiguousarray(x[:, :, 0])
    want = training.mean(
        line[:, :, None], (1, 3), (1, 3), (0,) * 4, shift, 8, mode, False, True, 0
    )[:, :, 0]
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
    x = (
        np.random.default_rng(seed)
        .integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (2, 40))
        .astype(dtype)
    )
    attrs = {"scale_x": 2.0**q, "scale_o": 2.0**q_o, "x_bits": 8 * x.itemsize, "o_bits": 8}
    want = each(
        lambda v: training.shifted(
            training.bare(function, "venus", rsh(v, q - 11), 16), 15 - q_o, 8, mode
        ),
        x,
    )
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
    same(
        run(kind, attrs, x, platform=platform, mode="ceil"),
        want,
        np.int8 if bits == 8 else np.int16,
    )
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
    same(
        run("QGelu" if function == "gelu" else "QSwish", attrs, x, mode=mode, platform="venusA"),
        each(one, x),
    )


@pytest.mark.slow
@few
@example(829, "venus", 2, "floor_add")  # where Newton's reciprocal is another than the divided one
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
    x, gamma, beta = (
        some(seed, 2, 3, 8),
        some(seed + 1, 8),
        rng.integers(-(2**22), 2**22, 8).astype(np.int32),
    )
    attrs = {
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 32.0,
        "scale_y_normal": 32768.0,
        "x_bits": 8,
        "w_bits": 8,
        "o_bits": 8,
    }
    epsilon = math.floor(1e-5 * 16.0**2 * 64 + 0.5)
    want = np.zeros(x.shape, object)
    for i, j in np.ndindex(2, 3):
        accs = curves.layer_norm(
            [int(v) for v in x[i, j]],
            *([int(v) for v in a] for a in (gamma, beta)),
            epsilon,
            15,
            (1 << 30, 30, 40),
        )
        want[i, j] = [training.shifted(v, 15 + 6 - 5, 8, mode) for v in accs]
    same(
        run(
            "QLayerNorm", attrs, x, platform=platform, mode=mode, constants={"w": gamma, "b": beta}
        ),
        want,
    )


@few
@given(
    st.integers(0, 9999),
    st.sampled_from(CHIPS),
    st.integers(1, 2),
    st.integers(2, 8),
    st.sampled_from(MODES),
)
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
    attrs = {
        "scale_x": 16.0,
        "scale_w": 16.0,
        "scale_o": 16.0,
        "x_bits": 8,
        "w_bits": 8,
        "o_bits": 8,
    }
    want = each(lambda v, f, s: training.shifted(v * f + s, 4, 8, "floor_add"), x, w, b)
    same(run("QBatchNorm1d", attrs, x, constants={"w": w, "b": b}), want)


def test_embedding():
    table, ids = some(5, 9, 3), np.array([[1, 8, 0]], np.int64)
    graph = model(
        [("Gather", ["w", "i"], ["y"], {"scale_x": 8.0, "scale_o": 8.0}, "linger")],
        {"i": ids},
        {"w": table},
    )
    same(lo.Session(graph).run(None, {"i": ids})[0], table[ids])
