"""Measure the accuracy of a model, integer or float, on data: `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..common.errors import ConfigError, DataError
from ..ir import ir
from ..ir.plan import Affine
from ..ir.plan.synthetic_calibration import collect_calibration_warnings
from ..operators.invalid_models import explain_invalid_models
from .accuracy_warnings import (
    FunctionDifferences,
    OutputChecks,
    PredictionCounts,
    format_sqnr_warning,
)
from .cluster import map_jobs
from .data import Batch, Data, Progress, require_equal_inputs
from .input_moments import format_magnitude_warnings
from .metrics import METRICS, Agreement, TopK, resolve_metric
from .provenance import apply_fixed_inputs, load_fixed_arrays
from .session import Session

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """Value of a metric on `samples` samples.

    Attributes
    ----------
    metric, unit
        Name of the metric, and unit of its value.
    value, baseline
        Value of the measured model, and of the baseline if one was passed.
    samples
        Number of samples.
    warnings
        Problems of the measured model and of the result: a loss, chance level, a single predicted
        class, a constant or saturated output.
    drop_standard_error
        Standard error of the difference of both values, from the samples that only one of both
        models has correct; None if unknown.
    """

    metric: str
    unit: str
    value: float
    samples: int
    baseline: float | None = None
    warnings: Sequence[str] = ()
    drop_standard_error: float | None = None

    @property
    def accuracy(self) -> dict[str, object]:
        """Accuracy of an integer model and of its float baseline, as reports store it.

        Keys: metric, unit, float, integer, drop, drop_standard_error, samples. "drop" is baseline
        minus integer, None without a baseline.
        """
        drop = None if self.baseline is None else self.baseline - self.value
        return {
            "metric": self.metric,
            "unit": self.unit,
            "float": self.baseline,
            "integer": self.value,
            "drop": drop,
            "drop_standard_error": self.drop_standard_error,
            "samples": self.samples,
        }


@explain_invalid_models
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
        The model to compare with; required for mse, cosine and sqnr.
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
    if base is not None:
        require_equal_inputs(base.inputs, session.inputs)
    fixed = load_fixed_arrays(session.model)
    source = Data(data, session.inputs, limit=limit, label="evaluation data", fixed=fixed)
    name = output or str(session.get_outputs()[0].name)
    batches = source.batches(batch)
    first = next(batches)
    job = _MetricJob(session, base, name, _resolve_metric_name(metric, first[1], base))
    measures = job.create_measures()
    checks = _ResultChecks(job.metric, name)
    sample_count = 0
    for result in map_jobs(job, chain([first], batches), workers, cluster):
        for measure, sums in zip(measures, result.sums, strict=True):
            measure.merge(sums)
        checks.add(result)
        sample_count += result.samples
        if progress is not None:
            progress("evaluating", sample_count, None)
    _, unit = job.metric_factory
    accuracy_warnings = checks.format_warnings(measures[0], is_integer=session.is_integer)
    accuracy_warnings += format_magnitude_warnings(session.model, first[0])
    return Evaluation(
        metric=job.metric,
        unit=unit,
        value=measures[0].value,
        samples=sample_count,
        baseline=measures[1].value if len(measures) > 1 else None,
        warnings=[*collect_calibration_warnings(session.model), *accuracy_warnings],
        drop_standard_error=checks.predictions.drop_standard_error,
    )


def _open_baseline(baseline: ir.ModelLike | Session, session: Session) -> Session:
    """Open the float model to compare `session` with.

    Inputs that were fixed when `session` was quantized are fixed in it as well.
    """
    base = baseline if isinstance(baseline, Session) else Session(baseline)
    model = apply_fixed_inputs(base.model, session.model)
    return base if model is base.model else Session(model)


def _resolve_metric_name(name: str | None, labels: object, base: object) -> str:
    """Return `name`, or by default "top1" if there are labels, else "sqnr" with baseline `base`.

    Raises ConfigError if there is neither.
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


class _BatchResult(NamedTuple):
    """Result of a batch.

    samples : number of samples. sums : sums of every measure. predictions : counts of a top-k
    metric. output : checks of the output against the baseline's.
    """

    samples: int
    sums: Sequence[Sequence[float]]
    predictions: PredictionCounts | None
    output: OutputChecks | None


class _ResultChecks:
    """Counts, summed over batches, from which warnings about an evaluation are made."""

    def __init__(self, metric: str, output: str) -> None:
        """Start without batches of output `output`, measured by metric `metric`."""
        self._metric = metric
        self.predictions = PredictionCounts(0)
        self._output = OutputChecks(output)
        self._differences = FunctionDifferences()

    def add(self, result: _BatchResult) -> None:
        """Add the result of a batch: its predictions and output checks, if it has them.

        For a metric of the user with a baseline, the sums of both are added as differences.
        """
        if result.predictions is not None:
            self.predictions.k = result.predictions.k
            self.predictions.merge(result.predictions)
        if result.output is not None:
            self._output.merge(result.output)
        if self._metric not in METRICS and len(result.sums) == 2:
            self._differences.add(*result.sums)

    def format_warnings(self, measure: object, *, is_integer: bool) -> list[str]:
        """Return the warnings about predictions, the user's metric, SQNR and the output.

        `measure` is the metric over all batches (SQNR is checked if it is an `Agreement`),
        `is_integer` whether the model is an integer one.
        """
        warnings = self.predictions.format_warnings(is_integer=is_integer)
        warnings += self._differences.format_warnings(self._metric)
        if isinstance(measure, Agreement):
            warnings += filter(None, [format_sqnr_warning(self._output.name, measure.sqnr)])
        return [*warnings, *self._output.format_warnings()]


@dataclass(frozen=True)
class _MetricJob:
    """A metric of one tensor of `model`, compared with `base` or with labels."""

    model: Session
    base: Session | None
    output: str
    metric: str

    @cached_property
    def metric_factory(self) -> tuple[Callable[[], Any], str]:
        """(function that creates a measure, its unit).

        A user's function is loaded once.
        """
        return resolve_metric(self.metric)

    def create_measures(self) -> list[Any]:
        """Create a measure for the model, and one for the baseline if the metric uses labels.

        Raises ConfigError if the metric compares two models and there is no baseline.
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
        """Pickle the arguments only, without the loaded metric."""
        return _MetricJob, (self.model, self.base, self.output, self.metric)

    def start(self) -> Callable[[Batch], _BatchResult]:
        """Return the function that measures a batch (feeds, labels)."""
        return self._measure_batch

    @cached_property
    def _integer_tensors(self) -> list[str]:
        """Names of the integer tensors that the output is dequantized from: one, or none.

        Empty for a float model and without a baseline.
        """
        if not self.model.is_integer or self.base is None:
            return []
        floats = self.model.floats
        return [name for name, float_name in floats.items() if float_name == self.output][-1:]

    def _run_model(
        self, feeds: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, Affine | None]:
        """Return the measured output, the integers it is dequantized from, and their parameters.

        The latter two are None if the output is not dequantized from integers or these are not
        available. Raises ConfigError if the model does not have the output.
        """
        names = list(dict.fromkeys([self.output, *self._integer_tensors]))
        tensors: dict[str, tuple[np.ndarray, Affine | None]] = {}
        for name, array, qparams in self.model.tensors(feeds, names):
            tensors[name] = array, qparams
        if self.output not in tensors:
            return self.model.run([self.output], feeds)[0], None, None  # raises the error
        output, _ = tensors[self.output]
        integers, integer_qparams = None, None
        if self._integer_tensors:
            integers, integer_qparams = tensors.get(self._integer_tensors[0], (None, None))
        return output, integers, integer_qparams

    def _measure_batch(self, batch: Batch) -> _BatchResult:
        """Measure a batch (feeds, labels).

        A metric with labels measures model and baseline against these; another compares the model
        with the baseline. Raises DataError if labels are missing, or the output does not follow the
        samples.
        """
        feeds, labels = batch
        measure, *base_measures = self.create_measures()
        actual, integers, qparams = self._run_model(feeds)
        reference = None if self.base is None else self.base.run([self.output], feeds)[0]
        if not np.ndim(actual):
            raise DataError(
                f"output '{self.output}' is one number for all samples, so samples cannot be "
                "measured; pass another with --output"
            )
        predictions = None
        if not measure.needs_labels:
            assert reference is not None
            self._check_size(actual, reference)
            measure.add(reference, actual)
        elif labels is None:
            raise DataError(
                f"metric {self.metric} needs labels: the data have no 'labels' array; sqnr needs "
                "none"
            )
        else:
            is_correct = [measure.add(labels, actual)]
            for base_measure in base_measures:
                is_correct.append(base_measure.add(labels, reference))
            if isinstance(measure, TopK):
                predictions = PredictionCounts(measure.k)
                predictions.add(labels, actual, is_correct[0], reference, *is_correct[1:])
        output_checks = None
        if reference is not None:
            output_checks = OutputChecks(self.output)
            output_checks.add(actual, reference, integers, qparams)
        sums = [item.sums for item in (measure, *base_measures)]
        return _BatchResult(self._count_samples(feeds, actual), sums, predictions, output_checks)

    def _count_samples(self, feeds: Mapping[str, np.ndarray], actual: np.ndarray) -> int:
        """Return the samples of `feeds`; rows of the output `actual` if no input has samples.

        An output may have time in front of the samples.
        """
        specs = [spec for spec in self.model.inputs if spec.axis is not None and spec.name in feeds]
        return max((spec.count_samples(feeds[spec.name]) for spec in specs), default=len(actual))

    def _check_size(self, actual: np.ndarray, reference: np.ndarray) -> None:
        """Raise DataError if the outputs of the model and of the baseline have different sizes."""
        if np.size(reference) != np.size(actual):
            shapes = f"{list(np.shape(actual))}, the baseline's {list(np.shape(reference))}"
            raise DataError(
                f"output '{self.output}' has shape {shapes}: it does not follow the samples; "
                "use --batch 1"
            )
