"""What the stages of quantization give at the outputs, measured: one that loses is taken back.

Moving ranges into the weights (equalized channels, fitted ranges, cuts undone) and refining weights and biases are
judged layer by layer, by what each predicts. Over many layers that may come out otherwise. So the integer graph is also
made without refinement, and without either, and compared with the float model on the samples that fidelity is measured
on. A stage without which the outputs are clearly nearer, by more than chance (a one-sided test at 5 %, `gains`), is
left out, and a note says so. Where refinement brings little, or an output stays far off, it is tried once more with
biases that make means right behind a Relu (`float_targets`).

Where no samples are held back from calibration, refinement is judged by samples that it saw: that speaks for it, so
that it is taken back for good reasons only. Of an output behind a Softmax a few undecided rows tell nearly all of the
error: some hundred rows are no evidence, and nothing is judged by them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...errors import ConstraintError
from ...graph import ir, operators
from ...run.data import Progress
from ..methods.refine import Methods
from ..planning.refinement import refined
from ..planning.scale_assignment import Planned, assign_scales, observe_model
from ..report.comparison import Compared, compared
from .gains import ERRORS, gain

__all__ = ["few_rows", "gained", "levels", "with_note", "without_losing_stages"]

_CLEAR = 0.2  # dB of the mean SQNR of the outputs
_LITTLE, _FAR = 0.5, 15.0  # dB that refinement gains, or an output has: below that it is tried in the other way
_ROWS = 500  # of a Softmax
_SHARES = operators.ROWS - {"Hardmax"}
_CAP = 100.0  # dB: beyond that nothing is gained

_BARE = "refining weights and biases was taken back"
_MEANS = "biases make means right behind Relus, not in front of them"
_PLAIN = "moving ranges into the weights was taken back"


def without_losing_stages(made: Compared, progress: Progress | None = None) -> Compared:
    """Return `made`, or the same model without the stages that take its outputs away from the float model's.

    Only real data that can be read again are evidence. Scales that were given stay, and what follows from them.
    """
    prepared = made.planned.prepared
    if prepared.conf.effort == "fast" or prepared.synthetic or prepared.weights_fixed or not prepared.data.rereadable:
        return made
    if few_rows(made):
        return made
    bare = _bare(made.planned, progress)
    best = _judged(made, bare, progress)
    other = _plain(made.planned, progress) if made.planned.basis.choice is not None else None
    if other is not None:
        plain = _bare(other, progress)
        if _is_better(bare, plain):
            best = _better(best, _judged(_refined(other, Methods(), progress), plain, progress), _PLAIN)
    if best is made or not best.seen.lossy:
        return best
    return compared(best.planned, best.exact, progress)  # once more, to say where it breaks


def few_rows(made: Compared) -> bool:
    """Whether an output is what a Softmax gives for fewer rows than say how far it is from the float model's."""
    for value in made.planned.prepared.graph.graph.outputs:
        maker = ir.producer(value)
        if maker is not None and maker.op_type in _SHARES:
            shape = ir.shape(value) or ()
            rows = math.prod(size or 1 for size in shape[1:-1])
            if rows * made.seen.errors.shape[-1] < _ROWS:
                return True
    return False


def _judged(made: Compared, bare: Compared, progress: Progress | None) -> Compared:
    """Return `made`, whose weights are refined, `bare` without that, or the same refined in the other way."""
    best = _better(made, bare, _BARE)
    if gained(bare, made) < _LITTLE or min(levels(made), default=_CAP) < _FAR:
        best = _better(best, _refined(made.planned, Methods(means=True), progress), _MEANS)
    return best


def _bare(planned: Planned, progress: Progress | None) -> Compared:
    return compared(planned, planned.graph, progress, explain=False)


def _refined(planned: Planned, methods: Methods, progress: Progress | None) -> Compared:
    return compared(planned, refined(planned, methods, progress=progress), progress, explain=False)


def _plain(planned: Planned, progress: Progress | None) -> Planned | None:
    """Return the same model under scales for its ranges as they are; None where these are the scales it has."""
    prepared = planned.prepared
    try:
        found = replace(
            assign_scales(observe_model(prepared.without_effort, progress, planned.observed)), prepared=prepared
        )
    except ConstraintError:  # with require_chip: a scale that the chip does not hold
        return None
    same = (found.plan.tensors, found.plan.transforms) == (planned.plan.tensors, planned.plan.transforms)
    return None if same else found


def _better(best: Compared, other: Compared, why: str) -> Compared:
    """Return `best`, or `other` where it is better, with a note that says why."""
    if not _is_better(best, other) or _loses_chip(best, other):
        return best
    note = f"{why}: that brings the outputs {gained(best, other):.1f} dB nearer to the float model's {other.seen.on}"
    return with_note(other, note)


def with_note(made: Compared, note: str) -> Compared:
    """Return `made` with one more line in its report."""
    return replace(made, planned=replace(made.planned, notes=[*made.planned.notes, note]))


def _is_better(old: Compared, new: Compared) -> bool:
    """Whether the outputs are clearly nearer, and by more than chance; what is not finite by now has no chance."""
    chance = gain(old.seen.errors, new.seen.errors, old.seen.power, 0).error
    value = gained(old, new)
    return value >= _CLEAR and not value <= ERRORS * chance


def gained(old: Compared, new: Compared) -> float:
    """Return by how many dB the outputs are nearer on average, no gain where the farthest of them is farther."""
    before, after = (levels(made) for made in (old, new))
    if not before or min(after) < min(before):
        return 0.0
    return (sum(after) - sum(before)) / len(before)


def levels(made: Compared) -> list[float]:
    """Return the SQNR of the outputs and of the parts that they join; what is not finite is the worst."""
    found = [output["sqnr"] for output in made.seen.outputs.values()] + [part.sqnr for part in made.seen.parts]
    return [-_CAP if level != level else max(min(level, _CAP), -_CAP) for level in found]


def _loses_chip(old: Compared, new: Compared) -> bool:
    return old.result.report.chip_ready and not new.result.report.chip_ready
