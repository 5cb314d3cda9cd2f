"""Finer scales of the noisiest activations, where the outputs stay far off: what the finer step cuts may not count.

The calibrator weighs what a scale cuts against what it rounds, tensor by tensor. But a few large values of a front
layer may hardly reach the outputs, while its rounding does. Only the outputs tell. So where one stays below 25 dB, the
scales with the most noise of their own, a few of them, are tried one octave finer on the integer graph, the weights as
they are. What brings the outputs clearly nearer is kept, and the weights are refined anew. `best_effort` searches all
scales, both ways.
"""

from __future__ import annotations

from dataclasses import replace

from ...plan import Plan
from ...run.data import Progress
from ..assign.shared_scales import SharedScale, shared_scales, tops
from ..methods.refine import Methods
from ..methods.scale_search import free_scales, moved
from ..planning.plan_record import Planned
from ..planning.refinement import refined, samples
from ..report.comparison import Compared, compared
from .cross_validation import FEWEST, CrossValidation, counted
from .evidence import CAP, CLEAR, is_real, levels, measured_tensors
from .gains import STEP_ERRORS

__all__ = ["with_finer_noisiest"]

_FAR = 25.0  # dB of an output, and of what a Softmax reads: below that it is tried
_MOST = 4  # scales that are tried
_SAMPLES = 64
_OCTAVE = 2.0


def with_finer_noisiest(compared_model: Compared, progress: Progress | None = None) -> Compared:
    """Return `compared_model`, or the same model with finer scales where these bring its outputs clearly nearer.

    A note says which, and what they gained. Scales that were given stay; so do those of free numbers, which fill the
    integers anyway, and those of a model that is fed its own states, whose calls say little one by one.
    """
    prepared, planned = compared_model.prepared, compared_model.planned
    choice = planned.basis.choice
    if choice is None or choice.mode != "q-value" or choice.calibrator != "mse" or prepared.conf.state:
        return compared_model
    if not is_real(prepared) or min(levels(compared_model), default=CAP) >= _FAR:
        return compared_model
    feeds = samples(planned, _SAMPLES)
    if (count := counted(planned, feeds)) < FEWEST:
        return compared_model
    if progress is not None:
        progress("finer scales", 0, None)
    trials = CrossValidation(prepared, planned, feeds, count, measured_tensors(planned))
    usual = trials.seen(planned, Methods(), compared_model.exact)
    if trials.level(usual.errors) >= _FAR:
        return compared_model
    errors, plan, finer = usual.errors, planned.plan, []
    shared = shared_scales(planned.parts, planned.target)
    for names in _noisiest(planned, plan, shared):
        other = moved(plan, names, _OCTAVE, planned.parts, shared, planned.target)
        if other is None:
            continue
        tried, gain = trials.under(usual, errors, other, STEP_ERRORS)
        if gain.clear(CLEAR, STEP_ERRORS):
            errors, plan = tried, other
            finer.append(names[-1])
    if not finer:
        return compared_model
    planned = replace(planned, plan=plan)
    exact = refined(planned, progress=progress)
    gain = trials.between(usual.errors, trials.seen(planned, Methods(), exact).errors)
    if not gain.clear(CLEAR, STEP_ERRORS):
        return compared_model
    what = f"{', '.join(finer)} at scales an octave finer than of least error"
    note = f"{what}: that brings the outputs {gain.value:.1f} dB nearer to the float model's on {gain.samples} samples"
    return compared(prepared, planned, exact, progress).with_notes([note])


def _noisiest(planned: Planned, plan: Plan, shared: tuple[SharedScale, ...]) -> list[list[str]]:
    """Return the tensors of the scales with the most noise of their own, beside their power, the noisiest first."""
    choice, stats = planned.basis.choice, planned.basis.stats
    assert choice is not None
    fixed = {*tops(planned.parts, planned.target), *(n for n, said in choice.own.items() if "scale" in said)}
    noise = []
    for group, names in free_scales(plan, shared, frozenset(fixed)):
        seen = group.stats(stats)
        if seen is not None and seen.power > 0:
            q = plan.tensors[names[0]]
            noise.append((seen.error(float(q.scale), q.low, q.high) / seen.power, names))
    return [names for _, names in sorted(noise, key=lambda item: item[0], reverse=True)[:_MOST]]
