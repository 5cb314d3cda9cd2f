"""Statistics: exact, mergeable, of constant size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import lingeronnx as lo
from lingeronnx.common.errors import DataError
from lingeronnx.quantization import calibrate_model, prepare_model
from lingeronnx.quantization.calibration.statistics import (
    HALF_BINS,
    TensorStats,
    _clip_softmax_logits,
    collect_stats,
    compute_row_errors,
)
from lingeronnx.runtime.runners import FloatRunner
from tests import nets
from tests.case_selection import limit_examples
from tests.passes.helpers import graph

few = limit_examples(60, derandomize=True)
FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
ARRAYS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6), elements=FLOATS
)


def same(left, right):
    """Bins, range and counts exactly; the power to 1e-9."""
    assert (left.count, left.minimum, left.maximum) == (right.count, right.minimum, right.maximum)
    assert left.exponent == right.exponent
    np.testing.assert_array_equal(left.bins, right.bins)
    spread = max(left.sum_of_squares, right.sum_of_squares, 1e-300)
    assert abs(left.sum_of_squares - right.sum_of_squares) <= 1e-9 * spread


def naive_bins(array, exponent):
    """Count values in bins 2**exponent wide, one by one."""
    bins = np.zeros(2 * HALF_BINS, np.int64)
    for value in array.reshape(-1).tolist():
        bins[int(np.floor(value / 2.0**exponent)) + HALF_BINS] += 1
    return bins


@few
@given(ARRAYS)
def test_one_array(array):
    """Every field is what the plain definition gives; the bins are the finest that hold the
    range.
    """
    seen = TensorStats.from_array(array)
    assert seen.count == array.size == seen.bins.sum()
    assert (seen.low, seen.high) == (array.min(), array.max())
    np.testing.assert_array_equal(seen.bins, naive_bins(array, seen.exponent))
    reach = max(array.max(), -array.min())
    if reach > 1e-30:
        assert HALF_BINS // 2 <= reach / 2.0**seen.exponent <= HALF_BINS


@few
@given(ARRAYS, st.data())
def test_merge_is_exact(array, data):
    """Law: the statistics of two parts merged are those of the whole, in either order."""
    cut = data.draw(st.integers(0, len(array)))
    if cut in (0, len(array)):
        return
    first, second = TensorStats.from_array(array[:cut]), TensorStats.from_array(array[cut:])
    same(first.merge(second), TensorStats.from_array(array))
    same(second.merge(first), TensorStats.from_array(array))


@few
@given(ARRAYS, ARRAYS, ARRAYS)
def test_merge_is_associative(a, b, c):
    """Law: the order of merging does not matter, also for arrays of very different size and
    range.
    """
    a, b, c = (TensorStats.from_array(array.reshape(-1)) for array in (a, b, c))
    same(a.merge(b).merge(c), a.merge(b.merge(c)))


def test_merge_of_distant_ranges():
    """Small values next to a huge one end in the two bins around zero, by sign."""
    small, huge = (
        TensorStats.from_array(np.float32([1e-30, -1e-30, 0])),
        TensorStats.from_array(np.float32([1e9])),
    )
    merged = small.merge(huge)
    assert merged.bins[HALF_BINS] == 2
    assert merged.bins[HALF_BINS - 1] == 1
    same(merged, TensorStats.from_array(np.float32([1e-30, -1e-30, 0, 1e9])))


def test_memory_is_constant():
    """A tensor of a million elements and one of ten have fields of one size."""
    rng = np.random.default_rng(0)
    sizes = {
        count: sum(
            np.asarray(field).nbytes
            for field in vars(TensorStats.from_array(rng.standard_normal((count, 4)))).values()
        )
        for count in (10, 250_000)
    }
    assert len(set(sizes.values())) == 1
    assert sizes[10] < 100_000


@few
@given(ARRAYS, st.sampled_from([0.5, 1.0, 3.0, 1.3]))
def test_scaled(array, factor):
    """``scaled(f)`` is the statistics of f times the tensor; twice is the product."""
    seen = TensorStats.from_array(array).scaled(factor)
    assert (seen.low, seen.high) == (float(array.min()) * factor, float(array.max()) * factor)
    centres, counts = seen.nonzero_bins()
    before, same_counts = TensorStats.from_array(array).nonzero_bins()
    np.testing.assert_allclose(centres, before * factor, rtol=1e-12, atol=0)
    np.testing.assert_array_equal(counts, same_counts)
    assert seen.scaled(2.0).factor == 2 * factor
    mean_square = np.mean(np.square(array.astype(np.float64) * factor))
    assert seen.mean_square == pytest.approx(mean_square, rel=1e-9)
    twice = TensorStats.from_array(array).scaled(2.0)  # a power of two scales bins exactly
    exact = TensorStats.from_array(2 * array)
    assert twice.quantization_error(8.0, -128, 127) == pytest.approx(
        exact.quantization_error(8.0, -128, 127), rel=1e-12, abs=1e-60
    )


@pytest.mark.parametrize("scale", (4.0, 32.0, 37.5, 128.0))
def test_error_against_the_raw_array(scale):
    """The error counted at the bins' centres is that of the values, to a few percent."""
    rng = np.random.default_rng(1)
    for array in (
        rng.standard_normal(20000),
        rng.exponential(1.0, 20000),
        rng.uniform(-3, 1, 20000),
    ):
        array = array.astype(np.float32)
        held = np.clip(np.floor(array.astype(np.float64) * scale + 0.5), -128, 127) / scale
        brute = np.mean((held - array) ** 2)
        assert TensorStats.from_array(array).quantization_error(scale, -128, 127) == pytest.approx(
            brute, rel=0.03
        )


@pytest.mark.parametrize("count", [1, 9, 300, 5000])
def test_errors_of_many_scales_are_those_of_each(count):
    """Errors computed at once are equal to the last bit: scales are chosen by comparing them."""
    rng = np.random.default_rng(count)
    stats = TensorStats.from_array(rng.normal(0.1, 2.0, count).astype(np.float32)).scaled(0.7)
    scales = 100 / stats.high * 4.0 ** (np.arange(60) / 48)
    zeros = rng.integers(-128, 127, 60)
    expected = [
        stats.quantization_error(float(scale), -128 - int(zero), 127 - int(zero))
        for scale, zero in zip(scales, zeros, strict=True)
    ]
    assert stats.quantization_errors(scales, -128 - zeros, 127 - zeros) == expected
    expected = [stats.quantization_error(float(scale), -8, 7) for scale in scales]
    assert stats.quantization_errors(scales, -8, 7) == expected


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("length", (1, 64, 700, 9000))
def test_errors_of_rows_are_those_of_each(dtype, length):
    """Errors of all rows at once are equal to the last bit: scales are chosen by comparing them."""
    rng = np.random.default_rng(length)
    rows = (rng.normal(0.1, 2.0, (5, length)) * 3.0 ** np.arange(-2, 3)[:, None]).astype(dtype)
    scales = 100 / np.abs(rows).max(axis=1, keepdims=True) * 4.0 ** (np.arange(7) / 6)
    expected = [
        TensorStats.from_array(row).quantization_errors(row_scales, -8, 7)
        for row, row_scales in zip(rows, scales, strict=True)
    ]
    assert compute_row_errors(rows, scales, -8, 7).tolist() == expected
    assert compute_row_errors(rows[:, ::-1], scales, -8, 7).tolist() == expected


@few
@given(ARRAYS)
def test_centres(array):
    """A bin stands for the middle of the values it counts."""
    seen = TensorStats.from_array(array)
    centres, counts = seen.nonzero_bins()
    width = 2.0**seen.exponent
    want = np.unique((np.floor(array.astype(np.float64) / width) + 0.5) * width)
    np.testing.assert_array_equal(centres, want)
    assert counts.sum() == array.size


def test_all_zero():
    """A tensor of zeros has an empty range and no error at any scale."""
    seen = TensorStats.from_array(np.zeros((4, 4), np.float32))
    assert (seen.low, seen.high, seen.sum_of_squares, seen.bins[HALF_BINS]) == (0, 0, 0, 16)
    assert seen.quantization_error(128.0, -128, 127) < 1e-60


# ---- observing a model ---------------------------------------------------------------------------------------------

MODEL = "g (float[N,4] x) => (float[N,4] y) { e = Exp(x) l = Log(x) y = Add(e, l) }"


def batches(array, size):
    return (({"x": array[i : i + size]}, None) for i in range(0, len(array), size))


@pytest.mark.parametrize("size", (1, 3, 7, 10))
def test_any_batch_split(size):
    """Law: any split of the data into batches gives the same statistics."""
    data = np.random.default_rng(2).uniform(0.1, 3, (10, 4)).astype(np.float32)
    runner = FloatRunner(graph(MODEL))
    whole = collect_stats(runner, batches(data, 10), {"x", "e"})
    split = collect_stats(runner, batches(data, size), {"x", "e"})
    assert whole.keys() == split.keys() == {"x", "e"}
    for name, seen in whole.items():
        same(seen, split[name])


def test_progress():
    """The callback is told the number of samples so far after each batch."""
    seen = []
    collect_stats(
        FloatRunner(graph(MODEL)),
        batches(np.ones((10, 4), np.float32), 4),
        {"y"},
        progress=lambda *told: seen.append(told),
    )
    assert seen == [("calibrating", count, None) for count in (4, 8, 10)]


@pytest.mark.parametrize("value", (-1.0, 0.0))
def test_nan_is_named(value):
    """Log of a negative number is NaN, of zero infinite: the error names the first such tensor."""
    data = np.array([[1, 2, 3, 4], [1, 2, 3, value]], np.float32)
    with pytest.raises(
        DataError, match="tensor 'l' is NaN or infinite on the calibration data"
    ) as caught:
        collect_stats(FloatRunner(graph(MODEL)), batches(data, 1), {"e", "l", "y"})
    assert "\n" not in str(caught.value)


def test_what_is_known_is_not_counted_again():
    """A tensor whose factors are the same is taken over; the others are as if nothing had been
    known.
    """
    model = nets.residual()
    prepared = prepare_model(model, nets.samples(model, 40), None, {})
    before = calibrate_model(prepared)
    last = list(prepared.graph.graph)[-1]
    less = prepared.with_host_nodes({str(last.name): "for a test"})
    fresh, found = calibrate_model(less), calibrate_model(less, previous=before)
    assert found.stats.keys() == fresh.stats.keys() != before.stats.keys()
    assert any(found.stats[name] is stats for name, stats in before.stats.items())
    for name, want in fresh.stats.items():
        have = found.stats[name]
        np.testing.assert_array_equal(have.bins, want.bins)
        assert (have.low, have.high, have.mean_square) == (want.low, want.high, want.mean_square)


@limit_examples(40)
@given(st.lists(ARRAYS, min_size=2, max_size=4))
def test_counting_on_is_merging(arrays):
    """Law: an array more is as if its own statistics were merged in, to the last bit of the
    bins.
    """
    merged, counted = TensorStats.from_array(arrays[0]), TensorStats.from_array(arrays[0])
    for array in arrays[1:]:
        merged = merged.merge(TensorStats.from_array(array))
        counted = counted.extend_with(array, (float(array.min()), float(array.max())))
    same(merged, counted)


@limit_examples(30)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 9), st.integers(0, 99))
def test_factors_of_channels(samples, channels, length, seed):
    """Law: counted with factors is counted after the product, which is rounded to float32."""
    rng = np.random.default_rng(seed)
    array = rng.normal(0, 3, (samples, channels, length) if length else (samples, channels)).astype(
        np.float32
    )
    factors = rng.uniform(0.1, 9, channels if seed % 3 else 1)
    product = (array * factors.reshape(-1, *[1] * (array.ndim - 2))).astype(np.float32)
    same(TensorStats.from_array(array, factors=factors), TensorStats.from_array(product))


@pytest.mark.parametrize("axis", [1, -1])
def test_logits_that_a_softmax_alone_reads(axis):
    """What such a softmax cannot tell apart takes no room: its results stay, the range shrinks."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 60, (50, 7, 5)).astype(np.float32)
    near = _clip_softmax_logits(logits, axis)

    def shares(x):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    assert near.min() > 0.5 * logits.min()
    assert near.max() <= logits.max()
    assert np.abs(shares(near) - shares(logits)).max() < 2 * np.exp(-8.0)
    small = logits.clip(-32, 32)  # held in steps of 1/4 as it is
    assert np.array_equal(_clip_softmax_logits(small, axis), small)
    assert np.array_equal(near[np.abs(logits) <= 32], logits[np.abs(logits) <= 32])


@pytest.mark.parametrize("mode", ["q-value", "max-value"])
def test_logits_that_fit_are_not_cut(mode):
    """Steps of 1/4 hold the shares: what a softmax reads keeps its range there, also where a row is
    very sure.
    """
    text = "g (float[N,4] x) => (float[N,3] y) { a = Gemm(x, w, b) y = Softmax(a) }"
    held = {"w": np.eye(4, 3, dtype=np.float32), "b": np.float32([0, 0, -20])}
    x = np.random.default_rng(0).normal(0, 2, (64, 4)).astype(np.float32)
    found = lo.quantize(graph(text, **held), {"x": x}, platform="generic", mode=mode)
    logits = x[:, :3] + held["b"]
    assert 4 <= found.plan.tensors["a"].scale <= 128 / np.abs(logits).max()


def test_scale_of_last_logits():
    """A logit far below the others is cut where a softmax of the host is all that reads it; not at
    an output.
    """
    text = "g (float[N,4] x) => (float[N,3] {0}) {{ a = Gemm(x, w, b) y = Softmax(a) }}"
    held = {"w": np.eye(4, 3, dtype=np.float32), "b": np.float32([0, 0, -500])}
    data = {"x": np.random.default_rng(0).normal(0, 4, (64, 4)).astype(np.float32)}
    found = lo.quantize(graph(text.format("y"), **held), data, platform="generic")
    both = text.format("y").replace("(float[N,3] y)", "(float[N,3] y, float[N,3] a)")
    seen = lo.quantize(graph(both, **held), data, platform="generic")
    assert found.plan.tensors["a"].scale >= 16 * seen.plan.tensors["a"].scale
    assert found.report.outputs["y"]["sqnr"] > seen.report.outputs["y"]["sqnr"] + 10
