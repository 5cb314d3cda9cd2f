"""What `effort: best` adds: methods that take longer, each kept where it is better on data that it did not see."""

from __future__ import annotations

from dataclasses import replace

from ..run.data import Progress
from .complete import Compared, compared
from .refined import refined

__all__ = ["score", "with_best_effort"]

_CAP = 100.0  # dB: beyond that nothing is gained


def with_best_effort(made: Compared, progress: Progress | None = None) -> Compared:
    """Return `made`, or the same plan with weights aimed at the float model's outputs (`improve.aim`).

    The better one by the mean SQNR of the outputs, none of which may become worse than the worst was, on samples held
    back from calibration; where there are too few to hold some back, on the calibration data. A note says what was
    gained.
    """
    planned = made.planned
    if planned.prepared.weights_fixed:  # weights that another tool has quantized stay as they are
        return made
    other = compared(planned, refined(planned, aim=True), progress)
    (worst, mean), (least, new) = score(made), score(other)
    kept = new > mean and least >= worst
    text = f"effort best: aiming weights at the float outputs gave {new - mean:+.2f} dB {made.seen.on}"
    chosen = other if kept else made
    note = text if kept else f"{text}, and was not kept"
    return replace(chosen, planned=replace(planned, notes=[*planned.notes, note]))


def score(made: Compared) -> tuple[float, float]:
    """Return the least SQNR of the outputs, and the mean."""
    values = [min(output["sqnr"], _CAP) for output in made.seen.outputs.values()]
    return min(values, default=_CAP), sum(values) / max(len(values), 1)
