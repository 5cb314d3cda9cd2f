"""What the stages of quantization give at the outputs, measured: one that loses is taken back.

Moving ranges into the weights (equalized channels, fitted ranges, cuts undone) and refining weights
and biases are judged layer by layer, by what each predicts. Over many layers that may come out
otherwise. So the integer graph is also made without refinement, and without either, and compared
with the float model on the samples that fidelity is measured on. A stage without which the outputs
are clearly nearer, by more than chance (a one-sided test at 5 %, `gains`), is left out, and a note
says so. Where refinement brings little, or an output stays far off, it is tried once more with
biases that make means right behind a Relu (`float_targets`).

Where no samples are held back from calibration, refinement is judged by samples that it saw: that
speaks for it, so that it is taken back for good reasons only. `evidence` says where nothing is
judged.
"""

from __future__ import annotations

from ...errors import ConstraintError
from ...run.data import Progress
from ..methods.refine import RefinementOptions
from ..planning.planned_model import PlannedModel
from ..planning.refinement import refine_weights
from ..planning.scale_sources import plan_without_range_transforms
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate, build_candidate
from .evidence import (
    MAX_SQNR_DB,
    MIN_GAIN_DB,
    has_decisive_samples,
    is_better,
    mean_sqnr_gain_db,
    output_sqnr_levels,
)
from .gains import SIGNIFICANCE_Z
from .verdict_log import log_verdict

__all__ = ["drop_harmful_stages"]

_SMALL_GAIN_DB, _LOW_SQNR_DB = (
    0.5,
    15.0,
)  # dB that refinement gains, or an output has: below that it is tried in the other way

_REFINEMENT_DROPPED = "refining weights and biases was taken back"
_RELU_MEANS_USED = "biases make means right behind Relus, not in front of them"
_TRANSFORMS_DROPPED = "moving ranges into the weights was taken back"


def drop_harmful_stages(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Return `candidate`, or the same model without the stages that take its outputs away from the float model's.

    Scales that were given stay, and what follows from them.
    """
    if not has_decisive_samples(candidate):
        return candidate
    prepared, planned = candidate.prepared, candidate.planned
    bare = _build_unrefined(prepared, planned, progress)
    best = _choose_refinement(candidate, bare, progress)
    other = (
        _plan_without_transforms(prepared, planned, progress)
        if planned.basis.policy is not None
        else None
    )
    if other is not None:
        plain = _build_unrefined(prepared, other, progress)
        if is_better(bare, plain):
            again = _build_refined(prepared, other, RefinementOptions(), progress)
            best = _prefer_if_better(
                best, _choose_refinement(again, plain, progress), _TRANSFORMS_DROPPED
            )
    if best is candidate or not best.fidelity.is_lossy:
        return best
    return build_candidate(
        prepared, best.planned, best.float_graph, progress
    )  # once more, to say where it breaks


def _choose_refinement(
    candidate: Candidate, bare: Candidate, progress: Progress | None
) -> Candidate:
    """Return `candidate`, whose weights are refined, `bare` without that, or the same refined in the other way."""
    best = _prefer_if_better(candidate, bare, _REFINEMENT_DROPPED)
    if (
        mean_sqnr_gain_db(bare, candidate) < _SMALL_GAIN_DB
        or min(output_sqnr_levels(candidate), default=MAX_SQNR_DB) < _LOW_SQNR_DB
    ):
        best = _prefer_if_better(
            best,
            _build_refined(
                candidate.prepared,
                candidate.planned,
                RefinementOptions(match_relu_means=True),
                progress,
            ),
            _RELU_MEANS_USED,
        )
    return best


def _build_unrefined(
    prepared: PreparedModel, planned: PlannedModel, progress: Progress | None
) -> Candidate:
    return build_candidate(prepared, planned, planned.graph, progress, locate_break=False)


def _build_refined(
    prepared: PreparedModel,
    planned: PlannedModel,
    options: RefinementOptions,
    progress: Progress | None,
) -> Candidate:
    return build_candidate(
        prepared,
        planned,
        refine_weights(planned, options, progress=progress),
        progress,
        locate_break=False,
    )


def _plan_without_transforms(
    prepared: PreparedModel, planned: PlannedModel, progress: Progress | None
) -> PlannedModel | None:
    """Return the same model under scales for its ranges as they are.

    None where these are the scales it has.
    """
    try:
        plain = plan_without_range_transforms(prepared, progress, planned.calibration)
    except ConstraintError:  # with require_chip: a scale that the chip does not hold
        return None
    same = (plain.plan.tensors, plain.plan.transforms) == (
        planned.plan.tensors,
        planned.plan.transforms,
    )
    return None if same else plain


def _prefer_if_better(best: Candidate, other: Candidate, why: str) -> Candidate:
    """Return `best`, or `other` where it is better, with a note that says why."""
    accepted = is_better(best, other) and not _loses_chip(best, other)
    measured, criterion = (
        {"gain_db": mean_sqnr_gain_db(best, other)},
        {"mean_db": MIN_GAIN_DB, "errors": SIGNIFICANCE_Z},
    )
    if not log_verdict("stages", accepted, criterion=criterion, measured=measured, label=why):
        return best
    gain = (
        f"{mean_sqnr_gain_db(best, other):.1f} dB nearer to the float model's "
        f"{other.fidelity.measured_on}"
    )
    return other.with_notes([f"{why}: that brings the outputs {gain}"])


def _loses_chip(old: Candidate, new: Candidate) -> bool:
    return old.result.report.chip_ready and not new.result.report.chip_ready
