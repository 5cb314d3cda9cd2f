"""The verdict on an integer graph.

Whether the packer takes it, and whether the chip then computes our integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx

from ....graph import ir
from ....graph.detached_nodes import make_detached_node, make_detached_value
from ... import PLATFORMS, Target
from ..._target import format_limit_rule
from ...latency import Latency
from ...verdict import GraphCost, Verdict, VerdictFinding
from ..kernel_costs import ARCS, KernelCosts
from ..packer_profile import get_kernel_costs, get_packer_profile
from .correctness_checks import check_correctness, check_placement
from .cost import compute_graph_cost
from .format_checks import check_file, check_net
from .frontend.steps import parse_nodes, read_packer_graph
from .frontend.transforms import apply_packer_transforms
from .int4_checks import check_int4_format
from .limits.limit_tables import CORRECTNESS_LIMITS, PACKER_LIMITS
from .memory.findings import PlannedGraph
from .memory.overruns import check_output_overruns, check_overruns
from .memory.plan import MemoryPlan, plan_memory, resolve_placements
from .options import SHARE, PackerOptions, parse_packer_arguments
from .packer_graph import PackerGraph, PackerStep
from .verified_placements import find_assumptions

__all__ = [
    "DetailedVerdict",
    "NodeLimitChecker",
    "PreparedGraph",
    "evaluate_graph",
    "evaluate_plan",
    "prepare_graph",
]


@dataclass(frozen=True)
class DetailedVerdict(Verdict):
    """A verdict with what it was found from: the memory plan of the graph `graph`.

    None where it does not get that far.
    target, options : the chip, and what was asked of the packer.
    """

    target: Target = field(kw_only=True, repr=False, compare=False)
    options: PackerOptions = field(kw_only=True, repr=False, compare=False)
    memory_plan: MemoryPlan | None = None
    graph: PackerGraph | None = field(default=None, repr=False, compare=False)

    @property
    def cost(self) -> GraphCost | None:
        """What the graph costs; None where it has no plan."""
        if self.graph is None or self.memory_plan is None:
            return None
        return compute_graph_cost(self.graph, self.memory_plan, self.target.external_memory or 0)

    @property
    def latency(self) -> Latency | None:
        """How long the graph takes; None where it has no plan, or the chip no prices."""
        prices = get_kernel_costs(self.target)
        return None if prices is None else self.estimate_latency(prices)

    @cached_property
    def comparison_latency(self) -> Latency | None:
        """`latency`, and where a chip has no prices by those of arcs.

        What decisions between forms assume.
        """
        return self.estimate_latency(get_kernel_costs(self.target) or ARCS)

    def estimate_latency(self, kernel_costs: KernelCosts) -> Latency | None:
        """Return how long the graph takes at these prices; None where it has no plan."""
        from ..timing import estimate_latency  # which knows the packer's values

        if self.graph is None or self.memory_plan is None:
            return None
        return estimate_latency(
            self.graph, self.memory_plan, self.options, self.target, kernel_costs
        )


@dataclass(frozen=True)
class PreparedGraph:
    """A graph that was read once, to be judged under several argument lists that differ in places and prefetching.

    net : what is planned, None where the packer does not get that far. findings : what no such
    argument changes.
    """

    net: PackerGraph | None
    findings: tuple[VerdictFinding, ...]


def evaluate_graph(
    graph: ir.Model | onnx.ModelProto, target: Target, args: str | Iterable[str] = ()
) -> DetailedVerdict:
    """Return the verdict on `graph` for the chip `target`.

    args : the packer's arguments, words or one line. ConfigError for a row without a packer, or for
    arguments that the packer does not have.
    """
    options = parse_packer_arguments(args)
    return evaluate_plan(prepare_graph(graph, target, options), target, options)


def prepare_graph(
    graph: ir.Model | onnx.ModelProto,
    target: Target,
    options: PackerOptions,
    limits: NodeLimitChecker | None = None,
    ignore_node_limits: bool = False,
) -> PreparedGraph:
    """Read and prepare a graph; ConfigError for a row without a packer.

    limits : those of `target`, which know what was asked of other graphs. anyway : prepare it
    although a limit of a node keeps it from being packed.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    findings = [
        *options.findings,
        *check_file(proto.graph, parse_nodes(proto.graph), target, options),
    ]
    if findings:
        return PreparedGraph(None, tuple(findings))
    net, findings = read_packer_graph(proto, target, options)
    if net is None:
        return PreparedGraph(None, tuple(findings))
    limits = NodeLimitChecker(target) if limits is None else limits
    findings = [*check_net(net, target), *check_int4_format(net, target)]
    broken = [one for step in net.steps for one in limits.find_violations(net, step)]
    refused = any(
        f.level == "packs" for f in (findings if ignore_node_limits else [*findings, *broken])
    )
    return PreparedGraph(
        None if refused else apply_packer_transforms(net, target, options), (*findings, *broken)
    )


def evaluate_plan(
    prepared: PreparedGraph,
    target: Target,
    options: PackerOptions,
    memory_plan: MemoryPlan | None = None,
) -> DetailedVerdict:
    """Plan a prepared graph under `options` and judge the plan.

    Memory : the plan, where it was made already.
    """
    if prepared.net is None:
        return _make_verdict(list(prepared.findings), target, options)
    memory_plan = plan_memory(prepared.net, target, options) if memory_plan is None else memory_plan
    plan = PlannedGraph(
        prepared.net, memory_plan, target, options, resolve_placements(prepared.net, options)
    )
    findings = [
        *prepared.findings,
        *check_placement(plan),
        *_check_capacity(prepared.net, memory_plan, target),
        *check_correctness(plan),
    ]
    findings += check_overruns(
        prepared.net, memory_plan, get_packer_profile(target).work_area_table, plan.places
    )
    findings += check_output_overruns(prepared.net, memory_plan, get_packer_profile(target))
    said = _make_verdict(findings, target, options, memory_plan, prepared.net)
    return (
        replace(said, assumptions=tuple(dict.fromkeys(find_assumptions(plan))))
        if said.is_chip_ready
        else said
    )


def _make_verdict(
    found: list[VerdictFinding],
    target: Target,
    options: PackerOptions,
    memory: MemoryPlan | None = None,
    net: PackerGraph | None = None,
) -> DetailedVerdict:
    packs = all(f.level != "packs" for f in found)
    right = packs and all(f.level != "right" for f in found)
    findings = tuple(dict.fromkeys(found))
    return DetailedVerdict(
        packs, right, findings, memory_plan=memory, graph=net, target=target, options=options
    )


def _check_capacity(
    net: PackerGraph, memory: MemoryPlan, target: Target
) -> Iterator[VerdictFinding]:
    if not memory.fits:
        yield VerdictFinding(
            "packs",
            "shared memory",
            f"at most {memory.limit_bytes} bytes are needed",
            _describe_peak(net, memory),
            _suggest_remedy(memory),
        )
    most = target.external_memory
    if most is not None and memory.external_bytes > most:
        yield VerdictFinding(
            "packs",
            "psram",
            f"at most {most} bytes are needed",
            f"{memory.external_bytes} bytes",
            "use a smaller network",
        )


def _describe_peak(net: PackerGraph, memory: MemoryPlan) -> str:
    """Return the bytes that are needed, and what lies there at the node where most is in use."""
    living = memory.compute_live_bytes(len(net.steps))
    index = living.index(max(living))
    there = [
        (n, s.size)
        for n, s in memory.allocations.items()
        if s.place == SHARE and s.first <= index <= s.last_step
    ]
    largest = sorted(there, key=lambda item: -item[1])[:3]
    at = (
        f"{living[index]} at {net.steps[index].origin} "
        f"({', '.join(f'{n} {s}' for n, s in largest)})"
    )
    return f"{memory.required_bytes} bytes; {at}"


def _suggest_remedy(memory: MemoryPlan) -> str:
    """Return what would help: another chip where one has enough."""
    larger = [
        target
        for target in PLATFORMS
        if target.has_packer and (target.shared_memory or 0) >= memory.required_bytes
    ]
    chips = "".join(
        f", or another chip: {row.name} ({row.shared_memory} bytes)" for row in larger[:1]
    )
    return (
        "quantize cuts maps into tiles of rows where that helps; else take fewer channels or "
        f"smaller maps{chips}"
    )


class NodeLimitChecker:
    """The limits of single nodes on a chip.

    Nodes that are alike are asked once, in however many graphs they stand.
    """

    def __init__(self, target: Target) -> None:
        self._row = target
        self._known: dict[Hashable, list[tuple[str, str, str, str]]] = {}

    def find_violations(self, net: PackerGraph, step: PackerStep) -> Iterator[VerdictFinding]:
        """Yield the limits that a step breaks."""
        if step.op not in PACKER_LIMITS and step.op not in CORRECTNESS_LIMITS:
            return
        key = _make_cache_key(net, step)
        if key not in self._known:
            self._known[key] = list(self._evaluate_limits(_to_ir_node(net, step)))
        for level, *words in self._known[key]:
            yield VerdictFinding(level, step.origin, *words)

    def _evaluate_limits(self, node: ir.Node) -> Iterator[tuple[str, str, str, str]]:
        """Yield level, rule, value and remedy."""
        for level, table in (("packs", PACKER_LIMITS), ("right", CORRECTNESS_LIMITS)):
            for limit in table.get(node.op_type, ()):
                value = limit(node, self._row)
                if value is not None:
                    rule, remedy = format_limit_rule(limit, self._row)
                    yield level, rule, str(value), remedy


def _make_cache_key(net: PackerGraph, step: PackerStep) -> Hashable:
    """Return all that `_to_ir_node` takes of a step but for names."""
    inputs = []
    for name in step.inputs:
        tensor = net.tensors[name]
        content = _hash_array(net.arrays[name]) if tensor.is_constant else name in net.inputs
        inputs.append((tensor.shape, content))
    return (
        step.op,
        repr(sorted(step.attributes.items())),
        tuple(inputs),
        net.tensors[step.outputs[0]].shape,
    )


def _hash_array(array: np.ndarray) -> tuple[str, bytes]:
    return array.dtype.str, hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def _to_ir_node(net: PackerGraph, step: PackerStep) -> ir.Node:
    """Return a step as a node that the limits read."""
    inputs = []
    for name in step.inputs:
        tensor = net.tensors[name]
        computed = not tensor.is_constant and name not in net.inputs
        array = net.arrays[name] if tensor.is_constant else None
        inputs.append(
            make_detached_value(tensor.shape, name=name, constant=array, computed=computed)
        )
    result = net.tensors[step.outputs[0]]
    return make_detached_node(
        step.op, inputs, result.shape, step.attributes, name=step.name, output=result.name
    )
