"""Choose between the scales of a model that another tool has quantized and requantized weights.

If the platform supports every scale unchanged, the integers are the other tool's and are kept. If
some had to change, the accuracy that the tool measured no longer holds. Then the weights are
requantized on three of every four calibration samples, and both variants are compared on the
fourth ones with the dequantized values of the file. The requantized weights are used, for all
samples, if they are better by more than chance. An explicit `requantize` setting is not questioned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...common.arithmetic import ratio_db
from ...ir import ir
from ...runtime.memory import choose_batch_size
from ...runtime.runners import FloatRunner
from ...runtime.session import LoweredSession
from ..report.candidate import Candidate
from ..report.fidelity import select_measured_tensors
from ..run_log import RunLog
from .cross_validation import sum_squares
from .evidence import MIN_GAIN_DB, SIGNIFICANCE_Z, Gain, compute_gain
from .requirements import TrialRequirement
from .trial import Criterion, Proposal, Proposals

__all__ = ["MIN_SAMPLES", "RequantizedWeights"]

#: Minimum and maximum number of calibration samples for the comparison.
MIN_SAMPLES, _MAX_SAMPLES = 16, 256

_HOLD_OUT_PERIOD = 4  # one of so many samples is held out
_BATCH_SIZE = 32  # samples per batch
_EPSILON = 1e-10  # lower bound of an error, as a fraction of the output's power

_Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RequantizedWeights:
    """Trial: the requantized weights instead of the model's own scales.

    They need a significant gain on held-out samples. The result has a note on the measurement, or
    on the reason why there was none.

    Attributes
    ----------
    requantize
        Requantizes the model with the given calibration samples, with all if None.
    """

    requantize: Callable[[_Feeds | None], Candidate]

    name: ClassVar = "other_scales"
    criterion: ClassVar = Criterion(mean_db=MIN_GAIN_DB, errors=SIGNIFICANCE_Z)
    requirements: ClassVar = (
        TrialRequirement[Candidate](
            "a quantized model, real samples, and no setting of requantize",
            lambda best: (
                best.prepared.read is not None
                and best.prepared.conf.requantize is None
                and not best.prepared.synthetic
            ),
        ),
        TrialRequirement[Candidate](
            "imported scales that were changed",
            lambda best: not all(imported_scale.kept for imported_scale in best.report.taken),
        ),
        TrialRequirement[Candidate](
            "samples that can be held out",
            lambda best: not _select_comparison_samples(best)[0],
            lambda best: _note_unevaluated(best),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose weights requantized on three of every four samples, compared on the others.

        If they are accepted, they are planned again with all samples.
        """
        imported = best
        _, feeds = _select_comparison_samples(imported)
        sample_count = imported.prepared.data.count_samples(feeds)
        is_held_out = np.arange(sample_count) % _HOLD_OUT_PERIOD == _HOLD_OUT_PERIOD - 1
        comparison = _HeldOutComparison(imported, _select_samples(feeds, is_held_out))
        verdict = yield Proposal(
            build=lambda: self.requantize(_select_samples(feeds, ~is_held_out)),
            compare=lambda _, requantized: comparison.compare_with(requantized),
            criterion=self.criterion,
        )
        if verdict.error:
            note = f"imported scales were changed; --requantize is not possible: {verdict.error}"
            return imported.with_notes([note])
        if not verdict.accepted:
            note = "keeping the scales (pass --requantize to use the weights alone)"
            return imported.with_notes([f"{comparison.description}; {note}"])
        note = "using the requantized weights (pass --no-requantize to keep the scales)"
        return self.requantize(None).with_notes([f"{comparison.description}; {note}"])


def _note_unevaluated(best: Candidate) -> Candidate:
    """Return `best` with a note that its weights were not requantized for a comparison."""
    reason, _ = _select_comparison_samples(best)
    return best.with_notes(
        [f"imported scales were changed; --requantize was not evaluated: {reason}"]
    )


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
    sample_count = imported.prepared.data.count_samples(feeds)
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


class _HeldOutComparison:
    """Comparison of requantized weights with the scales of `imported` on the samples `feeds`.

    Attributes
    ----------
    description
        The result for the report; empty before `compare_with`.
    """

    def __init__(self, imported: Candidate, feeds: _Feeds) -> None:
        """Compare on `feeds`, which neither was calibrated with."""
        self._imported, self._feeds = imported, feeds
        self.description = ""

    def compare_with(self, requantized: Candidate) -> Gain:
        """Return the gain of `requantized` at the measured tensors, or at the outputs.

        The outputs if it does not have all of the measured tensors.
        """
        imported = self._imported
        measured = select_measured_tensors(imported.planned)
        available = {
            *select_measured_tensors(requantized.planned),
            *requantized.planned.plan.tensors,
        }
        if not available.issuperset(measured):
            measured = ir.get_output_names(imported.prepared.original)
        runner = imported.prepared.runner
        old_errors, power = _measure_errors(imported, runner, self._feeds, measured)
        new_errors, _ = _measure_errors(requantized, runner, self._feeds, measured)
        self.description = (
            f"measured on {imported.prepared.data.count_samples(self._feeds)} held-out samples: "
            f"{_compute_mean_sqnr_db(old_errors, power):.1f} dB with the imported scales, "
            f"{_compute_mean_sqnr_db(new_errors, power):.1f} dB with requantized weights"
        )
        return compute_gain(old_errors, new_errors, power, old_errors.shape[1])


def _compute_mean_sqnr_db(squared_errors: np.ndarray, power: np.ndarray) -> float:
    """Return the mean SQNR in dB from squared errors [tensors, n] and tensor power [tensors].

    Errors count as at least `_EPSILON` of the power; a tensor without power counts as 0 dB.
    """
    floor = _EPSILON * power + np.finfo(float).tiny
    noise = np.maximum(squared_errors.sum(axis=1), floor)
    levels = [ratio_db(p, e) if p else 0.0 for p, e in zip(power, noise, strict=True)]
    return float(np.mean(levels))


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
    session = LoweredSession(candidate.lowered.graph, prepared.target, prepared.opened)
    errors, power = [], np.zeros(len(measured))
    batch_size = min(_BATCH_SIZE, prepared.comparison_batch_size)
    for batch in prepared.data.split_feeds(feeds, batch_size):
        expected = {}
        for name, array, _ in float_runner.run(batch, measured):
            expected[name] = array.astype(np.float64)
        actual = session.run_real(batch, measured)
        differences = [expected[name] - actual[name] for name in measured]
        errors.append(sum_squares(differences, candidate.prepared.data.count_samples(batch)))
        power += [float(np.square(expected[name]).sum()) for name in measured]
    return np.hstack(errors), power
