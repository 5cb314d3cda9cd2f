"""Metrics of agreement and accuracy over streams of batches, accumulated in float64.

`sums` is the complete state of a measure, as numbers that can be added. `merge` combines the sums
of parts of the data, with the same bits as one measure that gets these parts as batches in that
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..common.arithmetic import ratio_db
from ..common.errors import ConfigError, DataError, suggest_nearest, wrap_user_errors
from .data import load_function

__all__ = [
    "LOWER_IS_BETTER",
    "METRICS",
    "Agreement",
    "SoftmaxDivergence",
    "TopK",
    "resolve_metric",
    "sum_softmax_divergence",
]

_CHUNK = 1 << 16  # elements processed at a time, to fit a core's cache


class Agreement:
    """Mean squared error, SQNR and cosine of two streams of arrays.

    Elements that are not finite in the reference are ignored. If only the other is not finite, all
    measures are NaN.
    """

    needs_labels = False

    def __init__(self, report: str = "sqnr") -> None:
        """Start with empty sums.

        `report` names the measure that `value` returns: "sqnr", "mse" or "cosine".
        """
        self.report = report
        self._count = 0
        self._error = self._signal = self._other = self._cross = 0.0

    def add(self, reference: np.ndarray, array: np.ndarray) -> None:
        """Add one batch; both arrays have the same number of elements.

        Elements that are not finite in `reference` are left out.
        """
        a, b = reference.astype(np.float64).reshape(-1), array.astype(np.float64).reshape(-1)
        is_finite = np.isfinite(a)
        if not is_finite.all():
            a, b = a[is_finite], b[is_finite]
        with np.errstate(over="ignore", invalid="ignore"):
            dots = [float(np.dot(x, y)) for x, y in ((a - b, a - b), (a, a), (b, b), (a, b))]
        self.merge((a.size, *dots))

    @property
    def sums(self) -> tuple[float, ...]:
        """(number of elements, sums of (a-b)^2, a^2, b^2 and a*b), a being the reference."""
        return self._count, self._error, self._signal, self._other, self._cross

    def merge(self, sums: Sequence[float]) -> None:
        """Add the `sums` of another measure to this one, in place.

        They are count, squared error, power of the reference, power of the other, and cross
        product.
        """
        count, error, signal, other_power, cross = sums
        self._count += int(count)
        self._error += error
        self._signal += signal
        self._other += other_power
        self._cross += cross

    @property
    def mse(self) -> float:
        """Mean squared error over all elements; 0 without any."""
        return self._error / max(self._count, 1)

    @property
    def sqnr(self) -> float:
        """10 log10(signal power / error power) in dB; infinite if both are equal."""
        return ratio_db(self._signal, self._error)

    @property
    def cosine(self) -> float:
        """Cosine of both streams as vectors; 1 if both are zero."""
        norm = math.sqrt(self._signal * self._other)
        if not math.isfinite(norm):
            norm = math.sqrt(self._signal) * math.sqrt(self._other)
        return self._cross / norm if norm else float(self._signal == self._other)

    @property
    def value(self) -> float:
        """The measure that was chosen at the start: SQNR in dB, mean squared error, or cosine."""
        return float(getattr(self, self.report))


def sum_softmax_divergence(x: np.ndarray, y: np.ndarray) -> float:
    """Return the sum of p log(p / q) with p = softmax(x, axis 1) and q = softmax(y, axis 1).

    Divided by the number of elements it is ``F.kl_div(log_softmax(y, 1), softmax(x, 1),
    reduction="mean")`` of PyTorch. `x` and `y` are floats [N, C, ...] of one shape, `x` being the
    baseline; computed in float64. Terms with p = 0 are 0; NaN if an element is NaN or infinite.
    """
    shape = (x.shape[0], x.shape[1], -1)
    x, y = x.reshape(shape), y.reshape(shape)
    total, position_count = 0.0, max(_CHUNK // max(x.shape[1], 1), 1)
    for a, b in zip(x, y, strict=True):
        for start in range(0, a.shape[1], position_count):
            positions = slice(start, start + position_count)
            log_p, log_q = (_log_softmax(array[:, positions]) for array in (a, b))
            p = np.exp(log_p)
            with np.errstate(invalid="ignore"):
                terms = p * (log_p - log_q)
            total += float(np.where(p == 0, 0.0, terms).sum())
    return total


def _log_softmax(array: np.ndarray) -> np.ndarray:
    """Return log(softmax) along axis 0 of an array [C, P], in float64."""
    with np.errstate(invalid="ignore"):
        shifted = array.astype(np.float64) - array.max(axis=0, initial=-np.inf)
        normalized: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=0))
    return normalized


class SoftmaxDivergence:
    """KL divergence of the softmax along axis 1 of two streams of arrays, mean over all elements.

    See `sum_softmax_divergence`; NaN if an element is not finite.
    """

    needs_labels = False

    def __init__(self) -> None:
        """Start with empty sums."""
        self._count, self._total = 0, 0.0

    def add(self, reference: np.ndarray, array: np.ndarray) -> None:
        """Add one batch [N, C, ...] of both streams.

        Raises DataError for fewer than two axes.
        """
        if reference.ndim < 2:
            raise DataError(
                f"kl_softmax needs outputs with classes on axis 1; got shape "
                f"{list(reference.shape)}; use another --metric, such as cosine"
            )
        self.merge((reference.size, sum_softmax_divergence(reference, array)))

    @property
    def sums(self) -> tuple[float, ...]:
        """(number of elements, sum of p log(p / q))."""
        return self._count, self._total

    def merge(self, sums: Sequence[float]) -> None:
        """Add the `sums` of another measure to this one, in place."""
        count, total = sums
        self._count += int(count)
        self._total += total

    @property
    def value(self) -> float:
        """Mean over all elements; 0 without any."""
        return self._total / max(self._count, 1)


class TopK:
    """Percentage of samples whose label is among the k largest outputs of the last axis."""

    needs_labels = True

    def __init__(self, k: int) -> None:
        """Start without samples.

        A sample is correct if its label is among the `k` largest scores.
        """
        self.k = k
        self._hits = self._count = 0

    def add(self, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Add labels [N] and scores [N, ...], whose axes after 0 are classes.

        Of equal scores, the smaller index ranks first. Raises DataError if scores are not numbers,
        or a label is not a class index.

        Returns
        -------
        numpy.ndarray
            bool [N]: whether each sample's label is among the `k` largest scores.
        """
        if not scores.ndim or scores.dtype.kind not in "iufb":
            is_text = scores.dtype.kind in "OUS"
            output_type = "text" if is_text else f"{scores.dtype}{list(scores.shape)}"
            raise DataError(
                f"the output is {output_type}; top-k needs a number for each class of each sample"
            )
        scores = scores.reshape(len(scores), -1)
        labels = _check_labels(labels, scores.shape[1])
        best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        is_correct = (best == labels[:, None]).any(axis=1)
        self.merge((int(is_correct.sum()), len(scores)))
        return np.asarray(is_correct)

    @property
    def sums(self) -> tuple[float, ...]:
        """(number of correct samples, number of all)."""
        return self._hits, self._count

    def merge(self, sums: Sequence[float]) -> None:
        """Add the sums (correct samples, samples) of another measure, in place."""
        self._hits += int(sums[0])
        self._count += int(sums[1])

    @property
    def value(self) -> float:
        """Percentage of correct samples; 0 without samples."""
        return 100.0 * self._hits / max(self._count, 1)


def _check_labels(labels: object, classes: int) -> np.ndarray:
    """Return labels as int64 [N].

    Raises
    ------
    DataError
        If they are not one whole number per sample from 0 to `classes` - 1.
    """
    array = np.asarray(labels)
    if array.dtype.kind not in "iufb" or array.size != len(np.atleast_1d(array)):
        raise DataError(
            f"labels are {array.dtype}{list(array.shape)}; top-k needs one class number per sample"
        )
    wrong = array[(array != np.floor(array)) | (array < 0)]
    if wrong.size:
        raise DataError(
            f"label {wrong.reshape(-1)[0]} is not a class number; labels are whole numbers from 0, "
            "one for each sample"
        )
    if array.max(initial=0) >= classes:
        raise DataError(
            f"label {array.max()} is beyond the {classes} classes of the output; classes count "
            "from 0"
        )
    return array.astype(np.int64).reshape(-1)


def call_user_function(label: str, function: Callable[..., Any], *arguments: object) -> float:
    """Call a user's function with `arguments` and return its result as float.

    Raises
    ------
    ConfigError
        If it fails or its result is no number. `label` describes its role in the message.
    """
    with wrap_user_errors(f"{label} failed", ConfigError):
        return float(function(*arguments))


class _CustomMetric:
    """Mean over batches, weighted by size, of a user's ``function(outputs, labels) -> float``."""

    needs_labels = True

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], float]) -> None:
        """Start without samples; `function(outputs, labels)` returns the value of a batch."""
        self._function = function
        self._total, self._count = 0.0, 0

    def add(self, labels: np.ndarray, scores: np.ndarray) -> None:
        """Add one batch: the user's function of it, weighted by the number of samples.

        Raises ConfigError if the function fails.
        """
        value = call_user_function("the metric function", self._function, scores, labels)
        self.merge((value * len(scores), len(scores)))

    @property
    def sums(self) -> tuple[float, ...]:
        """(sum of values weighted by samples, number of samples)."""
        return self._total, self._count

    def merge(self, sums: Sequence[float]) -> None:
        """Add the sums (weighted total, samples) of another measure, in place."""
        self._total += sums[0]
        self._count += int(sums[1])

    @property
    def value(self) -> float:
        """Mean of the metric over all samples; 0 without samples."""
        return self._total / max(self._count, 1)


METRICS: dict[str, tuple[Callable[[], Any], str]] = {
    "top1": (lambda: TopK(1), "%"),
    "top5": (lambda: TopK(5), "%"),
    "mse": (lambda: Agreement("mse"), ""),
    "cosine": (lambda: Agreement("cosine"), ""),
    "sqnr": (lambda: Agreement("sqnr"), "dB"),
    "kl_softmax": (SoftmaxDivergence, ""),
}

#: The metrics of `METRICS` of which a smaller value is better.
LOWER_IS_BETTER = frozenset({"mse", "kl_softmax"})


def resolve_metric(name: str) -> tuple[Callable[[], Any], str]:
    """Return (function that creates the measure, unit of its value) of metric `name`.

    Parameters
    ----------
    name
        A key of `METRICS`, or ``module:function``, which is loaded.

    Raises
    ------
    ConfigError
        If the name is unknown or not a text. DataError if there is no such function.
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"a metric cannot be a {type(name).__name__}; pass its name, or module:function"
        )
    if name in METRICS:
        return METRICS[name]
    if ":" in name:
        function = load_function(name, "metric")
        return (lambda: _CustomMetric(function)), ""
    raise ConfigError(
        f"unknown metric '{name}'{suggest_nearest(name, METRICS)}; known: {', '.join(METRICS)}, "
        "module:function"
    )
