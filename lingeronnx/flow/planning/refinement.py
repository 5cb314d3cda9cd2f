"""Fourth stage: weights and biases refined under the plan, in the simulator's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...graph import ir
from ...graph.digests import digests
from ...run.data import Progress
from ...run.memory import bytes_per_sample, piece, release
from ..lower import lower
from ..methods.refine import Methods, refinable, refine, sums_looked_at, walk_bytes
from ..partition import Partition
from ..prepare.float_outputs import before_curves
from .plan_record import Planned

__all__ = ["refined", "samples"]

_SAMPLES = 256  # for the moments and mean errors of every layer


def refined(
    planned: Planned,
    methods: Methods | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
    before: tuple[Planned, ir.Graph] | None = None,
) -> ir.Graph:
    """Return the planned float graph, or where effort allows a copy of it with weights and biases refined.

    Weights that another tool has quantized stay as it left them. methods : what is done that takes longer, None for
    what `refine` does by itself.
    feeds : the samples to refine on, those of `samples` by default. before : another plan for the same model, refined
    by the same methods on the same data, and what came of it: layers that the same integers reach are taken over.
    """
    if planned.conf.effort == "fast" or planned.weights_fixed:
        return planned.graph
    copy = ir.clone(planned.graph)
    methods = Methods() if methods is None else methods
    parts, plan = planned.parts.on(copy), planned.plan
    known = set() if before is None else _alike(planned, before[0], methods)
    if before is not None and known:
        _take_over(parts, before[1], known)
    if known == refinable(parts).keys():
        return copy
    data, budget = planned.data, planned.conf.budget
    feeds = samples(planned) if feeds is None else feeds
    pieces = list(data.pieces(feeds, piece(bytes_per_sample(copy), _SAMPLES, budget)))
    runner = planned.summing if sums_looked_at(parts, plan, methods) else planned.runner
    refine(
        parts,
        plan,
        planned.target,
        feeds,
        runner,
        pieces=pieces,
        budget=budget,
        methods=methods,
        progress=progress,
        known=known,
        wanted=list(dict.fromkeys(before_curves(planned.graph).values())),
    )
    release()
    return copy


def samples(planned: Planned, most: int = _SAMPLES) -> dict[str, np.ndarray]:
    """Return the calibration samples that weights are refined on, as many as a walk holds at once, or the `most`."""
    return planned.data.first(piece(walk_bytes(planned.graph), most, planned.conf.budget))


# ---- layers that were refined before -----------------------------------------------------------------------------


def _alike(now: Planned, before: Planned, methods: Methods) -> set[str]:
    """Return the layers that the two plans compute, and refine, alike: from the same integers, at the same scales."""
    same_layers = set()
    layers, old = _LayerDigests(now, methods), _LayerDigests(before, methods)
    for name, node in refinable(now.parts).items():
        weight = ir.read_name(node, 1)
        same = layers.seen(name) == old.seen(name) is not None
        if same and all(now.plan.tensors.get(n) == before.plan.tensors.get(n) for n in (name, weight)):
            same_layers.add(name)
    return same_layers


class _LayerDigests:
    """What the layers of a plan are computed from, before they are refined."""

    def __init__(self, planned: Planned, methods: Methods) -> None:
        lowered = lower(planned.parts, planned.plan, planned.target)
        self._floats, integers = digests(planned.graph), digests(lowered.graph)
        self._sums = sums_looked_at(planned.parts, planned.plan, methods)
        self._integers: dict[str, bytes | None] = {}
        for node in lowered.graph.graph:
            name = str(node.outputs[0].name)
            if name in lowered.layers and len(node.inputs) > 1 and ir.const(node.inputs[1]) is not None:
                self._integers.setdefault(lowered.layers[name], integers.get(name))

    def seen(self, name: str) -> tuple[bytes, bytes] | None:
        """Return digests of the float tensor `name` and of its integers; None where more than these count."""
        both = self._floats.get(name), self._integers.get(name)
        return None if name in self._sums or None in both else both  # type: ignore[return-value]


def _take_over(parts: Partition, refined_before: ir.Graph, names: set[str]) -> None:
    """Give the layers `names` the weights and biases that they have in another graph, under the names they have there.

    Weights that others read as well stay for these.
    """
    others = {str(node.name): node for node in refined_before.graph}
    for name, node in refinable(parts).items():
        if name not in names:
            continue
        other = others[str(node.name)]
        if len(node.inputs) < len(other.inputs):
            node.resize_inputs(len(other.inputs))
        for index, value in list(enumerate(other.inputs))[1:]:
            array = None if value is None else ir.const(value)
            old = node.inputs[index]
            if value is None or array is None or (old is not None and old.const_value is value.const_value):
                continue
            if old is not None and old.name == value.name:
                ir.set_constant(parts.graph, node, index, array, "refined")
            else:
                initializer = ir.add_initializer(parts.graph, ir.fresh_name(parts.graph, str(value.name)), array)
                node.replace_input_with(index, initializer)
