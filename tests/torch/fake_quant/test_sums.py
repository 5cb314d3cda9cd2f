"""Fake quantizers of weights, and of two activations: the simulator's integers to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.errors import ModelError
from lingeronnx.operators.linear.integer_op import FloatLinear
from simulator import kernels as k
from simulator.fixed_point import Rescale
from tests.simulator.helpers import SEEDS, integers
from tests.torch.fake_quant.fake_quant_checks import (
    INTS,
    ROUNDING,
    check_exact_and_differentiable,
    few,
    more,
    one_operand,
    operands,
    windowed,
)


def biased(draw, rng, size):
    """Return a bias of some width, or none."""
    top = draw(st.sampled_from((0, 7, 20, 31, 45)))
    return rng.integers(-(1 << top), 1 << top, size) if top else None


@pytest.mark.slow
@more
@given(st.data(), SEEDS, operands(shifts=(-4, 20), rounded=True))
def test_conv(data, seed, operands):
    draw, rng, (kind, weight_kind, rescale) = data.draw, np.random.default_rng(seed), operands
    axes, (group, each) = draw(st.integers(1, 2)), draw(st.sampled_from(((1, 3), (2, 2), (4, 1))))
    kernel, options = windowed(draw, axes)
    outputs = group * draw(st.integers(1, 2))
    extremes = draw(st.booleans())
    weight = integers(rng, (outputs, each, *kernel), weight_kind, extremes)
    space = [draw(st.integers(5, 8)) for _ in range(axes)]
    x = integers(rng, (draw(st.integers(1, 3)), group * each, *space), kind, extremes)
    check_exact_and_differentiable(
        k.Conv(weight, biased(draw, rng, outputs), rescale, group=group, **options), x
    )


@pytest.mark.slow
@more
@given(st.data(), SEEDS, one_operand((8, 16, 32), (-4, 16)), st.integers(1, 2))
def test_conv_transpose(data, seed, operand, axes):
    """Of lines and images; rows that output_padding adds lie beyond every tap."""
    draw, rng, (kind, rescale) = data.draw, np.random.default_rng(seed), operand
    group, each = draw(st.sampled_from(((1, 3), (2, 2), (4, 1))))
    kernel, options = windowed(draw, axes)
    options["output_padding"] = draw(st.sampled_from((None, [0, 1][-axes:], [2, 2][-axes:])))
    options["pads"] = [
        min(p, d * (n - 1))
        for p, d, n in zip(options["pads"], options["dilations"] * 2, kernel * 2, strict=True)
    ]
    more_channels = draw(st.integers(1, 2))
    weight = integers(rng, (group * each, more_channels, *kernel), np.int8)
    x = integers(
        rng, (draw(st.integers(1, 2)), group * each, *(4, 5)[-axes:]), kind, draw(st.booleans())
    )
    check_exact_and_differentiable(
        k.ConvTranspose(
            weight, biased(draw, rng, group * more_channels), rescale, group=group, **options
        ),
        x,
    )


@pytest.mark.slow
@few
@given(st.data(), SEEDS, operands((8, 16, 32), (-4, 20)))
def test_linear_and_affine(data, seed, operands):
    draw, rng, (kind, weight_kind, rescale) = data.draw, np.random.default_rng(seed), operands
    x = integers(
        rng, [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))] + [90], kind
    )
    weight = integers(rng, (6, 90), weight_kind)
    bias = biased(draw, rng, 6)
    check_exact_and_differentiable(k.Linear(weight, bias, rescale), x)
    check_exact_and_differentiable(
        FloatLinear(weight, bias, 2.0 ** draw(st.integers(0, 20)) * draw(st.floats(0.5, 1))), x
    )
    image = integers(rng, (2, 6, 3, 2), kind)
    summands = weight[:, 1].astype(np.int64) if bias is None else bias
    check_exact_and_differentiable(k.ChannelAffine(weight[:, 0].copy(), summands, rescale), image)


def test_sums_too_large():
    """A bias that no float64 holds is refused, not rounded in silence."""
    weight, x = np.ones((2, 3), np.int16), np.ones((1, 3), np.int16)
    for top, refused in ((1 << 52, False), (1 << 55, True)):
        kernel = k.Linear(weight, np.array([1, top]), Rescale.from_shift(40, 16))
        if refused:
            with pytest.raises(ModelError, match=r"^sums reach 2\^55, .*fewer bits$"):
                check_exact_and_differentiable(kernel, x)
        else:
            check_exact_and_differentiable(kernel, x)


# ---- two activations ---------------------------------------------------------------------------------------------

SHAPES = st.sampled_from(
    (
        ((2, 3, 4), (2, 3, 4)),
        ((2, 3, 4), (1, 3, 1)),
        ((2, 3, 4), (4,)),
        ((1, 3, 4), (3, 1)),
        ((2, 1, 4), (1, 3, 1)),
        ((3, 4), ()),
    )
)


@pytest.mark.slow
@more
@given(
    SEEDS, SHAPES, operands(), st.sampled_from((1, -1)), st.integers(-6, 12), st.integers(-6, 12)
)
def test_add_shift(seed, shapes, operands, sign, shift_x, shift_y):
    rng, (kind_x, kind_y, bits) = np.random.default_rng(seed), operands
    if (
        kind_x is not kind_y
    ):  # kernels are compiled for each pair of signs: all pairs for equal types only
        shift_x, shift_y = abs(shift_x), -abs(shift_y)
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    check_exact_and_differentiable(k.AddShift(shift_x, shift_y, bits, sign), x, y)


@pytest.mark.slow
@more
@given(
    SEEDS,
    SHAPES,
    operands(),
    st.sampled_from((1, -1)),
    st.floats(1e-5, 1000),
    st.floats(1e-5, 1000),
)
def test_add_scaled(seed, shapes, operands, sign, ratio_x, ratio_y):
    rng, (kind_x, kind_y, bits) = np.random.default_rng(seed), operands
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    check_exact_and_differentiable(k.AddScaled.from_ratios(ratio_x, ratio_y, bits, sign), x, y)


@pytest.mark.slow
@few
@given(SEEDS, SHAPES, st.sampled_from((1, -1)), *[one_operand((8, 16), (-6, 12), rounded=True)] * 2)
def test_add_rounded(seed, shapes, sign, one, other):
    """The training side's sum: each operand is rounded as the node says."""
    rng, (kind_x, rule_x), (kind_y, rule_y) = np.random.default_rng(seed), one, other
    x, y = integers(rng, shapes[0], kind_x), integers(rng, shapes[1], kind_y, seed % 2 > 0)
    check_exact_and_differentiable(
        k.AddScaled(rule_x, rule_y, Rescale.from_shift(0, 8), sign), x, y
    )


@pytest.mark.slow
@few
@given(SEEDS, SHAPES, operands(shifts=(-8, 25), rounded=True))
def test_mul(seed, shapes, operands):
    rng, (kind_x, kind_y, rescale) = np.random.default_rng(seed), operands
    check_exact_and_differentiable(
        k.Mul(rescale),
        integers(rng, shapes[0], kind_x),
        integers(rng, shapes[1], kind_y, seed % 2 > 0),
    )


@pytest.mark.slow
@few
@given(
    SEEDS,
    st.sampled_from((((2, 3, 5), (2, 5, 4)), ((3, 5), (5, 2)), ((2, 1, 3, 900), (4, 900, 2)))),
    operands((8, 16, 32), (-4, 25)),
)
def test_matmul(seed, shapes, operands):
    rng, (kind_x, kind_y, rescale) = np.random.default_rng(seed), operands
    extremes = seed % 2 > 0
    check_exact_and_differentiable(
        k.MatMul(rescale),
        integers(rng, shapes[0], kind_x, extremes),
        integers(rng, shapes[1], kind_y, extremes),
    )


@pytest.mark.slow
@few
@given(SEEDS, SHAPES, st.integers(-1, 20), st.booleans())
def test_div(seed, shapes, shift, by_sign):
    rng = np.random.default_rng(seed)
    x, y = (np.asarray(integers(rng, shape, np.int16) // 8, np.int32) for shape in shapes)
    y.reshape(-1)[:1] = 0
    check_exact_and_differentiable(k.Div(shift, by_sign), x, y, flat=True)


@few
@given(SEEDS, SHAPES, INTS, st.floats(0.01, 300), st.sampled_from((4, 8, 16)), ROUNDING)
def test_div_single(seed, shapes, kind, scale, bits, rounding):
    """Also by zero."""
    rng = np.random.default_rng(seed)
    x, y = (integers(rng, shape, kind) for shape in shapes)
    y.reshape(-1)[:1] = 0
    check_exact_and_differentiable(k.DivSingle(16.0, 32.0, scale, bits, rounding), x, y)
