"""What a quantized model is worth on data of the user's.

Accuracy, and values that calibration did not see.
"""

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
    """Return `result` with its accuracy on `data` beside that of the float model `baseline` in the report.

    budget : bytes that may be taken. metric, batch, limit : as `evaluate` takes them. Values beyond
    what calibration saw become notes.
    """
    sizes: dict[str, Any] = {} if batch is None else {"batch": batch}
    evaluated = evaluate(
        result.session(),
        data,
        metric=metric,
        baseline=baseline,
        limit=limit,
        progress=progress,
        **sizes,
    )
    notes = (*result.report.notes, *format_clipped_values(result, data, budget, limit))
    return replace(result, report=replace(result.report, accuracy=evaluated.accuracy, notes=notes))
