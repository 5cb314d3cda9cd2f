"""Try finer scales for the noisiest activations if outputs stay far from the float model.

The calibrator balances clipping against rounding tensor by tensor. But a few large values of an
early layer may hardly affect the outputs, while its rounding does. Only the outputs can tell. So if
the SQNR of one is below 25 dB, the scale with the highest relative quantization noise is tried one
octave finer on the integer graph, with unchanged weights. If that brings the outputs clearly
closer, it is kept, and the next scale is tried. `best_effort` searches all scales, both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...ir.plan import Plan
from ..factor_groups import find_saturated_clip_bounds
from ..methods.scale_search import find_searchable_scales, rescale_tensors
from ..report.candidate import Candidate, build_candidate
from ..run_log import RunLog
from ..scales.shared_scales import SharedScaleGroup, group_shared_scales
from ..steps.planned_model import PlannedModel
from .evidence import (
    MAX_SQNR_DB,
    MIN_GAIN_DB,
    STEP_SIGNIFICANCE_Z,
    compare_measured_tensors,
    output_sqnr_levels,
)
from .requirements import CHOICE_BY_SAMPLES, TrialRequirement
from .trial import Criterion, Proposal, Proposals

__all__ = ["FinerNoisyScales"]

_MAX_SQNR_DB = 25.0  # tried only if an output or the input of a Softmax is below that
_MAX_SCALES = 4  # scales that are tried
_MIN_SAMPLES = 16  # minimum number of samples to distinguish a gain from chance
_OCTAVE = 2.0


class FinerNoisyScales:
    """Trial: the noisiest activation scales an octave finer, up to the first that does not help.

    Only applies to power-of-two scales (mode "q-value") chosen by the "mse" calibrator: other
    scales use the integer range fully. Scales of a given plan stay, and so do those of a model that
    is fed its own states, whose calls are not independent samples.
    """

    name = "noisiest"
    criterion = Criterion(mean_db=MIN_GAIN_DB, errors=STEP_SIGNIFICANCE_Z)
    requirements = (
        TrialRequirement[Candidate](
            "power-of-two scales of calibrator mse",
            lambda best: (
                (policy := best.planned.basis.policy) is not None
                and policy.mode == "q-value"
                and policy.calibrator == "mse"
            ),
        ),
        TrialRequirement[Candidate](
            "independent samples, not calls of a model with states",
            lambda best: not best.prepared.conf.state,
        ),
        CHOICE_BY_SAMPLES,
        TrialRequirement[Candidate](
            f"{_MIN_SAMPLES} samples",
            lambda best: best.fidelity.measured_errors.shape[1] >= _MIN_SAMPLES,
        ),
        TrialRequirement[Candidate](
            f"an output and a measured tensor with an SQNR below {_MAX_SQNR_DB:g} dB",
            lambda best: (
                min(output_sqnr_levels(best), default=MAX_SQNR_DB) < _MAX_SQNR_DB
                and best.fidelity.min_measured_sqnr_db < _MAX_SQNR_DB
            ),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose one finer scale after the other; a note on the final candidate names them."""
        start, planned = best, best.planned
        log.report_progress("finer scales")
        finer_tensors = []
        shared = group_shared_scales(planned.partition, planned.prepared.target)
        for names in _select_noisiest_scales(planned, planned.plan, shared):
            plan = rescale_tensors(
                best.planned.plan,
                names,
                _OCTAVE,
                planned.partition,
                shared,
                planned.prepared.target,
            )
            if plan is None:
                continue
            verdict = yield Proposal(
                build=partial(_rebuild, start, plan, log),
                compare=compare_measured_tensors,
                criterion=self.criterion,
            )
            if not verdict.accepted:
                break
            best = verdict.best
            finer_tensors.append(names[-1])
        return _describe(start, best, finer_tensors) if finer_tensors else None


def _rebuild(start: Candidate, plan: Plan, log: RunLog) -> Candidate:
    """Lower and measure the weights of `start` under another plan."""
    planned = replace(start.planned, plan=plan)
    return build_candidate(planned, start.float_graph, log.progress, start.refinement)


def _describe(start: Candidate, best: Candidate, finer_tensors: Sequence[str]) -> Candidate:
    """Return `best` with a note on the tensors with finer scales and the gain over `start`."""
    total_gain_db = compare_measured_tensors(start, best).value
    note = (
        f"{', '.join(finer_tensors)}: scales an octave finer than those of least error; "
        f"outputs {total_gain_db:.1f} dB closer to the float model's {best.fidelity.measured_on}"
    )
    return best.with_notes([note])


def _select_noisiest_scales(
    planned: PlannedModel, plan: Plan, shared_groups: tuple[SharedScaleGroup, ...]
) -> list[list[str]]:
    """Return the tensors of each of the `_MAX_SCALES` noisiest scales, worst first.

    The noise is the quantization error relative to the power of the tensors. Scales of the user, of
    saturated Clips and of tensors without statistics are left out.
    """
    policy = planned.basis.policy
    assert policy is not None
    clipped = find_saturated_clip_bounds(planned.partition, planned.prepared.target)
    user_fixed = [name for name, settings in policy.overrides.items() if "scale" in settings]
    fixed = frozenset([*clipped, *user_fixed])
    candidates = []
    for group, names in find_searchable_scales(plan, shared_groups, fixed):
        stats = group.merged_stats(planned.basis.stats)
        if stats is None or not stats.mean_square > 0:
            continue
        qparams = plan.tensors[names[0]]
        noise = stats.quantization_error(float(qparams.scale), qparams.low, qparams.high)
        candidates.append((noise / stats.mean_square, names))
    candidates.sort(key=lambda candidate: candidate[0], reverse=True)
    return [names for _, names in candidates[:_MAX_SCALES]]
