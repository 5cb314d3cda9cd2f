"""An integer graph in parts that run one after the other.

Integers on the chip, float operators on the host.
    host 1 -> chip 1 -> host 2 -> chip 2 ...        a part reads what parts before it wrote, and the
    graph's inputs

Each part is a model of its own, and a tensor between parts has the name that it has in the whole
graph. Between parts go floats, since a chip part has its Quants and Dequants; integers where one
chip part reads what another one wrote, and where the chip writes more than 8 bits: then the host
scales them.

There are as few chip parts as possible: as many as the longest way through the graph enters the
integers. An integer node runs as early as it can, a float node as late. A Quant stands in every
part that reads what it writes, since on a board the host quantizes what it hands over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx

from ..formats import QUANT
from ..graph import ir
from ..targets import PackerArguments, Target
from ..targets._target import AppliedRewrite
from ..targets.objective import PARTS_KEY
from .chip_part import extract_chip_nodes, find_chip_nodes, is_host_dequant
from .host_part import build_host_model, expand_dequant, iter_read_names
from .runners import iter_read_values

__all__ = ["PartitionedProgram", "ProgramPart", "split_into_parts"]


@dataclass(frozen=True)
class ProgramPart:
    """One part, a model of its own.

    name : "chip1", "chip2" ... and "host1" ..., in the order in which they run. graph : of a chip
    part the integer graph for the packer, with its Quants and Dequants; of a host part plain ONNX.
    inputs, outputs : of `graph`, in its order; they are called as in the whole graph. nodes : those
    of the whole graph that it computes, by name. rewrites : what was rewritten in it, exactly, for
    the packer. target : of a chip part. found : what of its `choice` was found on the way.
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
        """The packer's arguments for a chip part and what becomes of it under them, chosen once.

        See `Target.evaluate_packing`.
        The graph stays as it is from there on.
        """
        assert self.target is not None
        return (
            self.target.evaluate_packing(self.graph)
            if self.preset_choice is None
            else self.preset_choice
        )

    def choice_for_arguments(self, words: Sequence[str] | None) -> PackerArguments:
        """Return what becomes of a chip part under the packer's arguments `words`.

        None: its `choice`.
        """
        assert self.target is not None
        return self.choice if words is None else self.target.evaluate_packing(self.graph, words)


@dataclass(frozen=True)
class PartitionedProgram:
    """A whole graph, and its parts in the order in which they run."""

    graph: ir.Model
    parts: tuple[ProgramPart, ...]

    @property
    def chip(self) -> tuple[ProgramPart, ...]:
        """The parts that the chip runs."""
        return tuple(part for part in self.parts if part.chip)

    @property
    def host_parts(self) -> tuple[ProgramPart, ...]:
        """The parts that the host runs."""
        return tuple(part for part in self.parts if not part.chip)


def split_into_parts(graph: ir.Model, target: Target) -> PartitionedProgram:
    """Cut the integer `graph` of `target` into as few parts as possible; it is left as it is.

    Of several chip parts each is brought into the form that the packer wants
    (`Target.run_backend_passes`), and says whether it keeps its constants in shared memory
    (`Vendor.share`); one alone is as it stands in the graph. Raises ModelError where a tensor
    between the parts has no type.
    """
    cut = _StageAssignment(graph)
    found: list[ProgramPart] = []
    whole = None
    several = sum(bool(cut.nodes(stage)) for stage in range(1, 2 * cut.last, 2)) > 1
    chips = _ChipSubgraph(graph, cut, target) if several else None
    for stage in range(2 * cut.last + 1):
        chip = stage % 2 == 1
        nodes = cut.nodes(stage)
        if not nodes:
            continue
        formed: Sequence[AppliedRewrite] = ()
        if chip:
            if chips is None:
                made = (
                    graph
                    if len(nodes) == len(graph.graph)
                    else extract_chip_nodes(graph, cut.indices(stage), target)
                )
            else:
                made = chips.extract_stage(stage)
                made.metadata_props[PARTS_KEY] = "several"
                made, formed = target.run_backend_passes(made)
        else:
            whole = ir.to_proto(graph) if whole is None else whole
            made = _extract_host_part(graph, whole, cut, stage)
        found.append(
            ProgramPart(
                name=f"{'chip' if chip else 'host'}{1 + sum(part.chip == chip for part in found)}",
                chip=chip,
                graph=made,
                inputs=tuple(str(v.name) for v in made.graph.inputs),
                outputs=tuple(str(v.name) for v in made.graph.outputs),
                nodes=tuple(str(node.name) for node in nodes),
                rewrites=tuple(formed),
                target=target if chip else None,
            )
        )
    if several:
        choices = iter(
            target.vendor.assign_resident_constants(
                [part.graph for part in found if part.chip], target
            )
        )
        found = [
            replace(part, preset_choice=next(choices, None)) if part.chip else part
            for part in found
        ]
    return PartitionedProgram(graph, tuple(found))


class _StageAssignment:
    """Which stage computes which node: 0, 2, 4 ... are the host's, 1, 3, 5 ... the chip's."""

    def __init__(self, graph: ir.Model) -> None:
        self.order = list(graph.graph)
        self._inside = find_chip_nodes(graph)
        self._free = {
            id(node) for node in self.order if node.op_type == "Constant" and not node.domain
        }
        self._early = self._earliest_stages()
        #: The number of the last chip part; 0 where the chip has nothing to do.
        self.last = max((stage + 1) // 2 for stage in [0, *self._early.values()])
        self.stages = self._assign_stages()

    @cached_property
    def _readers(self) -> dict[int, list[ir.Node]]:
        """{value: the nodes that read it}, those with a subgraph that does among them."""
        found: dict[int, list[ir.Node]] = {}
        for node in self.order:
            for value in iter_read_values(node):
                if value is not None:
                    found.setdefault(id(value), []).append(node)
        return found

    def _earliest_stages(self) -> dict[int, int]:
        """Return {node: the first stage in which it can run}."""
        found: dict[int, int] = {}
        for node in self.order:
            if id(node) in self._free:
                continue
            chip = id(node) in self._inside
            stage = 1 if chip else 0
            for value in iter_read_values(node):
                before = found.get(id(ir.producer(value)), 0)
                stage = max(stage, before + (before % 2 != stage % 2))
            found[id(node)] = stage
        return found

    def _assign_stages(self) -> dict[int, frozenset[int]]:
        """Return {node: the stages that compute it}.

        More than one for a Quant and a Constant only.
        """
        found: dict[int, frozenset[int]] = {}
        for node in reversed(self.order):
            early = self._early.get(id(node))
            readers = [r for value in node.outputs for r in self._readers.get(id(value), ())]
            after = frozenset().union(*(found[id(r)] for r in readers))
            if early is None:
                found[id(node)] = after
            elif early % 2 == 0:
                found[id(node)] = frozenset(
                    {min((stage - stage % 2 for stage in after), default=2 * self.last)}
                )
            elif self._is_host_fed_quant(node):
                on_chip = frozenset(stage for stage in after if stage % 2)
                found[id(node)] = (
                    on_chip if on_chip == after and not _is_output(node) else on_chip | {early}
                )
            else:
                found[id(node)] = frozenset({early})
        return found

    def _is_host_fed_quant(self, node: ir.Node) -> bool:
        """Whether `node` is a Quant of what the host hands over."""
        return (
            node.op_type == QUANT.name
            and id(ir.producer(ir.require_input(node))) not in self._inside
        )

    @cached_property
    def node_indices(self) -> dict[int, list[int]]:
        """{stage: the places of its nodes in the graph}."""
        found: dict[int, list[int]] = {}
        for place, node in enumerate(self.order):
            for stage in self.stages[id(node)]:
                found.setdefault(stage, []).append(place)
        return found

    def indices(self, stage: int) -> frozenset[int]:
        """Return the places of the nodes of a stage in the graph."""
        return frozenset(self.node_indices.get(stage, ()))

    def nodes(self, stage: int) -> list[ir.Node]:
        """Return the nodes of a stage, in order; nothing where it has constants alone."""
        found = [self.order[place] for place in self.node_indices.get(stage, ())]
        return found if any(id(node) not in self._free for node in found) else []


class _ChipSubgraph:
    """All that the chip computes, as one graph that pieces are cut from.

    The host's may be ten times as many nodes.
    """

    def __init__(self, graph: ir.Model, cut: _StageAssignment, target: Target) -> None:
        self._cut, self._target = cut, target
        stages = range(1, 2 * cut.last, 2)
        self._places = sorted(frozenset[int]().union(*(cut.indices(stage) for stage in stages)))
        self._graph = extract_chip_nodes(graph, self._places, target)
        if len(self._graph.graph) != len(self._places):  # something that nobody needs was left out
            self._graph, self._places = graph, list(range(len(graph.graph)))

    def extract_stage(self, stage: int) -> ir.Model:
        """Return the part of a stage."""
        wanted = self._cut.indices(stage)
        return extract_chip_nodes(
            self._graph,
            [i for i, place in enumerate(self._places) if place in wanted],
            self._target,
        )


def _extract_host_part(
    graph: ir.Model, whole: onnx.ModelProto, cut: _StageAssignment, stage: int
) -> ir.Model:
    """Return the host part of a stage.

    It writes first what stages after it read, in their order.
    """
    protos = whole.graph.node
    nodes: list[onnx.NodeProto] = []
    for place in cut.node_indices.get(stage, ()):
        if protos[place].op_type != "Constant":
            nodes += (
                expand_dequant(whole, protos[place])
                if is_host_dequant(cut.order[place])
                else [protos[place]]
            )
    wanted = [
        name
        for later in range(stage + 1, 2 * cut.last + 1)
        for place in cut.node_indices.get(later, ())
        for name in iter_read_names(protos[place])
    ]
    model = build_host_model(whole, nodes, [*wanted, *(value.name for value in whole.graph.output)])
    assert model is not None
    return ir.from_proto(model)


def _is_output(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)
