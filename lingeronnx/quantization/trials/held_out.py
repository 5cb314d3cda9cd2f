"""Measure a result on samples that it was not fitted to, and choose the calibrator by them.

Few calibration samples are all used: with fewer, scales and weights lose more than a measurement
gains. So the result is quantized once more with 72 samples at most (`HOLD_OUT`), by the methods
that were selected for it, and this trial is compared with the float model on the samples left out.
The report shows its figures; the result itself does not change. They are slightly pessimistic,
because the trial has fewer samples (32 at most refine the weights, which costs up to 1 dB), and do
not cover the selection of the methods, which used all samples.

If the trial stays below 20 dB on 16 samples or more, it is also planned with other calibrators,
with unrefined weights. One that is better by 0.5 dB and by more than chance (a one-sided test at
5 %) is then used for the model, which is quantized again with it, and kept if its trial is better
by as much.

Refinement fits weights to the samples, in which few samples of a deep model mislead it, and
`StageAblation` compares on the same samples. So below 20 dB the trial is also measured with
unrefined weights, and refinement is dropped if the outputs are better without it by 0.5 dB and by
more than chance, and the lowest SQNR by 1 dB, on 8 samples or more. That is more than what the
fewer samples of the trial cost.

Calls of a model that is fed its own states are held out when they are unrolled
(`runtime.streaming`), and so are samples beyond the first 512 (`runtime.data`). Nothing is measured
again then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

from ...common.errors import ConstraintError, ModelError
from ...ir.plan import Affine, Plan
from ...runtime.data import HoldOut, Progress
from ..methods.refine import RefinementOptions
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate, build_candidate, is_chip_ready_without_refinement
from ..run_log import RunLog
from ..steps.calibration import calibrate_model
from ..steps.planned_model import PlannedModel
from ..steps.refinement import refine_weights, select_refinement_samples
from ..steps.scale_assignment import assign_scales
from ..steps.scale_sources import plan_without_range_transforms
from .evidence import SIGNIFICANCE_Z, Gain, compare_measured_tensors
from .requirements import CALIBRATED, TrialRequirement, find_unmet_requirement
from .trial import Criterion, Proposal, Proposals, run_trial

__all__ = ["HOLD_OUT", "measure_on_held_out"]

#: Samples that the trial leaves out: two of every eight, and from the 96th on the others up to 64.
HOLD_OUT = HoldOut(period=8, count=2, first_index=0, end_index=96)

# Samples, and receptive fields per layer, that refine the weights of the trial: fewer than usual,
# because the trial would otherwise double the time.
_REFINEMENT_SAMPLES, _REFINEMENT_ROWS = 32, 2048
_MIN_SAMPLES = 4  # minimum number of held-out samples
_MIN_CHOICE_SAMPLES = 16  # minimum number to choose the calibrator by
_MIN_DROP_SAMPLES = 8  # minimum number to drop refinement by
_MIN_DROP_GAIN_DB = 1.0  # what the lowest SQNR gains without refinement if it is dropped
_CALIBRATORS = ("max", "percentile")  # tried beside the default one
_MAX_SQNR_DB = 20.0  # other calibrators are tried only below that


class _HeldOutRun(NamedTuple):
    """A candidate, and the same quantized without the held-out samples and measured on these."""

    full: Candidate
    reduced: Candidate
    sample_count: int

    @property
    def measured_on(self) -> str:
        """Description of the samples for the report."""
        return f"on {self.sample_count} samples held back in a trial run"

    def with_notes(self, notes: Iterable[str]) -> _HeldOutRun:
        """Return a copy whose candidate has more notes."""
        return self._replace(full=self.full.with_notes(notes))


#: Of the measurement on held-out samples.
_REQUIREMENTS = (
    TrialRequirement[Candidate](
        "real samples, not calls of a model with states, and scales that are not imported",
        lambda best: (
            not best.prepared.synthetic
            and best.prepared.calls is None
            and best.prepared.read is None
        ),
    ),
    TrialRequirement[Candidate](
        "an effort that measures alternatives",
        lambda best: best.prepared.recipe.measures_alternatives,
    ),
    CALIBRATED,
    TrialRequirement[Candidate](
        "calibration samples of which none is held out before",
        lambda best: not best.prepared.data.held_out_batches(),
    ),
)

_LOW_SQNR = TrialRequirement[_HeldOutRun](
    f"a measured tensor with an SQNR below {_MAX_SQNR_DB:g} dB",
    lambda best: best.reduced.fidelity.min_measured_sqnr_db < _MAX_SQNR_DB,
)


def measure_on_held_out(
    best: Candidate, requantize: Callable[[PreparedModel], Candidate], log: RunLog
) -> Candidate:
    """Replace the fidelity of `best` by that of a trial run, or choose another calibrator.

    Parameters
    ----------
    best
        The selected candidate.
    requantize
        Quantizes a prepared model with other settings.
    log
        Log of the quantization.

    Returns
    -------
    Candidate
        `best` with the figures of the trial run; the model is another one only if the trial
        `calibrator` is accepted: below 20 dB on at least 16 samples, the default calibrator, and a
        significant gain of 0.5 dB by another one, before and after refinement.
        `best` unchanged if nothing can be measured: fewer than 4 samples are left out, samples are
        held out anyway, an output is 0 on all of them only, the data are synthetic or calls of a
        model with states, the scales are imported or given, the effort measures no alternatives,
        or the trial run cannot be quantized.
    """
    with log.step("held_out") as step:
        unmet = find_unmet_requirement(_REQUIREMENTS, best)
        if unmet is not None:
            step.changes.append(f"does not apply: needs {unmet.description}")
            return best
        run = _quantize_reduced(best, log)
        if run is None:
            return best
        # An output that is 0 on all held-out samples, as of a detector without anything to detect,
        # but not on those that `best` has seen: they say nothing about it.
        seen, held_out = best.fidelity.power, run.reduced.fidelity.power
        if ((held_out == 0) & (seen > 0)).any():
            return best
        step.changes += run.reduced.fidelity.describe_outputs(run.measured_on)
    run = run_trial(OtherCalibrator(requantize), run, log)
    run = run_trial(UnrefinedWeights(), run, log)
    return replace(run.full, fidelity=replace(run.reduced.fidelity, measured_on=run.measured_on))


@dataclass(frozen=True)
class OtherCalibrator:
    """Trial: another calibrator than the default one, judged on samples that were held out.

    Only calibrators that are clearly better with unrefined weights are tried; the model is then
    quantized again, with all samples and without the held-out ones.

    Attributes
    ----------
    requantize
        Quantizes a prepared model with other settings.
    """

    requantize: Callable[[PreparedModel], Candidate]

    name: ClassVar = "calibrator"
    criterion: ClassVar = Criterion(mean_db=0.5, errors=SIGNIFICANCE_Z)
    requirements: ClassVar = (
        TrialRequirement[_HeldOutRun](
            "calibrator mse that the user did not set",
            lambda best: (
                (policy := best.full.planned.basis.policy) is not None
                and policy.calibrator == "mse"
                and "calibrator" not in best.full.prepared.conf.model_fields_set
            ),
        ),
        TrialRequirement[_HeldOutRun](
            "8 bits or fewer", lambda best: best.full.prepared.conf.bits <= 8
        ),
        TrialRequirement[_HeldOutRun](
            f"{_MIN_CHOICE_SAMPLES} samples held out",
            lambda best: best.sample_count >= _MIN_CHOICE_SAMPLES,
        ),
        _LOW_SQNR,
    )

    def propose(self, best: _HeldOutRun, log: RunLog) -> Proposals[_HeldOutRun]:
        """Propose each calibrator with unrefined weights, and the better ones for the model."""
        start = best
        default = start._replace(reduced=_build_alike(start.reduced.planned, None, None))
        promising = []
        for calibrator in _CALIBRATORS:
            verdict = yield self._propose(
                partial(_build_unrefined, start, calibrator),
                f"{calibrator} unrefined",
                against=default,
            )
            if verdict.accepted:
                promising.append(calibrator)
        for calibrator in promising:
            verdict = yield self._propose(
                partial(self._quantize, start.full.prepared, calibrator, log),
                f"{calibrator} refined",
                describe=partial(_describe_calibrator, calibrator, best),
            )
            best = verdict.best
        return best

    def _propose(
        self,
        build: Callable[[], _HeldOutRun | None],
        label: str,
        against: _HeldOutRun | None = None,
        describe: Callable[[_HeldOutRun, Gain], _HeldOutRun] | None = None,
    ) -> Proposal[_HeldOutRun]:
        """Return a proposal judged on the held-out samples."""
        return Proposal(
            build=build,
            compare=lambda old, new: compare_measured_tensors(old.reduced, new.reduced),
            criterion=self.criterion,
            label=label,
            against=against,
            describe=describe,
        )

    def _quantize(
        self, prepared: PreparedModel, calibrator: str, log: RunLog
    ) -> _HeldOutRun | None:
        """Quantize `prepared` with another calibrator, with all samples and without some."""
        alternative = self.requantize(prepared.with_settings({"calibrator": calibrator}))
        return _quantize_reduced(alternative, log)


class UnrefinedWeights:
    """Trial: weights without refinement, judged on samples that were held out.

    The lowest SQNR must also gain `_MIN_DROP_GAIN_DB`: outputs that are exact have no part in it.
    """

    name = "unrefined"
    criterion = Criterion(mean_db=0.5, errors=SIGNIFICANCE_Z)
    requirements = (
        TrialRequirement[_HeldOutRun](
            "refined weights", lambda best: best.full.refinement is not None
        ),
        TrialRequirement[_HeldOutRun](
            f"{_MIN_DROP_SAMPLES} samples held out",
            lambda best: best.sample_count >= _MIN_DROP_SAMPLES,
        ),
        _LOW_SQNR,
    )

    def propose(self, best: _HeldOutRun, log: RunLog) -> Proposals[_HeldOutRun]:
        """Propose the trial with unrefined weights; the model follows if it is accepted."""
        log.report_progress("unrefined weights")
        full = best.full
        verdict = yield Proposal(
            build=lambda: best._replace(reduced=_build_alike(best.reduced.planned, None, None)),
            compare=lambda old, new: compare_measured_tensors(old.reduced, new.reduced),
            criterion=self.criterion,
            condition=lambda _, gain: (
                gain.worst_output_db >= _MIN_DROP_GAIN_DB
                and (not full.report.chip_ready or is_chip_ready_without_refinement(full.planned))
            ),
            describe=_drop_refinement,
        )
        return verdict.best


def _drop_refinement(run: _HeldOutRun, gain: Gain) -> _HeldOutRun:
    """Return `run` with the model built from unrefined weights, too, and a note on the gain."""
    planned = run.full.planned
    note = (
        f"weight and bias refinement was disabled: outputs {gain.value:.1f} dB closer to the float "
        f"model's {run.measured_on}"
    )
    return run._replace(full=build_candidate(planned, planned.graph, None)).with_notes([note])


def _build_unrefined(run: _HeldOutRun, calibrator: str) -> _HeldOutRun | None:
    """Build the reduced model of `run` with another calibrator and unrefined weights.

    Returns None if it leads to the same scales.
    """
    planned = run.reduced.planned
    assert planned.calibration is not None
    reconfigured = run.reduced.prepared.with_settings({"calibrator": calibrator})
    replanned = assign_scales(reconfigured, planned.calibration)
    if replanned.plan.tensors == planned.plan.tensors:
        return None
    return run._replace(reduced=_build_alike(replanned, None, None))


def _describe_calibrator(
    calibrator: str, old: _HeldOutRun, new: _HeldOutRun, gain: Gain
) -> _HeldOutRun:
    """Return `new` with a note on its calibrator and the gain."""
    note = (
        f"calibrator {calibrator} instead of mse: outputs {gain.value:.1f} dB closer to the "
        f"float model's {old.measured_on}; to keep the default, pass --calibrator mse"
    )
    return new.with_notes([note])


def _quantize_reduced(best: Candidate, log: RunLog) -> _HeldOutRun | None:
    """Quantize the model of `best` by the same methods without the held-out samples.

    Returns None if there are too few samples, or if the scales are not supported.
    """
    prepared, planned = best.prepared, best.planned
    reduced = prepared.with_hold_out(HOLD_OUT)
    sample_count = sum(map(reduced.data.count_samples, reduced.data.held_out_batches()))
    if sample_count < _MIN_SAMPLES:
        return None
    log.report_progress("trial without held-out samples")
    try:
        replanned = _plan_alike(reduced, planned)
        candidate = _build_alike(replanned, best.refinement, log.progress)
    except (ConstraintError, ModelError):  # such as a scale that the chip does not support
        return None
    return _HeldOutRun(best, candidate, sample_count)


def _plan_alike(reduced: PreparedModel, planned: PlannedModel) -> PlannedModel:
    """Plan a model with fewer samples as `planned` was, with the same changes of scales."""
    assert planned.calibration is not None
    # The channel ranges for equalization, which does not change the float model, are reused.
    previous = replace(planned.calibration, stats={}, unscaled_stats={})
    if not planned.calibration.recipe.equalizes_channels:
        replanned = plan_without_range_transforms(reduced, None, previous)
    else:
        replanned = assign_scales(reduced, calibrate_model(reduced, None, previous))
    if planned.assigned is None or planned.assigned.tensors == planned.plan.tensors:
        return replanned
    return replace(
        replanned, plan=_transfer_changes(planned.assigned, planned.plan, replanned.plan)
    )


def _transfer_changes(old: Plan, new: Plan, plan: Plan) -> Plan:
    """Return `plan` with the scales changed by the factors that lead from `old` to `new`.

    Tensors with other bit widths get the parameters of `new`.
    """
    tensors = dict(plan.tensors)
    for name, qparams in new.tensors.items():
        current, before = tensors.get(name), old.tensors.get(name)
        if before == qparams or before is None or current is None:
            continue
        if before.bits != qparams.bits or current.scales.shape != qparams.scales.shape:
            tensors[name] = qparams
            continue
        tensors[name] = _rescale(current, before, qparams)
    return plan.with_tensors(tensors)


def _rescale(current: Affine, old: Affine, new: Affine) -> Affine:
    """Return `current` with its scales times those of `new` over those of `old`."""
    return Affine(
        current.scales * (new.scales / old.scales),
        current.bits,
        current.granularity,
        current.zero_points,
        current.signed,
        current.rounding,
    )


def _build_alike(
    planned: PlannedModel,
    refinement: RefinementOptions | None,
    progress: Progress | None,
) -> Candidate:
    """Refine the weights of a plan, unless `refinement` is None, and measure the result."""
    graph = planned.graph
    if refinement is not None:
        feeds = select_refinement_samples(planned, _REFINEMENT_SAMPLES)
        options = replace(refinement, max_rows=_REFINEMENT_ROWS)
        graph = refine_weights(planned, options, feeds, progress)
    return build_candidate(planned, graph, progress, refinement)
