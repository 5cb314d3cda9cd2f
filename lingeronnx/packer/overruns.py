"""What nodes write beyond the work area that is planned for them, and what lies there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from .areas import Node
from .memory import Memory, Spot
from .net import Finding, Net
from .options import PSRAM, SHARE

__all__ = ["OVERRUNS", "overruns"]

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
    return 27 * node.inputs[1].elements + 8


def _lstm_venus(node: Node) -> int:
    return 40 * int(node.step.get("hidden_size"))


def _linear_venusa(node: Node) -> int:
    columns = node.x.shape[-1]
    rows, outputs = node.x.elements // columns, node.y.shape[-1]
    if not node.away or rows == 1:
        return 0
    return 2 * rows * outputs + (rows * columns if node.outside() else 0)


def _glu(node: Node) -> int:
    return 7 * math.prod(node.x.shape[: int(node.step.get("dim", -1)) % len(node.x.shape)]) * node.x.shape[-1]


def _softmax_venusa(node: Node) -> int:
    axis = int(node.step.get("axis", node.step.get("dim", -1))) % len(node.x.shape)
    return 12 * node.x.elements + 8 * math.prod(node.x.shape[axis:])


#: Packing.areas -> operator -> need.
OVERRUNS: Mapping[str, Mapping[str, Need]] = MappingProxyType(
    {
        "venus": {"LayerNormInt": _norm_venus, "LSTMInt": _lstm_venus},
        "arcs": {"LayerNormInt": _norm_later, "AvgPool2dInt": _average},
        "venusA": {
            "LayerNormInt": _norm_later, "AvgPool2dInt": _average, "LinearInt": _linear_venusa, "GluInt": _glu,
            "SoftmaxInt": _softmax_venusa,
        },
    }
)  # fmt: skip

_REMEDY = "place its tensors elsewhere (-m), take --dma_prefetch False, or give another node a larger work area"


def workspace(net: Net, memory: Memory) -> Spot | None:
    """Return the work area that all nodes use: the one of the first node that needs one."""
    both = [memory.spots[name] for name in (f"#workspace-{place}" for place in (SHARE, PSRAM)) if name in memory.spots]
    return min(both, key=lambda spot: spot.first, default=None)


def overruns(net: Net, memory: Memory, table: str, places: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for every node that writes past its work area onto something alive, or past the plan."""
    block = workspace(net, memory)
    if block is None:
        return
    total = memory.shared if block.place == SHARE else memory.psram
    for index, step in enumerate(net.steps):
        rule = OVERRUNS[table].get(step.op)
        node = Node.of(net, step, places)
        need = 0 if rule is None else rule(node)
        if need <= block.size:
            continue
        start, end = block.offset + block.size, block.offset + need
        hit = [name for name, spot in memory.spots.items() if _hit(net, name, spot, block, start, end, index)]
        if step.op == "AvgPool2dInt":
            hit = [name for name in hit if name != step.outputs[0]]
            own, ones = memory.spots[step.outputs[0]], block.offset + math.prod(node.x.shape[2:])
            if own.place == block.place and ones < own.offset < end:
                hit.append(step.outputs[0])
        value = f"{need} bytes, {block.size} are planned"
        text = f"{step.op} stays within its work area"
        if hit:
            yield Finding("right", step.origin, text, f"{value}; {', '.join(sorted(hit))} lies behind", _REMEDY)
        elif end > total:
            yield Finding("plan", step.origin, text, f"{value}; {end - total} bytes behind the plan are written", _REMEDY)


def _hit(net: Net, name: str, spot: Spot, block: Spot, start: int, end: int, index: int) -> bool:
    """Whether a tensor that is alive at node `index` lies in [start, end) of the work area's place."""
    if name.startswith("#workspace") or spot.place != block.place or not spot.first <= index <= spot.last:
        return False
    return spot.offset < end and start < spot.offset + spot.size
