"""Try finer scales for the noisiest activations if outputs stay far from the float model.

The calibrator balances clipping against rounding tensor by tensor. But a few large values of an
early layer may hardly affect the outputs, while its rounding does. Only the outputs can tell. So if
the SQNR of one is below 25 dB, the scale with the highest relative quantization noise is tried one
octave finer on the integer graph, with unchanged weights. If that brings the outputs clearly
closer, it is kept, and the next scale is tried. `best_effort` searches all scales, both ways.
"""

from __future__ import annotations

from dataclasses import replace

from ...plan import Plan
from ...run.data import Progress
from ..assign.shared_scales import SharedScaleGroup, find_saturated_clip_bounds, group_shared_scales
from ..methods.scale_search import find_searchable_scales, rescale_tensors
from ..planning.planned_model import PlannedModel
from ..report.candidate import Candidate, build_candidate
from .evidence import (
    MAX_SQNR_DB,
    MIN_GAIN_DB,
    STEP_SIGNIFICANCE_Z,
    Gain,
    accept_gain,
    can_choose_by_samples,
    compute_gain,
    output_sqnr_levels,
)

__all__ = ["try_finer_noisy_scales"]

_MAX_SQNR_DB = 25.0  # tried only if an output or the input of a Softmax is below that
_MAX_SCALES = 4  # scales that are tried
_MIN_SAMPLES = 16  # minimum number of samples to distinguish a gain from chance
_OCTAVE = 2.0


def try_finer_noisy_scales(candidate: Candidate, progress: Progress | None = None) -> Candidate:
    """Make the noisiest activation scales an octave finer while the outputs measurably improve.

    Stops at the first scale without a significant gain. Only applies to power-of-two scales (mode
    "q-value") chosen by the "mse" calibrator: other scales use the integer range fully. Scales of a
    given plan stay, and so do those of a model that is fed its own states, whose calls are not
    independent samples.

    Returns
    -------
    Candidate
        The improved candidate with a note on the scales and the gain, or `candidate`.
    """
    planned = candidate.planned
    if not _is_applicable(candidate):
        return candidate
    if progress is not None:
        progress("finer scales", 0, None)
    best = candidate
    finer_tensors = []
    shared = group_shared_scales(planned.partition, planned.target)
    for names in _select_noisiest_scales(planned, planned.plan, shared):
        plan = rescale_tensors(
            best.planned.plan, names, _OCTAVE, planned.partition, shared, planned.target
        )
        if plan is None:
            continue
        trial = build_candidate(
            replace(planned, plan=plan),
            candidate.float_graph,
            progress,
            refinement=candidate.refinement,
        )
        gain = _measured_gain(best, trial)
        if not accept_gain("noisiest", gain, MIN_GAIN_DB, STEP_SIGNIFICANCE_Z):
            break
        best = trial
        finer_tensors.append(names[-1])
    if not finer_tensors:
        return candidate
    if best.fidelity.is_lossy:  # again, now locating the break
        best = build_candidate(
            best.planned,
            candidate.float_graph,
            progress,
            refinement=candidate.refinement,
        )
    total_gain_db = _measured_gain(candidate, best).value
    note = (
        f"{', '.join(finer_tensors)}: scales an octave finer than those of least error; "
        f"outputs {total_gain_db:.1f} dB closer to the float model's {best.fidelity.measured_on}"
    )
    return best.with_notes([note])


def _is_applicable(candidate: Candidate) -> bool:
    """Whether scales may change, samples can decide, and an SQNR is below `_MAX_SQNR_DB`.

    Scales may change in mode q-value with the calibrator "mse", without recurrent states. Samples
    are real and at least `_MIN_SAMPLES`. The lowest SQNR of the outputs and of the measured tensors
    must both be below the limit.
    """
    prepared, fidelity = candidate.prepared, candidate.fidelity
    policy = candidate.planned.basis.policy
    if policy is None or policy.mode != "q-value" or policy.calibrator != "mse":
        return False
    if prepared.conf.state or not can_choose_by_samples(prepared):
        return False
    if fidelity.measured_errors.shape[1] < _MIN_SAMPLES:
        return False
    min_sqnr_db = min(output_sqnr_levels(candidate), default=MAX_SQNR_DB)
    return min_sqnr_db < _MAX_SQNR_DB and fidelity.min_measured_sqnr_db < _MAX_SQNR_DB


def _measured_gain(old: Candidate, new: Candidate) -> Gain:
    """Return the gain of `new` over `old` at the measured tensors.

    These are those of `select_measured_tensors`: outputs, or the inputs of their final activations.
    """
    old_errors, new_errors = old.fidelity.measured_errors, new.fidelity.measured_errors
    return compute_gain(old_errors, new_errors, new.fidelity.measured_power, old_errors.shape[1])


def _select_noisiest_scales(
    planned: PlannedModel, plan: Plan, shared_groups: tuple[SharedScaleGroup, ...]
) -> list[list[str]]:
    """Return the tensors of each of the `_MAX_SCALES` noisiest scales, worst first.

    The noise is the quantization error relative to the power of the tensors. Scales of the user, of
    saturated Clips and of tensors without statistics are left out.
    """
    policy = planned.basis.policy
    assert policy is not None
    clipped = find_saturated_clip_bounds(planned.partition, planned.target)
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
