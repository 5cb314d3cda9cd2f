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

from ...common.errors import ConfigError, DataError, suggest_nearest
from ...runtime.metrics import resolve_metric
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
    """Return the name of a metric in the spelling of tables ("SQNR", "top1"), whatever its case.

    A name with a colon, "module:function", names a function of the user and is returned unchanged.

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
    """Whether a smaller value of the metric `name` is better, as for MSE, L1, KL, Atol and Rtol.

    `name` is spelled as in tables. False for all others and for functions of the user.
    """
    return name in LOWER_IS_BETTER


def metric_unit(name: str) -> str:
    """Return the unit of a metric: "%" for top1 and top5, "dB" for SQNR, else ""."""
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
        """Normalize the metric names, and load the metrics that need labels.

        These are all but Cosine, MSE, L1, KL, SQNR, Atol and Rtol: top1, top5 and functions of the
        user, which are imported here. Raises ConfigError for an unknown metric.
        """
        self.names = [normalize_metric_name(name) for name in names]
        self.label_metrics: dict[str, Callable[[], Any]] = {
            name: resolve_metric(name)[0] for name in self.names if name not in METRICS
        }
        self.histograms = "KL" in self.names

    def __call__(self) -> Measures:
        """Create empty `Measures` of this factory's metrics, for one output."""
        return Measures(self)


class Measures:
    """Metrics of one output over all batches."""

    def __init__(self, factory: MeasureFactory) -> None:
        """Start without batches.

        `factory` has the metric names and creates metrics that need labels.
        """
        self._factory = factory
        self._pair = PairMeasures()
        self._label_metrics = {name: make() for name, make in factory.label_metrics.items()}

    @property
    def _needs_pair(self) -> bool:
        """Whether at least one metric compares the output with the float model's."""
        return len(self._label_metrics) < len(self._factory.names)

    def add(self, reference: np.ndarray, labels: np.ndarray | None, array: np.ndarray) -> None:
        """Add a batch: the float model's output `reference`, labels, and the trial's output.

        Metrics like SQNR compare `array`, the trial's output, with `reference`; top1, top5 and user
        functions compare it with `labels`. Raises DataError if a metric needs labels and they are
        None.
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
        """The sums of all metrics so far as JSON-ready values, for `merge` of other measures.

        The first is the state of the comparison with the float model, or None if no metric needs
        it.
        """
        pair = self._pair.state(self._factory.histograms) if self._needs_pair else None
        return [pair, *(list(metric.sums) for metric in self._label_metrics.values())]

    def merge(self, state: Sequence[Any]) -> None:
        """Add the `state` of measures of the same metrics on further samples, in place."""
        if state[0] is not None:
            self._pair.merge(PairMeasures.from_state(state[0]))
        for metric, sums in zip(self._label_metrics.values(), state[1:], strict=True):
            metric.merge(sums)

    @property
    def values(self) -> list[float]:
        """The values of the metrics over all batches, in the order of the metric names."""
        values = []
        for name in self._factory.names:
            if name in self._label_metrics:
                values.append(float(self._label_metrics[name].value))
            else:
                values.append(float(getattr(self._pair, METRICS[name])))
        return values


def worst_first_key(name: str, value: float, order: str | None) -> float:
    """Return the sort key of a metric's value: an ascending sort puts the worst value first.

    NaN counts as the worst. For a known metric `order` is None. For a function of the user, `order`
    is "ascending" or "descending", the direction in which the worst values come first; None for a
    user function is like "ascending".
    """
    if math.isnan(value):
        return -math.inf
    descending = is_lower_better(name) if order is None else order == "descending"
    return -value if descending else value
