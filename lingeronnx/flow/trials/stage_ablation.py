"""What the stages of quantization give at the outputs, measured: one that loses is taken back.

Moving ranges into the weights (equalized channels, fitted ranges, cuts undone) and refining weights and biases are
judged layer by layer, by what each predicts. Over many layers that may come out otherwise. So the integer graph is also
made without refinement, and without either, and compared with the float model on the samples that fidelity is measured
on. A stage without which the outputs are clearly nearer, by more than chance (a one-sided test at 5 %, `gains`), is
left out, and a note says so. Where refinement brings little, or an output stays far off, it is tried once more with
biases that make means right behind a Relu (`float_targets`).

Where no samples are held back from calibration, refinement is judged by samples that it saw: that speaks for it, so
that it is taken back for good reasons only. `evidence` says where nothing is judged.
"""

from __future__ import annotations

from ...errors import ConstraintError
from ...run.data import Progress
from ..methods.refine import Methods
from ..planning.plan_record import Planned
from ..planning.refinement import refined
from ..planning.scale_sources import plain_scales
from ..prepare.preparation import Prepared
from ..report.comparison import Compared, compared
from .evidence import CAP, CLEAR, gained, is_better, is_evidence, levels
from .gains import ERRORS
from .verdict_log import log_verdict

__all__ = ["without_losing_stages"]

_LITTLE, _FAR = 0.5, 15.0  # dB that refinement gains, or an output has: below that it is tried in the other way

_BARE = "refining weights and biases was taken back"
_MEANS = "biases make means right behind Relus, not in front of them"
_PLAIN = "moving ranges into the weights was taken back"


def without_losing_stages(compared_model: Compared, progress: Progress | None = None) -> Compared:
    """Return `compared_model`, or the same model without the stages that take its outputs away from the float model's.

    Scales that were given stay, and what follows from them.
    """
    if not is_evidence(compared_model):
        return compared_model
    prepared, planned = compared_model.prepared, compared_model.planned
    bare = _bare(prepared, planned, progress)
    best = _judged(compared_model, bare, progress)
    other = _plain(prepared, planned, progress) if planned.basis.choice is not None else None
    if other is not None:
        plain = _bare(prepared, other, progress)
        if is_better(bare, plain):
            again = _refined(prepared, other, Methods(), progress)
            best = _better(best, _judged(again, plain, progress), _PLAIN)
    if best is compared_model or not best.fidelity.lossy:
        return best
    return compared(prepared, best.planned, best.exact, progress)  # once more, to say where it breaks


def _judged(compared_model: Compared, bare: Compared, progress: Progress | None) -> Compared:
    """Return `compared_model`, whose weights are refined, `bare` without that, or the same refined in the other way."""
    best = _better(compared_model, bare, _BARE)
    if gained(bare, compared_model) < _LITTLE or min(levels(compared_model), default=CAP) < _FAR:
        best = _better(
            best, _refined(compared_model.prepared, compared_model.planned, Methods(means=True), progress), _MEANS
        )
    return best


def _bare(prepared: Prepared, planned: Planned, progress: Progress | None) -> Compared:
    return compared(prepared, planned, planned.graph, progress, explain=False)


def _refined(prepared: Prepared, planned: Planned, methods: Methods, progress: Progress | None) -> Compared:
    return compared(prepared, planned, refined(planned, methods, progress=progress), progress, explain=False)


def _plain(prepared: Prepared, planned: Planned, progress: Progress | None) -> Planned | None:
    """Return the same model under scales for its ranges as they are; None where these are the scales it has."""
    try:
        plain = plain_scales(prepared, progress, planned.observed)
    except ConstraintError:  # with require_chip: a scale that the chip does not hold
        return None
    same = (plain.plan.tensors, plain.plan.transforms) == (planned.plan.tensors, planned.plan.transforms)
    return None if same else plain


def _better(best: Compared, other: Compared, why: str) -> Compared:
    """Return `best`, or `other` where it is better, with a note that says why."""
    accepted = is_better(best, other) and not _loses_chip(best, other)
    measured, criterion = {"gain_db": gained(best, other)}, {"mean_db": CLEAR, "errors": ERRORS}
    if not log_verdict("stages", accepted, criterion=criterion, measured=measured, label=why):
        return best
    gain = f"{gained(best, other):.1f} dB nearer to the float model's {other.fidelity.on}"
    return other.with_notes([f"{why}: that brings the outputs {gain}"])


def _loses_chip(old: Compared, new: Compared) -> bool:
    return old.result.report.chip_ready and not new.result.report.chip_ready
