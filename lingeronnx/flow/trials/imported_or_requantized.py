"""A model that another tool has quantized.

Its scales kept, or its weights quantized anew, by what samples say.
Where the platform holds every scale as it came, the integers are the other tool's and stay. Where
some had to change, what the tool measured no longer holds. Then its weights are quantized anew on
three of every four calibration samples, and both are measured on the fourth ones, against the real
numbers of the file. What is clearly better by more than chance is taken, on all samples.
`requantize`, said either way, is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...run.memory import choose_batch_size
from ...run.runners import FloatRunner
from ...run.session import open_lowered_session
from ..report.candidate import Candidate
from ..report.fidelity import select_measured_tensors
from .cross_validation import sum_squares
from .evidence import MIN_GAIN_DB
from .gains import SIGNIFICANCE_Z, compute_gain
from .verdict_log import log_verdict

__all__ = ["MIN_SAMPLES", "choose_import_or_requantize"]

#: Calibration samples below which nothing is set aside, and the most that are looked at.
MIN_SAMPLES, _MAX_SAMPLES = 16, 256

_HOLD_OUT_PERIOD = 4  # samples of which one is set aside
_BATCH_SIZE = 32  # samples that are run at a time
_EPSILON = 1e-10  # of an output's power: less is no error

_Feeds = Mapping[str, np.ndarray]


def choose_import_or_requantize(
    imported: Candidate, requantize: Callable[[_Feeds | None], Candidate]
) -> Candidate:
    """Return `imported`, which has the model's own scales, or the result of `requantize`, and why.

    requantize : calibrates on the samples it is given, None: on all.
    """
    prepared = imported.prepared
    if prepared.read is None or prepared.conf.requantize is not None or prepared.synthetic:
        return imported
    if all(taken.kept for taken in imported.result.report.taken):
        return imported
    reason, count = "", 0
    given: _Feeds = {}
    if prepared.conf.effort == "fast":
        reason = "effort is fast"
    elif (
        prepared.calls is not None
        or prepared.tail is not None
        or any(s.axis for s in prepared.data.inputs.values())
    ):
        reason = "its samples cannot be set aside"
    else:
        given = prepared.data.first(
            choose_batch_size(4 * prepared.input_bytes, _MAX_SAMPLES, prepared.conf.budget)
        )
        if (count := _count_samples(imported, given)) < MIN_SAMPLES:
            reason = (
                f"{count} calibration samples are too few to set some aside, {MIN_SAMPLES} would do"
            )
    if reason:
        told = f"scales had to change; whether --requantize is better was not measured: {reason}"
        return imported.with_notes([told])
    apart = np.arange(count) % _HOLD_OUT_PERIOD == _HOLD_OUT_PERIOD - 1
    seen, unseen = (
        {n: a[of] if len(a) == count else a for n, a in given.items()} for of in (~apart, apart)
    )
    other = requantize(seen)
    wanted = select_measured_tensors(imported.planned)
    if not set(wanted) <= {*select_measured_tensors(other.planned), *other.planned.plan.tensors}:
        wanted = [str(value.name) for value in prepared.original.graph.outputs]
    return _choose_by_measurement(imported, other, requantize, unseen, wanted)


def _choose_by_measurement(
    kept: Candidate,
    other: Candidate,
    anew: Callable[[_Feeds | None], Candidate],
    feeds: _Feeds,
    wanted: Sequence[str],
) -> Candidate:
    """Return the better one by the tensors `wanted` on `feeds`."""
    (old, power), (new, _) = (
        _measure_errors(compared, kept.prepared.runner, feeds, wanted) for compared in (kept, other)
    )
    found = compute_gain(old, new, power, old.shape[1])
    each = [_mean_sqnr_db(errors, power) for errors in (old, new)]
    told = (
        f"measured on {_count_samples(kept, feeds)} samples set aside: its scales as the platform "
        "holds them "
        f"{each[0]:.1f} dB, "
        f"its weights alone quantized anew {each[1]:.1f} dB"
    )
    criterion, accepted = (
        {"mean_db": MIN_GAIN_DB, "errors": SIGNIFICANCE_Z},
        found.is_significant(MIN_GAIN_DB, SIGNIFICANCE_Z),
    )
    if log_verdict("other_scales", accepted, criterion=criterion, measured=found.figures):
        return anew(None).with_notes(
            [f"{told}; the latter is taken (--no-requantize keeps the scales)"]
        )
    return kept.with_notes([f"{told}; the scales are kept (--requantize takes the weights alone)"])


def _mean_sqnr_db(errors: np.ndarray, power: np.ndarray) -> float:
    """Return the mean SQNR of the tensors in dB."""
    least = _EPSILON * power + np.finfo(float).tiny
    return float(
        np.mean(
            [
                10 * math.log10(p / e) if p else 0.0
                for p, e in zip(power, np.maximum(errors.sum(axis=1), least), strict=True)
            ]
        )
    )


def _count_samples(compared: Candidate, feeds: _Feeds) -> int:
    inputs = compared.prepared.data.inputs
    return max((inputs[name].count_samples(array) for name, array in feeds.items()), default=1)


def _measure_errors(
    compared: Candidate, floats: FloatRunner, feeds: _Feeds, wanted: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the summed squared errors [tensors, n] of the integers on `feeds`, and the power of each real tensor."""
    prepared = compared.prepared
    session = open_lowered_session(compared.lowered.graph, prepared.target, prepared.opened)
    takes = {spec.name for spec in session.inputs}
    errors, power = [], np.zeros(len(wanted))
    for part in prepared.data.split_feeds(feeds, min(_BATCH_SIZE, prepared.comparison_batch_size)):
        want = {name: array.astype(np.float64) for name, array, _ in floats.run(part, wanted)}
        have = {
            name: array if q is None else q.real(array)
            for name, array, q in session.tensors(
                {n: a for n, a in part.items() if n in takes}, wanted
            )
        }
        errors.append(
            sum_squares(
                [want[name] - have[name] for name in wanted], _count_samples(compared, part)
            )
        )
        power += [float(np.square(want[name]).sum()) for name in wanted]
    return np.hstack(errors), power
