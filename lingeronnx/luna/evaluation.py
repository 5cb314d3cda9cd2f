"""Verdict on an integer graph: whether the packer accepts it and the chip computes it correctly."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx

from ..ir import ir
from ..ir.detached_nodes import make_detached_node, make_detached_value
from ..targets import PLATFORMS, Target
from ..targets._target import format_limit_rule
from ..targets.latency import Latency
from ..targets.verdict import GraphCost, RuleBasis, Verdict, VerdictFinding
from .kernel_costs import ARCS, KernelCosts
from .packer.assumptions import is_unmeasured
from .packer.correctness_checks import check_correctness, check_placement
from .packer.cost import compute_graph_cost
from .packer.format_checks import check_file, check_net
from .packer.frontend.steps import PackerFile
from .packer.frontend.transforms import apply_packer_transforms
from .packer.int4_checks import check_int4_format
from .packer.limits.limit_tables import CORRECTNESS_LIMITS, PACKER_LIMITS
from .packer.memory.findings import PlannedGraph
from .packer.memory.graph_facts import GraphFacts
from .packer.memory.overruns import check_output_overruns, check_overruns
from .packer.memory.plan import MemoryPlan, plan_memory, resolve_placements
from .packer.options import SHARE, PackerOptions, parse_packer_arguments
from .packer.packer_graph import PackerGraph, PackerStep
from .packer.verified_placements import find_assumptions
from .packer.version_rules import check_version_refusals
from .packer_profile import get_kernel_costs, get_packer_profile
from .result_cache import ResultCache
from .timing import estimate_latency

__all__ = [
    "DetailedVerdict",
    "NodeLimitChecker",
    "PreparedGraph",
    "evaluate_graph",
    "evaluate_known_graph",
    "evaluate_plan",
    "prepare_graph",
    "read_known_file",
]


@dataclass(frozen=True)
class DetailedVerdict(Verdict):
    """A verdict together with the memory plan and the planned graph that it was derived from.

    memory_plan, graph : None if the packer refuses the graph before it is planned.
    target, options : the chip and the packer options.
    """

    target: Target = field(kw_only=True, repr=False, compare=False)
    options: PackerOptions = field(kw_only=True, repr=False, compare=False)
    memory_plan: MemoryPlan | None = None
    graph: PackerGraph | None = field(default=None, repr=False, compare=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs in the executor's order, without Dequant; () without a plan."""
        return () if self.graph is None else tuple(self.graph.outputs)

    @property
    def cost(self) -> GraphCost | None:
        """The cost of the graph, computed on each access; None if it has no memory plan."""
        if self.graph is None or self.memory_plan is None:
            return None
        return compute_graph_cost(self.graph, self.memory_plan, self.target.external_memory or 0)

    @property
    def latency(self) -> Latency | None:
        """The estimated latency.

        None without a memory plan, or if the chip's kernel costs are unknown.
        """
        kernel_costs = get_kernel_costs(self.target)
        return None if kernel_costs is None else self.estimate_latency(kernel_costs)

    @cached_property
    def comparison_latency(self) -> Latency | None:
        """The latency by which forms of a graph are compared; None without a memory plan.

        Equal to `latency`, but with the kernel costs of arcs for a chip whose own are unknown.
        """
        return self.estimate_latency(get_kernel_costs(self.target) or ARCS)

    def estimate_latency(self, kernel_costs: KernelCosts) -> Latency | None:
        """Estimate the latency with `kernel_costs`; None without graph or memory plan."""
        if self.graph is None or self.memory_plan is None:
            return None
        return estimate_latency(
            self.graph, self.memory_plan, self.options, self.target, kernel_costs
        )


@dataclass(frozen=True)
class PreparedGraph:
    """A graph that was read once and can be planned with several argument lists.

    The argument lists may differ in placements and prefetching only.

    facts : graph to plan and what all its plans share; None if the packer refuses it first.
    findings : findings that do not depend on placements and prefetching.
    """

    facts: GraphFacts | None
    findings: tuple[VerdictFinding, ...]

    @property
    def net(self) -> PackerGraph | None:
        """The graph to plan, or None if the packer refuses it first."""
        return None if self.facts is None else self.facts.net


def evaluate_graph(
    graph: ir.Model | onnx.ModelProto | PackerFile, target: Target, args: str | Iterable[str] = ()
) -> DetailedVerdict:
    """Evaluate whether the packer accepts `graph` and the chip `target` computes it correctly.

    Parameters
    ----------
    args
        The packer's arguments, as a list or as one line in shell syntax.

    Raises
    ------
    ConfigError
        If the target has no packer, or the packer does not have one of the arguments.
    """
    options = parse_packer_arguments(args)
    return evaluate_plan(prepare_graph(graph, target, options), target, options)


#: A report and the commands after it ask each version of the chip for the same graph.
_VERDICTS: ResultCache[DetailedVerdict] = ResultCache()
_FILES: ResultCache[PackerFile] = ResultCache()


def evaluate_known_graph(
    graph: ir.Model | onnx.ModelProto, target: Target, argv: Sequence[str]
) -> DetailedVerdict:
    """Evaluate `graph` under `argv` as `evaluate_graph`, once for equal graphs and arguments."""
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    key = proto.SerializeToString(deterministic=True) + repr(tuple(argv)).encode()
    return _VERDICTS.get_or_compute(
        key, target, lambda: evaluate_graph(read_known_file(proto), target, argv)
    )


def read_known_file(proto: onnx.ModelProto) -> PackerFile:
    """Return the file of a model, read once for all versions of a chip."""
    content = proto.graph.SerializeToString(deterministic=True)
    return _FILES.get_or_compute(content, None, lambda: PackerFile(proto))


def prepare_graph(
    graph: ir.Model | onnx.ModelProto | PackerFile,
    target: Target,
    options: PackerOptions,
    limits: NodeLimitChecker | None = None,
    ignore_node_limits: bool = False,
) -> PreparedGraph:
    """Read a graph, check it, and apply the packer's transforms.

    The result has no graph if a finding of level "packs" (the packer refuses it) exists.

    Parameters
    ----------
    limits
        Checker of `target` that may have results of other graphs cached; by default a new one.
    ignore_node_limits
        Transform the graph even if a node breaks a limit of the packer.

    Raises
    ------
    ConfigError
        If the target has no packer.
    """
    if not isinstance(graph, PackerFile):
        graph = PackerFile(graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph))
    findings = [*options.findings, *check_file(graph, target, options)]
    if findings:
        return PreparedGraph(None, tuple(findings))
    net, refusals = graph.read(target, options)
    if net is None:
        return PreparedGraph(None, tuple(refusals))
    limits = NodeLimitChecker(target) if limits is None else limits
    findings = [*check_net(net, target), *check_int4_format(net, target)]
    violations: list[VerdictFinding] = []
    for step in net.steps:
        violations += limits.find_violations(net, step)
    decisive_findings = findings if ignore_node_limits else [*findings, *violations]
    if any(finding.level == "packs" for finding in decisive_findings):
        return PreparedGraph(None, (*findings, *violations))
    transformed = apply_packer_transforms(net, target, options)
    return PreparedGraph(GraphFacts(transformed, target), (*findings, *violations))


def evaluate_plan(
    prepared: PreparedGraph,
    target: Target,
    options: PackerOptions,
    memory_plan: MemoryPlan | None = None,
) -> DetailedVerdict:
    """Plan a prepared graph under `options` and check the plan.

    `memory_plan` is the plan if the caller has it already, None to plan here. A graph that could
    not be prepared has only its own findings. Assumptions are collected only for a verdict that is
    ready for the chip.
    """
    facts = prepared.facts
    if facts is None:
        return _make_verdict(list(prepared.findings), target, options)
    net = facts.net
    memory_plan = plan_memory(facts, options) if memory_plan is None else memory_plan
    plan = PlannedGraph(facts, memory_plan, options, resolve_placements(facts, options))
    profile = get_packer_profile(target)
    capacity_findings = list(_check_capacity(net, memory_plan, target))
    overruns = [
        *check_overruns(net, memory_plan, profile, plan.placements),
        *check_output_overruns(net, memory_plan, profile),
    ]
    findings = [
        *prepared.findings,
        *check_placement(plan),
        *check_version_refusals(plan),
        *capacity_findings,
        *check_correctness(plan),
        *overruns,
    ]
    verdict = _make_verdict(findings, target, options, memory_plan, net)
    plan_findings = [*capacity_findings, *overruns, *_list_unmeasured_plans(net, target)]
    verdict = replace(verdict, plan_findings=tuple(dict.fromkeys(plan_findings)))
    if not verdict.is_chip_ready:
        return verdict
    return replace(verdict, assumptions=tuple(dict.fromkeys(find_assumptions(plan))))


def _make_verdict(
    findings: list[VerdictFinding],
    target: Target,
    options: PackerOptions,
    memory: MemoryPlan | None = None,
    net: PackerGraph | None = None,
) -> DetailedVerdict:
    """Derive packability and correctness from the levels of `findings`.

    "packs" makes a graph unpackable and incorrect, "right" only incorrect; other levels change
    neither. Equal findings are kept once.
    """
    levels = {finding.level for finding in findings}
    return DetailedVerdict(
        is_packable="packs" not in levels,
        is_correct=levels.isdisjoint(("packs", "right")),
        findings=tuple(dict.fromkeys(findings)),
        memory_plan=memory,
        graph=net,
        target=target,
        options=options,
    )


def _check_capacity(
    net: PackerGraph, memory: MemoryPlan, target: Target
) -> Iterator[VerdictFinding]:
    """Yield a finding of level "packs" for each memory (shared, PSRAM) that the plan exceeds.

    A chip without a known PSRAM size has no limit there.
    """
    if not memory.fits:
        yield VerdictFinding(
            "packs",
            "shared memory",
            f"the memory plan must fit in {memory.limit_bytes} bytes",
            _describe_peak(net, memory),
            _suggest_remedy(memory),
        )
    limit_bytes = target.external_memory
    if limit_bytes is not None and memory.external_bytes > limit_bytes:
        yield VerdictFinding(
            "packs",
            "psram",
            f"the memory plan must fit in {limit_bytes} bytes",
            f"{memory.external_bytes} bytes",
            "use a smaller network",
        )


def _list_unmeasured_plans(net: PackerGraph, target: Target) -> Iterator[VerdictFinding]:
    """Yield a finding of level "unmeasured" for each operator whose planned bytes are not known.

    It names the first node with this operator.
    """
    unmeasured_plans = get_packer_profile(target).unmeasured_plans
    for operator, step in {step.op: step for step in reversed(net.steps)}.items():
        if operator in unmeasured_plans:
            yield VerdictFinding(
                "unmeasured",
                step.origin,
                f"the memory that {target.name} plans for {operator} was not measured",
                operator,
                "compare the sizes that the packer prints",
                "read",
            )


def _describe_peak(net: PackerGraph, memory: MemoryPlan) -> str:
    """Describe a plan that is too large: its bytes, and the live bytes at its peak with the node.

    The peak is the first step with the most live bytes; the three largest tensors there are named.
    """
    live_bytes = memory.compute_live_bytes(len(net.steps))
    peak_index = live_bytes.index(max(live_bytes))
    live_sizes = [
        (name, allocation.size)
        for name, allocation in memory.allocations.items()
        if allocation.memory == SHARE
        and allocation.first_step <= peak_index <= allocation.last_step
    ]
    largest = sorted(live_sizes, key=lambda item: -item[1])[:3]
    tensors = ", ".join(f"{name} {size}" for name, size in largest)
    peak_node = net.steps[peak_index].origin
    return f"{memory.required_bytes} bytes; {live_bytes[peak_index]} at {peak_node} ({tensors})"


def _suggest_remedy(memory: MemoryPlan) -> str:
    """Suggest smaller maps, or the first chip whose shared memory holds the plan, if there is one.

    Chips are in the order of `PLATFORMS`.
    """
    suitable = [
        target
        for target in PLATFORMS
        if target.has_packer and (target.shared_memory or 0) >= memory.required_bytes
    ]
    chips = ""
    if suitable:
        chips = f", or use another chip: {suitable[0].name} ({suitable[0].shared_memory} bytes)"
    return (
        f"quantize already tiles feature maps where that helps; reduce channels or map sizes{chips}"
    )


class NodeLimitChecker:
    """Checks nodes against the limits of a chip.

    Results are cached, so equal nodes are checked once, in all graphs of the same checker.
    """

    def __init__(self, target: Target) -> None:
        """Check nodes against the limits of `target`, with an empty cache."""
        self._target = target
        self._violations_by_key: dict[Hashable, list[VerdictFinding]] = {}

    def find_violations(self, net: PackerGraph, step: PackerStep) -> Iterator[VerdictFinding]:
        """Yield a finding for each limit that `step` breaks, on its node of the user's graph.

        Results are cached by the step's contents without names. Yields nothing for an operator
        without limits.
        """
        if step.op not in PACKER_LIMITS and step.op not in CORRECTNESS_LIMITS:
            return
        key = self._make_cache_key(net, step)
        if key not in self._violations_by_key:
            node = _to_ir_node(net, step)
            self._violations_by_key[key] = list(self._evaluate_limits(node))
        for violation in self._violations_by_key[key]:
            yield replace(violation, node=step.origin)

    def _make_cache_key(self, net: PackerGraph, step: PackerStep) -> Hashable:
        """Return a hashable key of all contents of `step` that limits may depend on, without names.

        These are operator, attributes, shapes, which inputs are graph inputs, and the values of
        constants that the packer reads itself. No limit depends on the values of other constants.
        """
        stored_names = {tensor.name for tensor in net.get_constants(step)}
        inputs = []
        for name in step.inputs:
            tensor = net.tensors[name]
            content: Hashable = name in net.inputs
            if tensor.is_constant:
                array = net.arrays[name]
                values = b"" if name in stored_names else array.tobytes()
                content = (array.dtype.str, values)
            inputs.append((tensor.shape, content))
        return (
            step.op,
            repr(sorted(step.attributes.items())),
            tuple(inputs),
            net.tensors[step.outputs[0]].shape,
        )

    def _evaluate_limits(self, node: ir.Node) -> Iterator[VerdictFinding]:
        """Yield a finding for each limit that `node` breaks, without the cache.

        The level is "packs" for limits of the packer, "right" for those of correct results; the
        basis is "read" for rules that were never measured.
        """
        for level, table in (("packs", PACKER_LIMITS), ("right", CORRECTNESS_LIMITS)):
            for limit in table.get(node.op_type, ()):
                value = limit(node, self._target)
                if value is not None:
                    rule, remedy = format_limit_rule(limit, self._target)
                    name, text = str(node.name), str(value)
                    basis: RuleBasis = "read" if is_unmeasured(limit) else "measured"
                    yield VerdictFinding(level, name, rule, text, remedy, basis)


def _to_ir_node(net: PackerGraph, step: PackerStep) -> ir.Node:
    """Convert `step` to an IR node in no graph, on which limits can be evaluated.

    An input is `computed` if it is neither a constant nor a graph input. Only the first output is
    kept.
    """
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
