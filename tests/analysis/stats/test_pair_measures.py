"""Measures of one tensor and of two: against plain formulas over whole arrays, and whatever way the
data are split.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.analysis.stats.distribution import Distribution
from lingeronnx.analysis.stats.pair_measures import PairMeasures, kl_divergence
from lingeronnx.analysis.stats.stored_form import StoredForm
from lingeronnx.ir.plan import Affine
from tests.case_selection import limit_examples

LARGEST = 3.4028234663852886e38


def plain(x, y):
    """All measures by their formulas, in float64 over whole arrays."""
    x, y = np.asarray(x, np.float64).reshape(-1), np.asarray(y, np.float64).reshape(-1)
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    points = np.linspace(
        low, high, 128
    )  # of each point what is nearer to it than one step, by how near
    p, q = (
        np.array(
            [np.maximum(1 - np.abs(a - at) * 127 / (high - low), 0).sum() / a.size for at in points]
        )
        for a in (x, y)
    )
    p, q = np.maximum(p, 1e-12), np.maximum(q, 1e-12)
    rtol = max(
        (abs(a - b) / abs(a) if a else (LARGEST if b else 0.0)) for a, b in zip(x, y, strict=True)
    )
    error = ((x - y) ** 2).sum()
    return {
        "Cosine": (x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()),
        "MSE": error / x.size,
        "L1": np.abs(x - y).mean(),
        "KL": (p * np.log(p / q)).sum(),
        "SQNR": 10 * math.log10((x * x).sum() / error),
        "Atol": np.abs(x - y).max(),
        "Rtol": rtol,
        "base_model_min": x.min(),
        "analy_model_min": y.min(),
        "base_model_max": x.max(),
        "analy_model_max": y.max(),
        "base_model_mean": x.mean(),
        "analy_model_mean": y.mean(),
        "base_model_var": np.mean((x - x.mean()) ** 2),
        "analy_model_var": np.mean((y - y.mean()) ** 2),
    }


def pair(x, y, held=None, split=1):
    measures = PairMeasures()
    for a, b in zip(np.array_split(x, split), np.array_split(y, split), strict=True):
        measures.add(a, b, held)
    return measures


@pytest.mark.parametrize("shape", [(1,), (3, 4), (7, 5, 3), (64, 64)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_every_measure_against_its_formula(shape, offset):
    """Up to 4096 elements the streaming measures are the formulas'."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + offset).astype(np.float32)
    y = (x + 0.1 * rng.standard_normal(shape)).astype(np.float32)
    measures = pair(x, y, split=min(3, len(x))).to_dict()
    for name, want in plain(x, y).items():
        assert measures[name] == pytest.approx(want, rel=1e-9, abs=1e-12), name


def test_large_tensors():
    """Beyond 4096 elements KL's points share what at least 4096 finer bins count; all else is the
    formula's.
    """
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, 3000)).astype(np.float32)
    y = (np.rint(x * 16) / 16).astype(np.float32)
    measures = pair(x, y, split=20).to_dict()
    for name, want in plain(x, y).items():
        assert measures[name] == pytest.approx(
            want, **({"abs": 3e-4} if name == "KL" else {"rel": 1e-9})
        ), name


def test_equal_tensors_and_zeros():
    """Cosine 1, SQNR infinite, KL 0; zeros are no error."""
    for x in (np.arange(12.0), np.zeros(5), np.full(3, 1e-42), np.full(9000, 7.25)):
        measures = pair(x, x)
        assert (measures.cosine, measures.sqnr, measures.kl, measures.mse, measures.rtol) == (
            1.0,
            math.inf,
            0.0,
            0.0,
            0.0,
        )
    lost = pair(np.zeros(4), np.ones(4))
    assert (lost.cosine, lost.sqnr, lost.rtol) == (0.0, -math.inf, LARGEST)
    gone = pair(np.ones(4), np.zeros(4))
    assert (gone.cosine, gone.sqnr, gone.rtol) == (0.0, 0.0, 1.0)


def test_rtol_where_the_baseline_is_zero():
    """The largest float32 where x is 0 and y is not; 0 where both are."""
    assert pair(np.array([0.0, 1.0]), np.array([0.0, 1.5])).rtol == 0.5
    assert pair(np.array([0.0, 1.0]), np.array([1e-9, 1.5])).rtol == LARGEST


def test_kl_counts_values_not_places():
    """A permutation has KL 0; two constants that differ have log(1e12)."""
    x = np.arange(100.0)
    assert pair(x, x[::-1]).kl == 0.0
    assert pair(np.zeros(8), np.ones(8)).kl == pytest.approx(math.log(1e12), rel=1e-6)
    assert kl_divergence(np.array([3, 1]), np.array([2, 2])) == pytest.approx(
        0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    )


SHAPES = {"normal": "standard_normal", "laplace": "laplace", "uniform": "random"}


@pytest.mark.parametrize("size", [2000, 40000])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kl_rises_with_noise(shape, size):
    """Law: the more noise on a tensor, the larger its KL."""
    rng = np.random.default_rng(0)
    x = getattr(rng, shape)(size=size)
    noise = x.std() * rng.standard_normal(size)
    found = [pair(x, x + level * noise).kl for level in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)]
    assert found == sorted(set(found))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kl_rises_as_bits_fall(shape):
    """Law: the fewer integers hold a tensor, the larger its KL; 8 bits that fit are next to
    none.
    """
    x = getattr(np.random.default_rng(0), shape)(size=40000)
    scales = [(2 ** (bits - 1) - 1) / np.abs(x).max() for bits in (8, 7, 6, 5, 4, 3, 2)]
    found = [
        pair(x, np.rint(x * s).astype(np.int8), StoredForm(Affine(float(s)))).kl for s in scales
    ]
    assert found == sorted(set(found))
    assert found[0] < 0.01


def test_integers_and_what_they_can_hold():
    """Saturation counts the ends of the type, clipped what x has beyond them, used the share that
    is reached.
    """
    x = np.array([0.0, 1.0, 3.97, 4.5, -9.0, -2.0], np.float32)
    q = np.clip(np.rint(x * 32), -128, 127).astype(np.int8)
    measures = pair(x, q, StoredForm(Affine(32.0)))
    assert measures.y.high == 127 / 32
    assert measures.saturation == 3 / 6  # 3.97 is 127 by right
    assert measures.clipped_fraction == 2 / 6
    assert measures.used_fraction == 1.0
    half = pair(x[:2], q[:2], StoredForm(Affine(32.0)))
    assert (half.saturation, half.clipped_fraction, half.used_fraction) == (0.0, 0.0, 32 / 127)
    assert pair(x, x).used_fraction is pair(x, x).saturation is pair(x, x).clipped_fraction is None
    real = pair(x, (q / 32).astype(np.float32), StoredForm(Affine(32.0)))
    assert real.to_dict() == measures.to_dict()


def test_what_is_not_finite_is_left_out():
    """Infinity of a mask spoils nothing; it is counted."""
    x = np.array([1.0, -np.inf, 2.0, np.nan, 3.0])
    y = np.array([1.0, -8.0, np.inf, 1.0, 2.0])
    measures = pair(x, y)
    assert (measures.skipped, measures.count, measures.mse) == (3, 2, 0.5)
    assert PairMeasures().to_dict()["KL"] == 0.0
    spread = Distribution()
    spread.add(x)
    assert (spread.skipped, spread.count, spread.high) == (2, 3, 3.0)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="cannot be compared"):
        PairMeasures().add(np.zeros(3), np.zeros(4))


SIZES = st.lists(st.integers(0, 6000), min_size=1, max_size=5)


@limit_examples(40)
@given(SIZES, st.integers(-120, 100), st.floats(-3, 3), st.integers(0, 9))
def test_no_split_matters(sizes, exponent, offset, seed):
    """Law: counts are the same for any split; parts merged in order are what was added in order, to
    the bit.
    """
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.standard_normal(sum(sizes)) + offset, exponent)
    y = x * rng.uniform(0.5, 3)
    cuts = np.cumsum(sizes)[:-1]
    added, merged, whole = PairMeasures(), PairMeasures(), PairMeasures()
    whole.add(x, y)
    for a, b in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
        added.add(a, b)
        part = PairMeasures()
        part.add(a, b)
        merged.merge(part)
    assert added.to_dict() == merged.to_dict() or not x.size
    if x.size:
        assert added.kl == whole.kl
        for one, other in zip(added.histograms(64), whole.histograms(64), strict=True):
            assert np.array_equal(one, other)
            assert one.sum() == x.size


def test_state_of_a_pair():
    """Law: a pair written down and read again is the same, with or without its histograms, and goes
    on the same.
    """
    rng = np.random.default_rng(0)
    for size in (0, 9, 5000):
        one, two = PairMeasures(), PairMeasures()
        first, second = (rng.standard_normal((2, size)) for _ in range(2))
        one.add(*first)
        other = PairMeasures.from_state(json.loads(json.dumps(one.state(True))))
        two.add(*second)
        for pair in (one, other):
            pair.merge(two)
        assert str(one.to_dict()) == str(other.to_dict())
        short = PairMeasures.from_state(json.loads(json.dumps(one.state(False))))
        assert (short.l1, short.sqnr, short.cosine) == (one.l1, one.sqnr, one.cosine)
