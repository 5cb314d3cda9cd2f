"""Calibrators: the scale that holds a tensor best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.quantization.calibration import ConsumerFunction, TensorStats
from lingeronnx.quantization.calibration.calibrators import (
    PERCENTILE,
    choose_symmetric_scale,
    full_range_scale,
    kl_divergence,
    percentile_threshold,
)
from lingeronnx.quantization.config import QuantConfig
from tests import nets
from tests.case_selection import limit_examples

few = limit_examples(80, derandomize=True)
KINDS = ("max", "mse", "percentile", "kl")


def stats(*values):
    return TensorStats.from_array(np.array(values, np.float32))


def error(array, scale, bits=8):
    """Return the mean squared error of the raw array."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    held = np.clip(np.floor(array.astype(np.float64) * scale + 0.5), low, high) / scale
    return np.mean((held - array) ** 2)


@pytest.mark.parametrize("calibrator", KINDS)
@pytest.mark.parametrize(
    "values, exponent",
    (
        (np.arange(-128, 128) / 128, 7),
        (np.arange(256), -1),
        (np.arange(128), 0),
        (np.arange(-128, 128), 0),
        (np.arange(0, 128) / 64, 6),
        (-np.arange(129), 0),
    ),
)
def test_full_ranges(values, exponent, calibrator):
    """A range that fits a power of two exactly gets it: [-1, 127/128] 2^7, 0..255 2^-1, 0..127
    2^0.
    """
    seen = TensorStats.from_array(values.astype(np.float32))
    assert (
        choose_symmetric_scale(seen, 8, power_of_two=True, calibrator=calibrator) == 2.0**exponent
    )


@pytest.mark.parametrize("bits", (4, 8, 16))
@pytest.mark.parametrize("calibrator", KINDS)
@pytest.mark.parametrize("power", (True, False))
def test_all_zero(calibrator, power, bits):
    """A tensor of zeros gets 2^(bits-1), whatever is asked."""
    assert choose_symmetric_scale(
        stats(0, 0, 0), bits, power_of_two=power, calibrator=calibrator
    ) == 2.0 ** (bits - 1)


@pytest.mark.parametrize("bits", (4, 8, 16))
def test_max_value_formula(bits):
    """MaxValue: scale = (2^(b-1)-1) / max|x|, from either side of the range."""
    top = 2 ** (bits - 1) - 1
    assert choose_symmetric_scale(
        stats(-0.3, 1.7), bits, power_of_two=False, calibrator="max"
    ) == pytest.approx(top / np.float32(1.7))
    assert choose_symmetric_scale(
        stats(-2.5, 1.7), bits, power_of_two=False, calibrator="max"
    ) == pytest.approx(top / 2.5)


@pytest.mark.parametrize("power", (True, False))
def test_single_outlier(power):
    """One far value: mse cuts it and has the smaller error, max keeps it."""
    array = np.concatenate([np.random.default_rng(0).uniform(-1, 1, 200_000), [4.0]]).astype(
        np.float32
    )
    seen = TensorStats.from_array(array)
    found = {
        kind: choose_symmetric_scale(seen, 8, power_of_two=power, calibrator=kind)
        for kind in ("max", "mse")
    }
    assert found["max"] * array.max() <= 128
    assert found["mse"] > found["max"]
    assert error(array, found["mse"]) < 0.7 * error(array, found["max"])


@few
@given(st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_full_range_holds_everything(values):
    """At the full-range scale no value is off by more than half a step; at a larger one some value
    is.
    """
    array = np.array(values, np.float32)
    if np.abs(array).max() < 1e-6:
        return
    scale = full_range_scale(float(array.min()), float(array.max()), 8)
    reals = array.astype(np.float64) * scale
    assert reals.max() <= 127.5 * (1 + 1e-12)
    assert reals.min() >= -128.5 * (1 + 1e-12)
    assert reals.max() >= 127.5 * (1 - 1e-12) or reals.min() <= -128.5 * (1 - 1e-12)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.4, 1.0, 77.0]), st.sampled_from([4, 8]))
def test_power_of_two_is_the_best(seed, size, bits):
    """Among the powers of two, mse is the brute-force minimum (or within 2 % of it: bins, not
    values, are counted).
    """
    array = (np.random.default_rng(seed).standard_normal(3000) * size).astype(np.float32)
    scale = choose_symmetric_scale(
        TensorStats.from_array(array), bits, power_of_two=True, calibrator="mse"
    )
    assert np.frexp(scale)[0] == 0.5
    best = min(error(array, 2.0**e, bits) for e in range(-10, 24))
    assert error(array, scale, bits) <= 1.02 * best


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]))
def test_free_scale_is_no_worse(seed, bits):
    """A free scale is at least as good as the best power of two, to a few percent of its grid."""
    array = np.random.default_rng(seed).laplace(size=3000).astype(np.float32)
    free = choose_symmetric_scale(
        TensorStats.from_array(array), bits, power_of_two=False, calibrator="mse"
    )
    bound = choose_symmetric_scale(
        TensorStats.from_array(array), bits, power_of_two=True, calibrator="mse"
    )
    assert error(array, free, bits) <= 1.03 * error(array, bound, bits)


@pytest.mark.parametrize("calibrator", KINDS)
def test_scaling_the_tensor_by_a_power_of_two(calibrator):
    """Law: twice the tensor, half the scale."""
    seen = TensorStats.from_array(np.random.default_rng(3).standard_normal(5000).astype(np.float32))
    scale = choose_symmetric_scale(seen, 8, power_of_two=True, calibrator=calibrator)
    assert (
        choose_symmetric_scale(seen.scaled(4.0), 8, power_of_two=True, calibrator=calibrator)
        == scale / 4
    )


def test_max_takes_the_whole_range():
    """Q-value with max: the largest power of two that holds the range, to half a step."""
    for top, exponent in ((127.4, 0), (127.6, -1), (1.0, 6), (0.99, 7), (0.9, 7)):
        assert (
            choose_symmetric_scale(stats(0, top), 8, power_of_two=True, calibrator="max")
            == 2.0**exponent
        )


# ---- percentile ------------------------------------------------------------------------------------------------------


@few
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([90.0, 99.0, 99.9, 100.0]),
    st.sampled_from([0.01, 1.0, 300.0]),
)
def test_threshold_is_the_percentile(seed, share, size):
    """Up to T lies the share of |x|, to a bin's width."""
    array = (np.random.default_rng(seed).standard_normal(20_000) * size).astype(np.float32)
    seen = TensorStats.from_array(array)
    width = 2.0**seen.exponent
    found, sizes = percentile_threshold(seen, share), np.abs(array)
    assert np.mean(sizes <= found + width) >= share / 100
    assert np.mean(sizes <= found - width) <= share / 100
    assert found <= sizes.max()
    assert percentile_threshold(seen.scaled(3.0), share) == pytest.approx(
        3.0 * percentile_threshold(seen, share), rel=1e-9
    )


def test_threshold_of_known_distributions():
    """99.99 % of a Gaussian lie within 3.891 sigma, of a half-normal too, of a uniform within all
    but 1e-4.
    """
    rng = np.random.default_rng(0)
    gauss = rng.standard_normal(2_000_000).astype(np.float32)
    assert percentile_threshold(TensorStats.from_array(gauss), PERCENTILE) == pytest.approx(
        3.891, abs=0.06
    )
    assert percentile_threshold(TensorStats.from_array(np.abs(gauss)), PERCENTILE) == pytest.approx(
        3.891, abs=0.06
    )
    uniform = rng.uniform(-1, 1, 200_000).astype(np.float32)
    assert percentile_threshold(TensorStats.from_array(uniform), PERCENTILE) == pytest.approx(
        0.9999, abs=5e-4
    )
    assert (
        percentile_threshold(stats(0.0, 0.0, 0.0, 5.0), 60.0) <= 2.0**-9
    )  # zeros count: the range is never zero itself


def test_percentile_knows_the_sign():
    """One-sided data keep the half step beyond 127 that two-sided ones keep, and the share may be
    chosen.
    """
    array = np.linspace(0, 1, 100_001).astype(np.float32)
    seen = TensorStats.from_array(array)
    assert choose_symmetric_scale(seen, 8, power_of_two=True, calibrator="percentile") == 64.0
    assert (
        choose_symmetric_scale(seen, 8, power_of_two=True, calibrator="percentile", percentile=99.0)
        == 128.0
    )
    assert choose_symmetric_scale(
        seen, 8, power_of_two=False, calibrator="percentile", percentile=80.0
    ) == pytest.approx(127 / 0.8, 1e-3)


# ---- kl --------------------------------------------------------------------------------------------------------------


def entropy_by_hand(array, scale, seen, low=-128, high=127):
    """Return KL of the module's docstring with plain loops over the bins of a histogram of its
    own.
    """
    width = 2.0**seen.exponent
    count = {}
    for value in array:
        count[int(np.floor(value / width))] = count.get(int(np.floor(value / width)), 0) + 1
    count.pop(0, None)
    bins = sorted(count)
    integer = {b: int(np.floor((b + 0.5) * width * scale + 0.5)) for b in bins}
    inside = [b for b in bins if low <= integer[b] <= high]
    there = {b: count[b] for b in inside}
    there[inside[0]] += sum(count[b] for b in bins if b < inside[0])
    there[inside[-1]] += sum(count[b] for b in bins if b > inside[-1])
    same = {i: [b for b in inside if integer[b] == i] for i in {integer[b] for b in inside}}
    even = {b: sum(count[c] for c in same[integer[b]]) / len(same[integer[b]]) for b in inside}
    p, q = sum(there.values()), sum(even.values())
    total = sum(there[b] / p * np.log(there[b] / p / (even[b] / q)) for b in inside)
    return total - (len(inside) - len(same)) / (2 * p)


@pytest.mark.parametrize("scale", (20.0, 32.0, 64.0, 200.0))
def test_relative_entropy_by_hand(scale):
    rng = np.random.default_rng(1)
    for array in (
        rng.standard_normal(3000),
        np.maximum(rng.standard_normal(3000), 0),
        rng.uniform(-1, 3, 2000),
    ):
        values = array.astype(np.float32)
        seen = TensorStats.from_array(values)
        assert kl_divergence(seen, scale, -128, 127) == pytest.approx(
            entropy_by_hand(values, scale, seen), abs=1e-12
        )


def test_relative_entropy_ends():
    """Nothing inside the range is infinitely bad; a tensor of one value and zeros loses nothing."""
    assert kl_divergence(stats(1.0, 2.0, 4.0), 1e9, -128, 127) == np.inf
    assert kl_divergence(stats(0.0, 0.0, 0.0), 1.0, -128, 127) == 0.0


@pytest.mark.parametrize("kind", ("kl", "percentile"))
@pytest.mark.parametrize(
    "make, low, high",
    (
        (lambda rng, n: rng.standard_normal(n), 3.5, 5.5),
        (lambda rng, n: np.maximum(rng.standard_normal(n), 0), 3.5, 5.5),
        (lambda rng, n: np.abs(rng.standard_normal(n)), 3.5, 5.5),
        (lambda rng, n: rng.uniform(-1, 1, n), 0.99, 1.0),
        (lambda rng, n: rng.uniform(0, 1, n), 0.99, 1.0),
        (lambda rng, n: rng.laplace(size=n), 7.0, 13.0),
    ),
    ids=("gauss", "relu", "half-normal", "uniform", "uniform above 0", "laplace"),
)
def test_what_is_held_of_known_distributions(kind, make, low, high):
    """The largest value held at the free scale, in units of the distribution."""
    seen = TensorStats.from_array(make(np.random.default_rng(2), 400_000).astype(np.float32))
    assert (
        low
        <= 127 / choose_symmetric_scale(seen, 8, power_of_two=False, calibrator=kind)
        <= high * 1.001
    )


@pytest.mark.parametrize("outlier", (12.0, -30.0, 100.0))
@pytest.mark.parametrize("kind", ("kl", "percentile"))
def test_a_single_outlier_is_ignored(kind, outlier):
    """One value in 400 000 far outside moves neither the free scale by half nor the exponent by
    more than one.
    """
    array = np.random.default_rng(3).standard_normal(400_000)
    without, with_it = (
        TensorStats.from_array(a.astype(np.float32)) for a in (array, np.append(array, outlier))
    )
    free = [
        choose_symmetric_scale(seen, 8, power_of_two=False, calibrator=kind)
        for seen in (without, with_it)
    ]
    assert 1 / 1.5 < free[0] / free[1] < 1.5
    bound = [
        np.log2(choose_symmetric_scale(seen, 8, power_of_two=True, calibrator=kind))
        for seen in (without, with_it)
    ]
    assert abs(bound[0] - bound[1]) <= 1
    assert (
        bound[1]
        >= np.log2(choose_symmetric_scale(with_it, 8, power_of_two=True, calibrator="max")) + 1
    )


def test_sixteen_bits_keep_room():
    """mse holds twice what was seen above 8 bits; max still takes the whole range exactly."""
    seen = stats(-1.0, 0.5, 1.0)
    assert choose_symmetric_scale(seen, 16, power_of_two=False, calibrator="mse") == pytest.approx(
        32767 / 2
    )
    assert choose_symmetric_scale(seen, 16, power_of_two=False, calibrator="max") == 32767


def test_the_default_share_is_one():
    assert QuantConfig().percentile == PERCENTILE


def test_what_saturates_a_curve_anyway_is_cut():
    """Logits far below zero are all the same to a sigmoid: the scale goes to those around zero."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    values = np.concatenate([np.linspace(-40, -8, 900), np.linspace(-7.5, 3, 100)]).astype(
        np.float32
    )
    seen = TensorStats.from_array(values)
    plain = choose_symmetric_scale(seen, 8, power_of_two=True, calibrator="mse")
    behind = choose_symmetric_scale(
        seen, 8, power_of_two=True, calibrator="mse", consumer=ConsumerFunction(sigmoid)
    )

    def off(scale):
        held = np.clip(np.floor(values * scale + 0.5), -128, 127) / scale
        return np.mean((sigmoid(held) - sigmoid(values)) ** 2)

    assert (plain, behind) == (2.0, 16.0)
    assert off(behind) == min(off(2.0**e) for e in range(10))


@pytest.mark.parametrize(
    "reader, finer",
    (("Sigmoid", True), ("Tanh", True), ("Softplus", False), ("both", False), ("output", False)),
)
def test_only_a_tensor_that_a_curve_alone_reads_is_cut_for_it(reader, finer):
    """The float sigmoid of the host is one; a second reader, or a graph output, wants the values as
    they are.
    """
    net = nets.Net(4, 3, 3)
    logits = net.node(
        "Reshape", net.conv("x", (4, 4, 1, 1), gain=30.0), net.const(np.array([0, 36], np.int64))
    )
    kinds = {"both": ("Sigmoid", "Softplus"), "output": ("Sigmoid",)}.get(reader, (reader,))
    outputs = [net.node(kind, logits, out=f"y{i}") for i, kind in enumerate(kinds)]
    model = net.graph(*outputs, *([logits] if reader == "output" else []))
    result = lo.quantize(model, nets.samples(model), effort="fast")
    largest = max(abs(v) for v in result.ranges[logits])
    assert (result.plan.tensors[logits].scale * largest > 256) is finer
