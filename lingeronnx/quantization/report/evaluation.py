"""Measure the accuracy of a quantized model on the user's data, and report clipped values.

Values of these data that exceed the calibrated range saturate the integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir import ir
from ...runtime.data import Data, Progress
from ...runtime.evaluation import evaluate
from ...runtime.memory import bytes_per_sample, choose_batch_size
from ...runtime.runners import FloatRunner, get_input_specs
from .quantized_model import QuantizedModel

__all__ = ["format_clipped_values", "measure_accuracy"]


_MAX_SAMPLES = 256
_MAX_BATCH_SIZE = 16
_RANGE_MARGIN = 1.25  # scales are approximate: values up to this times the range do not count
_MIN_CLIPPED_SHARE = 1e-3  # minimum fraction of a tensor's values that is reported
_MAX_OVERSHOOT = 2.0  # a single value beyond this times the range is reported as well
_MAX_LINES = 3


def measure_accuracy(
    result: QuantizedModel,
    data: object,
    baseline: ir.ModelLike,
    *,
    budget: int,
    metric: str | None = None,
    batch: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Return a copy of `result` whose report has its accuracy on `data` and the float model's.

    Warnings about the accuracy come first in the report's warnings. Values outside the calibrated
    range become notes, see `format_clipped_values`.

    Parameters
    ----------
    result
        The quantized model.
    data
        Evaluation data.
    baseline
        The float model.
    budget
        Memory budget in bytes.
    metric, batch, limit
        As in `evaluate`.
    progress
        Callback for progress messages.
    """
    options: dict[str, Any] = {} if batch is None else {"batch": batch}
    evaluated = evaluate(
        result.session(),
        data,
        metric=metric,
        baseline=baseline,
        limit=limit,
        progress=progress,
        **options,
    )
    notes = (*result.report.notes, *format_clipped_values(result, data, budget, limit))
    report = replace(result.report.with_accuracy(evaluated), notes=notes)
    return result.with_report(report)


@dataclass
class _ClippedValues:
    """Values of one tensor that are outside its calibrated range and that its integers clip.

    Attributes
    ----------
    low, high
        The calibrated range.
    limits
        Smallest and largest value that the integers represent. With symmetric integers a negative
        value of a tensor calibrated to [0, 1] is within them.
    count
        Number of values outside.
    total
        Number of all values.
    max_abs
        Largest magnitude outside.
    """

    low: float
    high: float
    limits: tuple[float, float]
    count: int = 0
    total: int = 0
    max_abs: float = 0.0

    def add(self, array: np.ndarray) -> None:
        """Count the values of one batch.

        Outside are values beyond `_RANGE_MARGIN` times the bound on their side, with its sign.
        """
        min_value, max_value = self.limits
        is_above = (array > _RANGE_MARGIN * self.high) & (array > max(0.0, max_value))
        is_below = (array < _RANGE_MARGIN * self.low) & (array < min(0.0, min_value))
        clipped = np.abs(array)[is_above | is_below]
        self.count += clipped.size
        self.total += array.size
        self.max_abs = max(self.max_abs, float(clipped.max(initial=0.0)))

    @property
    def calibrated_max_abs(self) -> float:
        """Largest magnitude of the calibrated range."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_notable(self) -> bool:
        """Whether many values are outside, or some are far outside.

        Many are at least `_MIN_CLIPPED_SHARE` of all; far is beyond `_MAX_OVERSHOOT` times the
        largest calibrated magnitude.
        """
        if not self.count:
            return False
        has_many = self.count >= _MIN_CLIPPED_SHARE * self.total
        return has_many or self.max_abs > _MAX_OVERSHOOT * self.calibrated_max_abs


def format_clipped_values(
    result: QuantizedModel, data: object, budget: int, limit: int | None = None
) -> list[str]:
    """Format a note for each tensor of which many values in `data` exceed the calibrated range.

    Also for few values far outside, see `_ClippedValues.is_notable`. At most `_MAX_LINES` tensors
    are listed, those with the largest fraction of such values first. Returns an empty list if the
    plan came from elsewhere, so that the calibrated range is unknown, or if the data can be read
    only once.

    Parameters
    ----------
    result
        The quantized model.
    data
        Evaluation data; at most `_MAX_SAMPLES` samples are used.
    budget
        Memory budget in bytes.
    limit
        Maximum number of samples.
    """
    if not result.ranges:
        return []
    source = Data(
        data,
        get_input_specs(result.float_graph),
        limit=min(limit or _MAX_SAMPLES, _MAX_SAMPLES),
        label="evaluation data",
    )
    if not source.is_rereadable:
        return []
    clipped = {
        name: _ClippedValues(low, high, result.plan.tensors[name].ends)
        for name, (low, high) in result.ranges.items()
        if name in result.plan.tensors
    }
    runner = FloatRunner(result.float_graph, set(clipped))
    batch_size = choose_batch_size(bytes_per_sample(result.float_graph), _MAX_BATCH_SIZE, budget)
    for feeds, _ in source.batches(batch_size):
        for name, array, _qparams in runner.run(feeds):
            clipped[name].add(array)
    notable = [
        (values.count / values.total, name, values)
        for name, values in clipped.items()
        if values.is_notable
    ]
    notable.sort(key=lambda entry: entry[:2], reverse=True)
    return [
        f"evaluation data: {values.count} values ({share:.2%}) of '{name}' exceed the calibrated "
        f"range, {values.low:.3g} to {values.high:.3g}, by magnitudes up to {values.max_abs:.3g} "
        "and are clipped; add similar data to the calibration set"
        for share, name, values in notable[:_MAX_LINES]
    ]
