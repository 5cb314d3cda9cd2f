"""Measure the accuracy of a model, integer or float, on data: `evaluate`."""

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
    """Value of a metric on `samples` samples.

    baseline : value of the baseline, if one was passed. warnings : problems of the measured model.
    """

    metric: str
    unit: str
    value: float
    samples: int
    baseline: float | None = None
    warnings: Sequence[str] = ()

    @property
    def accuracy(self) -> dict[str, object]:
        """Accuracy of an integer model and of its float baseline, as reports store it.

        "drop" is baseline minus integer, None without a baseline.
        """
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
        Evaluation data, in the forms that `quantize` accepts, with or without labels.
    metric
        top1 or top5 against labels; mse, cosine or sqnr against the outputs of `baseline`;
        ``module:function`` of (outputs, labels). Default: top1 if the data have labels, else sqnr.
    baseline
        The model to compare with.
    output
        The tensor to measure, default the first graph output; any tensor that both models have.
    batch, limit
        Samples per batch, and number of samples to use; None uses all.
    workers, cluster
        Number of processes, or address of a Dask scheduler; the result is bit-identical.
    progress
        Called with (description, processed samples, total samples or None).

    Raises
    ------
    DataError
        If labels are missing.
    ConfigError
        If a baseline is missing.
    """
    session = model if isinstance(model, Session) else Session(model)
    base = None if baseline is None else _open_baseline(baseline, session)
    source = Data(data, session.inputs, limit=limit, label="evaluation data")
    name = output or str(session.get_outputs()[0].name)
    batches = source.batches(batch)
    first = next(batches)
    job = _MetricJob(session, base, name, _resolve_metric_name(metric, first[1], base))
    measures = job.create_measures()
    sample_count = 0
    for count, batch_sums in map_jobs(job, chain([first], batches), workers, cluster):
        for measure, sums in zip(measures, batch_sums, strict=True):
            measure.merge(sums)
        sample_count += count
        if progress is not None:
            progress("evaluating", sample_count, None)
    _, unit = job.metric_factory
    return Evaluation(
        metric=job.metric,
        unit=unit,
        value=measures[0].value,
        samples=sample_count,
        baseline=measures[1].value if len(measures) > 1 else None,
        warnings=collect_calibration_warnings(session.model),
    )


def _open_baseline(baseline: ir.ModelLike | Session, session: Session) -> Session:
    """Open the baseline of `session`.

    Inputs that were fixed when `session` was quantized are fixed in its float model as well.
    """
    base = baseline if isinstance(baseline, Session) else Session(baseline)
    model = apply_fixed_inputs(base.model, session.model)
    return base if model is base.model else Session(model)


def _resolve_metric_name(name: str | None, labels: object, base: object) -> str:
    """Return the metric `name`; by default "top1" with labels, "sqnr" with only a baseline `base`.

    ConfigError if there is neither.
    """
    if name is not None:
        return name
    if labels is not None:
        return "top1"
    if base is not None:
        return "sqnr"
    raise ConfigError(
        "the data have no labels: pass --baseline FLOAT.onnx to compare with, or data with 'labels'"
    )


@dataclass(frozen=True)
class _MetricJob:
    """A metric of one tensor of `model`, compared with `base` or with labels."""

    model: Session
    base: Session | None
    output: str
    metric: str

    @cached_property
    def metric_factory(self) -> tuple[Callable[[], Any], str]:
        """Function that creates a measure, and its unit; a user's function is loaded once."""
        return resolve_metric(self.metric)

    def create_measures(self) -> list[Any]:
        """Create a measure for the model, and one for the baseline if the metric uses labels.

        ConfigError if the metric compares two models and there is no baseline.
        """
        create, _ = self.metric_factory
        measure = create()
        if not measure.needs_labels and self.base is None:
            raise ConfigError(
                f"metric {self.metric} compares two models: pass --baseline FLOAT.onnx"
            )
        if measure.needs_labels and self.base is not None:
            return [measure, create()]
        return [measure]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments only."""
        return _MetricJob, (self.model, self.base, self.output, self.metric)

    def start(self) -> Callable[[Batch], tuple[int, list[tuple[float, ...]]]]:
        """Return the function that measures a batch: its samples, and the sums of every measure."""
        return self._measure_batch

    def _measure_batch(self, batch: Batch) -> tuple[int, list[tuple[float, ...]]]:
        """Return the number of samples in a batch, and the sums of every measure.

        A metric with labels measures model and baseline against these; another compares the model
        with the baseline. DataError if labels are missing, or the output does not follow the
        samples.
        """
        feeds, labels = batch
        measure, *base_measures = self.create_measures()
        actual = self.model.run([self.output], feeds)[0]
        reference = None if self.base is None else self.base.run([self.output], feeds)[0]
        if not np.ndim(actual):
            raise DataError(
                f"output '{self.output}' is one number for all samples, so samples cannot be "
                "measured; pass another with --output"
            )
        if not measure.needs_labels:
            assert reference is not None
            if np.size(reference) != np.size(actual):
                shapes = f"{list(np.shape(actual))}, the baseline's {list(np.shape(reference))}"
                raise DataError(
                    f"output '{self.output}' has shape {shapes}: it does not follow the samples; "
                    "use --batch 1"
                )
            measure.add(reference, actual)
        elif labels is None:
            raise DataError(
                f"metric {self.metric} needs labels: the data have no 'labels' array; sqnr needs "
                "none"
            )
        else:
            measure.add(labels, actual)
            for base_measure in base_measures:
                assert reference is not None
                base_measure.add(labels, reference)
        return len(actual), [item.sums for item in (measure, *base_measures)]
