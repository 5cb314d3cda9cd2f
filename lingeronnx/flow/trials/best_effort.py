"""What `effort: best` adds: methods that take longer, each kept where it is clearly better on samples it did not see.

Method after method is tried on top of what was kept so far (`cross_validation`), and is kept where the outputs come
nearer to the float model's by more than chance (a one-sided test at 5 %). What was kept is then done once more with all
calibration samples. Where samples are held back from calibration, these have the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...plan import Plan
from ...run.data import Progress
from ..assign.shared_scales import shared_scales, tops
from ..methods.refine import Methods
from ..methods.scale_search import scales_by_outputs
from ..planning.plan_record import Planned
from ..planning.refinement import refined, samples
from ..report.comparison import Compared, compared
from ..report.fidelity import measured_tensors
from .cross_validation import FEWEST, CrossValidation, TriedPlan, counted
from .evidence import CAP
from .gains import ERRORS, STEP_ERRORS, Gain
from .output_widths import LEAST as LEAST_WIDE
from .output_widths import finer, widened
from .verdict_log import log_verdict

__all__ = ["with_best_effort"]

_CLEAR = 0.02  # dB that a method gains at least


def with_best_effort(compared_model: Compared, progress: Progress | None = None) -> Compared:
    """Return `compared_model`, or one with other widths, scales and weights, where these bring its outputs nearer.

    A note says of each method what it gained.
    """
    prepared, planned = compared_model.prepared, compared_model.planned
    if planned.weights_fixed:  # weights that another tool has quantized stay as they are
        return compared_model
    feeds = samples(planned)
    if (count := counted(planned, feeds)) < FEWEST:
        return compared_model.with_notes([f"effort best: {count} calibration samples are too few to choose methods by"])
    if progress is not None:
        progress("setting samples aside", 0, None)
    trials = CrossValidation(prepared, planned, feeds, count, measured_tensors(planned))
    first = best = trials.start(planned, Methods(), progress)
    notes = []
    for name, least, method in _METHODS:
        if progress is not None:
            progress(name, 0, None)
        other = method(trials, best, progress)
        if other is None:
            continue
        trial, gain = other
        if not gain.changed:
            notes.append(f"effort best: {name} changes nothing")
            continue
        kept = _log_gain(gain, gain.clear(least, ERRORS), least, name)
        end = "" if kept else ", and was not kept"
        notes.append(f"effort best: {name} gave {gain} on {gain.samples} samples set aside{end}")
        best = trial if kept else best
    if best is first:
        return compared_model.with_notes(notes)
    whole = trials.between(first.errors, best.errors)
    if not _log_gain(whole, whole.clear(_CLEAR, ERRORS), _CLEAR, "together"):
        return compared_model.with_notes([*notes, f"effort best: nothing of this was kept, together it gave {whole}"])
    exact = refined(best.planned, best.methods, progress=progress)
    final = compared(prepared, best.planned, exact, progress)
    if prepared.data.held() and (why := _worse(compared_model, final)):
        return compared_model.with_notes([*notes, why])
    return final.with_notes(notes)


def _worse(best: Compared, other: Compared) -> str:
    """Return a note where `other` is not better on the samples held back from calibration, nothing where it is."""
    (worst, mean), (least, new) = _score(best), _score(other)
    accepted = least >= worst and new > mean
    measured = {"worst_gain_db": least - worst, "mean_gain_db": new - mean}
    criterion = {"worst_gain_db": 0.0, "mean_gain_db": 0.0}
    if log_verdict("methods", accepted, criterion=criterion, measured=measured, label="held back"):
        return ""
    return f"effort best: nothing of this was kept, it gave {new - mean:+.2f} dB {best.fidelity.on}"


def _log_gain(gain: Gain, accepted: bool, least: float, label: str) -> bool:
    """Log the verdict on a gain that was measured on samples set aside; return it."""
    criterion = {"mean_db": least, "errors": ERRORS}
    return log_verdict("methods", accepted, criterion=criterion, measured=gain.figures, label=label)


def _score(compared_model: Compared) -> tuple[float, float]:
    """Return the least SQNR of the outputs, and the mean."""
    levels = [min(output["sqnr"], CAP) for output in compared_model.fidelity.outputs.values()]
    return min(levels, default=CAP), sum(levels) / max(len(levels), 1)


# ---- methods -----------------------------------------------------------------------------------------------------

_Tried = tuple[TriedPlan, Gain] | None  # None where there is nothing to try
_Method = Callable[[CrossValidation, TriedPlan, Progress | None], _Tried]


def _with_bits(of: Callable[[Planned], Planned | None]) -> _Method:
    """Try other widths of outputs, but where that would cost a chip its part."""

    def method(trials: CrossValidation, best: TriedPlan, progress: Progress | None) -> _Tried:
        planned = of(best.planned)
        if planned is None or (trials.ready(best.planned) and not trials.ready(planned)):
            return None
        return trials.beside(best, planned, best.methods, ERRORS, progress)

    return method


def _with_scales(trials: CrossValidation, best: TriedPlan, progress: Progress | None) -> _Tried:
    """Try scales that are chosen by the outputs, one step after another; the weights are refined anew for them."""
    planned, target = best.planned, best.planned.target
    if planned.basis.choice is None:  # the scales were given
        return None
    fixed = {*tops(planned.parts, target), *(n for n, said in planned.basis.choice.own.items() if "scale" in said)}
    errors = best.errors

    def better(plan: Plan) -> bool:
        nonlocal errors
        other, gain = trials.under(best, errors, plan, STEP_ERRORS)
        if not gain.clear(_CLEAR, STEP_ERRORS):
            return False
        errors = other
        return True

    shared = shared_scales(planned.parts, target)
    plan = scales_by_outputs(planned.parts, planned.plan, shared, target, frozenset(fixed), better)
    if plan is planned.plan:
        return best, Gain(0.0, 0.0, 0)
    return trials.beside(best, replace(planned, plan=plan), best.methods, ERRORS, progress)


def _refining(**switch: bool) -> _Method:
    def method(trials: CrossValidation, best: TriedPlan, progress: Progress | None) -> _Tried:
        methods = replace(best.methods, **switch)
        if best.methods.alike(methods, best.planned.parts, best.planned.plan):
            return None
        return trials.beside(best, best.planned, methods, ERRORS, progress)

    return method


#: What is tried, in this order, each on top of those kept, and the dB that it gains at least.
_METHODS: Sequence[tuple[str, float, _Method]] = (
    ("last outputs in all bits of their sums", LEAST_WIDE, _with_bits(widened)),
    ("16 bits in front of curves", _CLEAR, _with_bits(finer)),
    ("choosing scales by the error at the outputs", _CLEAR, _with_scales),
    ("aiming, sums and descent together", _CLEAR, _refining(aim=True, behind=True, descend=True)),
    ("aiming weights at the float outputs", _CLEAR, _refining(aim=True)),
    ("making up for the other side of a sum", _CLEAR, _refining(behind=True)),
    ("coordinate descent behind the rounding", _CLEAR, _refining(descend=True)),
    ("rounding by the error at the outputs", _CLEAR, _refining(outputs=True)),
    ("rounding by the error behind the next layer", _CLEAR, _refining(block=True)),
)
