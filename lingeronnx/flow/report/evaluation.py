"""Measure the accuracy of a quantized model on the user's data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...graph import ir
from ...run.data import Progress
from ...run.evaluation import evaluate
from .evaluation_clipping import format_clipped_values
from .quantized_model import QuantizedModel

__all__ = ["measure_accuracy"]


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
    warnings = tuple(dict.fromkeys((*evaluated.warnings, *result.report.warnings)))
    report = replace(result.report, accuracy=evaluated.accuracy, notes=notes, warnings=warnings)
    return replace(result, report=report)
