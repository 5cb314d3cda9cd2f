"""The verdict on an integer graph: whether the packer takes it, and whether the chip then computes our integers."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx

from ....graph import ir
from ....graph.detached_nodes import loose_node, loose_tensor
from ... import PLATFORMS, Target
from ..._target import rule_text
from ...latency import Latency
from ...verdict import GraphCost, Verdict, VerdictFinding
from ..packing import packing, prices_of
from ..prices import ARCS, Prices
from .cost import cost_of
from .faults import faults, placement_refused
from .form import check_file, check_net
from .limits.operators import REFUSED, WRONG
from .memory.findings import PlannedNet
from .memory.overruns import outputs_past, overruns
from .memory.plan import MemoryPlan, places_of, plan_memory
from .narrow import narrow_form
from .net import Net, NetStep
from .options import SHARE, Options, parse
from .places import beliefs
from .reading.prepare import prepare
from .reading.steps import raw_steps, read

__all__ = ["Judged", "Limits", "Ready", "judge", "make_ready", "verdict"]


@dataclass(frozen=True)
class Judged(Verdict):
    """A verdict with what it was found from: the memory plan of the graph `net`; None where it does not get that far.

    target, options : the chip, and what was asked of the packer.
    """

    target: Target = field(kw_only=True, repr=False, compare=False)
    options: Options = field(kw_only=True, repr=False, compare=False)
    memory: MemoryPlan | None = None
    net: Net | None = field(default=None, repr=False, compare=False)

    @property
    def cost(self) -> GraphCost | None:
        """What the graph costs; None where it has no plan."""
        if self.net is None or self.memory is None:
            return None
        return cost_of(self.net, self.memory, self.target.external_memory or 0)

    @property
    def time(self) -> Latency | None:
        """How long the graph takes; None where it has no plan, or the chip no prices."""
        prices = prices_of(self.target)
        return None if prices is None else self.time_at(prices)

    @cached_property
    def weighed(self) -> Latency | None:
        """`time`, and where a chip has no prices by those of arcs: what decisions between forms assume."""
        return self.time_at(prices_of(self.target) or ARCS)

    def time_at(self, prices: Prices) -> Latency | None:
        """Return how long the graph takes at these prices; None where it has no plan."""
        from ..timing import latency  # which knows the packer's values

        if self.net is None or self.memory is None:
            return None
        return latency(self.net, self.memory, self.options, self.target, prices)


@dataclass(frozen=True)
class Ready:
    """A graph that was read once, to be judged under several argument lists that differ in places and prefetching.

    net : what is planned, None where the packer does not get that far. findings : what no such argument changes.
    """

    net: Net | None
    findings: tuple[VerdictFinding, ...]


def judge(graph: ir.Graph | onnx.ModelProto, target: Target, args: str | Iterable[str] = ()) -> Judged:
    """Return the verdict on `graph` for the chip `target`.

    args : the packer's arguments, words or one line. ConfigError for a row without a packer, or for arguments that
    the packer does not have.
    """
    options = parse(args)
    return verdict(make_ready(graph, target, options), target, options)


def make_ready(
    graph: ir.Graph | onnx.ModelProto,
    target: Target,
    options: Options,
    limits: Limits | None = None,
    anyway: bool = False,
) -> Ready:
    """Read and prepare a graph; ConfigError for a row without a packer.

    limits : those of `target`, which know what was asked of other graphs. anyway : prepare it although a limit of a
    node keeps it from being packed.
    """
    proto = graph if isinstance(graph, onnx.ModelProto) else ir.to_proto(graph)
    findings = [*options.problems, *check_file(proto.graph, raw_steps(proto.graph), target, options)]
    if findings:
        return Ready(None, tuple(findings))
    net, findings = read(proto, target, options)
    if net is None:
        return Ready(None, tuple(findings))
    limits = Limits(target) if limits is None else limits
    findings = [*check_net(net, target), *narrow_form(net, target)]
    broken = [one for step in net.steps for one in limits.broken(net, step)]
    refused = any(f.level == "packs" for f in (findings if anyway else [*findings, *broken]))
    return Ready(None if refused else prepare(net, target, options), (*findings, *broken))


def verdict(ready: Ready, target: Target, options: Options, memory: MemoryPlan | None = None) -> Judged:
    """Plan a prepared graph under `options` and judge the plan; memory : the plan, where it was made already."""
    if ready.net is None:
        return _verdict(list(ready.findings), target, options)
    memory = plan_memory(ready.net, target, options) if memory is None else memory
    plan = PlannedNet(ready.net, memory, target, options, places_of(ready.net, options))
    findings = [*ready.findings, *placement_refused(plan), *_room(ready.net, memory, target), *faults(plan)]
    findings += overruns(ready.net, memory, packing(target).areas, plan.places)
    findings += outputs_past(ready.net, memory, packing(target))
    said = _verdict(findings, target, options, memory, ready.net)
    return replace(said, beliefs=tuple(dict.fromkeys(beliefs(plan)))) if said.chip_ready else said


def _verdict(
    found: list[VerdictFinding],
    target: Target,
    options: Options,
    memory: MemoryPlan | None = None,
    net: Net | None = None,
) -> Judged:
    packs = all(f.level != "packs" for f in found)
    right = packs and all(f.level != "right" for f in found)
    findings = tuple(dict.fromkeys(found))
    return Judged(packs, right, findings, memory=memory, net=net, target=target, options=options)


def _room(net: Net, memory: MemoryPlan, target: Target) -> Iterator[VerdictFinding]:
    if not memory.fits:
        yield VerdictFinding(
            "packs",
            "shared memory",
            f"at most {memory.limit} bytes are needed",
            _fullest(net, memory),
            _more_room(memory),
        )
    most = target.external_memory
    if most is not None and memory.outside > most:
        yield VerdictFinding(
            "packs", "psram", f"at most {most} bytes are needed", f"{memory.outside} bytes", "use a smaller network"
        )


def _fullest(net: Net, memory: MemoryPlan) -> str:
    """Return the bytes that are needed, and what lies there at the node where most is in use."""
    living = memory.living(len(net.steps))
    index = living.index(max(living))
    there = [(n, s.size) for n, s in memory.spots.items() if s.place == SHARE and s.first <= index <= s.last]
    largest = sorted(there, key=lambda item: -item[1])[:3]
    at = f"{living[index]} at {net.steps[index].origin} ({', '.join(f'{n} {s}' for n, s in largest)})"
    return f"{memory.need} bytes; {at}"


def _more_room(memory: MemoryPlan) -> str:
    """Return what would help: another chip where one has enough."""
    larger = [target for target in PLATFORMS if target.packs and (target.shared_memory or 0) >= memory.need]
    chips = "".join(f", or another chip: {row.name} ({row.shared_memory} bytes)" for row in larger[:1])
    return f"quantize cuts maps into tiles of rows where that helps; else take fewer channels or smaller maps{chips}"


class Limits:
    """The limits of single nodes on a chip; nodes that are alike are asked once, in however many graphs they stand."""

    def __init__(self, target: Target) -> None:
        self._row = target
        self._known: dict[Hashable, list[tuple[str, str, str, str]]] = {}

    def broken(self, net: Net, step: NetStep) -> Iterator[VerdictFinding]:
        """Yield the limits that a step breaks."""
        if step.op not in REFUSED and step.op not in WRONG:
            return
        key = _asked(net, step)
        if key not in self._known:
            self._known[key] = list(self._ask(_as_node(net, step)))
        for level, *words in self._known[key]:
            yield VerdictFinding(level, step.origin, *words)

    def _ask(self, node: ir.Node) -> Iterator[tuple[str, str, str, str]]:
        """Yield level, rule, value and remedy."""
        for level, table in (("packs", REFUSED), ("right", WRONG)):
            for limit in table.get(node.op_type, ()):
                value = limit(node, self._row)
                if value is not None:
                    rule, remedy = rule_text(limit, self._row)
                    yield level, rule, str(value), remedy


def _asked(net: Net, step: NetStep) -> Hashable:
    """Return all that `_as_node` takes of a step but for names."""
    inputs = []
    for name in step.inputs:
        tensor = net.tensors[name]
        content = _content(net.arrays[name]) if tensor.constant else name in net.inputs
        inputs.append((tensor.shape, content))
    return step.op, repr(sorted(step.attributes.items())), tuple(inputs), net.tensors[step.outputs[0]].shape


def _content(array: np.ndarray) -> tuple[str, bytes]:
    return array.dtype.str, hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def _as_node(net: Net, step: NetStep) -> ir.Node:
    """Return a step as a node that the limits read."""
    inputs = []
    for name in step.inputs:
        tensor = net.tensors[name]
        computed = not tensor.constant and name not in net.inputs
        array = net.arrays[name] if tensor.constant else None
        inputs.append(loose_tensor(tensor.shape, name=name, constant=array, computed=computed))
    result = net.tensors[step.outputs[0]]
    return loose_node(step.op, inputs, result.shape, step.attributes, name=step.name, output=result.name)
