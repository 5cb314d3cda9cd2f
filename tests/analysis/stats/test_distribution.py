"""One stream of values: its moments and range against numpy, whatever way it is split."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lingeronnx.analysis.stats.distribution import Distribution


@pytest.mark.parametrize("size", [1, 9, 5000, 70000])
def test_moments_and_range(size):
    values = np.random.default_rng(size).normal(3.0, 2.0, size).astype(np.float32)
    distribution = Distribution()
    distribution.add(values)
    exact = values.astype(np.float64)
    assert (distribution.count, distribution.skipped, distribution.low, distribution.high) == (
        size,
        0,
        exact.min(),
        exact.max(),
    )
    assert distribution.mean == pytest.approx(exact.mean())
    assert distribution.variance == pytest.approx(exact.var())
    assert distribution.mean_absolute == pytest.approx(np.abs(exact).mean())
    assert distribution.max_abs == np.abs(exact).max()


def test_nothing_seen():
    distribution = Distribution()
    assert math.isnan(distribution.variance)
    assert math.isnan(distribution.mean_absolute)
    assert math.isnan(distribution.max_abs)


def test_what_is_not_finite_is_counted_apart():
    distribution = Distribution()
    distribution.add(np.array([1.0, np.inf, -2.0, np.nan]))
    assert (distribution.count, distribution.skipped, distribution.low, distribution.high) == (
        2,
        2,
        -2.0,
        1.0,
    )


@pytest.mark.parametrize("size", [0, 9, 5000])
def test_parts_merge_and_are_written_down(size):
    """Law: parts merged in order give the bits of one that saw all; so does one that was written
    down between.
    """
    first, second = np.random.default_rng(1).standard_normal((2, size))
    whole, part, other = Distribution(), Distribution(), Distribution()
    whole.add(first)
    whole.add(second)
    part.add(first)
    part = Distribution.from_state(json.loads(json.dumps(part.state(True))))
    other.add(second)
    part.merge(other)
    assert str(part.state(True)) == str(whole.state(True))
