"""Estimate the latency of a graph on a chip.

Combines the kernel calls of each node, their costs, and the DMA transfers that run in parallel: a
layer with constants in external memory waits for its own transfer, starts that of the next such
layer, then computes. The first transfer starts with the run. A transfer therefore overlaps with all
layers up to the next one with constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...operators.integer_ops import LSTM
from ...targets import Target
from ...targets.latency import Latency, LayerLatency, UnmodeledWork
from ..kernel_costs import KernelCosts
from ..packer.memory.graph_facts import IN_PLACE_OPERATORS, PREFETCHING_OPERATORS
from ..packer.memory.plan import MemoryPlan
from ..packer.options import PSRAM, SHARE, PackerOptions
from ..packer.packer_graph import PackerGraph, PackerStep, PackerTensor
from .kernel_calls import NodeKernelCalls, Operand, TimingNode, list_kernel_calls
from .kernels import CallCost, KernelCall, estimate_call_cost, get_kernel_family

__all__ = [
    "LayerSlot",
    "estimate_latency",
    "estimate_max_cycles",
    "schedule_layers",
    "sum_cycles_by_family",
]

#: Kernels read 64 bits per cycle by their formulas, but copies read 57 according to measurements.
_SLOW_READ_FACTOR = 64 / 57


def estimate_latency(
    net: PackerGraph,
    memory: MemoryPlan,
    options: PackerOptions,
    target: Target,
    kernel_costs: KernelCosts,
) -> Latency:
    """Estimate the latency of a transformed graph under its memory plan and packer options.

    The result has one `LayerLatency` (in cycles) per step. The copies of a step's constants are
    prefetched while earlier layers compute; work without a cost model is in `Latency.unpriced`, and
    layers with such work are not `priced`.
    """
    step_cycles = [
        _StepCycles.estimate(net, step, options, memory, kernel_costs) for step in net.steps
    ]
    prefetch_cycles = [
        _estimate_prefetch_cycles(net, step, options, memory, kernel_costs) for step in net.steps
    ]
    slots = schedule_layers(
        [cycles.total + cycles.psram_copies for cycles in step_cycles], prefetch_cycles
    )
    layers, unmodeled = [], list[UnmodeledWork]()
    for step, cycles, slot, prefetch in zip(
        net.steps, step_cycles, slots, prefetch_cycles, strict=True
    ):
        unmodeled += cycles.unmodeled
        layers.append(
            LayerLatency(
                name=step.name,
                operator=step.op,
                cycles=cycles.total,
                low=cycles.low,
                high=cycles.high,
                start=slot.start_cycle,
                wait=slot.wait,
                dma=prefetch,
                moved=cycles.psram_copies,
                priced=not cycles.unmodeled,
                node=step.origin or step.name,
                overhead=cycles.overhead,
                calls=cycles.calls,
                fetch=slot.prefetch_start_cycle,
            )
        )
    return Latency(target.name, tuple(layers), tuple(unmodeled))


@dataclass(frozen=True)
class _StepCycles:
    """Estimated cycles of a node.

    Attributes
    ----------
    total, low, high
        Cycles of its kernel calls, and the bounds of the estimate.
    overhead
        The part of `total` that passes before the first element of each call.
    calls
        Number of kernel calls.
    psram_copies
        Cycles of copies from and to external memory, which `total` does not include.
    unmodeled
        Work without a cost model.
    """

    total: float
    low: float
    high: float
    overhead: float
    calls: int
    psram_copies: float
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
        """Add up the cycles of the kernel calls of `step`, with the overhead of a node.

        Calls without a cost model are added to `unmodeled`, not to the sum. `low` and `high` are
        the sum without and with slow reads, or the sum divided and multiplied by 1 +
        `prices.relative_spread` if that is set; `high` also has the bounds of unmodeled work.
        """
        work = list_kernel_calls(_to_timing_node(net, step, options))
        total = overhead = slow_read_total = prices.node_overhead_cycles
        call_count = 0
        unmodeled = []
        for call in work.calls:
            cost = estimate_call_cost(call, prices)
            if cost is None:
                description = f"{call.kernel} of {_format_arguments(call)}"
                unmodeled.append(UnmodeledWork(step.name, description, 0))
                continue
            cycles = call.count * sum(cost)
            total += cycles
            overhead += call.count * cost.start_cycles
            call_count += call.count
            slow_read_total += cycles * (1.0 if call.kernel in prices.copies else _SLOW_READ_FACTOR)
        low, high = total, slow_read_total
        if prices.relative_spread is not None:
            low, high = total / (1 + prices.relative_spread), total * (1 + prices.relative_spread)
        bound, bounded_work = _bound_unmodeled_work(step.name, work, prices)
        psram_copies = sum(
            sum(estimate_call_cost(call, prices) or ())
            for call in _list_psram_copies(net, step, memory)
        )
        unmodeled += [*bounded_work, *_list_in_place_constants(net, step, options, memory)]
        return cls(total, low, high + bound, overhead, call_count, psram_copies, tuple(unmodeled))


def estimate_max_cycles(node: TimingNode, prices: KernelCosts) -> float:
    """Return an upper bound of the cycles of `node` with its data in shared memory.

    Reads count at the slow, measured rate. Infinity if the node has work without a bound.
    """
    work = list_kernel_calls(node)
    unmodeled_bound, unmodeled = _bound_unmodeled_work("", work, prices)
    if any(item.bound is None for item in unmodeled):
        return math.inf
    total = 0.0
    for call in work.calls:
        cost = estimate_call_cost(call, prices)
        if cost is None:
            return math.inf
        read_factor = 1.0 if call.kernel in prices.copies else _SLOW_READ_FACTOR
        total += call.count * sum(cost) * read_factor
    return unmodeled_bound + total


def _bound_unmodeled_work(
    name: str, work: NodeKernelCalls, prices: KernelCosts
) -> tuple[float, list[UnmodeledWork]]:
    """Return (sum of the known bounds in cycles, items) of the unmodeled work of a node.

    The bound of an item is the cost of its `bounding_calls`, or None if there are none or if one
    has no cost model. `name` is the node's name for the items.
    """
    total_bound, unmodeled = 0.0, []
    for item in work.unmodeled:
        costs = [(call.count, estimate_call_cost(call, prices)) for call in item.bounding_calls]
        cycles = [count * sum(cost) for count, cost in costs if cost is not None]
        bound = sum(cycles) if cycles and len(cycles) == len(costs) else None
        total_bound += bound or 0.0
        unmodeled.append(UnmodeledWork(name, item.description, item.moved_bytes, bound))
    return total_bound, unmodeled


def _to_operand(tensor: PackerTensor) -> Operand:
    """Convert a packer tensor to an operand: shape, bits per element and scale."""
    return Operand(tensor.shape, tensor.width * 8, tensor.scale)


def _to_timing_node(net: PackerGraph, step: PackerStep, options: PackerOptions) -> TimingNode:
    """Describe `step` as the value from which its kernel calls are derived."""
    inputs = [_to_operand(net.tensors[name]) for name in step.inputs]
    outputs = [_to_operand(net.tensors[name]) for name in step.outputs]
    return TimingNode(
        step.op,
        step.attributes,
        inputs,
        outputs,
        _find_sliced_axis(step, inputs, outputs),
        options.prefetch,
    )


def _find_sliced_axis(
    step: PackerStep, inputs: list[Operand], outputs: list[Operand]
) -> int | None:
    """Return the last axis that a Slice shortens (0 if none); None for other operators."""
    if step.op != "Slice":
        return None
    dims = zip(inputs[0].shape, outputs[0].shape, strict=True)
    return max((axis for axis, (full, sliced) in enumerate(dims) if full != sliced), default=0)


def _list_psram_copies(net: PackerGraph, step: PackerStep, memory: MemoryPlan) -> list[KernelCall]:
    """List one copy call per non-constant input in PSRAM, then one per output in PSRAM, of `step`.

    Empty for Reshape, Squeeze and Unsqueeze.
    """
    if step.op in IN_PLACE_OPERATORS:
        return []
    allocations = memory.allocations
    input_bytes = {
        tensor.name: tensor.size_bytes
        for tensor in net.data(step)
        if tensor.name in allocations and allocations[tensor.name].memory == PSRAM
    }
    output_bytes = {
        name: net.tensors[name].size_bytes
        for name in step.outputs
        if allocations[name].memory == PSRAM
    }
    return [
        *(KernelCall("memcpy_from_psram", {"n": size}) for size in input_bytes.values()),
        *(KernelCall("share_to_psram", {"n": size}) for size in output_bytes.values()),
    ]


def sum_cycles_by_family(
    net: PackerGraph,
    step: PackerStep,
    options: PackerOptions,
    memory: MemoryPlan,
    prices: KernelCosts,
) -> dict[str, CallCost] | None:
    """Return kernel family -> cycles of `step`, including copies from and to PSRAM.

    None if part of its work has no cost model, such as constants read in external memory.
    """
    work = list_kernel_calls(_to_timing_node(net, step, options))
    if work.unmodeled or _list_in_place_constants(net, step, options, memory):
        return None
    cycles_by_family: dict[str, CallCost] = {}
    for call in [*work.calls, *_list_psram_copies(net, step, memory)]:
        cost = estimate_call_cost(call, prices)
        if cost is None:
            return None
        family = get_kernel_family(call.kernel)
        total = cycles_by_family.get(family, CallCost(0.0, 0.0))
        cycles_by_family[family] = CallCost(
            total.start_cycles + call.count * cost.start_cycles,
            total.element_cycles + call.count * cost.element_cycles,
        )
    return cycles_by_family


def _format_arguments(call: KernelCall) -> str:
    """Format the arguments of a call as text such as "n 8, in_bits 32"."""
    return ", ".join(f"{name} {value}" for name, value in call.arguments.items())


def _is_prefetched(step: PackerStep, options: PackerOptions) -> bool:
    """Whether the DMA fetches the constants of `step` before the step starts.

    That is so for layers with weights if prefetch is on and constants are in PSRAM.
    """
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
    """Return the DMA cycles for the constants of `step`; 0 if they are not prefetched."""
    if not _is_prefetched(step, options):
        return 0.0
    size_bytes = sum(memory.stored_bytes[tensor.name] for tensor in net.get_constants(step))
    return prices.copies["psram_to_share"].cycles(size_bytes) if size_bytes else 0.0


def _list_in_place_constants(
    net: PackerGraph, step: PackerStep, options: PackerOptions, memory: MemoryPlan
) -> list[UnmodeledWork]:
    """Return a list with the constants that `step` reads in external memory, as unmodeled work.

    One entry with all their bytes; empty if constants are in shared memory, are prefetched or are
    copied by the operator itself (LSTMInt), and if there are none.
    """
    if options.constant_memory == SHARE or _is_prefetched(step, options):
        return []
    if step.op in _SELF_COPYING_OPERATORS:
        return []
    size_bytes = sum(memory.stored_bytes[tensor.name] for tensor in net.get_constants(step))
    if not size_bytes:
        return []
    return [UnmodeledWork(step.name, "constants read in external memory", size_bytes)]


#: Operators that copy constants to shared memory themselves unless the DMA does. The copies are
#: among their kernel calls.
_SELF_COPYING_OPERATORS = (LSTM.name,)


class LayerSlot(NamedTuple):
    """Schedule of a layer, in cycles.

    Attributes
    ----------
    start_cycle
        When the previous layer ends.
    wait
        How long the layer waits for its constants from then on.
    prefetch_start_cycle
        When the DMA starts to fetch the constants; 0 if it fetches none.
    """

    start_cycle: float
    wait: float
    prefetch_start_cycle: float = 0.0


def schedule_layers(
    compute_cycles: Sequence[float], prefetch_cycles: Sequence[float]
) -> list[LayerSlot]:
    """Schedule layers whose constants the DMA prefetches into two buffers; return one slot each.

    A layer without a prefetch starts when the previous one ends. The others also wait for their
    transfer, which was issued when the last layer with a prefetch began to compute, or at 0.

    Parameters
    ----------
    compute_cycles
        Cycles of each layer, in execution order.
    prefetch_cycles
        DMA cycles for the constants of each layer; 0 if nothing is prefetched.
    """
    slots = []
    now = 0.0
    dma_issued_at = 0.0  # when the prefetching layer before starts to compute
    for compute, prefetch in zip(compute_cycles, prefetch_cycles, strict=True):
        if not prefetch:
            slots.append(LayerSlot(now, wait=0.0))
            now += compute
            continue
        compute_start = max(now, dma_issued_at + prefetch)
        slots.append(LayerSlot(now, compute_start - now, dma_issued_at))
        dma_issued_at = compute_start
        now = compute_start + compute
    return slots
