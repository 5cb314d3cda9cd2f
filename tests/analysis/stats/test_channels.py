"""Sums per channel against numpy over whole arrays, in one batch and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from lingeronnx.analysis.stats.channels import ChannelSums, channel_axis, move_channel_axis


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5, 5), (2, 7, 3)])
def test_against_numpy(shape):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    y = x + 0.1 * rng.standard_normal(shape)
    sums = ChannelSums()
    for a, b in zip(np.array_split(x, 2), np.array_split(y, 2), strict=True):
        sums.add(a, b)
    over = tuple(i for i in range(len(shape)) if i != channel_axis(len(shape)))
    assert np.array_equal(sums.low, x.min(axis=over))
    assert np.array_equal(sums.max_abs, np.abs(x).max(axis=over))
    for have, want in (
        (sums.mean, x.mean(axis=over)),
        (sums.mean_square, np.square(x).mean(axis=over)),
        (sums.std, x.std(axis=over)),
        (sums.bias, (y - x).mean(axis=over)),
        (sums.mean_squared_error, np.square(y - x).mean(axis=over)),
    ):
        assert np.allclose(have, want)
    assert np.allclose(sums.sqnr_db(), 10 * np.log10(sums.mean_square / sums.mean_squared_error))


def test_a_channel_that_never_changes_has_no_level():
    x = np.random.default_rng(0).standard_normal((8, 3))
    x[:, 1] = 2.0
    sums = ChannelSums()
    sums.add(x, x)
    assert sums.is_constant.tolist() == [False, True, False]
    assert sums.sqnr_db().tolist() == [120, 120]


def test_a_single_axis_has_no_channels():
    sums = ChannelSums()
    sums.add(np.ones(4), np.ones(4))
    assert sums.count == 0


def test_factors_belong_to_axis_1_of_sequences():
    array = np.arange(24).reshape(2, 3, 4)
    assert move_channel_axis(array, (1.0, 2.0, 3.0)).shape == (2, 4, 3)
    assert move_channel_axis(array, (1.0,)) is array


def test_a_channel_that_8_bits_cannot_tell_from_a_constant_does_not_speak():
    """Nor one that a Relu cuts off; the level of a channel in the middle is that of those that
    carry something.
    """
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((64, 4, 5, 5)), 0)
    raw = x.copy()
    x[:, 1], raw[:, 1] = 0.0, -rng.random(x[:, 1].shape) - 1
    x[:, 2] = raw[:, 2] = 0.8 + 1e-5 * rng.standard_normal(x[:, 2].shape)
    sums = ChannelSums()
    sums.add(x, x + 0.01, raw)
    assert sums.is_constant.tolist() == [False, False, True, False]
    assert sums.is_active.tolist() == [True, False, False, True]
    assert len(sums.sqnr_db()) == 2
    assert sums.sqnr_db().min() > 20
