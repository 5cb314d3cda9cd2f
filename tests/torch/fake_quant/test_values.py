"""Fake quantizers of one activation, of windows and of what moves: the simulator's integers to the
last bit.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.errors import ModelError
from lingeronnx.torch.fake_quant import get_fake_quantizer
from lingeronnx.torch.fake_quant.common import FakeQuantContext
from simulator import kernels as k
from simulator.fixed_point import Rescale, RoundedShift, RoundingMode
from tests.simulator.helpers import SEEDS, integers
from tests.torch.fake_quant.fake_quant_checks import (
    INTS,
    ROUNDING,
    check_exact_and_differentiable,
    equal,
    few,
    more,
    one_operand,
    operands,
    simulated,
    tensor,
    windowed,
)


@few
@given(SEEDS, st.floats(0.01, 3000), st.sampled_from((4, 8, 16)), st.booleans())
def test_borders(seed, scale, bits, luna):
    """Ties, both ends, infinities and nan."""
    rng = np.random.default_rng(seed)
    if luna:
        scale, bits = 2.0 ** round(math.log2(scale)), 8
    ties = (rng.integers(-200, 200, 40) + 0.5) / scale
    x = np.concatenate(
        [ties, rng.normal(0, 300 / scale, 100), [0, np.inf, -np.inf, np.nan]]
    ).astype(np.float32)
    kernel = k.Quant(scale, bits, "luna" if luna else "generic")
    equal(
        get_fake_quantizer(kernel)(kernel, [tensor(x)], FakeQuantContext([x.dtype]))[0],
        simulated(kernel, [x])[0],
    )
    for kind in (np.int8, np.int16, np.int32):
        check_exact_and_differentiable(k.Dequant(scale), integers(rng, (2, 30), kind))


@pytest.mark.slow
@few
@given(SEEDS, st.floats(0.01, 3000), st.sampled_from((4, 8, 16, 24, 32)), ROUNDING)
def test_quant(seed, scale, bits, rounding):
    """In float32 with each rounding; and to more integers than float32 holds, as cells are."""
    rng = np.random.default_rng(seed)
    ties = (rng.integers(-200, 200, 40) + 0.5) / scale
    x = np.concatenate([ties, rng.normal(0, 2.0**bits / scale, 100), [0, 1e30, -1e30]]).astype(
        np.float32
    )
    check_exact_and_differentiable(k.Quant(scale, bits, "single", rounding), x)
    check_exact_and_differentiable(k.Quant(scale, bits), x)


@pytest.mark.slow
@more
@given(SEEDS, operands(shifts=(-12, 20), rounded=True), st.booleans())
def test_requant(seed, operands, saturate):
    first, second, rescale = operands
    kind = np.int32 if (first, second) == (np.int16, np.int16) else first
    check_exact_and_differentiable(
        k.Requant(rescale, saturate),
        integers(np.random.default_rng(seed), (3, 50), kind, seed % 3 == 0),
    )


@few
@given(
    SEEDS,
    st.sampled_from((np.int8, np.int16, np.int32)),
    st.integers(-200, 200),
    st.integers(0, 70000),
)
def test_clip(seed, kind, low, span):
    x = integers(np.random.default_rng(seed), (3, 50), kind)
    check_exact_and_differentiable(k.Clip(low, low + span), x)
    check_exact_and_differentiable(k.Relu(), x)


@few
@given(SEEDS, INTS, INTS)
def test_table(seed, kind, out):
    rng = np.random.default_rng(seed)
    check_exact_and_differentiable(
        k.Table(integers(rng, (1 << (8 * kind().itemsize),), out)),
        integers(rng, (2, 3, 50), kind, seed % 3 == 0),
    )


@pytest.mark.slow
@few
@given(
    SEEDS,
    st.integers(0, 8),
    one_operand((8, 16), (8, 20), rounded=True),
    st.sampled_from((-1, 1, 2, -2, 3)),
)
def test_glu(seed, q, operand, axis):
    _, rescale = operand
    check_exact_and_differentiable(
        k.Glu(k.Glu.gates(q), rescale, axis), integers(np.random.default_rng(seed), (2, 6, 4, 14))
    )


# ---- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@more
@given(st.data(), SEEDS, st.sampled_from((np.int8, np.int16, np.int32)), st.booleans())
def test_max_pool(data, seed, kind, ceil_mode):
    """Also windows that lie in the padding only."""
    draw, rng = data.draw, np.random.default_rng(seed)
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    check_exact_and_differentiable(k.MaxPool(kernel, ceil_mode=ceil_mode, **options), x)


@pytest.mark.slow
@more
@given(st.data(), SEEDS, one_operand((8, 16), (-3, 8)), st.booleans())
def test_avg_pool(data, seed, operand, ceil_mode):
    """By a ratio, and by each of the rules of the NPU."""
    draw, rng, (kind, rescale) = data.draw, np.random.default_rng(seed), operand
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    of_npu = k.luna_average(
        draw(st.sampled_from(("venus", "arcs"))),
        math.prod(kernel),
        draw(st.integers(0, 8)),
        draw(st.integers(0, 8)),
    )
    rule = rescale if kind == np.int16 or draw(st.booleans()) else of_npu
    check_exact_and_differentiable(
        k.AvgPool(kernel, options["strides"], options["pads"], rule, ceil_mode), x
    )


@pytest.mark.slow
@more
@given(st.data(), SEEDS, INTS, st.booleans(), st.booleans(), st.sampled_from((0, 0, 5)), ROUNDING)
def test_mean(data, seed, kind, ceil_mode, padded, divisor, rounding):
    """Windows of any kind, or the whole image; whatever they are divided by."""
    draw, rng = data.draw, np.random.default_rng(seed)
    axes = draw(st.integers(1, 2))
    kernel, options = windowed(draw, axes)
    x = integers(rng, (2, 3, *(draw(st.integers(5, 8)) for _ in range(axes))), kind)
    more = (
        draw(st.integers(-6, 6)),
        draw(st.sampled_from((8, 16))),
        rounding,
        ceil_mode,
        padded,
        divisor,
    )
    check_exact_and_differentiable(k.Mean(kernel, options["strides"], options["pads"], *more), x)
    check_exact_and_differentiable(k.Mean(None, None, None, *more), x)


def test_slope_of_a_mean():
    """One over the number of elements, which is that of the image where padding does not count."""
    x = np.full((1, 1, 3), 10, np.int8)
    for padded, want in ((True, [1, 1, 1]), (False, [2, 1, 1])):
        held = tensor(x)
        kernel = k.Mean([2], [2], [1, 0], 1, count_include_pad=padded)
        get_fake_quantizer(kernel)(kernel, [held], FakeQuantContext([x.dtype]))[0].sum().backward()
        assert held.grad.reshape(-1).tolist() == want


# ---- moving ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@more
@given(st.data(), SEEDS, st.sampled_from((8, 16)))
def test_concat(data, seed, bits):
    """Each input at its own width and ratio; one that is narrowed is cut off; a constant's first
    axis follows.
    """
    draw, rng = data.draw, np.random.default_rng(seed)
    arrays, rules = [], []
    for _ in range(draw(st.integers(1, 3))):
        kind, shift = draw(INTS), draw(st.sampled_from((0, 0, -2, 3)))
        ratio = draw(st.sampled_from((None, 0.37, 1.9)))
        rules.append(
            Rescale.from_shift(shift, bits) if ratio is None else Rescale.from_ratio(ratio, bits)
        )
        arrays.append(
            integers(rng, (draw(st.sampled_from((1, 2))), draw(st.integers(1, 4)), 5), kind)
        )
    check_exact_and_differentiable(k.Concat(1, tuple(rules)), *arrays)
    same = [a[:1] for a in arrays]
    check_exact_and_differentiable(k.Concat(-2, tuple(rules)), *same)


@pytest.mark.slow
@few
@given(st.data(), SEEDS, st.sampled_from((np.int8, np.int16, np.int32)))
def test_moves(data, seed, kind):
    draw, rng = data.draw, np.random.default_rng(seed)
    x = integers(rng, (2, 3, 4, 5), kind)
    check_exact_and_differentiable(
        k.Reshape(draw(st.sampled_from(([1, -1], [0, 12, 5], [1, 3, -1, 5], [0, 0, 0, 0])))), x
    )
    check_exact_and_differentiable(k.Reshape([6, -1, 5], is_per_sample=False), x)
    check_exact_and_differentiable(k.Transpose(draw(st.permutations(range(4)))), x)
    axis = draw(st.integers(-4, 3))
    size = x.shape[axis]
    cut = draw(st.integers(0, size))
    check_exact_and_differentiable(k.Split(axis, [cut, size - cut]), x)
    check_exact_and_differentiable(
        k.Gather(axis, rng.integers(0, size, draw(st.sampled_from(((), (3,), (2, 2), (0,)))))), x
    )
    fill = draw(st.sampled_from((None, -7, 100)))
    least = 0 if fill is None else -1
    indices = [
        None if draw(st.booleans()) else rng.integers(least, n, draw(st.integers(1, 6)))
        for n in x.shape
    ]
    check_exact_and_differentiable(k.IndexSelect(indices, fill), x)
    check_exact_and_differentiable(
        k.Lookup(integers(rng, (50, 2, 3), kind)),
        rng.integers(0, 50, (2, 4)).astype(np.int32),
        flat=True,
    )


def test_lookup_outside():
    kernel, x = k.Lookup(np.zeros((5, 2), np.int8)), np.array([[1, 5]], np.int32)
    with pytest.raises(ModelError, match="an index from 1 to 5: the table has 5 rows"):
        get_fake_quantizer(kernel)(kernel, [tensor(x)], FakeQuantContext([x.dtype]))


# ---- arithmetic of its own ---------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(
    SEEDS,
    INTS,
    st.sampled_from(("divide", "fused", "newton")),
    st.sampled_from((-1, 0, 1, 2)),
    st.integers(1, 7),
    st.sampled_from((8, 16)),
    st.booleans(),
    ROUNDING,
)
def test_softmax(seed, kind, way, axis, q, bits, alone, rounding):
    """Along one axis or all from one on."""
    rng = np.random.default_rng(seed)
    wide = 8 * kind().itemsize
    entry = k.make_input_table(2.0 ** (25 - q - (wide - 8)), wide)
    x = integers(rng, (3, 4, 6), kind, seed % 3 == 0)
    rescale, of_logs = (
        Rescale.from_shift(s, bits)
        if rounding is RoundingMode.HALF_UP
        else RoundedShift(s, bits, rounding)
        for s in (15 - (bits - 1), 11)
    )
    check_exact_and_differentiable(k.Softmax(entry, rescale, axis, way, alone), x)
    if way != "newton":
        check_exact_and_differentiable(k.LogSoftmax(entry, of_logs, axis, way, alone), x)


@pytest.mark.slow
@few
@given(SEEDS, one_operand((8, 16), (12, 20)), st.sampled_from((10, 15)), st.integers(1, 2))
def test_layer_norm(seed, operand, fraction, axes):
    rng, (kind, rescale) = np.random.default_rng(seed), operand
    x = integers(rng, (3, 4, 6), kind)
    x[0] = 5  # no spread at all
    count = math.prod(x.shape[-axes:])
    gamma, beta = (
        integers(rng, (count,)).astype(np.int64),
        integers(rng, (count,), np.int16).astype(np.int64),
    )
    check_exact_and_differentiable(
        k.LayerNorm(gamma, beta, seed % 1000, rescale, axes, fraction), x
    )


@few
@given(SEEDS, INTS, st.integers(1, 40))
def test_arg_max(seed, kind, size):
    x = integers(np.random.default_rng(seed), (1, size, 1), kind, seed % 2 > 0)
    check_exact_and_differentiable(k.ArgMax(1), x, flat=True)
