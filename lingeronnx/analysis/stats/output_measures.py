"""What a trial's output is measured by.

Agreement with the float model's, accuracy on labels, a function of the user's.
Names are those of the tables, in any case: L1, MSE, KL, Cosine, SQNR, Atol, Rtol; top1, top5;
``module:function`` of (outputs, labels), which returns one number for a batch: the mean over the
batches counts.
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
    """Return the name of a metric as tables have it; ConfigError for an unknown one."""
    known = {other.casefold(): other for other in (*METRICS, *_ACCURACY)}
    if name.casefold() in known:
        return known[name.casefold()]
    if ":" in name:
        return name
    raise ConfigError(
        f"unknown metric '{name}'{suggest_nearest(name.casefold(), known)}; known: "
        f"{', '.join(known.values())}, "
        "module:function"
    )


def is_lower_better(name: str) -> bool:
    """Whether a larger value is a worse one."""
    return name in LOWER_IS_BETTER


def metric_unit(name: str) -> str:
    """Return what the values are in: "%", "dB" or nothing."""
    return "%" if name in _ACCURACY else "dB" if name == "SQNR" else ""


def resolve_output(name: str | None, outputs: Iterable[str]) -> str:
    """Return `name`, default the first of a model's `outputs`.

    ConfigError where they have no such.
    """
    known = list(outputs)
    if name is not None and name not in known:
        raise ConfigError(
            f"the model has no output '{name}'{suggest_nearest(name, known)}; outputs are "
            f"{', '.join(known)}"
        )
    return known[0] if name is None else name


class MeasureFactory:
    """Makes measures of the metrics `names`; a user's functions are loaded once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [normalize_metric_name(name) for name in names]
        self.label_metrics: dict[str, Callable[[], Any]] = {
            name: resolve_metric(name)[0] for name in self.names if name not in METRICS
        }
        self.histograms = "KL" in self.names

    def __call__(self) -> Measures:
        """Return measures that have seen nothing."""
        return Measures(self)


class Measures:
    """Metrics of one output over all batches."""

    def __init__(self, makers: MeasureFactory) -> None:
        self._of = makers
        self._pair = PairMeasures()
        self._own = {name: make() for name, make in makers.label_metrics.items()}

    def add(self, reference: np.ndarray, labels: np.ndarray | None, array: np.ndarray) -> None:
        """Take in one batch: the float model's output, labels where there are any, and the trial's output."""
        if len(self._own) < len(self._of.names):
            self._pair.add(reference, array)
        for name, measure in self._own.items():
            if labels is None:
                raise DataError(
                    f"metric {name} needs labels: the data have no 'labels' array; sqnr needs none"
                )
            measure.add(labels, array)

    @property
    def state(self) -> list[object]:
        """All that was seen, in types that JSON has."""
        pair = (
            self._pair.state(self._of.histograms) if len(self._own) < len(self._of.names) else None
        )
        return [pair, *(list(measure.sums) for measure in self._own.values())]

    def merge(self, state: Sequence[Any]) -> None:
        """Take in what another has seen."""
        if state[0] is not None:
            self._pair.merge(PairMeasures.from_state(state[0]))
        for measure, sums in zip(self._own.values(), state[1:], strict=True):
            measure.merge(sums)

    @property
    def values(self) -> list[float]:
        """The values, by the order of the names."""
        return [
            float(
                self._own[name].value if name in self._own else getattr(self._pair, METRICS[name])
            )
            for name in self._of.names
        ]


def worst_first_key(name: str, value: float, order: str | None) -> float:
    """Return a key that sorts the worst value first; nan is the worst.

    order : "ascending" or "descending", which of the values of a function of the user's is the
    worst first.
    """
    if math.isnan(value):
        return -math.inf
    descending = is_lower_better(name) if order is None else order == "descending"
    return -value if descending else value
