"""Choose between the scales of a model that another tool has quantized and requantized weights.

If the platform supports every scale unchanged, the integers are the other tool's and are kept. If
some had to change, the accuracy that the tool measured no longer holds. Then the weights are
requantized on three of every four calibration samples, and both variants are compared on the
fourth ones with the dequantized values of the file. The requantized weights are used, for all
samples, if they are better by more than chance. An explicit `requantize` setting is not questioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...decibels import ratio_db
from ...run.memory import choose_batch_size
from ...run.runners import FloatRunner
from ...run.session import open_lowered_session
from ..report.candidate import Candidate
from ..report.fidelity import select_measured_tensors
from .cross_validation import sum_squares
from .evidence import MIN_GAIN_DB, SIGNIFICANCE_Z, accept_gain, compute_gain

__all__ = ["MIN_SAMPLES", "choose_import_or_requantize"]

#: Minimum and maximum number of calibration samples for the comparison.
MIN_SAMPLES, _MAX_SAMPLES = 16, 256

_HOLD_OUT_PERIOD = 4  # one of so many samples is held out
_BATCH_SIZE = 32  # samples per batch
_EPSILON = 1e-10  # lower bound of an error, as a fraction of the output's power

_Feeds = Mapping[str, np.ndarray]


def choose_import_or_requantize(
    imported: Candidate, requantize: Callable[[_Feeds | None], Candidate]
) -> Candidate:
    """Choose between the model's own scales and requantized weights, by measurement.

    The requantized weights are chosen only with a significant gain on held-out samples. Returns
    `imported` without a note if no imported scale was changed, the user set `requantize`, the data
    are synthetic, or the model has no imported scales.

    Parameters
    ----------
    imported
        The model with its own scales.
    requantize
        Requantizes the weights with the given calibration samples, or with all if None.

    Returns
    -------
    Candidate
        `imported` or the result of `requantize`, with a note on the measurement or on the reason
        why there was none.
    """
    prepared = imported.prepared
    if prepared.read is None or prepared.conf.requantize is not None or prepared.synthetic:
        return imported
    if all(imported_scale.kept for imported_scale in imported.report.taken):
        return imported
    reason, feeds = _select_comparison_samples(imported)
    if reason:
        return imported.with_notes(
            [f"imported scales were changed; --requantize was not evaluated: {reason}"]
        )
    sample_count = _count_samples(imported, feeds)
    is_held_out = np.arange(sample_count) % _HOLD_OUT_PERIOD == _HOLD_OUT_PERIOD - 1
    requantized = requantize(_select_samples(feeds, ~is_held_out))
    measured = select_measured_tensors(imported.planned)
    available = {
        *select_measured_tensors(requantized.planned),
        *requantized.planned.plan.tensors,
    }
    if not available.issuperset(measured):
        measured = [str(value.name) for value in prepared.original.graph.outputs]
    held_out_feeds = _select_samples(feeds, is_held_out)
    return _choose_by_measurement(imported, requantized, requantize, held_out_feeds, measured)


def _select_comparison_samples(imported: Candidate) -> tuple[str, _Feeds]:
    """Return ("", samples to compare on), or (reason why none can be held out, {}).

    Reasons are the effort, samples that cannot be held out, and less than MIN_SAMPLES.
    """
    prepared = imported.prepared
    if not prepared.recipe.measures_alternatives:
        return f"effort is {prepared.conf.effort}", {}
    has_other_batch_axis = any(spec.axis for spec in prepared.data.inputs.values())
    if prepared.calls is not None or prepared.tail is not None or has_other_batch_axis:
        return "its samples cannot be held out", {}
    max_samples = choose_batch_size(4 * prepared.input_bytes, _MAX_SAMPLES, prepared.conf.budget)
    feeds = prepared.data.first(max_samples)
    sample_count = _count_samples(imported, feeds)
    if sample_count < MIN_SAMPLES:
        reason = (
            f"{sample_count} calibration samples are too few to hold some out; "
            f"provide at least {MIN_SAMPLES}"
        )
        return reason, {}
    return "", feeds


def _select_samples(feeds: _Feeds, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Return the feeds with the samples of the boolean `mask` only.

    Arrays with another number of samples than the mask are returned as they are.
    """
    return {
        name: array[mask] if len(array) == len(mask) else array for name, array in feeds.items()
    }


def _choose_by_measurement(
    imported: Candidate,
    requantized: Candidate,
    requantize: Callable[[_Feeds | None], Candidate],
    feeds: _Feeds,
    measured: Sequence[str],
) -> Candidate:
    """Compare both candidates by the tensors `measured` on `feeds`, and return the better one.

    The requantized weights win only with a significant gain; they are then planned again with all
    samples by `requantize(None)`. The result has a note on the comparison.
    """
    runner = imported.prepared.runner
    old_errors, power = _measure_errors(imported, runner, feeds, measured)
    new_errors, _ = _measure_errors(requantized, runner, feeds, measured)
    gain = compute_gain(old_errors, new_errors, power, old_errors.shape[1])
    comparison = (
        f"measured on {_count_samples(imported, feeds)} held-out samples: "
        f"{_mean_sqnr_db(old_errors, power):.1f} dB with the imported scales, "
        f"{_mean_sqnr_db(new_errors, power):.1f} dB with requantized weights"
    )
    if accept_gain("other_scales", gain, MIN_GAIN_DB, SIGNIFICANCE_Z):
        note = "using the requantized weights (pass --no-requantize to keep the scales)"
        return requantize(None).with_notes([f"{comparison}; {note}"])
    note = "keeping the scales (pass --requantize to use the weights alone)"
    return imported.with_notes([f"{comparison}; {note}"])


def _mean_sqnr_db(errors: np.ndarray, power: np.ndarray) -> float:
    """Return the mean SQNR in dB from squared errors [tensors, n] and tensor power [tensors].

    Errors count as at least `_EPSILON` of the power; a tensor without power counts as 0 dB.
    """
    floor = _EPSILON * power + np.finfo(float).tiny
    noise = np.maximum(errors.sum(axis=1), floor)
    levels = [ratio_db(p, e) if p else 0.0 for p, e in zip(power, noise, strict=True)]
    return float(np.mean(levels))


def _count_samples(candidate: Candidate, feeds: _Feeds) -> int:
    """Return the number of samples in `feeds`, the largest of all inputs; 1 for empty feeds."""
    inputs = candidate.prepared.data.inputs
    return max((inputs[name].count_samples(array) for name, array in feeds.items()), default=1)


def _measure_errors(
    candidate: Candidate, float_runner: FloatRunner, feeds: _Feeds, measured: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Run the integer graph of `candidate` and the float model on `feeds`.

    Returns
    -------
    errors : numpy.ndarray
        Summed squared errors [tensors, n].
    power : numpy.ndarray
        Summed squares of the float tensors [tensors].
    """
    prepared = candidate.prepared
    session = open_lowered_session(candidate.lowered.graph, prepared.target, prepared.opened)
    input_names = {spec.name for spec in session.inputs}
    errors, power = [], np.zeros(len(measured))
    batch_size = min(_BATCH_SIZE, prepared.comparison_batch_size)
    for batch in prepared.data.split_feeds(feeds, batch_size):
        expected = {}
        for name, array, _ in float_runner.run(batch, measured):
            expected[name] = array.astype(np.float64)
        session_feeds = {name: array for name, array in batch.items() if name in input_names}
        actual = {}
        for name, array, qparams in session.tensors(session_feeds, measured):
            actual[name] = array if qparams is None else qparams.real(array)
        differences = [expected[name] - actual[name] for name in measured]
        errors.append(sum_squares(differences, _count_samples(candidate, batch)))
        power += [float(np.square(expected[name]).sum()) for name in measured]
    return np.hstack(errors), power
