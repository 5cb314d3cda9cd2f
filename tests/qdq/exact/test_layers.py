"""Layers, sums, pools and tables as functions of operators on integers, beside the simulator's
kernels.
"""

import numpy as np
import pytest

from lingeronnx.operators.exact_nodes import NotExactError
from simulator import kernels as k
from simulator.channel_rescale import ChannelRescale
from simulator.fixed_point import Rescale
from tests.qdq.exact.helpers import called
from tests.simulator.helpers import integers, run


@pytest.mark.parametrize("extremes", (False, True))
def test_layers(extremes):
    """Against the kernels, which have oracles of their own: full ranges, groups, strides, channels,
    free ratios.
    """
    rng = np.random.default_rng(3)
    weight, bias = integers(rng, (6, 2, 3, 3), extremes=extremes), rng.integers(-(2**20), 2**20, 6)
    x = integers(rng, (2, 4, 7, 6), extremes=extremes)
    free = Rescale.from_ratio(0.00123, 8, 5)
    channels = ChannelRescale(tuple(Rescale.from_ratio(0.0001 * (i + 1), 8) for i in range(6)))
    for rescale in (Rescale.from_shift(9, 8), free, channels, Rescale.from_shift(0, 32)):
        kernel = k.Conv(
            weight, bias, rescale, (2, 1), (1, 0, 1, 2), group=2, zero=-3, clip_bounds=None
        )
        assert np.array_equal(called(kernel, x)[0], run(kernel, x))
    flat, square = (
        integers(rng, (3, 5, 40), extremes=extremes),
        integers(rng, (9, 40), extremes=extremes),
    )
    for kind in (np.int8, np.int16):
        given_ = flat.astype(kind) * (1 if kind is np.int8 else 200)
        kernel = k.Linear(
            square, None, Rescale.from_ratio(0.0007, 16, 100), clip_bounds=(-3000, 3000)
        )
        assert np.array_equal(called(kernel, given_)[0], run(kernel, given_))
    kernel = k.MatMul(Rescale.from_shift(10, 8))
    other = integers(rng, (3, 40, 4), extremes=extremes)
    assert np.array_equal(called(kernel, flat, other)[0], run(kernel, flat, other))


def test_elementwise_pools_and_tables():
    rng = np.random.default_rng(4)
    x, y = integers(rng, (2, 4, 6, 6)), integers(rng, (2, 4, 6, 6))
    pair = (
        k.AddShift(1, 3, sign=-1),
        k.AddScaled.from_ratios(0.3, 1.7, 8, 1, 7),
        k.Mul(Rescale.from_ratio(0.011, 8)),
        k.ZeroPointKernel(k.Mul(Rescale.from_ratio(0.004, 8)), (3, -100)),
        k.Concat(1, (Rescale.from_shift(1, 8), Rescale.from_ratio(1.3, 8))),
    )
    for kernel in pair:
        assert np.array_equal(called(kernel, x, y)[0], run(kernel, x, y)), kernel
    one = (
        k.ChannelAffine(
            integers(rng, (4,)), rng.integers(-9999, 9999, 4), Rescale.from_shift(6, 8), 2
        ),
        k.Requant(Rescale.from_shift(-8, 16), saturate=False),
        k.Requant(Rescale.from_shift(-9, 16), saturate=False),
        k.Requant(Rescale.from_shift(2, 8)),
        k.AvgPool((3, 2), (1, 2), (1, 0, 1, 0), k.luna_average("venus", 6, 4, 4)),
        k.AvgPool((2, 2), (2, 2), None, k.luna_average("arcs", 4, 5, 4)),
        k.AvgPool((5, 5), None, None, k.luna_average("arcs", 25, 4, 6)),
        k.AvgPool((3, 3), None, None, Rescale.from_ratio(1.3 / 9, 8)),
        k.Table(integers(rng, (256,))),
        k.Glu(k.Glu.gates(4), Rescale.from_shift(15, 8), axis=1),
    )
    for kernel in one:
        assert np.array_equal(called(kernel, x)[0], run(kernel, x)), kernel
    wide = integers(rng, (3, 5), np.int16)
    table = k.Table(integers(rng, (65536,)))
    assert np.array_equal(called(table, wide)[0], run(table, wide))


def test_what_has_no_function():
    with pytest.raises(NotExactError, match="16-bit"):
        called(
            k.Conv(np.ones((1, 1, 1), np.int8), None, Rescale.from_shift(0, 8)),
            np.ones((1, 1, 4), np.int16),
        )
    with pytest.raises(NotExactError, match="Mean has no form"):
        called(k.Mean(None, None, None, 0), np.ones((1, 1, 4), np.int8))
