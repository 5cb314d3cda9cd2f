"""Fourth stage: weights and biases refined under the plan, in the simulator's own arithmetic."""

from __future__ import annotations

from ..graph import ir
from ..run.data import Progress
from ..run.memory import bytes_per_sample, piece, release
from .improve.refine import refine, walk_bytes
from .planned import Planned

__all__ = ["refined"]

_SAMPLES = 256  # for the moments and mean errors of every layer


def refined(planned: Planned, aim: bool = False, progress: Progress | None = None) -> ir.Graph:
    """Return the planned float graph, or where effort allows a copy of it with weights and biases refined.

    Weights that another tool has quantized stay as it left them. aim : weights are aimed at the float model's outputs
    (`improve.aim`), which takes longer.
    """
    if planned.prepared.conf.effort == "fast" or planned.prepared.weights_fixed:
        return planned.graph
    copy = ir.clone(planned.graph)
    data, budget = planned.prepared.data, planned.prepared.conf.budget
    feeds = data.first(piece(walk_bytes(copy), _SAMPLES, budget))
    pieces = list(data.pieces(feeds, piece(bytes_per_sample(copy), _SAMPLES, budget)))
    parts, row = planned.parts.on(copy), planned.prepared.row
    refine(parts, planned.plan, row, feeds, planned.runner, pieces, budget, aim, progress)
    release()
    return copy
