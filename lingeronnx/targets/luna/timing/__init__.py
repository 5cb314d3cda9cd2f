"""How long a graph takes on a chip: prices of kernels, the calls of each node, and the DMA beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ....errors import ConfigError
from ... import Target
from ...latency import Latency, LayerTime, UnpricedWork
from ..packer.judge import Judged
from ..packer.memory.plan import IN_PLACE, PREFETCHED, MemoryPlan
from ..packer.narrow import BITS
from ..packer.net import Net, NetStep, NetTensor
from ..packer.options import PSRAM, SHARE, Options, parse
from .kernels import KernelCall, cycles
from .prices import ARCS, Prices
from .timeline import slots
from .work import Node, NodeWork, Operand, work_of

__all__ = ["PRICES", "latency", "priced"]

#: The chips whose prices are published.
PRICES = {"arcs": ARCS}

#: The NPU reads 64 bits a cycle by its kernels' formulas; its copies, which were measured, read 57.
_SLOWEST = 64 / 57


def priced(target: Target) -> Prices:
    """Return the prices of a chip; ConfigError for one without."""
    if target.name not in PRICES:
        raise ConfigError(
            f"nothing is known of the time on {target.name}: kernel prices are published for "
            f"{', '.join(PRICES)} only; quantize for it, or measure on a board"
        )
    return PRICES[target.name]


def latency(judged: Judged, target: Target, words: Iterable[str]) -> Latency:
    """Return how long the graph that was judged takes on `target`, packed with the arguments `words`.

    ConfigError for a chip without prices, and for a graph that the packer does not take.
    """
    prices, options = priced(target), parse(words)
    net, memory = judged.net, judged.memory
    if net is None or memory is None:
        finding = next((f for f in judged.findings if f.level == "packs"), None)
        raise ConfigError(f"no time can be told of a graph that does not pack: {finding}")
    sums = [
        _priced(step.name, work_of(_node(net, step, options)), prices).also(
            _in_place(net, step, options, memory, prices)
        )
        for step in net.steps
    ]
    moved = [_moved(net, step, memory, prices) for step in net.steps]
    transfers = [_transfer(net, step, options, memory, prices) for step in net.steps]
    placed = slots([done.cycles + more for done, more in zip(sums, moved, strict=True)], transfers)
    layers = [
        LayerTime(
            name=step.name,
            operator=step.op,
            cycles=done.cycles,
            low=done.cycles,
            high=done.high,
            start=slot.start,
            wait=slot.wait,
            dma=transfer,
            moved=more,
            priced=not done.rest,
        )
        for step, done, more, slot, transfer in zip(net.steps, sums, moved, placed, transfers, strict=True)
    ]
    return Latency(target.name, tuple(layers), tuple(work for done in sums for work in done.rest))


@dataclass(frozen=True)
class _Priced:
    """What a node costs: cycles, their upper end, and what has no price."""

    cycles: float
    high: float
    rest: tuple[UnpricedWork, ...]

    def also(self, more: UnpricedWork | None) -> _Priced:
        """Return the same with something more that has no price."""
        return self if more is None else replace(self, rest=(*self.rest, more))


def _operand(tensor: NetTensor) -> Operand:
    return Operand(tensor.shape, tensor.width * 8, tensor.scale)


def _node(net: Net, step: NetStep, options: Options) -> Node:
    inputs = [_operand(net.tensors[name]) for name in step.inputs]
    outputs = [_operand(net.tensors[name]) for name in step.outputs]
    return Node(step.op, step.attributes, inputs, outputs, _cut_axis(step, inputs, outputs), options.prefetch)


def _cut_axis(step: NetStep, inputs: list[Operand], outputs: list[Operand]) -> int | None:
    """Return the last axis of which a Slice leaves something out; None for other operators."""
    if step.op != "Slice":
        return None
    pairs = list(zip(inputs[0].shape, outputs[0].shape, strict=True))
    return max((i for i, (before, after) in enumerate(pairs) if before != after), default=0)


def _moved(net: Net, step: NetStep, memory: MemoryPlan, prices: Prices) -> float:
    """Return the cycles of the copies of a node whose data lie in external memory; 0 for what only gets other names."""
    if step.op in IN_PLACE:
        return 0.0
    spots = memory.spots
    read = {t.name: t.bytes for t in net.data(step) if t.name in spots and spots[t.name].place == PSRAM}
    written = {n: net.tensors[n].bytes for n in step.outputs if spots[n].place == PSRAM}
    copied = sum(prices.copies["memcpy_from_psram"].cycles(size) for size in read.values())
    return copied + sum(prices.copies["share_to_psram"].cycles(size) for size in written.values())


def _priced(name: str, work: NodeWork, prices: Prices) -> _Priced:
    """Add up what a node calls."""
    done = high = 0.0
    rest = []
    for call in work.calls:
        one = cycles(call, prices)
        if one is None:
            rest.append(UnpricedWork(name, f"{call.kernel} of {_text(call)}", 0))
            continue
        done += call.times * one
        high += call.times * one * (1.0 if call.kernel in prices.copies else _SLOWEST)
    for left in work.unpriced:
        costs = [(call.times, cycles(call, prices)) for call in left.bound]
        known = [times * one for times, one in costs if one is not None]
        bound = sum(known) if known and len(known) == len(costs) else None
        high += bound or 0.0
        rest.append(UnpricedWork(name, left.what, left.bytes, bound))
    return _Priced(done, high, tuple(rest))


def _text(call: KernelCall) -> str:
    return ", ".join(f"{name} {value}" for name, value in call.arguments.items())


def _in_place(net: Net, step: NetStep, options: Options, memory: MemoryPlan, prices: Prices) -> UnpricedWork | None:
    """Return what 4-bit weights cost that a node reads where they lie, which nothing tells; None for other nodes."""
    if step.op not in PREFETCHED or step.weight_bits != BITS or options.prefetch or options.parameters == SHARE:
        return None
    size = sum(memory.stored[tensor.name] for tensor in net.constants(step))
    least = prices.copies["psram_to_share" if options.parameters == PSRAM else "flash_to_share"].cycles(size)
    return UnpricedWork(step.name, f"4-bit weights read where they lie; to copy them takes {least:.0f} cycles", size)


def _transfer(net: Net, step: NetStep, options: Options, memory: MemoryPlan, prices: Prices) -> float:
    """Return the cycles of the DMA that brings a node's constants; 0 where it reads them in place."""
    if step.op not in PREFETCHED or not options.prefetch or options.parameters != PSRAM:
        return 0.0
    size = sum(memory.stored[tensor.name] for tensor in net.constants(step))
    return prices.copies["psram_to_share"].cycles(size) if size else 0.0
