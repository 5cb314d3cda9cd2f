"""What nodes write beyond the work area that is planned for them, and what lies there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..formats import AVG_POOL2D, GLU, LAYER_NORM, LINEAR, LSTM, SOFTMAX
from .areas import Node
from .memory import Memory, Spot
from .net import Finding, Net, Step
from .options import PSRAM, SHARE
from .window import rounded

__all__ = ["OVERRUNS", "Overrun", "overruns", "states", "written_past"]

#: Need = bytes written from the start of the work area on.
Need = Callable[[Node], int]


def _single(node: Node) -> bool:
    return list(node.step.get("kernel_shape")) == list(node.x.shape[2:])


def _average(node: Node) -> int:
    area = math.prod(node.step.get("kernel_shape"))
    return area + 4 * node.x.shape[1] if _single(node) and area & (area - 1) == 0 else 0


def _norm_venus(node: Node) -> int:
    return 8 * node.inputs[1].elements


def _norm_later(node: Node) -> int:
    row = node.inputs[1].elements
    return 8 * row + 8 if node.places[node.inputs[1].name] == SHARE else 27 * row + 8


def _lstm_venus(node: Node) -> int:
    return 40 * int(node.step.get("hidden_size"))


def _linear_venusa(node: Node) -> int:
    columns = node.x.shape[-1]
    rows, outputs = node.x.elements // columns, node.y.shape[-1]
    return rows * (outputs + max(outputs, columns)) if node.away and rows > 1 else 0


def _glu(node: Node) -> int:
    return 7 * math.prod(node.x.shape[: int(node.step.get("dim", -1)) % len(node.x.shape)]) * node.x.shape[-1]


def _softmax_venusa(node: Node) -> int:
    return 22 * node.x.elements


def _relu_later(node: Node) -> int:
    return node.x.bytes if node.outside() or node.away else 0


#: Packing.areas -> operator -> need.
OVERRUNS: Mapping[str, Mapping[str, Need]] = MappingProxyType(
    {
        "venus": {LAYER_NORM.name: _norm_venus, LSTM.name: _lstm_venus},
        "arcs": {LAYER_NORM.name: _norm_later, AVG_POOL2D.name: _average, "Relu": _relu_later},
        "venusA": {
            LAYER_NORM.name: _norm_later,
            AVG_POOL2D.name: _average,
            LINEAR.name: _linear_venusa,
            GLU.name: _glu,
            SOFTMAX.name: _softmax_venusa,
            "Relu": _relu_later,
        },
    }
)

#: Operators that stop, or err, where the work area is too small, whatever lies behind it.
_STRICT = ("Relu",)

#: Operators that were measured right over living tensors.
_HARMLESS = (SOFTMAX.name,)

_REMEDY = "place its tensors elsewhere (-m), take --dma_prefetch False, or give another node a larger work area"


def workspace(net: Net, memory: Memory) -> Spot | None:
    """Return the work area that all nodes use: the one of the first node that needs one."""
    areas = [spot for spot in memory.spots.values() if spot.kind == "area"]
    return min(areas, key=lambda spot: spot.first, default=None)


@dataclass(frozen=True)
class Overrun:
    """A node that writes more bytes than the work area has, which ends at `end`; `hit` is what is alive there."""

    step: Step
    need: int
    end: int
    hit: tuple[str, ...]


def written_past(net: Net, memory: Memory, table: str, places: Mapping[str, str]) -> Iterator[Overrun]:
    """Yield every node that writes past the work area."""
    block = workspace(net, memory)
    if block is None:
        return
    for index, step in enumerate(net.steps):
        rule = OVERRUNS[table].get(step.op)
        node = Node.of(net, step, places)
        need = 0 if rule is None else rule(node)
        if need <= block.size:
            continue
        end = block.offset + need
        span = (block.offset + block.size, end)
        hit = [] if step.op in _HARMLESS else _hits(net, memory, block, span, index)
        spared = _SPARED.get(step.op)
        if spared is not None:
            hit = [name for name in hit if name not in spared(node, net, memory, block, table)]
        yield Overrun(step, need, end, tuple(sorted(hit)))


def overruns(net: Net, memory: Memory, table: str, places: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for every node that writes past its work area onto something alive, or past the plan."""
    block = workspace(net, memory)
    if block is None:
        return
    for found in written_past(net, memory, table, places):
        step = found.step
        text, value = f"{step.op} stays within its work area", f"{found.need} bytes, {block.size} are planned"
        if found.hit or step.op in _STRICT:
            where = f"; {', '.join(found.hit)} lies behind" if found.hit else ""
            yield Finding("right", step.origin, text, f"{value}{where}", _REMEDY)
        elif found.end > _end(memory, block):
            past = f"{value}; {found.end - _end(memory, block)} bytes behind the plan are written"
            yield Finding("plan", step.origin, text, past, _REMEDY)


def _end(memory: Memory, spot: Spot) -> int:
    """Return where the memory ends that is reserved in the place of `spot`: the plan, rounded up to 64."""
    return rounded(memory.shared if spot.place == SHARE else memory.psram, 64)


def _hits(net: Net, memory: Memory, block: Spot, span: tuple[int, int], index: int) -> list[str]:
    """Return what lies within the bytes `span` of a block's place and is alive at node `index`."""
    start, end = span
    found = []
    for name, spot in memory.spots.items():
        if (
            spot.place != block.place
            or spot.kind == "area"
            or not spot.offset < end
            or (spot.offset + spot.size <= start or not spot.first <= index <= spot.last)
        ):
            continue
        if spot.kind == "buffer":
            alive = any(memory.buffers.get(later.name) == name for later in net.steps[index:])
        else:
            alive = name in net.outputs or bool(net.readers(name))
        if alive:
            found.append(name)
    return found


def _linear_spared(node: Node, net: Net, memory: Memory, block: Spot, table: str) -> set[str]:
    """The input has been read when the sums are written."""
    return {node.x.name} - _kept(node, memory)


def _average_spared(node: Node, net: Net, memory: Memory, block: Spot, table: str) -> set[str]:
    """The output is hit only by the sums, behind the ones."""
    own, ones = memory.spots[node.y.name], block.offset + math.prod(node.x.shape[2:])
    return {node.y.name} if own.offset <= ones else set()


def _norm_spared(node: Node, net: Net, memory: Memory, block: Spot, table: str) -> set[str]:
    """Constants have been copied from the buffer; the input is read into the scratch in front of their copies.

    Neither is known of venus. Of a single row the output is written last, and the input read first. Where a graph has
    several of them, an input that was hit was measured wrong.
    """
    later = OVERRUNS[table][LAYER_NORM.name] is not _norm_venus
    spared = {memory.buffers.get(node.step.name, "")} if later else set()
    row, own = node.inputs[1].elements, memory.spots[node.x.name]
    single = node.x.elements == row
    if single:
        spared |= {node.y.name}
    alone = sum(step.op == LAYER_NORM.name for step in net.steps) == 1
    if later and alone and (single or own.offset >= block.offset + 8 * row + 8):
        spared |= {node.x.name} - _kept(node, memory)
    return spared


def _kept(node: Node, memory: Memory) -> set[str]:
    """Return the input if it is read again later."""
    index = memory.spots[node.y.name].first
    return {node.x.name} if memory.spots[node.x.name].last > index else set()


#: What an operator may hit without harm.
_SPARED: Mapping[str, Callable[[Node, Net, Memory, Spot, str], set[str]]] = {
    LINEAR.name: _linear_spared,
    AVG_POOL2D.name: _average_spared,
    LAYER_NORM.name: _norm_spared,
}


def states(net: Net, memory: Memory) -> Iterator[Finding]:
    """Yield a finding for every LSTMInt whose last state, written in 32 bits and planned in 8, hits something."""
    for index, step in enumerate(net.steps):
        if step.op != LSTM.name or len(step.outputs) < 2:
            continue
        spot = memory.spots[step.outputs[1]]
        need = 4 * net.tensors[step.outputs[1]].elements
        end = spot.offset + need
        hit, over = _hits(net, memory, spot, (spot.offset + spot.size, end), index), end - _end(memory, spot)
        if over > 0 and spot.place == PSRAM:
            hit.append("the executor's own memory")
        text, value = "the last state of an LSTMInt stays where it is planned", f"{need} bytes, {spot.size} are planned"
        if hit:
            yield Finding("right", step.origin, text, f"{value}; {', '.join(hit)} lies behind", _REMEDY)
        elif over > 0:
            yield Finding("plan", step.origin, text, f"{value}; {over} bytes behind the plan are written", _REMEDY)
