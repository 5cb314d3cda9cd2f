"""Metrics of a trial's output: agreement with the float model, accuracy, user functions.

Names are those of tables, in any case: L1, MSE, KL, Cosine, SQNR, Atol, Rtol; top1, top5;
``module:function`` of (outputs, labels), which returns one number per batch, of which the mean
over the batches counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError, suggest_nearest
from ...run.metrics import resolve_metric
from .pair_measures import LOWER_IS_BETTER, METRICS, PairMeasures

__all__ = [
    "MeasureFactory",
    "Measures",
    "is_lower_better",
    "metric_unit",
    "normalize_metric_name",
    "resolve_output",
    "worst_first_key",
]

_ACCURACY = ("top1", "top5")


def normalize_metric_name(name: str) -> str:
    """Return the name of a metric as in tables, whatever its case; "module:function" is unchanged.

    Raises
    ------
    ConfigError
        If the metric is unknown.
    """
    known = {metric.casefold(): metric for metric in (*METRICS, *_ACCURACY)}
    if name.casefold() in known:
        return known[name.casefold()]
    if ":" in name:
        return name
    raise ConfigError(
        f"unknown metric '{name}'{suggest_nearest(name.casefold(), known)}; known: "
        f"{', '.join(known.values())}, module:function"
    )


def is_lower_better(name: str) -> bool:
    """Whether a smaller value of the metric is better; False for functions of the user."""
    return name in LOWER_IS_BETTER


def metric_unit(name: str) -> str:
    """Return the unit of the metric: "%", "dB" or ""."""
    if name in _ACCURACY:
        return "%"
    return "dB" if name == "SQNR" else ""


def resolve_output(name: str | None, outputs: Iterable[str]) -> str:
    """Return `name`, or the first of a model's `outputs` if it is None.

    There must be at least one output if `name` is None.

    Raises
    ------
    ConfigError
        If the model has no such output.
    """
    known = list(outputs)
    if name is not None and name not in known:
        raise ConfigError(
            f"the model has no output '{name}'{suggest_nearest(name, known)}; outputs are "
            f"{', '.join(known)}"
        )
    return known[0] if name is None else name


class MeasureFactory:
    """Creates `Measures` of the metrics `names`; loads user functions once."""

    def __init__(self, names: Sequence[str]) -> None:
        """Normalize the names, and load the metrics that need labels (all but those of METRICS).

        Raises ConfigError for an unknown metric.
        """
        self.names = [normalize_metric_name(name) for name in names]
        self.label_metrics: dict[str, Callable[[], Any]] = {
            name: resolve_metric(name)[0] for name in self.names if name not in METRICS
        }
        self.histograms = "KL" in self.names

    def __call__(self) -> Measures:
        """Create measures without any data."""
        return Measures(self)


class Measures:
    """Metrics of one output over all batches."""

    def __init__(self, factory: MeasureFactory) -> None:
        """Start without batches; `factory` names the metrics and creates those of labels."""
        self._factory = factory
        self._pair = PairMeasures()
        self._label_metrics = {name: make() for name, make in factory.label_metrics.items()}

    @property
    def _needs_pair(self) -> bool:
        """Whether a metric compares the output with the float model's."""
        return len(self._label_metrics) < len(self._factory.names)

    def add(self, reference: np.ndarray, labels: np.ndarray | None, array: np.ndarray) -> None:
        """Add a batch: the float model's output, labels if there are any, the trial's output.

        Raises DataError if a metric needs labels and there are none.
        """
        if self._needs_pair:
            self._pair.add(reference, array)
        for name, metric in self._label_metrics.items():
            if labels is None:
                raise DataError(
                    f"metric {name} needs labels: the data have no 'labels' array; sqnr needs none"
                )
            metric.add(labels, array)

    @property
    def state(self) -> list[object]:
        """All sums as JSON-ready values, for `merge`."""
        pair = self._pair.state(self._factory.histograms) if self._needs_pair else None
        return [pair, *(list(metric.sums) for metric in self._label_metrics.values())]

    def merge(self, state: Sequence[Any]) -> None:
        """Merge the `state` of the same metrics on further samples."""
        if state[0] is not None:
            self._pair.merge(PairMeasures.from_state(state[0]))
        for metric, sums in zip(self._label_metrics.values(), state[1:], strict=True):
            metric.merge(sums)

    @property
    def values(self) -> list[float]:
        """The values of the metrics, in the order of their names."""
        values = []
        for name in self._factory.names:
            if name in self._label_metrics:
                values.append(float(self._label_metrics[name].value))
            else:
                values.append(float(getattr(self._pair, METRICS[name])))
        return values


def worst_first_key(name: str, value: float, order: str | None) -> float:
    """Return a key for an ascending sort that puts the worst value of a metric first.

    NaN is the worst. `order` is "ascending" or "descending" for a user's function, whose worst
    values come first in that order; None for a known metric, or for a function "ascending".
    """
    if math.isnan(value):
        return -math.inf
    descending = is_lower_better(name) if order is None else order == "descending"
    return -value if descending else value
