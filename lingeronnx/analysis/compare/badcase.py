"""The sample on which two models are furthest apart: `find_bad_case`.

One pass, sample by sample, constant memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError, suggest_nearest
from ...graph.batch_axes import find_dynamic_axis
from ...run.data import Data, InputSpec, Progress, load_function
from ...run.dump import write_npz
from ...run.metrics import call_user_function
from ..stats.output_measures import resolve_output, worst_first_key
from ..stats.pair_measures import METRICS, PairMeasures
from .sources import TensorSource, open_source_pair

__all__ = ["BadCase", "find_bad_case"]

_MAX_LISTED = 10  # of the worst samples

Measure = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, eq=False)
class BadCase:
    """The worst sample, and how bad the others are.

    index : its number in the data, from 0. feeds : its inputs, as a batch of one. label : its
    label, [1], or None. worst : (number, value) of the worst samples, the worst first. mean : of
    the values of all `samples`.
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
        """Write the sample as an .npz, which every command takes as data.

        The inputs by name, and `labels`.
        """
        arrays: dict[str, Any] = {
            **self.feeds,
            **({} if self.label is None else {"labels": self.label}),
        }
        if os.path.splitext(path)[1] != ".npz":
            raise ConfigError(
                f"cannot write {os.fspath(path)}: data are read from .npz files; give such a name"
            )
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
    """Return the sample of `data` whose output is worst.

    float_model, quant_model : as `compare` takes them, but for dumps. output : the graph output
    that is looked at,
        default the first.
    metric : L1, MSE, KL, Cosine, SQNR, Atol or Rtol of one sample; or a function,
    ``module:function`` or the function
        itself, of the outputs (first model's, second's) of one sample, batch of one on axis 0.
        order : which values of the function are the worst first, "ascending" or "descending"; only
        for a function, which needs it.
    steps : look at the first so many batches only, of `batch` samples at most.
    Raises ConfigError for wrong settings, DataError where data do not fit.
    """
    base, other = open_source_pair(float_model, quant_model)
    name, axis = _resolve_output(base, output)
    title, measure, order = _resolve_metric(metric, order)
    ranked: list[tuple[float, int, float]] = []  # key, number, value
    worst: tuple[dict[str, np.ndarray], np.ndarray | None] | None = None
    total, number = 0.0, 0
    specs = {spec.name: spec for spec in base.inputs}
    for step, (feeds, labels) in enumerate(
        Data(data, list(specs.values()), limit=limit).batches(batch)
    ):
        if steps is not None and step >= steps:
            break
        count = max(
            (spec.count_samples(feeds[n]) for n, spec in specs.items() if spec.accepts_any_batch),
            default=1,
        )
        both = zip(
            *(
                _iter_samples(_run_output(side, name, feeds), axis, count, name)
                for side in (base, other)
            ),
            strict=True,
        )
        for index, (x, y) in enumerate(both):
            value = measure(x, y)
            ranked.append((worst_first_key(title, value, order), number + index, value))
            if ranked[-1] == min(ranked):
                worst = _extract_sample(feeds, labels, specs, index, count)
            total += value
        ranked = sorted(ranked)[:_MAX_LISTED]
        number += count
        if progress is not None:
            progress("looking", number, None)
    if worst is None:
        raise DataError("data: no sample was looked at; give at least one step")
    _, index, value = ranked[0]
    listed = tuple((place, number_) for _, place, number_ in ranked)
    return BadCase(
        metric=title,
        output=name,
        index=index,
        value=value,
        feeds=worst[0],
        label=worst[1],
        worst=listed,
        mean=total / number,
        samples=number,
    )


def _resolve_output(base: TensorSource, wanted: str | None) -> tuple[str, int]:
    """Return the name of the output that is looked at and the axis of its samples."""
    if base.graph is None:
        raise ConfigError("the baseline is a dump, which runs nothing: give a model")
    outputs = {str(v.name): v for v in base.graph.graph.outputs}
    name = resolve_output(wanted, outputs)
    return name, find_dynamic_axis(outputs[name])


def _resolve_metric(metric: str | Measure, order: str | None) -> tuple[str, Measure, str | None]:
    known = {name.casefold(): name for name in METRICS}
    if isinstance(metric, str) and metric.casefold() in known:
        if order is not None:
            raise ConfigError(
                f"order: what is worse is known of {known[metric.casefold()]}; leave it out"
            )
        return (
            known[metric.casefold()],
            lambda x, y: _measure_pair(known[metric.casefold()], x, y),
            None,
        )
    if isinstance(metric, str) and ":" not in metric:
        raise ConfigError(
            f"unknown metric '{metric}'{suggest_nearest(metric.casefold(), known)}; known: "
            f"{', '.join(METRICS)}, "
            "module:function"
        )
    if order not in ("ascending", "descending"):
        raise ConfigError(
            "a metric of your own has no order; give ascending or descending, the worst first"
        )
    function = load_function(metric, "metric") if isinstance(metric, str) else metric
    title = metric if isinstance(metric, str) else getattr(metric, "__name__", "function")
    return title, lambda x, y: call_user_function("the metric function", function, x, y), order


def _measure_pair(name: str, x: np.ndarray, y: np.ndarray) -> float:
    if x.shape != y.shape:
        raise DataError(
            f"the outputs of one sample are {list(x.shape)} and {list(y.shape)}; "
            "compare a model with what was made of it"
        )
    pair = PairMeasures()
    pair.add(x, y)
    return float(getattr(pair, METRICS[name]))


def _run_output(side: TensorSource, name: str, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the real values of an output."""
    session = getattr(side, "session", None)
    if session is not None:
        if name not in (known := [str(v.name) for v in session.model.graph.outputs]):
            raise ConfigError(
                f"the second model has no output '{name}'{suggest_nearest(name, known)}; outputs "
                f"are {', '.join(known)}"
            )
        ((_, array, q),) = session.tensors(feeds, [name])
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise ConfigError(
                f"output '{name}' holds no numbers that could be compared; name another one"
            )
        return array if q is None else q.real(array).astype(np.float32)
    for user, array, q in side.run(feeds):
        if user == name:
            return array if q is None else q.real(array)
    raise ConfigError(f"the second model has no output '{name}'; name a tensor that its dump holds")


def _iter_samples(array: np.ndarray, axis: int, count: int, name: str) -> Iterator[np.ndarray]:
    """Yield what belongs to each sample, the samples' axis kept."""
    if count == 1:
        yield array
        return
    if array.ndim <= axis or array.shape[axis] != count:
        raise DataError(
            f"output '{name}' has no axis of {count} "
            "samples; give the data one by one, with batch 1"
        )
    yield from np.split(array, count, axis)


def _extract_sample(
    feeds: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    specs: Mapping[str, InputSpec],
    index: int,
    count: int,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return a copy of one sample and its label."""
    one = {
        name: specs[name].slice_samples(array, index, index + 1).copy()
        if specs[name].accepts_any_batch and count > 1
        else array.copy()
        for name, array in feeds.items()
    }
    return one, None if labels is None else np.atleast_1d(labels)[index : index + 1].copy()
