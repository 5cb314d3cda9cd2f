"""Fourth stage: weights and biases refined under the plan, in the simulator's own arithmetic."""

from __future__ import annotations

from ..graph import ir
from .improve.refine import refine, samples_that_fit
from .planned import Planned

__all__ = ["refined"]

_SAMPLES = 256  # for the moments and mean errors of every layer


def refined(planned: Planned) -> ir.Graph:
    """Return the planned float graph, or where effort allows a copy of it with weights and biases refined."""
    if planned.prepared.conf.effort == "fast":
        return planned.graph
    copy = ir.clone(planned.graph)
    feeds, _ = next(iter(planned.prepared.data.peek(samples_that_fit(copy, _SAMPLES))))
    refine(planned.parts.on(copy), planned.plan, planned.prepared.row, feeds, planned.runner)
    return copy
