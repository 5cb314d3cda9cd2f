"""Measures over streams of batches: those of all samples at once, however they come."""

import math

import numpy as np
import pytest

from lingeronnx.common.arithmetic import ratio_db
from lingeronnx.common.errors import ConfigError, DataError
from lingeronnx.runtime.metrics import METRICS, Agreement, TopK, resolve_metric

RNG = np.random.default_rng(0)


def test_decibels_at_the_ends():
    assert ratio_db(100.0, 1.0) == pytest.approx(20)
    assert ratio_db(1.0, 0.0) == math.inf
    assert ratio_db(0.0, 1.0) == -math.inf
    assert math.isnan(ratio_db(math.inf, 1.0))
    assert ratio_db(1e-320, 1e300) == pytest.approx(-6200, abs=1)  # the ratio itself is 0


def test_agreement_is_that_of_all_samples_in_any_pieces():
    a = RNG.normal(size=(9, 5))
    b = a + 0.1 * RNG.normal(size=a.shape)
    whole, first, second = Agreement(), Agreement(), Agreement()
    whole.add(a, b)
    first.add(a[:4], b[:4])
    second.add(a[4:], b[4:])
    first.merge(second.sums)
    assert first.mse == pytest.approx(np.mean((a - b) ** 2))
    assert first.sqnr == pytest.approx(10 * math.log10((a**2).sum() / ((a - b) ** 2).sum()))
    assert first.cosine == pytest.approx((a * b).sum() / math.sqrt((a**2).sum() * (b**2).sum()))
    assert first.sums == pytest.approx(whole.sums)


def test_what_is_not_finite_in_the_reference_is_left_out_and_elsewhere_spoils_all():
    a, b = np.array([1.0, math.nan, 2.0]), np.array([1.0, 5.0, 2.0])
    agreement = Agreement()
    agreement.add(a, b)
    assert agreement.sqnr == math.inf
    agreement.add(np.array([1.0]), np.array([math.nan]))
    assert math.isnan(agreement.sqnr)


def test_the_label_is_among_the_k_largest_and_ties_go_to_the_smaller_index():
    scores = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0], [0.0, 1.0, 1.0]])
    for k, right in ((1, 1), (2, 3), (3, 3)):
        top = TopK(k)
        top.add(np.array([2, 0, 2]), scores)
        assert top.value == pytest.approx(100 * right / 3)


@pytest.mark.parametrize("labels", [[3], [-1], [0.5], [[0, 1]]])
def test_labels_that_are_no_classes_are_refused(labels):
    with pytest.raises(DataError, match="label"):
        TopK(1).add(np.array(labels), np.zeros((1, 3)))


@pytest.mark.parametrize(
    "scores", [np.float32(1.0), np.array([["cat"]], object), np.array(["cat"])]
)
def test_outputs_without_classes_are_refused(scores):
    with pytest.raises(
        DataError, match="the output is .*; top-k needs a number for each class of each sample"
    ):
        TopK(1).add(np.array([0]), np.asarray(scores))


def test_metrics_by_name_and_what_is_near_to_an_unknown_one():
    for name in METRICS:
        assert resolve_metric(name) is METRICS[name]
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        resolve_metric("cosin")
    with pytest.raises(ConfigError, match="the metric function failed"):
        resolve_metric("math:hypot")[0]().add(np.zeros(1), np.zeros((1, 2)))
