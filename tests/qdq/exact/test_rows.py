"""Softmax, its logarithm and layer normalisation in operators on integers, beside their oracles."""

import numpy as np
import pytest

from simulator import kernels as k
from simulator.fixed_point import Rescale
from simulator.kernels import make_input_table
from tests.oracles import curves as naive_curves
from tests.qdq.exact.helpers import called
from tests.simulator.helpers import integers, run, triple


@pytest.mark.parametrize("way", ("divide", "fused", "newton"))
def test_softmax(way):
    """Against the oracle in plain Python, each row; and over an axis in the middle."""
    rng = np.random.default_rng(5)
    x, rescale = (
        np.concatenate([integers(rng, (6, 11)), np.full((1, 11), 127, np.int8)]),
        Rescale.from_shift(8, 8),
    )
    for q in (1, 4, 7):
        kernel = k.Softmax(make_input_table(2.0 ** (25 - q), 8), rescale, division_mode=way)
        want = np.array(
            [naive_curves.softmax(row.tolist(), 2 ** (25 - q), way, triple(rescale)) for row in x]
        )
        assert np.array_equal(called(kernel, x)[0], want)
    deep = integers(rng, (2, 3, 4))
    for alone in (False, True):
        kernel = k.Softmax(
            make_input_table(2.0**22, 8), rescale, axis=1, division_mode=way, single_axis=alone
        )
        assert np.array_equal(called(kernel, deep)[0], run(kernel, deep))


def test_log_softmax_and_layer_norm():
    rng = np.random.default_rng(6)
    x, rescale = integers(rng, (5, 7)), Rescale.from_shift(11, 8)
    for way in ("divide", "fused"):
        kernel = k.LogSoftmax(make_input_table(2.0**21, 8), rescale, division_mode=way)
        want = np.array(
            [naive_curves.log_softmax(row.tolist(), 2**21, way, triple(rescale)) for row in x]
        )
        assert np.array_equal(called(kernel, x)[0], want)
    x = np.concatenate(
        [integers(rng, (4, 8)), np.full((1, 8), 9, np.int8), integers(rng, (3, 8), extremes=True)]
    )
    gamma, beta = rng.integers(-128, 128, 8), rng.integers(-(2**16), 2**16, 8)
    for fraction in (10, 15):
        rescale = Rescale.from_shift(fraction + 2, 8)
        kernel = k.LayerNorm(gamma, beta, 7, rescale, fraction_bits=fraction)
        want = [
            naive_curves.layer_norm(row.tolist(), gamma, beta, 7, fraction, triple(rescale))
            for row in x
        ]
        assert np.array_equal(called(kernel, x)[0], np.array(want))
    deep = integers(rng, (2, 3, 4, 2))
    kernel = k.LayerNorm(gamma, beta, 0, Rescale.from_shift(11, 8), row_axes=2)
    assert np.array_equal(called(kernel, deep)[0], run(kernel, deep))
