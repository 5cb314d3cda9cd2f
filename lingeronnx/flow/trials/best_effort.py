"""Select the slower methods of `effort: best` by cross-validation.

The methods are tried in a fixed order, each on top of those selected so far (`cross_validation`). A
method is selected if it brings the outputs closer to the float model's by more than chance (a
one-sided test at 5 %). The selected methods are finally applied with all calibration samples. If
samples are held out from calibration, the result must also be better on those.
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
from ..report.candidate import Candidate, build_candidate, is_chip_ready_without_refinement
from ..report.fidelity import select_measured_tensors
from .cross_validation import MIN_SAMPLES, CrossValidatedPlan, CrossValidation, count_samples
from .evidence import MAX_SQNR_DB, SIGNIFICANCE_Z, STEP_SIGNIFICANCE_Z, Gain, accept_gain
from .output_widths import MIN_GAIN_DB as _MIN_WIDE_OUTPUT_GAIN_DB
from .output_widths import widen_curve_inputs, widen_last_outputs
from .verdict_log import log_verdict

__all__ = ["try_best_effort"]

_MIN_GAIN_DB = 0.02  # minimum gain of a method in dB


def try_best_effort(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Apply the methods of `effort: best` that measurably reduce the output error of `candidate`.

    Methods are selected by cross-validation on the calibration samples. They must also reduce it
    together, and on held-out samples if there are any.

    Returns
    -------
    Candidate
        A candidate with other output bit widths, scales or weights, or `candidate` if nothing was
        selected; in both cases with one note on the gain of each method. With fewer than
        MIN_SAMPLES samples there is a note on that only; `candidate` itself, without notes, if its
        weights are fixed.
    """
    prepared, planned = candidate.prepared, candidate.planned
    if planned.weights_fixed:  # weights quantized by another tool are not changed
        return candidate
    feeds = select_refinement_samples(planned)
    sample_count = count_samples(planned, feeds)
    if sample_count < MIN_SAMPLES:
        return candidate.with_notes(
            [f"effort best: {sample_count} calibration samples are too few to select methods"]
        )
    if progress is not None:
        progress("setting samples aside", 0, None)
    measured_tensors = select_measured_tensors(planned)
    trials = CrossValidation(prepared, planned, feeds, sample_count, measured_tensors)
    baseline = trials.evaluate_baseline(planned, RefinementOptions(), progress)
    best, notes = _select_methods(trials, baseline, progress)
    if best is baseline:
        return candidate.with_notes(notes)
    total_gain = trials.gain_between(baseline.errors, best.errors)
    if not accept_gain("methods", total_gain, _MIN_GAIN_DB, SIGNIFICANCE_Z, "together"):
        note = f"effort best: none of these was kept; combined gain {total_gain}"
        return candidate.with_notes([*notes, note])
    refined_graph = refine_weights(best.planned, best.methods, progress=progress)
    final = build_candidate(best.planned, refined_graph, progress, refinement=best.methods)
    if prepared.data.held_out_batches() and (regression := _format_regression(candidate, final)):
        return candidate.with_notes([*notes, regression])
    return final.with_notes(notes)


def _select_methods(
    trials: CrossValidation, baseline: CrossValidatedPlan, progress: Progress | None
) -> tuple[CrossValidatedPlan, list[str]]:
    """Try all methods in order, each on top of those selected so far; return the best and notes.

    A method is kept if its gain is significant and at least its minimum in dB. The best is
    `baseline` itself if none was kept; methods that do not apply get no note.
    """
    best = baseline
    notes = []
    for name, min_gain_db, method in _TRIALS:
        if progress is not None:
            progress(name, 0, None)
        result = method(trials, best, progress)
        if result is None:
            continue
        trial, gain = result
        if not gain.is_nonzero:
            notes.append(f"effort best: {name} changes nothing")
            continue
        accepted = accept_gain("methods", gain, min_gain_db, SIGNIFICANCE_Z, name)
        ending = "" if accepted else "; not kept"
        notes.append(f"effort best: {name}: gain {gain} on {gain.samples} held-out samples{ending}")
        if accepted:
            best = trial
    return best, notes


def _format_regression(old: Candidate, new: Candidate) -> str:
    """Return a note if `new` is not better than `old` on held-out samples, else an empty string.

    Better means that the lowest SQNR of the outputs does not decrease and the mean increases.
    """
    old_min_db, old_mean_db = _min_and_mean_sqnr(old)
    new_min_db, new_mean_db = _min_and_mean_sqnr(new)
    accepted = new_min_db >= old_min_db and new_mean_db > old_mean_db
    measured = {
        "worst_gain_db": new_min_db - old_min_db,
        "mean_gain_db": new_mean_db - old_mean_db,
    }
    criterion = {"worst_gain_db": 0.0, "mean_gain_db": 0.0}
    if log_verdict("methods", accepted, criterion=criterion, measured=measured, label="held back"):
        return ""
    return (
        f"effort best: none of these was kept; gain {new_mean_db - old_mean_db:+.2f} dB "
        f"{old.fidelity.measured_on}"
    )


def _min_and_mean_sqnr(candidate: Candidate) -> tuple[float, float]:
    """Return the minimum and the mean SQNR of the outputs in dB, each limited to MAX_SQNR_DB."""
    levels = [min(output["sqnr"], MAX_SQNR_DB) for output in candidate.fidelity.outputs.values()]
    return min(levels, default=MAX_SQNR_DB), sum(levels) / max(len(levels), 1)


# ---- methods -------------------------------------------------------------------------------------

_TrialResult = tuple[CrossValidatedPlan, Gain] | None  # None if the method does not apply
_Method = Callable[[CrossValidation, CrossValidatedPlan, Progress | None], _TrialResult]


def _make_output_bits_trial(
    widen: Callable[[PlannedModel], PlannedModel | None],
) -> _Method:
    """Return a method that applies `widen` unless the model would then no longer be chip-ready.

    `widen` returns the plan with wider outputs, or None if it does not apply.
    """

    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> _TrialResult:
        """Evaluate the best plan with wider outputs.

        Returns None if nothing can be widened, or if the result would no longer be chip-ready.
        """
        planned = widen(best.planned)
        if planned is None:
            return None
        is_ready = is_chip_ready_without_refinement
        if is_ready(best.planned) and not is_ready(planned):
            return None
        return trials.evaluate_candidate(best, planned, best.methods, SIGNIFICANCE_Z, progress)

    return method


def _try_scale_search(
    trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
) -> _TrialResult:
    """Search scales one step at a time by the output error, then refine the weights for them.

    Scales of the user and of saturated clips stay. Returns the trial and its gain; None if a plan
    prescribes the scales, and `best` with gain 0 if no step helps.
    """
    planned, target = best.planned, best.planned.target
    policy = planned.basis.policy
    if policy is None:  # the scales are prescribed by a plan
        return None
    user_fixed = [name for name, settings in policy.overrides.items() if "scale" in settings]
    fixed = frozenset([*find_saturated_clip_bounds(planned.partition, target), *user_fixed])
    errors = best.errors

    def is_improvement(plan: Plan) -> bool:
        """Return whether `plan` has significantly lower errors than the last plan that had.

        At first that is the best plan. The errors of an improvement are kept.
        """
        nonlocal errors
        new_errors, gain = trials.evaluate_plan(best, errors, plan, STEP_SIGNIFICANCE_Z)
        if not gain.is_significant(_MIN_GAIN_DB, STEP_SIGNIFICANCE_Z):
            return False
        errors = new_errors
        return True

    shared = group_shared_scales(planned.partition, target)
    plan = search_scales_by_output_error(
        planned.partition, planned.plan, shared, target, fixed, is_improvement
    )
    if plan is planned.plan:
        return best, Gain(0.0, 0.0, 0)
    return trials.evaluate_candidate(
        best, replace(planned, plan=plan), best.methods, SIGNIFICANCE_Z, progress
    )


def _make_refinement_trial(**switch: bool) -> _Method:
    """Return a method that refines the weights again with the given `RefinementOptions` enabled."""

    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> _TrialResult:
        """Evaluate the best plan with the methods of `switch`; None if they change nothing."""
        methods = replace(best.methods, **switch)
        if best.methods.is_equivalent(methods, best.planned.partition, best.planned.plan):
            return None
        return trials.evaluate_candidate(best, best.planned, methods, SIGNIFICANCE_Z, progress)

    return method


#: Methods in the order of their trials: name, minimum gain in dB, method.
_TRIALS: Sequence[tuple[str, float, _Method]] = (
    (
        "last outputs at accumulator width",
        _MIN_WIDE_OUTPUT_GAIN_DB,
        _make_output_bits_trial(widen_last_outputs),
    ),
    (
        "16-bit inputs of activation functions",
        _MIN_GAIN_DB,
        _make_output_bits_trial(widen_curve_inputs),
    ),
    ("choosing scales by the output error", _MIN_GAIN_DB, _try_scale_search),
    (
        "float targets, sum compensation and coordinate descent together",
        _MIN_GAIN_DB,
        _make_refinement_trial(
            match_float_outputs=True, compensate_summands=True, coordinate_descent=True
        ),
    ),
    (
        "fitting weights to the float outputs",
        _MIN_GAIN_DB,
        _make_refinement_trial(match_float_outputs=True),
    ),
    (
        "compensating the error of the other summand",
        _MIN_GAIN_DB,
        _make_refinement_trial(compensate_summands=True),
    ),
    (
        "coordinate descent after rounding",
        _MIN_GAIN_DB,
        _make_refinement_trial(coordinate_descent=True),
    ),
    ("rounding by the output error", _MIN_GAIN_DB, _make_refinement_trial(outputs=True)),
    (
        "rounding by the error after the next layer",
        _MIN_GAIN_DB,
        _make_refinement_trial(block_reconstruction=True),
    ),
)
