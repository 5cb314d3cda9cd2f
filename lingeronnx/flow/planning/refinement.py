"""Fourth stage: weights and biases refined under the plan, in the simulator's own arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...graph import ir
from ...graph.digests import compute_value_digests
from ...run.data import Progress
from ...run.memory import bytes_per_sample, choose_batch_size, trim_memory
from ..lower import lower
from ..methods.refine import (
    RefinementOptions,
    find_compensated_sums,
    find_refinable_layers,
    refine_layers,
    walk_bytes_per_sample,
)
from ..partition import Partition
from ..prepare.float_outputs import map_outputs_to_logits
from .planned_model import PlannedModel

__all__ = ["refine_weights", "select_refinement_samples"]

_SAMPLES = 256  # for the moments and mean errors of every layer


def refine_weights(
    planned: PlannedModel,
    options: RefinementOptions | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
    previous: tuple[PlannedModel, ir.Model] | None = None,
) -> ir.Model:
    """Return the planned float graph, or where effort allows a copy of it with weights and biases refined.

    Weights that another tool has quantized stay as it left them. methods : what is done that takes
    longer, None for what `refine_layers` does by itself.
    feeds : the samples to refine on, those of `select_refinement_samples` by default. before :
    another plan for the same model, refined by the same methods on the same data, and what came of
    it: layers that the same integers reach are taken over.
    """
    if planned.config.effort == "fast" or planned.weights_fixed:
        return planned.graph
    copy = ir.clone(planned.graph)
    options = RefinementOptions() if options is None else options
    parts, plan = planned.partition.with_graph(copy), planned.plan
    known = set() if previous is None else _unchanged_layers(planned, previous[0], options)
    if previous is not None and known:
        _copy_refined_layers(parts, previous[1], known)
    if known == find_refinable_layers(parts).keys():
        return copy
    data, budget = planned.data, planned.config.budget
    feeds = select_refinement_samples(planned) if feeds is None else feeds
    pieces = list(
        data.split_feeds(feeds, choose_batch_size(bytes_per_sample(copy), _SAMPLES, budget))
    )
    runner = (
        planned.float_runner_with_sums
        if find_compensated_sums(parts, plan, options)
        else planned.float_runner
    )
    refine_layers(
        parts,
        plan,
        planned.target,
        feeds,
        runner,
        batches=pieces,
        budget=budget,
        options=options,
        progress=progress,
        refined_layers=known,
        measured_tensors=list(dict.fromkeys(map_outputs_to_logits(planned.graph).values())),
    )
    trim_memory()
    return copy


def select_refinement_samples(
    planned: PlannedModel, max_samples: int = _SAMPLES
) -> dict[str, np.ndarray]:
    """Return the samples for refining weights.

    As many as fit the memory budget, at most `max_samples`.
    """
    return planned.data.first(
        choose_batch_size(walk_bytes_per_sample(planned.graph), max_samples, planned.config.budget)
    )


# ---- layers that were refined before -------------------------------------------------------------


def _unchanged_layers(
    now: PlannedModel, before: PlannedModel, options: RefinementOptions
) -> set[str]:
    """Return the layers that the two plans compute, and refine, alike.

    From the same integers, at the same scales.
    """
    same_layers = set()
    layers, old = _LayerDigests(now, options), _LayerDigests(before, options)
    for name, node in find_refinable_layers(now.partition).items():
        weight = ir.input_name(node, 1)
        same = layers.digest_of(name) == old.digest_of(name) is not None
        if same and all(
            now.plan.tensors.get(n) == before.plan.tensors.get(n) for n in (name, weight)
        ):
            same_layers.add(name)
    return same_layers


class _LayerDigests:
    """What the layers of a plan are computed from, before they are refined."""

    def __init__(self, planned: PlannedModel, options: RefinementOptions) -> None:
        lowered = lower(planned.partition, planned.plan, planned.target)
        self._floats, integers = (
            compute_value_digests(planned.graph),
            compute_value_digests(lowered.graph),
        )
        self._sums = find_compensated_sums(planned.partition, planned.plan, options)
        self._integers: dict[str, bytes | None] = {}
        for node in lowered.graph.graph:
            name = str(node.outputs[0].name)
            if (
                name in lowered.layer_outputs
                and len(node.inputs) > 1
                and ir.const_value(node.inputs[1]) is not None
            ):
                self._integers.setdefault(lowered.layer_outputs[name], integers.get(name))

    def digest_of(self, name: str) -> tuple[bytes, bytes] | None:
        """Return digests of the float tensor `name` and of its integers.

        None where more than these count.
        """
        both = self._floats.get(name), self._integers.get(name)
        return None if name in self._sums or None in both else both  # type: ignore[return-value]


def _copy_refined_layers(partition: Partition, refined_before: ir.Model, names: set[str]) -> None:
    """Give the layers `names` the weights and biases that they have in another graph, under the names they have there.

    Weights that others read as well stay for these.
    """
    others = {str(node.name): node for node in refined_before.graph}
    for name, node in find_refinable_layers(partition).items():
        if name not in names:
            continue
        other = others[str(node.name)]
        if len(node.inputs) < len(other.inputs):
            node.resize_inputs(len(other.inputs))
        for index, value in list(enumerate(other.inputs))[1:]:
            array = None if value is None else ir.const_value(value)
            old = node.inputs[index]
            if (
                value is None
                or array is None
                or (old is not None and old.const_value is value.const_value)
            ):
                continue
            if old is not None and old.name == value.name:
                ir.set_constant_input(partition.graph, node, index, array, "refined")
            else:
                initializer = ir.add_initializer(
                    partition.graph, ir.unique_tensor_name(partition.graph, str(value.name)), array
                )
                node.replace_input_with(index, initializer)
