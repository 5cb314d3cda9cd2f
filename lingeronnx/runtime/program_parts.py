"""Split an integer graph into parts that run one after the other on the host and on the chip.

    host 1 -> chip 1 -> host 2 -> chip 2 ...

A part consumes outputs of earlier parts, and graph inputs. Each part is a separate model, and a
tensor between parts has the same name as in the complete graph. Tensors between parts are floats,
because a chip part contains its Quants and Dequants. They are integers if a chip part consumes the
output of another, or if the chip writes more than 8 bits, which the host dequantizes.

There are as few chip parts as possible: the maximum number of times that a path through the graph
enters integer nodes. Integer nodes run as early as possible, float nodes as late as possible. A
Quant is contained in every part that consumes its output, because the host quantizes on a board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import onnx

from ..ir import ir
from ..operators.chip_part import (
    extract_chip_nodes,
    find_chip_nodes,
    is_host_dequant,
    order_packed_outputs,
)
from ..operators.integer_ops import QUANT
from ..targets import PackerArguments, Target
from ..targets._target import AppliedRewrite
from ..targets.objective import PARTS_KEY
from .host_part import build_host_model, expand_dequant, iter_read_names

__all__ = ["PartitionedProgram", "ProgramPart", "split_into_parts"]


@dataclass(frozen=True)
class ProgramPart:
    """One part, as a separate model.

    name : "chip1", "chip2" ... or "host1" ..., in the order in which they run. chip : whether the
    chip runs it. graph : the integer graph for the packer with its Quants and Dequants, or plain
    ONNX for the host. inputs, outputs : of `graph`, in its order. nodes : names of its nodes in the
    complete graph. rewrites : exact rewrites for the packer. target : of a chip part. preset_choice
    : packer arguments that were chosen together with those of other parts.
    """

    name: str
    chip: bool
    graph: ir.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    rewrites: tuple[AppliedRewrite, ...] = ()
    target: Target | None = field(default=None, repr=False, compare=False)
    preset_choice: PackerArguments | None = field(default=None, repr=False, compare=False)

    @cached_property
    def choice(self) -> PackerArguments:
        """Packer arguments of a chip part with the verdict on them, chosen once.

        They are those chosen together with other parts, or else the best for this one. The graph
        must not change afterwards.
        """
        assert self.target is not None
        if self.preset_choice is not None:
            return self.preset_choice
        return self.target.evaluate_packing(self.graph)

    def choice_for_arguments(self, argv: Sequence[str] | None) -> PackerArguments:
        """Evaluate a chip part under packer arguments `argv`.

        None returns the arguments chosen for it. Returns the arguments with the verdict.
        """
        assert self.target is not None
        return self.choice if argv is None else self.target.evaluate_packing(self.graph, argv)


class PartitionedProgram(NamedTuple):
    """A complete graph, and its parts in the order in which they run."""

    graph: ir.Model
    parts: tuple[ProgramPart, ...]

    @property
    def chip(self) -> tuple[ProgramPart, ...]:
        """The parts that run on the chip, in execution order."""
        return tuple(part for part in self.parts if part.chip)

    @property
    def host_parts(self) -> tuple[ProgramPart, ...]:
        """The parts that run on the host, in execution order."""
        return tuple(part for part in self.parts if not part.chip)


def split_into_parts(graph: ir.Model, target: Target) -> PartitionedProgram:
    """Split an integer graph into as few parts as possible.

    Each of several chip parts is rewritten for the packer (`Target.run_backend_passes`), and the
    vendor chooses which keep their constants in shared memory (`Vendor.assign_resident_constants`).
    A single chip part is not rewritten. `graph` is not modified.

    Raises
    ------
    ModelError
        If a tensor between parts has no type.
    """
    assignment = _StageAssignment(graph)
    chip_stages = [stage for stage in range(1, 2 * assignment.last, 2) if assignment.nodes(stage)]
    has_several_chip_parts = len(chip_stages) > 1
    chips = _ChipSubgraph(graph, assignment, target) if has_several_chip_parts else None
    proto: onnx.ModelProto | None = None
    parts: list[ProgramPart] = []
    for stage in range(2 * assignment.last + 1):
        nodes = assignment.nodes(stage)
        if not nodes:
            continue
        is_chip = stage % 2 == 1
        rewrites: Sequence[AppliedRewrite] = ()
        if not is_chip:
            proto = ir.to_proto(graph) if proto is None else proto
            part_graph = _extract_host_part(proto, assignment, stage)
        elif chips is not None:
            part_graph = chips.extract_stage(stage)
            part_graph.metadata_props[PARTS_KEY] = "several"
            part_graph, rewrites = target.run_backend_passes(part_graph)
        elif len(nodes) == len(graph.graph):
            part_graph = _with_packed_outputs(graph)
        else:
            part_graph = extract_chip_nodes(graph, assignment.indices(stage), target)
        index = 1 + sum(part.chip == is_chip for part in parts)
        part = ProgramPart(
            name=f"{'chip' if is_chip else 'host'}{index}",
            chip=is_chip,
            graph=part_graph,
            inputs=tuple(str(value.name) for value in part_graph.graph.inputs),
            outputs=tuple(str(value.name) for value in part_graph.graph.outputs),
            nodes=tuple(str(node.name) for node in nodes),
            rewrites=tuple(rewrites),
            target=target if is_chip else None,
        )
        parts.append(part)
    if has_several_chip_parts:
        parts = _preset_choices(parts, target)
    return PartitionedProgram(graph, tuple(parts))


def _with_packed_outputs(graph: ir.Model) -> ir.Model:
    """Return `graph` with its outputs in the executor's order; a copy if that differs."""
    outputs = order_packed_outputs(graph.graph.outputs)
    if all(ours is theirs for ours, theirs in zip(graph.graph.outputs, outputs, strict=True)):
        return graph
    part = graph.clone()
    part.graph.outputs[:] = order_packed_outputs(part.graph.outputs)
    return part


def _preset_choices(parts: Sequence[ProgramPart], target: Target) -> list[ProgramPart]:
    """Return `parts` with the packer arguments that the vendor chose for all chip parts together.

    Also marks in the graphs which of them keep their constants in shared memory. Host parts are
    unchanged; a chip part without a choice has None and is evaluated on its own later.
    """
    graphs = [part.graph for part in parts if part.chip]
    choices = iter(target.vendor.assign_resident_constants(graphs, target))
    return [
        replace(part, preset_choice=next(choices, None)) if part.chip else part for part in parts
    ]


class _StageAssignment:
    """Assignment of nodes to stages: 0, 2, 4 ... run on the host, 1, 3, 5 ... on the chip.

    order : the nodes. stages : {id of a node: stages that compute it}.
    """

    def __init__(self, graph: ir.Model) -> None:
        """Assign the nodes of `graph` to stages, and count the chip stages (`last`)."""
        self.order = list(graph.graph)
        self._chip_nodes = find_chip_nodes(graph)
        self._constant_nodes = {
            id(node) for node in self.order if node.op_type == "Constant" and not node.domain
        }
        self._earliest_stage = self._find_earliest_stages()
        #: Number of chip stages; 0 if no node runs on the chip.
        self.last = max((stage + 1) // 2 for stage in [0, *self._earliest_stage.values()])
        self.stages = self._assign_stages()

    @cached_property
    def _consumers(self) -> dict[int, list[ir.Node]]:
        """Id of a value -> nodes that consume it, directly or in a subgraph, in graph order."""
        consumers: dict[int, list[ir.Node]] = {}
        for node in self.order:
            for value in ir.iter_read_values(node):
                if value is not None:
                    consumers.setdefault(id(value), []).append(node)
        return consumers

    def _find_earliest_stages(self) -> dict[int, int]:
        """Return id of a node -> the first stage in which it can run; Constant nodes are left out.

        Chip nodes have odd stages, host nodes even ones, and none comes before its producers.
        """
        earliest: dict[int, int] = {}
        for node in self.order:
            if id(node) in self._constant_nodes:
                continue
            stage = 1 if id(node) in self._chip_nodes else 0
            for value in ir.iter_read_values(node):
                producer_stage = earliest.get(id(ir.producer(value)), 0)
                stage = max(stage, producer_stage + (producer_stage % 2 != stage % 2))
            earliest[id(node)] = stage
        return earliest

    def _assign_stages(self) -> dict[int, frozenset[int]]:
        """Return id of a node -> stages that compute it.

        A host node runs as late as its consumers allow, a chip node in its earliest stage; a Quant
        fed by the host, and a Constant, in each stage with a consumer.
        """
        stages: dict[int, frozenset[int]] = {}
        for node in reversed(self.order):
            earliest = self._earliest_stage.get(id(node))
            consumer_stages = self._find_consumer_stages(node, stages)
            if earliest is None:
                stages[id(node)] = consumer_stages
            elif earliest % 2 == 0:
                host_stages = [stage - stage % 2 for stage in consumer_stages]
                stages[id(node)] = frozenset({min(host_stages, default=2 * self.last)})
            elif self._is_host_fed_quant(node):
                chip_stages = frozenset(stage for stage in consumer_stages if stage % 2)
                if chip_stages != consumer_stages or _is_output(node):
                    chip_stages |= {earliest}
                stages[id(node)] = chip_stages
            else:
                stages[id(node)] = frozenset({earliest})
        return stages

    def _find_consumer_stages(
        self, node: ir.Node, stages: Mapping[int, frozenset[int]]
    ) -> frozenset[int]:
        """Return the union of the stages of all consumers of `node`, empty without any.

        `stages` maps the id of a node to its stages, and must contain the consumers.
        """
        consumer_stages: frozenset[int] = frozenset()
        for value in node.outputs:
            for consumer in self._consumers.get(id(value), ()):
                consumer_stages |= stages[id(consumer)]
        return consumer_stages

    def _is_host_fed_quant(self, node: ir.Node) -> bool:
        """Whether `node` is a Quant whose input no chip node computes."""
        return (
            node.op_type == QUANT.name
            and id(ir.producer(ir.require_input(node))) not in self._chip_nodes
        )

    @cached_property
    def node_indices(self) -> dict[int, list[int]]:
        """Stage -> indices of its nodes in graph order; a node may be in several stages."""
        indices: dict[int, list[int]] = {}
        for index, node in enumerate(self.order):
            for stage in self.stages[id(node)]:
                indices.setdefault(stage, []).append(index)
        return indices

    def indices(self, stage: int) -> frozenset[int]:
        """Return the indices, in graph order, of the nodes of `stage`; empty if it has none."""
        return frozenset(self.node_indices.get(stage, ()))

    def nodes(self, stage: int) -> list[ir.Node]:
        """Return the nodes of `stage` in graph order; [] if all of them are constants."""
        nodes = [self.order[index] for index in self.node_indices.get(stage, ())]
        return nodes if any(id(node) not in self._constant_nodes for node in nodes) else []


class _ChipSubgraph:
    """All chip nodes as one graph, from which the chip parts are extracted.

    The host may have ten times as many nodes, so it is faster than the complete graph.
    """

    def __init__(self, graph: ir.Model, assignment: _StageAssignment, target: Target) -> None:
        """Extract the nodes of all chip stages of `graph` as one graph.

        If extraction drops unused nodes, the complete graph is used instead.
        """
        self._assignment, self._target = assignment, target
        indices: set[int] = set()
        for stage in range(1, 2 * assignment.last, 2):
            indices |= assignment.indices(stage)
        self._indices = sorted(indices)
        self._graph = extract_chip_nodes(graph, self._indices, target)
        if len(self._graph.graph) != len(self._indices):  # unused nodes were removed
            self._graph, self._indices = graph, list(range(len(graph.graph)))

    def extract_stage(self, stage: int) -> ir.Model:
        """Return the chip nodes of `stage` as a model of its own."""
        stage_indices = self._assignment.indices(stage)
        positions = [i for i, index in enumerate(self._indices) if index in stage_indices]
        return extract_chip_nodes(self._graph, positions, self._target)


def _extract_host_part(
    proto: onnx.ModelProto, assignment: _StageAssignment, stage: int
) -> ir.Model:
    """Return the host nodes of `stage` of the complete model `proto` as a model of its own.

    Its outputs are first the tensors that later stages consume, in their order, then graph outputs.
    Dequants of the host become standard nodes, whose constants are added to `proto`.
    """
    protos = proto.graph.node
    nodes: list[onnx.NodeProto] = []
    for index in assignment.node_indices.get(stage, ()):
        if is_host_dequant(assignment.order[index]):
            nodes += expand_dequant(proto, protos[index])
        elif protos[index].op_type != "Constant":
            nodes.append(protos[index])
    outputs: list[str] = []
    for later_stage in range(stage + 1, 2 * assignment.last + 1):
        for index in assignment.node_indices.get(later_stage, ()):
            outputs += iter_read_names(protos[index])
    outputs += [value.name for value in proto.graph.output]
    model = build_host_model(proto, nodes, outputs)
    assert model is not None
    return ir.from_proto(model)


def _is_output(node: ir.Node) -> bool:
    """Whether any output of `node` is a graph output."""
    return any(value.is_graph_output() for value in node.outputs)
