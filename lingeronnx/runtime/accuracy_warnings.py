"""Warnings about measured accuracy: large losses, chance level, collapsed or saturated outputs.

Two classes count what the warnings need, batch by batch, and can be pickled and merged:
`PredictionCounts` the classes that two models predict, `OutputChecks` how an output varies and
where it is clipped. Each warning is one line: what, the value, the limit, and a remedy. This module
knows arrays of outputs; it knows no sessions, no data sources and no reports.

The loss is judged by McNemar's test: of `samples` paired results only those count in which one of
both models is correct. With `lost` and `gained` of them the standard error of the difference, if
both models are equally accurate, is sqrt(lost + gained) / samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..common.text import format_decibels
from ..ir.plan import Affine

__all__ = [
    "MIN_SQNR_DB",
    "FunctionDifferences",
    "OutputChecks",
    "PredictionCounts",
    "format_chance_warning",
    "format_sqnr_warning",
]

#: An output whose SQNR against the float model is lower is worth a warning.
MIN_SQNR_DB = 15.0

_MAX_LOSS_POINTS = 2.0
_MAX_STANDARD_ERRORS = 2.0
_MAX_CHANCE_PROBABILITY = 0.05  # that a useful model is as bad by chance
_MIN_ONE_CLASS_FRACTION = 0.95  # of the samples, predicted as one class
_MAX_LABEL_DIFFERENCE = 0.1  # that fraction minus the class's fraction of the labels
_MIN_UNEXPECTED_SAMPLES = 4  # predicted as one class beyond its labels
_MIN_VARIATION = 0.05  # of an output's largest magnitude, between samples
_MIN_VARIATION_STEPS = 2  # the same, in steps of its integers
_MIN_EXCESS = 0.02  # of an integer range: values beyond it by more are clipped
_MIN_EXCESS_STEPS = 1.5
_MIN_CLIPPED_FRACTION = 0.05  # of an output's elements
_MIN_FUNCTION_CHANGE = 0.02  # relative change of a user's metric to the worse
_MIN_UNCERTAIN_CHANGE = 0.2  # the same, if the standard error or the better direction is unknown
_MIN_BATCHES = 8  # for a standard error over batches
_MIN_CHANGED_SAMPLES = 4  # that a change of a user's metric corresponds to

_FIND_LAYERS = "run lingeronnx compare on these data to find the layers responsible"
_CHECK_DATA = (
    "check that labels are indices in the order of the model's classes, and the range, mean, std, "
    "color order and layout of the inputs"
)


def remove_search_advice(warning: str) -> str:
    """Return a warning without the advice to look for the layers responsible, if it ends so.

    For pages that show these layers.
    """
    return warning.partition(f"; {_FIND_LAYERS}")[0]


class PredictionCounts:
    """Correct and predicted classes of a model and of its float baseline, counted over batches.

    Parameters
    ----------
    k
        A sample is correct if its label is among the k largest scores.

    Attributes
    ----------
    samples
        Number of labelled samples.
    correct, baseline_correct
        Number of samples that each model has correct.
    lost, gained
        Number of samples that only the baseline, and only the model, has correct.
    labels, predicted, baseline_predicted
        int64 [classes]: number of samples by label, and by the class with the largest score.
    """

    def __init__(self, k: int) -> None:
        """Start without samples.

        A sample is correct if its label is among the `k` largest scores.
        """
        self.k = k
        self.samples = self.correct = self.baseline_correct = self.lost = self.gained = 0
        self.has_baseline = False
        self.labels = self.predicted = self.baseline_predicted = np.zeros(0, np.int64)

    def add(
        self,
        labels: np.ndarray,
        scores: np.ndarray,
        is_correct: np.ndarray,
        baseline_scores: np.ndarray | None = None,
        is_baseline_correct: np.ndarray | None = None,
    ) -> None:
        """Add the counts of a batch, in place.

        Counts of the baseline are added only if both of its arguments are given.

        Parameters
        ----------
        labels
            Class indices, [N].
        scores, baseline_scores
            Scores of the model and of its baseline, [N, ...]; all but axis 0 are classes.
        is_correct, is_baseline_correct
            bool [N]: whether each sample is correct.
        """
        scores = scores.reshape(len(scores), -1)
        part = PredictionCounts(self.k)
        part.samples, part.correct = len(scores), int(is_correct.sum())
        class_count = scores.shape[1]
        part.labels = np.bincount(np.asarray(labels, np.int64).reshape(-1), minlength=class_count)
        part.predicted = np.bincount(scores.argmax(axis=1), minlength=class_count)
        if baseline_scores is not None and is_baseline_correct is not None:
            part.has_baseline = True
            part.baseline_correct = int(is_baseline_correct.sum())
            part.lost = int((is_baseline_correct & ~is_correct).sum())
            part.gained = int((is_correct & ~is_baseline_correct).sum())
            baseline_scores = baseline_scores.reshape(len(baseline_scores), -1)
            part.baseline_predicted = np.bincount(
                baseline_scores.argmax(axis=1), minlength=class_count
            )
        self.merge(part)

    def merge(self, other: PredictionCounts) -> None:
        """Add the counts of `other`, of further samples, in place.

        Of the counts by class, the shorter ones are extended by zeros.
        """
        self.samples += other.samples
        self.correct += other.correct
        self.baseline_correct += other.baseline_correct
        self.lost += other.lost
        self.gained += other.gained
        self.has_baseline |= other.has_baseline
        self.labels = _add_counts(self.labels, other.labels)
        self.predicted = _add_counts(self.predicted, other.predicted)
        self.baseline_predicted = _add_counts(self.baseline_predicted, other.baseline_predicted)

    @property
    def drop_standard_error(self) -> float | None:
        """Standard error of the accuracy drop against the baseline, in percentage points.

        None without a baseline or samples.
        """
        if not self.has_baseline or not self.samples:
            return None
        return 100 * math.sqrt(self.lost + self.gained) / self.samples

    @property
    def has_lost_accuracy(self) -> bool:
        """Whether the accuracy is below the baseline's by more than chance explains.

        The drop must exceed both `_MAX_LOSS_POINTS` points and `_MAX_STANDARD_ERRORS` standard
        errors. False without a baseline.
        """
        return self.drop_standard_error is not None and self._drop_points > self._max_drop_points

    @property
    def _drop_points(self) -> float:
        """The accuracy drop against the baseline, in percentage points."""
        return 100 * (self.lost - self.gained) / self.samples

    @property
    def _max_drop_points(self) -> float:
        """The largest accuracy drop without a warning, in percentage points."""
        return max(_MAX_LOSS_POINTS, _MAX_STANDARD_ERRORS * (self.drop_standard_error or 0.0))

    def format_warnings(self, *, is_integer: bool) -> list[str]:
        """Return the warnings about a loss, chance level, and a single predicted class, in order.

        Empty if there are none, or no samples. `is_integer` says whether the model is an integer
        one; it only words the message if there is no baseline.
        """
        if not self.samples:
            return []
        warnings = [self._format_loss(), self._format_chance(is_integer), self._format_one_class()]
        return [warning for warning in warnings if warning]

    def _format_loss(self) -> str:
        """Return a warning if the accuracy fell by more than chance explains, else ""."""
        if not self.has_lost_accuracy:
            return ""
        limit = self._max_drop_points
        basis = "" if limit == _MAX_LOSS_POINTS else ", two standard errors"
        before, after = (
            100 * count / self.samples for count in (self.baseline_correct, self.correct)
        )
        return (
            f"top{self.k} falls by {self._drop_points:.2f} points, from {before:.2f} % in float to "
            f"{after:.2f} % on {self.samples} samples (limit: {limit:.3g} points{basis}); "
            f"{_FIND_LAYERS}, or quantize with --effort best, or search with --max-drop POINTS"
        )

    def _format_chance(self, is_integer: bool) -> str:
        """Return a warning if the float baseline, or else the model, is not better than chance.

        Otherwise "". `is_integer` says what the model is called if there is no baseline.
        """
        class_count = len(self.labels)
        if self.has_baseline:
            return format_chance_warning(
                self.baseline_correct, self.samples, class_count, self.k, "the float model"
            )
        subject = "the integer model" if is_integer else "the model"
        return format_chance_warning(self.correct, self.samples, class_count, self.k, subject)

    def _format_one_class(self) -> str:
        """Return a warning if nearly all samples are predicted as one class, unlike the labels.

        Otherwise "". If the baseline predicts that single class as well, or there is no baseline,
        the data are suggested as the cause, else the scales.
        """
        index = _find_single_class(self.predicted, self.labels)
        if index is None:
            return ""
        is_shared = index == _find_single_class(self.baseline_predicted, self.labels)
        subject = "both models predict" if is_shared else "the model predicts"
        remedy = f"the range of its scores is probably lost; {_FIND_LAYERS}"
        if is_shared or not self.has_baseline:
            remedy = f"labels or preprocessing are probably wrong; {_CHECK_DATA}"
        return (
            f"{subject} class {index} for {self.predicted[index]} of {self.samples} samples, of "
            f"which {self.labels[index]} have this label (limit: "
            f"{_MIN_ONE_CLASS_FRACTION:.0%} of the samples); {remedy}"
        )


def _add_counts(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the sum of two vectors of counts as int64; the shorter one is filled with zeros."""
    total = np.zeros(max(first.size, second.size), np.int64)
    total[: first.size] += first
    total[: second.size] += second
    return total


def _find_single_class(predicted: np.ndarray, labels: np.ndarray) -> int | None:
    """Return the index of the class that nearly all samples are predicted as, or None.

    None also if nearly as many samples have this label, or there are fewer than two classes.
    `predicted` and `labels` are numbers of samples by class.
    """
    samples = int(labels.sum())
    if predicted.size < 2 or not samples:
        return None
    index = int(predicted.argmax())
    unexpected = int(predicted[index] - labels[index])
    is_single = predicted[index] >= _MIN_ONE_CLASS_FRACTION * samples
    is_unexpected = unexpected > _MAX_LABEL_DIFFERENCE * samples
    if is_single and is_unexpected and unexpected >= _MIN_UNEXPECTED_SAMPLES:
        return index
    return None


def format_chance_warning(
    correct: int, samples: int, class_count: int, k: int, subject: str
) -> str:
    """Return a warning if an accuracy does not exceed chance level, else "".

    Chance level is k / classes; up to two standard errors above it are chance as well. There is no
    warning without samples or classes, or on so few samples that a model half-way between chance
    level and 100 % could be as bad. With `class_count` <= k, another warning says that such an
    accuracy is always 100 %.

    Parameters
    ----------
    correct, samples
        Number of correct samples, and of all.
    class_count
        Number of classes.
    k
        A sample is correct if its label is among the k largest scores.
    subject
        The model, such as "the float model".
    """
    if not samples or not class_count:
        return ""
    if class_count <= k:
        scores = "one value" if class_count == 1 else f"{class_count} values"
        return (
            f"top{k} says nothing about an output of {scores} for each sample, which is always "
            "correct; choose another output with --output, or pass --metric module:function"
        )
    chance = k / class_count
    margin = _MAX_STANDARD_ERRORS * math.sqrt(chance * (1 - chance) / samples)
    fraction = correct / samples
    if fraction > chance + margin:
        return ""
    if _binomial_tail_bound(fraction, (1 + chance) / 2, samples) > _MAX_CHANCE_PROBABILITY:
        return ""
    cause = "labels or preprocessing are probably wrong"
    if subject == "the integer model":
        cause += ", or quantization lost the classes: pass --baseline FLOAT.onnx to see which"
    return (
        f"{subject} has top{k} = {100 * fraction:.2f} % on {samples} samples, no more than by "
        f"chance ({100 * chance:.2f} % with {class_count} classes): {cause}; {_CHECK_DATA}"
    )


def _binomial_tail_bound(fraction: float, probability: float, samples: int) -> float:
    """Return Chernoff's bound of P(X <= n f) for n samples and success probability p.

    It is exp(-n KL(f || p)) for a fraction f below p, else 1.
    """
    if fraction >= probability:
        return 1.0
    divergence = (1 - fraction) * math.log((1 - fraction) / (1 - probability))
    if fraction > 0:
        divergence += fraction * math.log(fraction / probability)
    return math.exp(-samples * divergence)


# ---- outputs -------------------------------------------------------------------------------------


@dataclass
class _Range:
    """Smallest and largest value of each element over the samples, float64 of a sample's shape."""

    low: np.ndarray
    high: np.ndarray

    def include(self, low: np.ndarray, high: np.ndarray) -> None:
        """Extend the range, in place, by elements from `low` to `high`; NaN is ignored."""
        self.low, self.high = np.fmin(self.low, low), np.fmax(self.high, high)


@dataclass
class OutputChecks:
    """Whether an output varies between samples as the float model's does, and is not clipped.

    Attributes
    ----------
    name
        Name of the output.
    samples
        Number of samples.
    ranges
        Ranges of the model's output and of the float model's; None if shapes differ between
        samples or elements are not numbers.
    step
        Step of the integers in real values; 0 if unknown.
    bounds
        Smallest and largest value that the integers represent.
    elements, clipped
        Number of elements, and of those at a bound where the float model's value lies beyond it.
    """

    name: str
    samples: int = 0
    ranges: tuple[_Range, _Range] | None = None
    is_comparable: bool = True
    step: float = 0.0
    bounds: tuple[float, float] = (-math.inf, math.inf)
    elements: int = 0
    clipped: int = 0
    max_excess: float = 0.0

    def add(
        self,
        array: np.ndarray,
        reference: np.ndarray,
        integers: np.ndarray | None = None,
        qparams: Affine | None = None,
    ) -> None:
        """Add the checks of a batch, with samples on axis 0, in place.

        Arrays of different shapes or without numbers make the output not comparable.

        Parameters
        ----------
        array, reference
            Real values of the model, and of the float model.
        integers, qparams
            The integers that `array` was computed from, and their parameters, if known.
        """
        part = OutputChecks(self.name)
        is_number = array.dtype.kind in "fiu" and reference.dtype.kind in "fiu"
        part.is_comparable = is_number and array.ndim > 0 and array.shape == reference.shape
        if part.is_comparable and len(array):
            part.samples = len(array)
            array, reference = array.astype(np.float64), reference.astype(np.float64)
            part.ranges = (_measure_range(array), _measure_range(reference))
            if integers is not None and qparams is not None and qparams.single:
                part._count_clipped(reference, integers, qparams)
        self.merge(part)

    def _count_clipped(self, reference: np.ndarray, integers: np.ndarray, qparams: Affine) -> None:
        """Count the elements at a bound of the integers whose float value is clearly beyond it.

        `reference` are the float values of the batch. Clearly means by more than
        `_MIN_EXCESS_STEPS` steps and `_MIN_EXCESS` of the larger bound. Sets `elements`, `clipped`,
        `max_excess`, `bounds` and `step` of this object; does nothing if the sizes of both arrays
        differ.
        """
        if integers.size != reference.size:
            return
        integers = integers.reshape(reference.shape)
        low, high = self.bounds = qparams.ends
        self.step = 1 / qparams.scale
        excess = np.maximum(
            np.where(integers == qparams.high, reference - high, 0.0),
            np.where(integers == qparams.low, low - reference, 0.0),
        )
        limit = max(_MIN_EXCESS_STEPS * self.step, _MIN_EXCESS * max(abs(low), abs(high)))
        self.elements = reference.size
        self.clipped = int((excess > limit).sum())
        self.max_excess = float(np.max(excess, initial=0.0))

    def merge(self, other: OutputChecks) -> None:
        """Add `other`, the checks of further samples of the same output, in place.

        Samples of another shape make the output not comparable; bounds and step are the last known
        ones.
        """
        self.samples += other.samples
        self.is_comparable &= other.is_comparable
        if self.ranges is None:
            self.ranges = other.ranges
        elif other.ranges is not None and self.ranges[0].low.shape == other.ranges[0].low.shape:
            for mine, further in zip(self.ranges, other.ranges, strict=True):
                mine.include(further.low, further.high)
        elif other.ranges is not None:
            self.is_comparable = False
        if other.elements:
            self.step, self.bounds = other.step, other.bounds
        self.elements += other.elements
        self.clipped += other.clipped
        self.max_excess = max(self.max_excess, other.max_excess)

    def format_warnings(self) -> list[str]:
        """Return up to two warnings: the output is constant, and many elements are clipped."""
        warnings = [self._format_constant(), self._format_clipped()]
        return [warning for warning in warnings if warning]

    def _format_constant(self) -> str:
        """Return a warning if the output never varies between samples but the float model's does.

        Otherwise, or with fewer than two samples, "". The float output varies if an element's range
        over the samples exceeds `_MIN_VARIATION` of the largest magnitude, or
        `_MIN_VARIATION_STEPS` steps of the integers.
        """
        if not self.is_comparable or self.ranges is None or self.samples < 2:
            return ""
        actual, expected = self.ranges
        if not actual.low.size or not np.array_equal(actual.low, actual.high):
            return ""
        magnitudes = np.fmax(np.abs(expected.low), np.abs(expected.high))
        max_abs = float(np.fmax.reduce(magnitudes, axis=None, initial=0.0))
        extents = expected.high - expected.low
        extent = float(np.fmax.reduce(extents, axis=None, initial=0.0))
        varies = extent > _MIN_VARIATION * max_abs
        if self.step:
            varies |= extent > _MIN_VARIATION_STEPS * self.step
        if not varies:
            return ""
        return (
            f"output '{self.name}' is the same for all {self.samples} samples, while the float "
            f"model's varies by up to {extent:.3g}: a scale is too coarse, or a layer before it "
            f"saturates; {_FIND_LAYERS}"
        )

    def _format_clipped(self) -> str:
        """Return a warning if many elements are at the limits of the integers, else "".

        Many is `_MIN_CLIPPED_FRACTION` or more of all; only elements count whose float value is
        clearly beyond the limit.
        """
        if not self.elements or self.clipped < _MIN_CLIPPED_FRACTION * self.elements:
            return ""
        low, high = self.bounds
        return (
            f"output '{self.name}' is saturated: {self.clipped / self.elements:.1%} of its values "
            f"are at the limits of its integers, {low:.4g} and {high:.4g}, and up to "
            f"{self.max_excess:.3g} beyond them in float (limit: {_MIN_CLIPPED_FRACTION:.0%}); "
            "add data like these to the calibration set, or quantize with --calibrator max"
        )


def _measure_range(array: np.ndarray) -> _Range:
    """Return the range over the samples (axis 0) of each element of `array`; NaN is ignored."""
    return _Range(np.fmin.reduce(array, axis=0), np.fmax.reduce(array, axis=0))


def format_sqnr_warning(name: str, sqnr_db: float) -> str:
    """Return a warning if SQNR `sqnr_db` of output `name` is below `MIN_SQNR_DB`, else "".

    NaN gives a warning as well.
    """
    if sqnr_db >= MIN_SQNR_DB:
        return ""
    return (
        f"output '{name}' has an SQNR of {format_decibels(sqnr_db)} against the float model on "
        f"these data (limit: {MIN_SQNR_DB:g} dB); {_FIND_LAYERS}"
    )


# ---- metrics of users ----------------------------------------------------------------------------


@dataclass
class FunctionDifferences:
    """Values of a user's metric of a model and of its float baseline, by batch.

    What the metric means is not known: neither its unit nor, for certain, whether larger is better,
    as `max_drop` takes it.

    Attributes
    ----------
    counts, values, baseline_values
        Number of samples of each batch, and the metric of both models.
    """

    counts: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    baseline_values: list[float] = field(default_factory=list)

    def add(self, sums: Sequence[float], baseline_sums: Sequence[float]) -> None:
        """Add a batch, given as (sum of the metric weighted by samples, samples) of both models.

        `sums` are the model's, `baseline_sums` the float model's.
        """
        count = int(sums[1])
        self.counts.append(count)
        self.values.append(sums[0] / max(count, 1))
        self.baseline_values.append(baseline_sums[0] / max(count, 1))

    def format_warnings(self, metric: str) -> list[str]:
        """Return [warning] if a user's metric differs from the float model's by too much, else [].

        It must change by more than `_MAX_STANDARD_ERRORS` standard errors, and by more than
        `_MIN_FUNCTION_CHANGE` of the float value; if it rises or the error is unknown, by more than
        `_MIN_UNCERTAIN_CHANGE` of it (for few samples, more). A metric that is NaN for the model
        only is warned about too. `metric` is its name.
        """
        samples = sum(self.counts)
        if not samples:
            return []
        weights = np.array(self.counts) / samples
        before, after = (
            float(np.dot(weights, values)) for values in (self.baseline_values, self.values)
        )
        if math.isnan(after) and not math.isnan(before):
            return [f"{metric} is not a number in integers and {before:.6g} in float; check it"]
        change = after - before
        if change == 0:
            return []
        relative_change = abs(change) / abs(before) if before else math.inf
        error = self._standard_error(weights)
        limit = _MIN_FUNCTION_CHANGE
        if error is None or change > 0:
            limit = max(_MIN_UNCERTAIN_CHANGE, _MIN_CHANGED_SAMPLES / samples)
        if not relative_change > limit or abs(change) <= _MAX_STANDARD_ERRORS * (error or 0.0):
            return []
        errors = "" if error is None else ", and two standard errors over the batches"
        direction = "falls" if change < 0 else "rises"
        condition = "" if change < 0 else ", which is a loss if smaller values are better"
        warning = (
            f"{metric} {direction} from {before:.6g} in float to {after:.6g} on {samples} "
            f"samples{condition} (limit: {limit:.0%} of the float value{errors}); {_FIND_LAYERS}, "
            "or quantize with --effort best"
        )
        return [warning]

    def _standard_error(self, weights: np.ndarray) -> float | None:
        """Return the standard error of the mean difference of both metrics; None for few batches.

        `weights` [batches] are the batches' fractions of the samples. Few is less than
        `_MIN_BATCHES`.
        """
        batches = len(self.counts)
        if batches < _MIN_BATCHES:
            return None
        differences = np.subtract(self.values, self.baseline_values)
        deviations = weights * (differences - np.dot(weights, differences))
        return math.sqrt(batches / (batches - 1) * float(np.dot(deviations, deviations)))
