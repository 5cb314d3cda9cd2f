"""Metrics of a trial's output: names in any case, which way is worse, parts that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lingeronnx.analysis.stats.output_measures import (
    MeasureFactory,
    is_lower_better,
    metric_unit,
    normalize_metric_name,
    resolve_output,
    worst_first_key,
)
from lingeronnx.common.errors import ConfigError, DataError


def test_names():
    assert [normalize_metric_name(name) for name in ("l1", "sqnr", "TOP1", "own.py:metric")] == [
        "L1",
        "SQNR",
        "top1",
        "own.py:metric",
    ]
    with pytest.raises(
        ConfigError, match="unknown metric 'SQMR', did you mean 'sqnr'|unknown metric 'SQMR'"
    ):
        normalize_metric_name("SQMR")
    assert [metric_unit(name) for name in ("top5", "SQNR", "L1")] == ["%", "dB", ""]
    assert [is_lower_better(name) for name in ("MSE", "Cosine", "top1")] == [True, False, False]


def test_the_output_that_is_looked_at():
    assert resolve_output(None, ["a", "b"]) == "a"
    assert resolve_output("b", ["a", "b"]) == "b"
    with pytest.raises(ConfigError, match="no output 'c'.*outputs are a, b"):
        resolve_output("c", ["a", "b"])


@pytest.mark.parametrize(
    "name, order, values",
    [
        ("L1", None, [3.0, 2.0, 1.0]),
        ("SQNR", None, [-math.inf, 10.0, 20.0]),
        ("own.py:metric", "ascending", [1.0, 2.0, 3.0]),
        ("own.py:metric", "descending", [3.0, 2.0, 1.0]),
    ],
)
def test_the_worst_value_comes_first(name, order, values):
    shuffled = [values[1], math.nan, values[2], values[0]]
    ordered = sorted(shuffled, key=lambda value: worst_first_key(name, value, order))
    assert math.isnan(ordered[0])
    assert ordered[1:] == values


def test_parts_add_up():
    """Law: measures that take in the states of parts say what one says that saw these parts as
    batches.
    """
    rng = np.random.default_rng(0)
    makers = MeasureFactory(["KL", "L1", "top1"])
    whole, total = makers(), makers()
    for _ in range(3):
        batch = rng.standard_normal((8, 4)), rng.integers(0, 4, 8), rng.standard_normal((8, 4))
        whole.add(*batch)
        part = makers()
        part.add(*batch)
        total.merge(part.state)
    assert total.values == whole.values


def test_accuracy_needs_labels():
    with pytest.raises(DataError, match="metric top1 needs labels"):
        MeasureFactory(["top1"])().add(np.zeros((1, 2)), None, np.zeros((1, 2)))
