"""Measure the stages of quantization at the outputs, and drop those that do harm.

Range transforms (channel equalization, range fitting, relaxed clipping) and the refinement of
weights and biases predict their benefit layer by layer. Over many layers the prediction may be
wrong. So the integer graph is also built without refinement, and without either, and compared with
the float model on the samples that fidelity is measured on. A stage is dropped, with a note, if the
outputs are clearly better without it, by more than chance (a one-sided test at 5 %, `gains`). If
refinement gains little, or an output stays far from float, it is tried once more with biases that
match the means after a Relu instead of before it (`float_targets`).

If no samples are held out from calibration, refinement is measured on samples that it was fitted
to. This favors refinement, so that it is dropped for good reasons only. `evidence` defines when
samples may decide at all.
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
    SIGNIFICANCE_Z,
    has_decisive_samples,
    is_better,
    mean_sqnr_gain_db,
    output_sqnr_levels,
)
from .verdict_log import log_verdict

__all__ = ["drop_harmful_stages"]

# Refinement is tried with Relu means if its gain, or the SQNR of an output, is below these.
_SMALL_GAIN_DB, _LOW_SQNR_DB = 0.5, 15.0

_REFINEMENT_DROPPED = "weight and bias refinement was disabled"
_RELU_MEANS_USED = "biases match the means after Relus instead of before them"
_TRANSFORMS_DROPPED = "range transforms were disabled"


def drop_harmful_stages(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Rebuild `candidate` without the stages that move its outputs away from the float model.

    Stages are range transforms and the refinement of weights. Scales of a given plan are not
    changed. A stage is dropped if the outputs are measurably closer without it (`is_better`), with
    a note. Returns `candidate` if every stage helps, or if the samples are not sufficient.
    """
    if not has_decisive_samples(candidate):
        return candidate
    prepared, planned = candidate.prepared, candidate.planned
    unrefined = _build_unrefined(planned, progress)
    best = _choose_refinement(candidate, unrefined, progress)
    untransformed = None
    if planned.basis.policy is not None:
        untransformed = _plan_without_transforms(prepared, planned, progress)
    if untransformed is not None:
        plain = _build_unrefined(untransformed, progress)
        if is_better(unrefined, plain):
            refined = _build_refined(untransformed, RefinementOptions(), progress)
            alternative = _choose_refinement(refined, plain, progress)
            best = _prefer_if_better(best, alternative, _TRANSFORMS_DROPPED)
    if best is candidate or not best.fidelity.is_lossy:
        return best
    # again, now locating the break
    return build_candidate(best.planned, best.float_graph, progress, refinement=best.refinement)


def _choose_refinement(
    refined: Candidate, unrefined: Candidate, progress: Progress | None
) -> Candidate:
    """Choose between the refined and the unrefined model.

    If refinement gains less than `_SMALL_GAIN_DB`, or an output has an SQNR below `_LOW_SQNR_DB`,
    also tries refinement that matches the means after Relus.
    """
    best = _prefer_if_better(refined, unrefined, _REFINEMENT_DROPPED)
    min_sqnr_db = min(output_sqnr_levels(refined), default=MAX_SQNR_DB)
    gain_db = mean_sqnr_gain_db(unrefined, refined)
    if gain_db >= _SMALL_GAIN_DB and min_sqnr_db >= _LOW_SQNR_DB:
        return best
    options = RefinementOptions(match_relu_means=True)
    relu_means = _build_refined(refined.planned, options, progress)
    return _prefer_if_better(best, relu_means, _RELU_MEANS_USED)


def _build_unrefined(planned: PlannedModel, progress: Progress | None) -> Candidate:
    """Build and measure the candidate of a planned model without refined weights."""
    return build_candidate(planned, planned.graph, progress)


def _build_refined(
    planned: PlannedModel, options: RefinementOptions, progress: Progress | None
) -> Candidate:
    """Build and measure the candidate of a planned model with weights refined by `options`."""
    return build_candidate(
        planned,
        refine_weights(planned, options, progress=progress),
        progress,
        refinement=options,
    )


def _plan_without_transforms(
    prepared: PreparedModel, planned: PlannedModel, progress: Progress | None
) -> PlannedModel | None:
    """Plan the model without range transforms.

    Returns None if the plan has the same scales as `planned`, or is not possible.
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


def _prefer_if_better(best: Candidate, alternative: Candidate, label: str) -> Candidate:
    """Return `alternative` with a note that begins with `label` if it is better, else `best`.

    `is_better` must hold, and a chip-ready model must remain so.
    """
    accepted = is_better(best, alternative) and not _loses_chip(best, alternative)
    gain_db = mean_sqnr_gain_db(best, alternative)
    measured = {"gain_db": gain_db}
    criterion = {"mean_db": MIN_GAIN_DB, "errors": SIGNIFICANCE_Z}
    if not log_verdict("stages", accepted, criterion=criterion, measured=measured, label=label):
        return best
    note = (
        f"{label}: outputs {gain_db:.1f} dB closer to the float model's "
        f"{alternative.fidelity.measured_on}"
    )
    return alternative.with_notes([note])


def _loses_chip(old: Candidate, new: Candidate) -> bool:
    """Whether `old` is chip-ready and `new` is not."""
    return old.report.chip_ready and not new.report.chip_ready
