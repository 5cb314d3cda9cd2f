"""Measuring a model, integer or float, on data: `evaluate`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..graph import ir
from .data import Data, Progress
from .metrics import metric
from .session import Session

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """A metric's value on `samples` samples, and the baseline's where one was given."""

    metric: str
    unit: str
    value: float
    samples: int
    baseline: float | None = None


def evaluate(
    model: str | os.PathLike[str] | ir.Graph | Session,
    data: Any,
    *,
    metric: str | None = None,
    baseline: str | os.PathLike[str] | ir.Graph | Session | None = None,
    output: str | None = None,
    batch: int = 256,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model, integer or float, on data.

    metric : top1 or top5 against labels; mse, cosine or sqnr against the outputs of `baseline`; ``module:function`` of
        (outputs, labels). Default: top1 where the data have labels, else sqnr.
    output : the tensor to measure, default the first graph output; any tensor that exists in both models will do.
    Raises DataError when labels are missing, ConfigError when a baseline is.
    """
    session = model if isinstance(model, Session) else Session(model)
    base = baseline if baseline is None or isinstance(baseline, Session) else Session(baseline)
    source = Data(data, session.inputs, limit=limit, what="evaluation data")
    name = output or str(session.get_outputs()[0].name)
    state: _Measure | None = None
    done = 0
    for feeds, labels in source.batches(batch):
        state = state or _Measure(_metric_name(metric, labels, base), base is not None)
        got = session.run([name], feeds)[0]
        want = base.run([name], feeds)[0] if base is not None else None
        state.add(labels, got, want)
        done += len(got)
        if progress is not None:
            progress("evaluating", done, None)
    assert state is not None
    return Evaluation(state.name, state.unit, state.main.value, done, state.base.value if state.base else None)


def _metric_name(name: str | None, labels: Any, base: Any) -> str:
    if name is not None:
        return name
    if labels is not None:
        return "top1"
    if base is not None:
        return "sqnr"
    raise ConfigError("the data have no labels: give --baseline FLOAT.onnx to compare with, or data with 'labels'")


class _Measure:
    """A metric for the model and, where it needs labels, one for the baseline."""

    def __init__(self, name: str, with_base: bool) -> None:
        make, self.unit = metric(name)
        self.name = name
        self.main = make()
        self.base = make() if with_base and self.main.needs_labels else None
        if not self.main.needs_labels and not with_base:
            raise ConfigError(f"metric {name} compares two models: give --baseline FLOAT.onnx")

    def add(self, labels: Any, got: np.ndarray, want: np.ndarray | None) -> None:
        """Take in one batch."""
        if not self.main.needs_labels:
            assert want is not None
            self.main.add(want, got)
            return
        if labels is None:
            raise DataError(f"metric {self.name} needs labels: the data have no 'labels' array")
        self.main.add(labels, got)
        if self.base is not None and want is not None:
            self.base.add(labels, want)
