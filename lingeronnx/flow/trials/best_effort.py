"""What `effort: best` adds.

Methods that take longer, each kept where it is clearly better on samples it did not see.
Method after method is tried on top of what was kept so far (`cross_validation`), and is kept where
the outputs come nearer to the float model's by more than chance (a one-sided test at 5 %). What was
kept is then done once more with all calibration samples. Where samples are held back from
calibration, these have the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...plan import Plan
from ...run.data import Progress
from ..assign.shared_scales import find_saturated_clip_bounds, group_shared_scales
from ..methods.refine import RefinementOptions
from ..methods.scale_search import search_scales_by_output_error
from ..planning.planned_model import PlannedModel
from ..planning.refinement import refine_weights, select_refinement_samples
from ..report.candidate import Candidate, build_candidate
from ..report.fidelity import select_measured_tensors
from .cross_validation import MIN_SAMPLES, CrossValidatedPlan, CrossValidation, count_samples
from .evidence import MAX_SQNR_DB
from .gains import SIGNIFICANCE_Z, STEP_SIGNIFICANCE_Z, Gain
from .output_widths import MIN_GAIN_DB as LEAST_WIDE
from .output_widths import widen_curve_inputs, widen_last_outputs
from .verdict_log import log_verdict

__all__ = ["try_best_effort"]

_MIN_GAIN_DB = 0.02  # dB that a method gains at least


def try_best_effort(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Return `candidate`, or one with other widths, scales and weights, where these bring its outputs nearer.

    A note says of each method what it gained.
    """
    prepared, planned = candidate.prepared, candidate.planned
    if planned.weights_fixed:  # weights that another tool has quantized stay as they are
        return candidate
    feeds = select_refinement_samples(planned)
    if (count := count_samples(planned, feeds)) < MIN_SAMPLES:
        return candidate.with_notes(
            [f"effort best: {count} calibration samples are too few to choose methods by"]
        )
    if progress is not None:
        progress("setting samples aside", 0, None)
    trials = CrossValidation(prepared, planned, feeds, count, select_measured_tensors(planned))
    first = best = trials.evaluate_baseline(planned, RefinementOptions(), progress)
    notes = []
    for name, least, method in _TRIALS:
        if progress is not None:
            progress(name, 0, None)
        other = method(trials, best, progress)
        if other is None:
            continue
        trial, gain = other
        if not gain.is_nonzero:
            notes.append(f"effort best: {name} changes nothing")
            continue
        kept = _log_gain(gain, gain.is_significant(least, SIGNIFICANCE_Z), least, name)
        end = "" if kept else ", and was not kept"
        notes.append(f"effort best: {name} gave {gain} on {gain.samples} samples set aside{end}")
        best = trial if kept else best
    if best is first:
        return candidate.with_notes(notes)
    whole = trials.gain_between(first.errors, best.errors)
    if not _log_gain(
        whole, whole.is_significant(_MIN_GAIN_DB, SIGNIFICANCE_Z), _MIN_GAIN_DB, "together"
    ):
        return candidate.with_notes(
            [*notes, f"effort best: nothing of this was kept, together it gave {whole}"]
        )
    exact = refine_weights(best.planned, best.methods, progress=progress)
    final = build_candidate(prepared, best.planned, exact, progress)
    if prepared.data.held() and (why := _format_regression(candidate, final)):
        return candidate.with_notes([*notes, why])
    return final.with_notes(notes)


def _format_regression(best: Candidate, other: Candidate) -> str:
    """Return a note where `other` is not better on the samples held back from calibration, nothing where it is."""
    (worst, mean), (least, new) = _min_and_mean_sqnr(best), _min_and_mean_sqnr(other)
    accepted = least >= worst and new > mean
    measured = {"worst_gain_db": least - worst, "mean_gain_db": new - mean}
    criterion = {"worst_gain_db": 0.0, "mean_gain_db": 0.0}
    if log_verdict("methods", accepted, criterion=criterion, measured=measured, label="held back"):
        return ""
    return (
        f"effort best: nothing of this was kept, it gave {new - mean:+.2f} dB "
        f"{best.fidelity.measured_on}"
    )


def _log_gain(gain: Gain, accepted: bool, least: float, label: str) -> bool:
    """Log the verdict on a gain that was measured on samples set aside; return it."""
    criterion = {"mean_db": least, "errors": SIGNIFICANCE_Z}
    return log_verdict("methods", accepted, criterion=criterion, measured=gain.figures, label=label)


def _min_and_mean_sqnr(candidate: Candidate) -> tuple[float, float]:
    """Return the least SQNR of the outputs, and the mean."""
    levels = [min(output["sqnr"], MAX_SQNR_DB) for output in candidate.fidelity.outputs.values()]
    return min(levels, default=MAX_SQNR_DB), sum(levels) / max(len(levels), 1)


# ---- methods -----------------------------------------------------------------------------------------------------

_Tried = tuple[CrossValidatedPlan, Gain] | None  # None where there is nothing to try
_Method = Callable[[CrossValidation, CrossValidatedPlan, Progress | None], _Tried]


def _output_bits_trial(of: Callable[[PlannedModel], PlannedModel | None]) -> _Method:
    """Try other widths of outputs, but where that would cost a chip its part."""

    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> _Tried:
        planned = of(best.planned)
        if planned is None or (
            trials.is_chip_ready(best.planned) and not trials.is_chip_ready(planned)
        ):
            return None
        return trials.evaluate_candidate(best, planned, best.methods, SIGNIFICANCE_Z, progress)

    return method


def _scale_search_trial(
    trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
) -> _Tried:
    """Try scales that are chosen by the outputs, one step after another.

    The weights are refined anew for them.
    """
    planned, target = best.planned, best.planned.target
    if planned.basis.policy is None:  # the scales were given
        return None
    fixed = {
        *find_saturated_clip_bounds(planned.partition, target),
        *(n for n, said in planned.basis.policy.overrides.items() if "scale" in said),
    }
    errors = best.errors

    def better(plan: Plan) -> bool:
        nonlocal errors
        other, gain = trials.evaluate_plan(best, errors, plan, STEP_SIGNIFICANCE_Z)
        if not gain.is_significant(_MIN_GAIN_DB, STEP_SIGNIFICANCE_Z):
            return False
        errors = other
        return True

    shared = group_shared_scales(planned.partition, target)
    plan = search_scales_by_output_error(
        planned.partition, planned.plan, shared, target, frozenset(fixed), better
    )
    if plan is planned.plan:
        return best, Gain(0.0, 0.0, 0)
    return trials.evaluate_candidate(
        best, replace(planned, plan=plan), best.methods, SIGNIFICANCE_Z, progress
    )


def _refinement_trial(**switch: bool) -> _Method:
    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> _Tried:
        methods = replace(best.methods, **switch)
        if best.methods.is_equivalent(methods, best.planned.partition, best.planned.plan):
            return None
        return trials.evaluate_candidate(best, best.planned, methods, SIGNIFICANCE_Z, progress)

    return method


#: What is tried, in this order, each on top of those kept, and the dB that it gains at least.
_TRIALS: Sequence[tuple[str, float, _Method]] = (
    ("last outputs in all bits of their sums", LEAST_WIDE, _output_bits_trial(widen_last_outputs)),
    ("16 bits in front of curves", _MIN_GAIN_DB, _output_bits_trial(widen_curve_inputs)),
    ("choosing scales by the error at the outputs", _MIN_GAIN_DB, _scale_search_trial),
    (
        "aiming, sums and descent together",
        _MIN_GAIN_DB,
        _refinement_trial(
            match_float_outputs=True, compensate_summands=True, coordinate_descent=True
        ),
    ),
    (
        "aiming weights at the float outputs",
        _MIN_GAIN_DB,
        _refinement_trial(match_float_outputs=True),
    ),
    (
        "making up for the other side of a sum",
        _MIN_GAIN_DB,
        _refinement_trial(compensate_summands=True),
    ),
    (
        "coordinate descent behind the rounding",
        _MIN_GAIN_DB,
        _refinement_trial(coordinate_descent=True),
    ),
    ("rounding by the error at the outputs", _MIN_GAIN_DB, _refinement_trial(outputs=True)),
    (
        "rounding by the error behind the next layer",
        _MIN_GAIN_DB,
        _refinement_trial(block_reconstruction=True),
    ),
)
