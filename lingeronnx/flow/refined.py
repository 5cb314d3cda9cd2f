"""Fourth stage: weights and biases refined under the plan, in the simulator's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..graph import ir
from ..run.data import Progress
from ..run.memory import bytes_per_sample, piece, release
from .improve.refine import Methods, refine, sums_looked_at, walk_bytes
from .planned import Planned

__all__ = ["refined", "samples"]

_SAMPLES = 256  # for the moments and mean errors of every layer


def refined(
    planned: Planned,
    methods: Methods | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
) -> ir.Graph:
    """Return the planned float graph, or where effort allows a copy of it with weights and biases refined.

    Weights that another tool has quantized stay as it left them. methods : what is done that takes longer, None for
    what `refine` does by itself.
    feeds : the samples to refine on, those of `samples` by default.
    """
    if planned.prepared.conf.effort == "fast" or planned.prepared.weights_fixed:
        return planned.graph
    copy = ir.clone(planned.graph)
    methods = Methods() if methods is None else methods
    data, budget = planned.prepared.data, planned.prepared.conf.budget
    feeds = samples(planned) if feeds is None else feeds
    pieces = list(data.pieces(feeds, piece(bytes_per_sample(copy), _SAMPLES, budget)))
    parts, plan = planned.parts.on(copy), planned.plan
    runner = planned.summing if sums_looked_at(parts, plan, methods) else planned.runner
    refine(parts, plan, planned.prepared.row, feeds, runner, pieces, budget, methods, progress)
    release()
    return copy


def samples(planned: Planned) -> dict[str, np.ndarray]:
    """Return the calibration samples that weights are refined on, as many as a walk holds at once."""
    prepared = planned.prepared
    return prepared.data.first(piece(walk_bytes(planned.graph), _SAMPLES, prepared.conf.budget))
