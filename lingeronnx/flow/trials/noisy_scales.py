"""Finer scales of the noisiest activations, where the outputs stay far off.

What the finer step cuts may not count.
The calibrator weighs what a scale cuts against what it rounds, tensor by tensor. But a few large
values of a front layer may hardly reach the outputs, while its rounding does. Only the outputs
tell. So where one stays below 25 dB, the scale with the most noise of its own is tried one octave
finer on the integer graph, the weights as they are. While that brings the outputs clearly nearer,
it is kept, and the next is tried. `best_effort` searches all scales, both ways.
"""

from __future__ import annotations

from dataclasses import replace

from ...plan import Plan
from ...run.data import Progress
from ..assign.shared_scales import SharedScaleGroup, find_saturated_clip_bounds, group_shared_scales
from ..methods.scale_search import find_searchable_scales, rescale_tensors
from ..planning.planned_model import PlannedModel
from ..report.candidate import Candidate, build_candidate
from .evidence import MAX_SQNR_DB, MIN_GAIN_DB, can_choose_by_samples, output_sqnr_levels
from .gains import STEP_SIGNIFICANCE_Z, Gain, compute_gain
from .verdict_log import log_verdict

__all__ = ["try_finer_noisy_scales"]

_MAX_SQNR_DB = 25.0  # dB of an output, and of what a Softmax reads: below that it is tried
_MAX_SCALES = 4  # scales that are tried
_MIN_SAMPLES = 16  # samples that tell a gain from chance
_OCTAVE = 2.0


def try_finer_noisy_scales(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Return `candidate`, or the same model with finer scales where these bring its outputs clearly nearer.

    A note says which, and what they gained. Scales that were given stay; so do those of free
    numbers, which fill the integers anyway, and those of a model that is fed its own states, whose
    calls say little one by one.
    """
    prepared, planned, exact = candidate.prepared, candidate.planned, candidate.float_graph
    choice = planned.basis.policy
    if (
        choice is None
        or choice.mode != "q-value"
        or choice.calibrator != "mse"
        or prepared.conf.state
    ):
        return candidate
    if (
        not can_choose_by_samples(prepared)
        or candidate.fidelity.measured_errors.shape[1] < _MIN_SAMPLES
    ):
        return candidate
    if (
        min(output_sqnr_levels(candidate), default=MAX_SQNR_DB) >= _MAX_SQNR_DB
        or candidate.fidelity.min_measured_sqnr_db >= _MAX_SQNR_DB
    ):
        return candidate
    if progress is not None:
        progress("finer scales", 0, None)
    best, finer = candidate, []
    shared = group_shared_scales(planned.partition, planned.target)
    for names in _select_noisiest_scales(planned, planned.plan, shared):
        plan = rescale_tensors(
            best.planned.plan, names, _OCTAVE, planned.partition, shared, planned.target
        )
        if plan is None:
            continue
        other = build_candidate(
            prepared, replace(planned, plan=plan), exact, progress, locate_break=False
        )
        step = _measured_gain(best, other)
        criterion, accepted = (
            {"mean_db": MIN_GAIN_DB, "errors": STEP_SIGNIFICANCE_Z},
            step.is_significant(MIN_GAIN_DB, STEP_SIGNIFICANCE_Z),
        )
        if not log_verdict("noisiest", accepted, criterion=criterion, measured=step.figures):
            break
        best = other
        finer.append(names[-1])
    if not finer:
        return candidate
    if best.fidelity.is_lossy:  # once more, to say where it breaks
        best = build_candidate(prepared, best.planned, exact, progress)
    what = f"{', '.join(finer)} at scales an octave finer than of least error"
    nearer = (
        f"{_measured_gain(candidate, best).value:.1f} dB nearer to the float model's "
        f"{best.fidelity.measured_on}"
    )
    return best.with_notes([f"{what}: that brings the outputs {nearer}"])


def _measured_gain(old: Candidate, new: Candidate) -> Gain:
    """Return what `new` gains at the outputs, or where a function of their own hides it, in front of that."""
    before, after = old.fidelity.measured_errors, new.fidelity.measured_errors
    return compute_gain(before, after, new.fidelity.measured_power, before.shape[1])


def _select_noisiest_scales(
    planned: PlannedModel, plan: Plan, shared_groups: tuple[SharedScaleGroup, ...]
) -> list[list[str]]:
    """Return the tensors of the scales with the most noise of their own, beside their power, the noisiest first."""
    choice, stats = planned.basis.policy, planned.basis.stats
    assert choice is not None
    fixed = {
        *find_saturated_clip_bounds(planned.partition, planned.target),
        *(n for n, said in choice.overrides.items() if "scale" in said),
    }
    noise = []
    for group, names in find_searchable_scales(plan, shared_groups, frozenset(fixed)):
        seen = group.merged_stats(stats)
        if seen is not None and seen.mean_square > 0:
            q = plan.tensors[names[0]]
            noise.append(
                (seen.quantization_error(float(q.scale), q.low, q.high) / seen.mean_square, names)
            )
    return [
        names for _, names in sorted(noise, key=lambda item: item[0], reverse=True)[:_MAX_SCALES]
    ]
