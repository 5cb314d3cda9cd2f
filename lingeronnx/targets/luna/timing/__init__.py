"""How long a graph takes on a chip.

Prices of kernels, the calls of each node, and the DMA beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....formats import LSTM
from ... import Target
from ...latency import Latency, LayerLatency, UnmodeledWork
from ..kernel_costs import KernelCosts
from ..packer.memory.plan import IN_PLACE_OPERATORS, PREFETCHING_OPERATORS, MemoryPlan
from ..packer.options import PSRAM, SHARE, PackerOptions
from ..packer.packer_graph import PackerGraph, PackerStep, PackerTensor
from .kernel_calls import NodeKernelCalls, Operand, TimingNode, list_kernel_calls
from .kernels import CallCost, KernelCall, estimate_call_cost, get_kernel_family
from .timeline import schedule_layers

__all__ = ["estimate_latency", "estimate_max_cycles", "sum_cycles_by_family"]

#: The NPU reads 64 bits a cycle by its kernels' formulas; its copies, which were measured, read 57.
_SLOW_READ_FACTOR = 64 / 57


def estimate_latency(
    net: PackerGraph,
    memory: MemoryPlan,
    options: PackerOptions,
    target: Target,
    kernel_costs: KernelCosts,
) -> Latency:
    """Return how long the prepared graph `net` takes under its memory plan, packed with `options`, at these prices."""
    sums = [_StepCycles.estimate(net, step, options, memory, kernel_costs) for step in net.steps]
    transfers = [
        _estimate_prefetch_cycles(net, step, options, memory, kernel_costs) for step in net.steps
    ]
    placed = schedule_layers([done.cycles + done.moved for done in sums], transfers)
    layers = [
        LayerLatency(
            name=step.name,
            operator=step.op,
            cycles=done.cycles,
            low=done.low,
            high=done.high,
            start=slot.start_cycle,
            wait=slot.wait,
            dma=transfer,
            moved=done.moved,
            priced=not done.unmodeled,
            node=step.origin or step.name,
            overhead=done.overhead,
            calls=done.calls,
            fetch=slot.prefetch_start_cycle,
        )
        for step, done, slot, transfer in zip(net.steps, sums, placed, transfers, strict=True)
    ]
    return Latency(
        target.name, tuple(layers), tuple(work for done in sums for work in done.unmodeled)
    )


@dataclass(frozen=True)
class _StepCycles:
    """What a node costs in cycles, the ends of that, and what has no price.

    overhead : of the cycles, what passes before the first element of a call. calls : of kernels.
    moved : cycles of copies from and to external memory.
    """

    cycles: float
    low: float
    high: float
    overhead: float
    calls: int
    moved: float
    unmodeled: tuple[UnmodeledWork, ...]

    @classmethod
    def estimate(
        cls,
        net: PackerGraph,
        step: PackerStep,
        options: PackerOptions,
        memory: MemoryPlan,
        prices: KernelCosts,
    ) -> _StepCycles:
        """Add up what a node calls."""
        work = list_kernel_calls(_to_timing_node(net, step, options))
        whole, overhead, slowest, calls = (
            prices.node_overhead_cycles,
            prices.node_overhead_cycles,
            prices.node_overhead_cycles,
            0,
        )
        rest = []
        for call in work.calls:
            one = estimate_call_cost(call, prices)
            if one is None:
                rest.append(
                    UnmodeledWork(step.name, f"{call.kernel} of {_format_arguments(call)}", 0)
                )
                continue
            done = call.count * sum(one)
            whole, overhead, calls = (
                whole + done,
                overhead + call.count * one.start_cycles,
                calls + call.count,
            )
            slowest += done * (1.0 if call.kernel in prices.copies else _SLOW_READ_FACTOR)
        low, high = whole, slowest
        if prices.relative_spread is not None:
            low, high = whole / (1 + prices.relative_spread), whole * (1 + prices.relative_spread)
        bounded, unbounded = _bound_unmodeled_work(step.name, work, prices)
        moved = sum(
            sum(estimate_call_cost(call, prices) or ())
            for call in _list_psram_copies(net, step, memory)
        )
        rest += [*unbounded, *_list_in_place_constants(net, step, options, memory)]
        return cls(whole, low, high + bounded, overhead, calls, moved, tuple(rest))


def estimate_max_cycles(node: TimingNode, prices: KernelCosts) -> float:
    """Return the upper end of the cycles of a node whose data lie in shared memory.

    Infinite where it has no bound.
    """
    work = list_kernel_calls(node)
    costs = [(call, estimate_call_cost(call, prices)) for call in work.calls]
    bounded, rest = _bound_unmodeled_work("", work, prices)
    if any(one is None for _, one in costs) or any(left.bound is None for left in rest):
        return math.inf
    return bounded + sum(
        call.count * sum(one) * (1.0 if call.kernel in prices.copies else _SLOW_READ_FACTOR)
        for call, one in costs
        if one is not None
    )


def _bound_unmodeled_work(
    name: str, work: NodeKernelCalls, prices: KernelCosts
) -> tuple[float, list[UnmodeledWork]]:
    """Return what the work without a price takes at most, as far as that is known, and the work."""
    most, rest = 0.0, []
    for left in work.unmodeled:
        costs = [(call.count, estimate_call_cost(call, prices)) for call in left.bounding_calls]
        known = [times * sum(one) for times, one in costs if one is not None]
        bound = sum(known) if known and len(known) == len(costs) else None
        most += bound or 0.0
        rest.append(UnmodeledWork(name, left.description, left.moved_bytes, bound))
    return most, rest


def _to_operand(tensor: PackerTensor) -> Operand:
    return Operand(tensor.shape, tensor.width * 8, tensor.scale)


def _to_timing_node(net: PackerGraph, step: PackerStep, options: PackerOptions) -> TimingNode:
    """Return a step as what calls kernels."""
    inputs = [_to_operand(net.tensors[name]) for name in step.inputs]
    outputs = [_to_operand(net.tensors[name]) for name in step.outputs]
    return TimingNode(
        step.op,
        step.attributes,
        inputs,
        outputs,
        _cut_axis(step, inputs, outputs),
        options.prefetch,
    )


def _cut_axis(step: PackerStep, inputs: list[Operand], outputs: list[Operand]) -> int | None:
    """Return the last axis of which a Slice leaves something out; None for other operators."""
    if step.op != "Slice":
        return None
    pairs = list(zip(inputs[0].shape, outputs[0].shape, strict=True))
    return max((i for i, (before, after) in enumerate(pairs) if before != after), default=0)


def _list_psram_copies(net: PackerGraph, step: PackerStep, memory: MemoryPlan) -> list[KernelCall]:
    """Return the copies of a node whose data lie in external memory.

    None for what only gets other names.
    """
    if step.op in IN_PLACE_OPERATORS:
        return []
    spots = memory.allocations
    read = {
        t.name: t.size_bytes
        for t in net.data(step)
        if t.name in spots and spots[t.name].memory == PSRAM
    }
    written = {n: net.tensors[n].size_bytes for n in step.outputs if spots[n].memory == PSRAM}
    copied = [KernelCall("memcpy_from_psram", {"n": size}) for size in read.values()]
    return copied + [KernelCall("share_to_psram", {"n": size}) for size in written.values()]


def sum_cycles_by_family(
    net: PackerGraph,
    step: PackerStep,
    options: PackerOptions,
    memory: MemoryPlan,
    prices: KernelCosts,
) -> dict[str, CallCost] | None:
    """Return the cycles of a node by family of kernels, its copies included.

    None where some of it has no price.
    """
    work, total = list_kernel_calls(_to_timing_node(net, step, options)), dict[str, CallCost]()
    if work.unmodeled or _list_in_place_constants(net, step, options, memory):
        return None
    for call in [*work.calls, *_list_psram_copies(net, step, memory)]:
        one = estimate_call_cost(call, prices)
        if one is None:
            return None
        start, rest = total.get(get_kernel_family(call.kernel), CallCost(0.0, 0.0))
        total[get_kernel_family(call.kernel)] = CallCost(
            start + call.count * one.start_cycles, rest + call.count * one.element_cycles
        )
    return total


def _format_arguments(call: KernelCall) -> str:
    return ", ".join(f"{name} {value}" for name, value in call.arguments.items())


def _is_prefetched(step: PackerStep, options: PackerOptions) -> bool:
    """Whether the DMA brings the constants of a node before it begins."""
    return (
        step.op in PREFETCHING_OPERATORS and options.prefetch and options.constant_memory == PSRAM
    )


def _estimate_prefetch_cycles(
    net: PackerGraph,
    step: PackerStep,
    options: PackerOptions,
    memory: MemoryPlan,
    prices: KernelCosts,
) -> float:
    """Return the cycles of the DMA that brings a node's constants.

    0 where it reads them in place.
    """
    size = (
        sum(memory.stored_bytes[tensor.name] for tensor in net.get_constants(step))
        if _is_prefetched(step, options)
        else 0
    )
    return prices.copies["psram_to_share"].cycles(size) if size else 0.0


def _list_in_place_constants(
    net: PackerGraph, step: PackerStep, options: PackerOptions, memory: MemoryPlan
) -> list[UnmodeledWork]:
    """Return the constants that a kernel reads where they lie outside shared memory, at a price that nothing tells."""
    if (
        options.constant_memory == SHARE
        or _is_prefetched(step, options)
        or step.op in _SELF_COPYING_OPERATORS
    ):
        return []
    size = sum(memory.stored_bytes[tensor.name] for tensor in net.get_constants(step))
    return [UnmodeledWork(step.name, "constants read in external memory", size)] if size else []


#: What copies its constants to shared memory itself where the DMA does not, which is among its calls.
_SELF_COPYING_OPERATORS = (LSTM.name,)
