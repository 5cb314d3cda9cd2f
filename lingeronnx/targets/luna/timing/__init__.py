"""How long a graph takes on a chip: prices of kernels, the calls of each node, and the DMA beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....formats import LSTM
from ... import Target
from ...latency import Latency, LayerTime, UnpricedWork
from ..packer.memory.plan import IN_PLACE, PREFETCHED, MemoryPlan
from ..packer.net import Net, NetStep, NetTensor
from ..packer.options import PSRAM, SHARE, Options
from ..prices import Prices
from .kernels import CallCost, KernelCall, cost, family
from .timeline import slots
from .work import Node, NodeWork, Operand, work_of

__all__ = ["latency", "spent", "upper_end"]

#: The NPU reads 64 bits a cycle by its kernels' formulas; its copies, which were measured, read 57.
_SLOWEST = 64 / 57


def latency(net: Net, memory: MemoryPlan, options: Options, target: Target, prices: Prices) -> Latency:
    """Return how long the prepared graph `net` takes under its memory plan, packed with `options`, at these prices."""
    sums = [_Sum.of(net, step, options, memory, prices) for step in net.steps]
    transfers = [_transfer(net, step, options, memory, prices) for step in net.steps]
    placed = slots([done.cycles + done.moved for done in sums], transfers)
    layers = [
        LayerTime(
            name=step.name,
            operator=step.op,
            cycles=done.cycles,
            low=done.low,
            high=done.high,
            start=slot.start,
            wait=slot.wait,
            dma=transfer,
            moved=done.moved,
            priced=not done.rest,
            node=step.origin or step.name,
            overhead=done.overhead,
            calls=done.calls,
            fetch=slot.fetch,
        )
        for step, done, slot, transfer in zip(net.steps, sums, placed, transfers, strict=True)
    ]
    return Latency(target.name, tuple(layers), tuple(work for done in sums for work in done.rest))


@dataclass(frozen=True)
class _Sum:
    """What a node costs in cycles, the ends of that, and what has no price.

    overhead : of the cycles, what passes before the first element of a call. calls : of kernels. moved : cycles of
    copies from and to external memory.
    """

    cycles: float
    low: float
    high: float
    overhead: float
    calls: int
    moved: float
    rest: tuple[UnpricedWork, ...]

    @classmethod
    def of(cls, net: Net, step: NetStep, options: Options, memory: MemoryPlan, prices: Prices) -> _Sum:
        """Add up what a node calls."""
        work = work_of(_node(net, step, options))
        whole, overhead, slowest, calls = prices.node, prices.node, prices.node, 0
        rest = []
        for call in work.calls:
            one = cost(call, prices)
            if one is None:
                rest.append(UnpricedWork(step.name, f"{call.kernel} of {_text(call)}", 0))
                continue
            done = call.times * sum(one)
            whole, overhead, calls = whole + done, overhead + call.times * one.start, calls + call.times
            slowest += done * (1.0 if call.kernel in prices.copies else _SLOWEST)
        low, high = whole, slowest
        if prices.spread is not None:
            low, high = whole / (1 + prices.spread), whole * (1 + prices.spread)
        bounded, unbounded = _unpriced(step.name, work, prices)
        moved = sum(sum(cost(call, prices) or ()) for call in _moves(net, step, memory))
        rest += [*unbounded, *_read_in_place(net, step, options, memory)]
        return cls(whole, low, high + bounded, overhead, calls, moved, tuple(rest))


def upper_end(node: Node, prices: Prices) -> float:
    """Return the upper end of the cycles of a node whose data lie in shared memory; infinite where it has no bound."""
    work = work_of(node)
    costs = [(call, cost(call, prices)) for call in work.calls]
    bounded, rest = _unpriced("", work, prices)
    if any(one is None for _, one in costs) or any(left.bound is None for left in rest):
        return math.inf
    return bounded + sum(
        call.times * sum(one) * (1.0 if call.kernel in prices.copies else _SLOWEST)
        for call, one in costs
        if one is not None
    )


def _unpriced(name: str, work: NodeWork, prices: Prices) -> tuple[float, list[UnpricedWork]]:
    """Return what the work without a price takes at most, as far as that is known, and the work."""
    most, rest = 0.0, []
    for left in work.unpriced:
        costs = [(call.times, cost(call, prices)) for call in left.bound]
        known = [times * sum(one) for times, one in costs if one is not None]
        bound = sum(known) if known and len(known) == len(costs) else None
        most += bound or 0.0
        rest.append(UnpricedWork(name, left.what, left.bytes, bound))
    return most, rest


def _operand(tensor: NetTensor) -> Operand:
    return Operand(tensor.shape, tensor.width * 8, tensor.scale)


def _node(net: Net, step: NetStep, options: Options) -> Node:
    """Return a step as what calls kernels."""
    inputs = [_operand(net.tensors[name]) for name in step.inputs]
    outputs = [_operand(net.tensors[name]) for name in step.outputs]
    return Node(step.op, step.attributes, inputs, outputs, _cut_axis(step, inputs, outputs), options.prefetch)


def _cut_axis(step: NetStep, inputs: list[Operand], outputs: list[Operand]) -> int | None:
    """Return the last axis of which a Slice leaves something out; None for other operators."""
    if step.op != "Slice":
        return None
    pairs = list(zip(inputs[0].shape, outputs[0].shape, strict=True))
    return max((i for i, (before, after) in enumerate(pairs) if before != after), default=0)


def _moves(net: Net, step: NetStep, memory: MemoryPlan) -> list[KernelCall]:
    """Return the copies of a node whose data lie in external memory; none for what only gets other names."""
    if step.op in IN_PLACE:
        return []
    spots = memory.spots
    read = {t.name: t.bytes for t in net.data(step) if t.name in spots and spots[t.name].place == PSRAM}
    written = {n: net.tensors[n].bytes for n in step.outputs if spots[n].place == PSRAM}
    copied = [KernelCall("memcpy_from_psram", {"n": size}) for size in read.values()]
    return copied + [KernelCall("share_to_psram", {"n": size}) for size in written.values()]


def spent(net: Net, step: NetStep, options: Options, memory: MemoryPlan, prices: Prices) -> dict[str, CallCost] | None:
    """Return the cycles of a node by family of kernels, its copies included; None where some of it has no price."""
    work, total = work_of(_node(net, step, options)), dict[str, CallCost]()
    if work.unpriced or _read_in_place(net, step, options, memory):
        return None
    for call in [*work.calls, *_moves(net, step, memory)]:
        one = cost(call, prices)
        if one is None:
            return None
        start, rest = total.get(family(call.kernel), CallCost(0.0, 0.0))
        total[family(call.kernel)] = CallCost(start + call.times * one.start, rest + call.times * one.rest)
    return total


def _text(call: KernelCall) -> str:
    return ", ".join(f"{name} {value}" for name, value in call.arguments.items())


def _fetched(step: NetStep, options: Options) -> bool:
    """Whether the DMA brings the constants of a node before it begins."""
    return step.op in PREFETCHED and options.prefetch and options.parameters == PSRAM


def _transfer(net: Net, step: NetStep, options: Options, memory: MemoryPlan, prices: Prices) -> float:
    """Return the cycles of the DMA that brings a node's constants; 0 where it reads them in place."""
    size = sum(memory.stored[tensor.name] for tensor in net.constants(step)) if _fetched(step, options) else 0
    return prices.copies["psram_to_share"].cycles(size) if size else 0.0


def _read_in_place(net: Net, step: NetStep, options: Options, memory: MemoryPlan) -> list[UnpricedWork]:
    """Return the constants that a kernel reads where they lie outside shared memory, at a price that nothing tells."""
    if options.parameters == SHARE or _fetched(step, options) or step.op in _COPIES_ITS_OWN:
        return []
    size = sum(memory.stored[tensor.name] for tensor in net.constants(step))
    return [UnpricedWork(step.name, "constants read in external memory", size)] if size else []


#: What copies its constants to shared memory itself where the DMA does not, which is among its calls.
_COPIES_ITS_OWN = (LSTM.name,)
