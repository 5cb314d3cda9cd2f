"""Measure the stages of quantization at the outputs, and drop those that do harm.

Range transforms (channel equalization, range fitting, relaxed clipping) and the refinement of
weights and biases predict their benefit layer by layer. Over many layers the prediction may be
wrong. So the integer graph is also built without refinement, and without either, and compared with
the float model on the samples that fidelity is measured on. A stage is dropped, with a note, if the
outputs are clearly better without it, by more than chance (a one-sided test at 5 %, `gains`). If
refinement gains little, or an output stays far from float, the refined weights are tried without
the corrected biases, and refinement is tried again with biases that match the means after another
activation function, such as a SiLU, or after a Relu, instead of before it (`float_targets`).

If no samples are held out from calibration, refinement is measured on samples that it was fitted
to. This favors refinement, so that it is dropped for good reasons only. `evidence` defines when
samples may decide at all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

from ...common.errors import ConstraintError
from ..methods.refine import RefinementOptions
from ..report.candidate import Candidate, build_candidate, build_refined_candidate
from ..run_log import RunLog
from ..steps.refinement import restore_biases
from ..steps.scale_sources import plan_without_range_transforms
from .evidence import (
    MAX_SQNR_DB,
    MIN_GAIN_DB,
    SIGNIFICANCE_Z,
    Gain,
    compare_outputs,
    keeps_chip,
    output_sqnr_levels,
)
from .requirements import DECISIVE_SAMPLES, TrialRequirement
from .trial import Criterion, Proposal, Proposals, TrialVerdict

__all__ = ["RefinementAblation", "StageAblation", "TransformAblation"]

# Other biases are tried if the gain of refinement, or the SQNR of an output, is below these.
_SMALL_GAIN_DB, _LOW_SQNR_DB = 0.5, 15.0

_REFINEMENT_DROPPED = "weight and bias refinement was disabled"
_BIASES_DROPPED = "biases were not corrected"
_ACTIVATION_MEANS_USED = "biases match the means after activation functions instead of before them"
_RELU_MEANS_USED = "biases match the means after Relus instead of before them"
_TRANSFORMS_DROPPED = "range transforms were disabled"


_CRITERION = Criterion(mean_db=MIN_GAIN_DB, errors=SIGNIFICANCE_Z)


class StageAblation:
    """Trial: the model without the stages that move its outputs away from the float model.

    Stages are range transforms and the refinement of weights. Scales of a given plan stay.
    """

    name = "stages"
    criterion = _CRITERION
    requirements = (
        TrialRequirement[Candidate](
            "stages that were not judged before", lambda best: not best.has_judged_stages
        ),
        DECISIVE_SAMPLES,
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose the model without refinement, with other biases, then without range transforms.

        The last is judged twice: without refinement, beside the present plan, and if that is
        better, with the better refinement, beside the best. A chip-ready model stays chip-ready:
        the first choice is undone if it is not, and the last is rejected.
        """
        unrefined = best.unrefined
        chosen = yield from _choose_refinement(best, unrefined, log)
        if keeps_chip(best, chosen):
            best = chosen
        plain = _build_without_transforms(unrefined, log)
        if plain is None or not _CRITERION.is_met(compare_outputs(unrefined, plain)):
            return best
        refined = build_refined_candidate(plain.planned, log.progress, best.refinement)
        alternative = yield from _choose_refinement(refined, plain, log)
        proposal = _propose(lambda: alternative, best, _TRANSFORMS_DROPPED)
        verdict = yield proposal._replace(condition=lambda plain, _: keeps_chip(best, plain))
        return verdict.best


class TransformAblation:
    """Trial: an unrefined model without range transforms; as in `StageAblation`."""

    name = "transforms"
    criterion = _CRITERION
    requirements = (DECISIVE_SAMPLES,)

    def propose(self, unrefined: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose the model without range transforms."""
        build = partial(_build_without_transforms, unrefined, log)
        yield _propose(build, unrefined, _TRANSFORMS_DROPPED)._replace(against=None)
        return None


class RefinementAblation:
    """Trial: a refined model without refinement, or with other biases; as in `StageAblation`."""

    name = "refinement"
    criterion = _CRITERION
    requirements = (DECISIVE_SAMPLES,)

    def propose(self, refined: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose the model without refinement, then with other biases."""
        return (yield from _choose_refinement(refined, refined.unrefined, log))


def _choose_refinement(
    refined: Candidate, unrefined: Candidate, log: RunLog
) -> Generator[Proposal[Candidate], TrialVerdict[Candidate], Candidate]:
    """Propose the unrefined model, uncorrected biases, and biases that match other means.

    Other biases only if refinement gains less than `_SMALL_GAIN_DB`, or an output has an SQNR below
    `_LOW_SQNR_DB`, and if they change anything.
    """
    verdict = yield _propose(lambda: unrefined, refined, _REFINEMENT_DROPPED)
    best = verdict.best
    gain_db = compare_outputs(unrefined, refined).value
    min_sqnr_db = min(output_sqnr_levels(refined), default=MAX_SQNR_DB)
    if gain_db >= _SMALL_GAIN_DB and min_sqnr_db >= _LOW_SQNR_DB:
        return best
    build = partial(_build_without_biases, refined, log)
    verdict = yield _propose(build, best, _BIASES_DROPPED)
    best = verdict.best
    default, planned = refined.refinement or RefinementOptions(), refined.planned
    for options, label in (
        (replace(default, match_activation_means=True), _ACTIVATION_MEANS_USED),
        (replace(default, match_relu_means=True), _RELU_MEANS_USED),
    ):
        if default.is_equivalent(options, planned.partition, planned.plan):
            continue
        build = partial(build_refined_candidate, planned, log.progress, options)
        verdict = yield _propose(build, best, label)
        best = verdict.best
    return best


def _propose(
    build: Callable[[], Candidate | None], against: Candidate, label: str
) -> Proposal[Candidate]:
    """Return a proposal judged by the outputs."""
    return Proposal(
        build=build,
        compare=compare_outputs,
        criterion=_CRITERION,
        label=label,
        against=against,
        describe=partial(_describe, label),
    )


def _describe(label: str, alternative: Candidate, gain: Gain) -> Candidate:
    """Return `alternative` with a note on its gain that begins with `label`."""
    note = (
        f"{label}: outputs {gain.value:.1f} dB closer to the float model's "
        f"{alternative.fidelity.measured_on}"
    )
    return alternative.with_notes([note])


def _build_without_biases(refined: Candidate, log: RunLog) -> Candidate:
    """Build the model with the weights of a refined one and uncorrected biases."""
    planned = refined.planned
    options = replace(refined.refinement or RefinementOptions(), correct_biases=False)
    graph = restore_biases(planned, refined.float_graph)
    return build_candidate(planned, graph, log.progress, options)


def _build_without_transforms(unrefined: Candidate, log: RunLog) -> Candidate | None:
    """Build an unrefined model without range transforms.

    Returns None if its scales are those of a given plan, if they would be the same, or if that is
    not possible.
    """
    planned = unrefined.planned
    if planned.basis.policy is None:
        return None
    try:
        plain = plan_without_range_transforms(planned.prepared, log.progress, planned.calibration)
    except ConstraintError:  # with require_chip: a scale that the chip does not hold
        return None
    same = (plain.plan.tensors, plain.plan.transforms) == (
        planned.plan.tensors,
        planned.plan.transforms,
    )
    if same:
        return None
    plain = plain.with_lasting_notes_of(planned)
    return build_candidate(plain, plain.graph, log.progress)
