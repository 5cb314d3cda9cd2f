"""Find the sample with the largest difference between two models: `find_bad_case`.

The search takes one pass, sample by sample, in constant memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.errors import ConfigError, DataError, suggest_nearest
from ...ir import ir
from ...ir.batch_axes import guess_batch_axis
from ...runtime.data import Data, InputSpec, Progress, count_divisible_samples, load_function
from ...runtime.dump import write_npz
from ...runtime.metrics import call_user_function
from ...runtime.provenance import load_fixed_arrays
from ..stats.output_measures import resolve_output, worst_first_key
from ..stats.pair_measures import METRICS, PairMeasures
from .sources import TensorSource, open_source_pair

__all__ = ["BadCase", "find_bad_case"]

_MAX_LISTED = 10  # worst samples to list

Measure = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, eq=False)
class BadCase:
    """The worst sample, and the values of the other bad samples.

    Parameters
    ----------
    metric
        Name of the metric.
    output
        The compared output.
    index
        Index of the worst sample in the data.
    value
        Its value of the metric.
    feeds
        Its inputs, as a batch of one.
    label
        Its label, [1], or None.
    worst
        (index, value) of the worst samples, worst first.
    mean
        Mean value of all samples.
    samples
        Number of samples.
    """

    metric: str
    output: str
    index: int
    value: float
    feeds: Mapping[str, np.ndarray]
    label: np.ndarray | None
    worst: tuple[tuple[int, float], ...]
    mean: float
    samples: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sample as an .npz file, which every command accepts as data.

        The file contains the inputs by name, and `labels` if there is a label. Raises ConfigError
        for another suffix than .npz.
        """
        if os.path.splitext(path)[1] != ".npz":
            raise ConfigError(
                f"cannot write {os.fspath(path)}: data are read from .npz files; use a name that "
                "ends with .npz"
            )
        arrays: dict[str, Any] = dict(self.feeds)
        if self.label is not None:
            arrays["labels"] = self.label
        write_npz(path, arrays)


def find_bad_case(
    float_model: object,
    quant_model: object,
    data: object,
    *,
    metric: str | Measure = "L1",
    order: str | None = None,
    output: str | None = None,
    steps: int | None = None,
    batch: int = 32,
    limit: int | None = None,
    progress: Progress | None = None,
) -> BadCase:
    """Find the sample of `data` with the largest difference between the two models' outputs.

    The result also ranks the _MAX_LISTED worst samples, and has the mean of the metric over all.

    Parameters
    ----------
    float_model, quant_model
        Paths, graphs or sessions, float or integer, or `QuantizedModel`; the second one may be the
        folder of a dump.
    data
        Input data, in any form that other commands take.
    metric
        L1, MSE, KL, Cosine, SQNR, Atol or Rtol of one sample; or a function, or
        ``module:function``, of the outputs (first model's, second's) of one sample, as a batch of
        one on axis 0.
    order
        Which values of a function come first as the worst, "ascending" or "descending". Required
        for a function, not allowed otherwise.
    output
        The graph output to compare; default the first one.
    steps
        Number of batches to look at, from the first one.
    batch
        Largest batch size.
    limit
        Largest number of samples.
    progress
        Progress callback.

    Raises
    ------
    ConfigError
        If settings are wrong.
    DataError
        If the data do not fit the model, or contain no sample.
    """
    base, other = open_source_pair(float_model, quant_model)
    output_name, axis = _resolve_output(base, output)
    metric_name, measure, order = _resolve_metric(metric, order)
    specs = {spec.name: spec for spec in base.inputs}
    ranked: list[tuple[float, int, float]] = []  # sort key, index, value
    worst: tuple[dict[str, np.ndarray], np.ndarray | None] | None = None
    total, sample_count = 0.0, 0
    fixed = load_fixed_arrays(other.graph)
    batches = Data(data, list(specs.values()), limit=limit, fixed=fixed).batches(batch)
    for step, (feeds, labels) in enumerate(batches):
        if steps is not None and step >= steps:
            break
        count = count_divisible_samples(specs, feeds)
        base_samples, other_samples = (
            _iter_samples(_run_output(source, output_name, feeds), axis, count, output_name)
            for source in (base, other)
        )
        for index, (x, y) in enumerate(zip(base_samples, other_samples, strict=True)):
            value = measure(x, y)
            ranked.append((worst_first_key(metric_name, value, order), sample_count + index, value))
            if ranked[-1] == min(ranked):
                worst = _extract_sample(feeds, labels, specs, index, count)
            total += value
        ranked = sorted(ranked)[:_MAX_LISTED]
        sample_count += count
        if progress is not None:
            progress("looking", sample_count, None)
    if worst is None:
        raise DataError("data: no sample was processed; use at least one step")
    _, worst_index, worst_value = ranked[0]
    return BadCase(
        metric=metric_name,
        output=output_name,
        index=worst_index,
        value=worst_value,
        feeds=worst[0],
        label=worst[1],
        worst=tuple((index, value) for _, index, value in ranked),
        mean=total / sample_count,
        samples=sample_count,
    )


def _resolve_output(base: TensorSource, output: str | None) -> tuple[str, int]:
    """Return the name of the model output to compare, and the axis of its samples.

    An `output` of None is the model's first output. The axis is the only one of unknown size of a
    float32 output, else 0.

    Raises
    ------
    ConfigError
        If the baseline is a dump, or there is no such output.
    """
    if base.graph is None:
        raise ConfigError("the baseline is a dump, which cannot be run: pass a model")
    outputs = {str(v.name): v for v in base.graph.graph.outputs}
    name = resolve_output(output, outputs)
    return name, guess_batch_axis(outputs[name])


def _resolve_metric(metric: str | Measure, order: str | None) -> tuple[str, Measure, str | None]:
    """Resolve a metric to (name, function, order); the function takes two arrays, returns a float.

    `metric` is a known name such as "SQNR" in any case, "module:function", which is imported, or a
    function. The order of a known metric is None; a user's function requires "ascending" or
    "descending", the direction in which its worst values come first.

    Raises
    ------
    ConfigError
        If the metric is unknown, or the order is missing, wrong or superfluous.
    """
    known = {name.casefold(): name for name in METRICS}
    if isinstance(metric, str) and metric.casefold() in known:
        name = known[metric.casefold()]
        if order is not None:
            raise ConfigError(f"order: {name} has a known order; omit it")
        return name, lambda x, y: _measure_pair(name, x, y), None
    if isinstance(metric, str) and ":" not in metric:
        raise ConfigError(
            f"unknown metric '{metric}'{suggest_nearest(metric.casefold(), known)}; known: "
            f"{', '.join(METRICS)}, module:function"
        )
    if order not in ("ascending", "descending"):
        raise ConfigError(
            "a user-defined metric has no known order; pass the order of its values, worst first: "
            "ascending or descending"
        )
    function = load_function(metric, "metric") if isinstance(metric, str) else metric
    title = metric if isinstance(metric, str) else getattr(metric, "__name__", "function")
    return title, lambda x, y: call_user_function("the metric function", function, x, y), order


def _measure_pair(name: str, x: np.ndarray, y: np.ndarray) -> float:
    """Compute a measure of METRICS, such as "SQNR", of output `y` against `x` of one sample.

    Raises
    ------
    DataError
        If the shapes differ.
    """
    if x.shape != y.shape:
        raise DataError(
            f"the outputs of one sample are {list(x.shape)} and {list(y.shape)}; "
            "compare a model with its own quantized version"
        )
    pair = PairMeasures()
    pair.add(x, y)
    return float(getattr(pair, METRICS[name]))


def _run_output(source: TensorSource, name: str, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run a batch through a source and return the float values of its output `name`.

    Of a dump, it is the stored tensor `name`. Integers are converted to real values.

    Raises
    ------
    ConfigError
        If there is no such output, or it is not numeric.
    """
    session = getattr(source, "session", None)
    if session is not None:
        outputs = ir.get_output_names(session.model)
        if name not in outputs:
            raise ConfigError(
                f"the second model has no output '{name}'{suggest_nearest(name, outputs)}; outputs "
                f"are {', '.join(outputs)}"
            )
        ((_, array, q),) = session.tensors(feeds, [name])
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise ConfigError(f"output '{name}' is not numeric; name another one")
        return array if q is None else q.real(array).astype(np.float32)
    for user_name, array, form in source.run(feeds):
        if user_name == name:
            return array if form is None else form.real(array)
    raise ConfigError(f"the second model has no output '{name}'; name a tensor of its dump")


def _iter_samples(array: np.ndarray, axis: int, count: int, name: str) -> Iterator[np.ndarray]:
    """Split the output `name` of `count` samples along `axis`; each keeps the axis with length 1.

    A single sample is yielded as it is.

    Raises
    ------
    DataError
        If the output has no axis of `count` samples.
    """
    if count == 1:
        yield array
        return
    if array.ndim <= axis or array.shape[axis] != count:
        raise DataError(
            f"output '{name}' has no axis of {count} samples; run the data one by one, with batch 1"
        )
    yield from np.split(array, count, axis)


def _extract_sample(
    feeds: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    specs: Mapping[str, InputSpec],
    index: int,
    count: int,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Copy the inputs and the label of sample `index` out of a batch of `count` samples.

    Inputs whose batch is fixed are copied whole.

    Returns
    -------
    feeds : dict
        Arrays by input name, with a batch axis of 1.
    label : array or None
        The label, of length 1.
    """
    sample = {}
    for name, array in feeds.items():
        if specs[name].accepts_any_batch and count > 1:
            array = specs[name].slice_samples(array, index, index + 1)
        sample[name] = array.copy()
    if labels is None:
        return sample, None
    return sample, np.atleast_1d(labels)[index : index + 1].copy()
