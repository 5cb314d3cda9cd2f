"""Select the slower methods of `effort: best` by cross-validation.

The methods are tried in a fixed order, each on top of those selected so far (`cross_validation`). A
method is selected if it brings the outputs closer to the float model's by more than chance (a
one-sided test at 5 %). The selected methods are finally applied with all calibration samples. If
samples are held out from calibration, the result must also be better on those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...ir.plan import Plan
from ...runtime.data import Progress
from ..factor_groups import find_saturated_clip_bounds
from ..methods.refine import RefinementOptions
from ..methods.scale_search import search_scales_by_output_error
from ..report.candidate import Candidate, build_refined_candidate, is_chip_ready_without_refinement
from ..report.fidelity import select_measured_tensors
from ..run_log import RunLog
from ..scales.shared_scales import group_shared_scales
from ..steps.planned_model import PlannedModel
from ..steps.refinement import select_refinement_samples
from .cross_validation import MIN_SAMPLES, CrossValidatedPlan, CrossValidation
from .evidence import MAX_SQNR_DB, SIGNIFICANCE_Z, STEP_SIGNIFICANCE_Z, Gain
from .output_widths import MIN_GAIN_DB as _MIN_WIDE_OUTPUT_GAIN_DB
from .output_widths import widen_curve_inputs, widen_last_outputs
from .requirements import TrialRequirement
from .trial import Criterion, Proposal, Proposals, run_trial

__all__ = ["BestEffortMethods"]

_MIN_GAIN_DB = 0.02  # minimum gain of a method in dB
_METHODS_CRITERION = Criterion(mean_db=_MIN_GAIN_DB, errors=SIGNIFICANCE_Z)
_STEP_CRITERION = Criterion(mean_db=_MIN_GAIN_DB, errors=STEP_SIGNIFICANCE_Z)


class BestEffortMethods:
    """Trial: the methods of `effort: best` that measurably reduce the output error.

    Methods are selected by the trial `MethodSelection`, on the calibration samples. The result must
    also be better on held-out samples if there are any. It has other output bit widths, scales or
    weights; in any case there is a note on the gain of each method.
    """

    name = "methods"
    criterion = Criterion(mean_db=0.0, errors=0.0)
    requirements = (
        TrialRequirement[Candidate](
            "weights that no other tool quantized",
            lambda best: not best.prepared.weights_fixed,
        ),
        TrialRequirement[Candidate](
            f"{MIN_SAMPLES} calibration samples",
            lambda best: _count_refinement_samples(best) >= MIN_SAMPLES,
            lambda best: _note_few_samples(best),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Select methods, and propose the model with them if samples were held out."""
        planned = best.planned
        log.report_progress("setting samples aside")
        feeds = select_refinement_samples(planned)
        sample_count = planned.prepared.data.count_samples(feeds)
        validation = CrossValidation(planned, feeds, sample_count, select_measured_tensors(planned))
        baseline = validation.evaluate_baseline(planned, RefinementOptions(), log.progress)
        selection = MethodSelection(validation)
        selected = run_trial(selection, baseline, log)
        if selected is baseline:
            return best.with_notes(selection.notes)
        final = build_refined_candidate(selected.planned, log.progress, selected.methods)
        if best.prepared.data.held_out_batches():
            verdict = yield Proposal(
                build=lambda: final,
                compare=_compare_held_out,
                criterion=self.criterion,
                label="held back",
            )
            if not verdict.accepted and verdict.gain is not None:
                note = (
                    f"effort best: none of these was kept; gain {verdict.gain.value:+.2f} dB "
                    f"{best.fidelity.measured_on}"
                )
                return best.with_notes([*selection.notes, note])
        return final.with_notes(selection.notes, selection.refinement_notes)


def _count_refinement_samples(best: Candidate) -> int:
    """Count the samples that refine the weights of a candidate."""
    return best.prepared.data.count_samples(select_refinement_samples(best.planned))


def _note_few_samples(best: Candidate) -> Candidate:
    """Return `best` with a lasting note that no methods were selected."""
    count = _count_refinement_samples(best)
    note = f"effort best: {count} calibration samples are too few to select methods"
    return best.with_notes([note], [note])


class MethodSelection:
    """Trial: methods one after the other, each on top of those that were accepted.

    Afterwards they must reduce the error together, else the baseline is returned.

    Attributes
    ----------
    notes
        A note on the gain of each method that was measured.
    refinement_notes
        Those of `notes` on methods of refinement that were accepted; they hold for other scales.
    """

    name = "methods"
    requirements = ()

    def __init__(self, validation: CrossValidation) -> None:
        """Cross-validate with `validation`."""
        self._validation = validation
        self.notes: list[str] = []
        self.refinement_notes: list[str] = []

    def propose(self, best: CrossValidatedPlan, log: RunLog) -> Proposals[CrossValidatedPlan]:
        """Propose each method of `_METHODS`, then the selected ones together."""
        baseline = best
        for name, min_gain_db, method in _METHODS:
            log.report_progress(name)
            trial = method(self._validation, best, log.progress)
            if trial is None:
                continue
            if trial is best or not self._compare(best, trial).is_nonzero:
                self.notes.append(f"effort best: {name} changes nothing")
                continue
            verdict = yield Proposal(
                build=partial(_return_built, trial),
                compare=self._compare,
                criterion=Criterion(mean_db=min_gain_db, errors=SIGNIFICANCE_Z),
                label=name,
            )
            self._add_note(name, verdict.gain, "" if verdict.accepted else "; not kept")
            if verdict.accepted and trial.methods != best.methods:
                self.refinement_notes.append(self.notes[-1])
            best = verdict.best
        if best is baseline:
            return None
        verdict = yield Proposal(
            build=lambda: best,
            compare=self._compare,
            criterion=_METHODS_CRITERION,
            label="together",
            against=baseline,
        )
        if not verdict.accepted:
            self.notes.append(f"effort best: none of these was kept; combined gain {verdict.gain}")
        return verdict.best

    def _compare(self, old: CrossValidatedPlan, new: CrossValidatedPlan) -> Gain:
        """Return the gain of `new` on the folds that it was evaluated on."""
        return self._validation.gain_between(old.errors, new.errors)

    def _add_note(self, name: str, gain: Gain | None, ending: str) -> None:
        """Add the note on a method and its gain."""
        samples = 0 if gain is None else gain.samples
        self.notes.append(f"effort best: {name}: gain {gain} on {samples} held-out samples{ending}")


def _return_built(trial: CrossValidatedPlan) -> CrossValidatedPlan:
    """Return `trial`: it was evaluated before it was proposed."""
    return trial


def _compare_held_out(old: Candidate, new: Candidate) -> Gain:
    """Compare the outputs on held-out samples, without a standard error.

    An SQNR above MAX_SQNR_DB counts as this.
    """
    old_levels, new_levels = _limited_levels(old), _limited_levels(new)
    gains = [new - old for old, new in zip(old_levels, new_levels, strict=True)]
    mean_db = sum(new_levels) / max(len(new_levels), 1) - sum(old_levels) / max(len(old_levels), 1)
    worst_db = min(new_levels, default=MAX_SQNR_DB) - min(old_levels, default=MAX_SQNR_DB)
    return Gain(mean_db, worst_output_db=worst_db, output_gains_db=gains)


def _limited_levels(candidate: Candidate) -> list[float]:
    """Return the SQNR of each output in dB, at most MAX_SQNR_DB."""
    return [min(output["sqnr"], MAX_SQNR_DB) for output in candidate.fidelity.outputs.values()]


# ---- methods -------------------------------------------------------------------------------------

#: Evaluates an alternative to a plan: None if the method does not apply, the plan itself if it
#: changes nothing.
_Method = Callable[
    [CrossValidation, CrossValidatedPlan, Progress | None], CrossValidatedPlan | None
]


def _make_output_bits_trial(
    widen: Callable[[PlannedModel], PlannedModel | None],
) -> _Method:
    """Return a method that cross-validates the best plan with outputs widened by `widen`.

    `widen` returns the plan with wider outputs, or None if it does not apply. The method returns
    the evaluated plan, which its caller keeps or not; None if `widen` does not apply, or if a
    chip-ready model would no longer be so.
    """

    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> CrossValidatedPlan | None:
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
) -> CrossValidatedPlan | None:
    """Search scales one step at a time by the output error, then refine the weights for them.

    Scales of the user and of saturated clips stay. Returns None if a plan prescribes the scales,
    and `best` if no step helps.
    """
    planned, target = best.planned, best.planned.prepared.target
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
        if not _STEP_CRITERION.is_met(gain):
            return False
        errors = new_errors
        return True

    shared = group_shared_scales(planned.partition, target)
    plan = search_scales_by_output_error(
        planned.partition, planned.plan, shared, target, fixed, is_improvement
    )
    if plan is planned.plan:
        return best
    return trials.evaluate_candidate(
        best, replace(planned, plan=plan), best.methods, SIGNIFICANCE_Z, progress
    )


def _make_refinement_trial(**switch: bool) -> _Method:
    """Return a method that refines the weights again with the given `RefinementOptions` enabled."""

    def method(
        trials: CrossValidation, best: CrossValidatedPlan, progress: Progress | None
    ) -> CrossValidatedPlan | None:
        """Evaluate the best plan with the methods of `switch`; None if they change nothing."""
        methods = replace(best.methods, **switch)
        if best.methods.is_equivalent(methods, best.planned.partition, best.planned.plan):
            return None
        return trials.evaluate_candidate(best, best.planned, methods, SIGNIFICANCE_Z, progress)

    return method


#: Methods in the order of their proposals: name, minimum gain in dB, method.
_METHODS: Sequence[tuple[str, float, _Method]] = (
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
