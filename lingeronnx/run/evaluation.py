"""Measuring a model, integer or float, on data: `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..graph import ir
from ..plan.synthetic_calibration import collect_calibration_warnings
from .cluster import map_jobs
from .data import Batch, Data, Progress
from .metrics import resolve_metric
from .provenance import apply_fixed_inputs
from .session import Session

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """A metric's value on `samples` samples, and the baseline's where one was given.

    warnings : what is wrong with the model that was measured.
    """

    metric: str
    unit: str
    value: float
    samples: int
    baseline: float | None = None
    warnings: Sequence[str] = ()

    @property
    def accuracy(self) -> dict[str, object]:
        """The value of an integer model beside that of the float one, the baseline, as reports hold it."""
        drop = None if self.baseline is None else self.baseline - self.value
        return {
            "metric": self.metric,
            "unit": self.unit,
            "float": self.baseline,
            "integer": self.value,
            "drop": drop,
            "samples": self.samples,
        }


def evaluate(
    model: ir.ModelLike | Session,
    data: object,
    *,
    metric: str | None = None,
    baseline: ir.ModelLike | Session | None = None,
    output: str | None = None,
    batch: int = 256,
    limit: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model, integer or float, on data.

    Parameters
    ----------
    model
        A path, a model in memory, or a `Session`.
    data
        What to measure on, as `quantize` takes calibration data; may hold labels.
    metric
        top1 or top5 against labels; mse, cosine or sqnr against the outputs of `baseline`;
        ``module:function`` of (outputs, labels). Default: top1 where the data have labels, else
        sqnr.
    baseline
        The model to compare with.
    output
        The tensor to measure, default the first graph output; any tensor that exists in both models
        will do.
    batch, limit
        Samples per batch, and how many samples are used; None: all.
    workers, cluster
        Where the batches are computed, see `cluster.spread`; the result is the same to the last
        bit.
    progress
        Called with (what is being done, samples done, samples in all or None).

    Raises
    ------
    DataError
        Where labels are missing.
    ConfigError
        Where a baseline is missing.
    """
    session = model if isinstance(model, Session) else Session(model)
    base = None if baseline is None else _open_baseline(baseline, session)
    source = Data(data, session.inputs, limit=limit, what="evaluation data")
    name = output or str(session.get_outputs()[0].name)
    batches = source.batches(batch)
    first = next(batches)
    job = _MetricJob(session, base, name, _resolve_metric_name(metric, first[1], base))
    total = job.create_measures()
    done = 0
    for count, sums in map_jobs(job, chain([first], batches), workers, cluster):
        for measure, part in zip(total, sums, strict=True):
            measure.merge(part)
        done += count
        if progress is not None:
            progress("evaluating", done, None)
    against = total[1].value if len(total) > 1 else None
    return Evaluation(
        job.metric,
        job.metric_factory[1],
        total[0].value,
        done,
        against,
        collect_calibration_warnings(session.model),
    )


def _open_baseline(given: ir.ModelLike | Session, session: Session) -> Session:
    """Return the session to compare `session` with.

    Of the float model with what was fixed when that was quantized.
    """
    base = given if isinstance(given, Session) else Session(given)
    model = apply_fixed_inputs(base.model, session.model)
    return base if model is base.model else Session(model)


def _resolve_metric_name(name: str | None, labels: object, base: object) -> str:
    if name is not None:
        return name
    if labels is not None:
        return "top1"
    if base is not None:
        return "sqnr"
    raise ConfigError(
        "the data have no labels: give --baseline FLOAT.onnx to compare with, or data with 'labels'"
    )


@dataclass(frozen=True)
class _MetricJob:
    """A metric of one tensor of `model`, and where it needs labels the same of `base`."""

    model: Session
    base: Session | None
    output: str
    metric: str

    @cached_property
    def metric_factory(self) -> tuple[Callable[[], Any], str]:
        """What makes the measure, and its unit; a user's function is loaded once."""
        return resolve_metric(self.metric)

    def create_measures(self) -> list[Any]:
        """Return a measure for the model, and where there is one to take, for the baseline."""
        main = self.metric_factory[0]()
        if not main.needs_labels and self.base is None:
            raise ConfigError(
                f"metric {self.metric} compares two models: give --baseline FLOAT.onnx"
            )
        return (
            [main, self.metric_factory[0]()]
            if main.needs_labels and self.base is not None
            else [main]
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _MetricJob, (self.model, self.base, self.output, self.metric)

    def start(self) -> Callable[[Batch], tuple[int, list[tuple[float, ...]]]]:
        """Return what measures one batch: the number of samples, and the sums of every measure."""
        return self._measure_batch

    def _measure_batch(self, batch: Batch) -> tuple[int, list[tuple[float, ...]]]:
        feeds, labels = batch
        main, *base = self.create_measures()
        got = self.model.run([self.output], feeds)[0]
        want = None if self.base is None else self.base.run([self.output], feeds)[0]
        if not np.ndim(got):
            raise DataError(
                f"output '{self.output}' is one number for all samples, nothing of a sample is "
                "measured; "
                "name one with --output"
            )
        if not main.needs_labels:
            assert want is not None
            if np.size(want) != np.size(got):
                sizes = f"{list(np.shape(got))}, the baseline's {list(np.shape(want))}"
                raise DataError(
                    f"output '{self.output}' has shape {sizes}: it does not follow the samples; "
                    "use --batch 1"
                )
            main.add(want, got)
        elif labels is None:
            raise DataError(
                f"metric {self.metric} needs labels: the data have no 'labels' array; sqnr needs "
                "none"
            )
        else:
            main.add(labels, got)
            for measure in base:
                assert want is not None
                measure.add(labels, want)
        return len(got), [measure.sums for measure in (main, *base)]
