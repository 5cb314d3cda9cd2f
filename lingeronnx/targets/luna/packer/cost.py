"""What a graph costs on a chip: multiply-accumulates, bytes, memory, transfers; per layer and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ....formats import BMM, CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LINEAR, LSTM
from ... import Platform
from .memory import Memory
from .net import Net, Step
from .options import PSRAM

__all__ = ["Cost", "LayerCost", "cost_of"]


_HEAD = ("layer", "operator", "MACs", "width", "weights", "activations", "work area", "DMA")


@dataclass(frozen=True)
class LayerCost:
    """One node of the planned graph, called by the node that it comes from; all sizes in bytes.

    width : bits of data by bits of weights. weights : as stored, bias included. activations : read and written.
    work_area : planned for it. dma : constants fetched, and tensors in PSRAM read and written.
    """

    node: str
    op_type: str
    macs: int
    width: str
    weights: int
    activations: int
    work_area: int
    dma: int


@dataclass(frozen=True)
class Cost:
    """All of a graph; sizes in bytes.

    macs : {width: multiply-accumulates of one sample}. shared, psram : the most that is planned at once, constants
    included; the limits are the chip's. largest : the tensors that fill shared memory, {name: bytes}.
    """

    layers: Sequence[LayerCost]
    macs: Mapping[str, int]
    weights: int
    activations: int
    dma: int
    shared: int
    shared_limit: int
    psram: int
    psram_limit: int
    largest: Mapping[str, int]

    def text(self) -> str:
        """Return the totals as a line."""
        macs = ", ".join(f"{count:,} MACs {width}" for width, count in self.macs.items()) or "no MACs"
        memory = f"shared memory {self.shared:,} of {self.shared_limit:,} bytes"
        outside = f"psram {self.psram:,} of {self.psram_limit:,}"
        return f"{macs}; weights {self.weights:,} bytes; {memory}, {outside}; {self.dma:,} bytes over DMA"

    def table(self, most: int = 24, totals: bool = True) -> list[str]:
        """Return layer by layer as lines of equal columns, the `most` heaviest of a long net, and with `totals` all."""
        kept = sorted(range(len(self.layers)), key=lambda i: (-self.layers[i].macs, -self.layers[i].activations))[:most]
        rows: list[tuple[str, ...]] = [_HEAD]
        for layer in (self.layers[i] for i in sorted(kept)):
            sizes = (layer.weights, layer.activations, layer.work_area, layer.dma)
            rows.append((layer.node, layer.op_type, f"{layer.macs:,}", layer.width, *(f"{n:,}" for n in sizes)))
        left = len(self.layers) - len(kept)
        total = (self.weights, self.activations, self.dma)
        for width, count in self.macs.items() or [("", 0)]:
            texts = [f"{n:,}" for n in total] if width == next(iter(self.macs), "") else ["", "", ""]
            rows.append(("total", "", f"{count:,}", width, texts[0], texts[1], "", texts[2]))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  "
            + "  ".join(
                t.ljust(w) if i in (0, 1, 3) else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        if left and totals:
            lines.append(f"  ({left} lighter nodes are left out; --json has all)")
        if not totals:
            return lines
        fullest = ", ".join(f"{name} {size:,}" for name, size in list(self.largest.items())[:3])
        lines.append(f"  peak of shared memory {self.shared:,} of {self.shared_limit:,} bytes (largest: {fullest})")
        return [*lines, f"  peak of psram {self.psram:,} of {self.psram_limit:,} bytes, constants included"]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            **vars(self),
            "layers": [asdict(layer) for layer in self.layers],
            "macs": dict(self.macs),
            "largest": dict(self.largest),
        }


def cost_of(net: Net, memory: Memory, row: Platform) -> Cost:
    """Return what the prepared graph costs under its plan."""
    seen: set[str] = set()
    layers = [_layer(net, memory, step, seen) for step in net.steps]
    macs: dict[str, int] = {}
    for layer in layers:
        if layer.macs:
            macs[layer.width] = macs.get(layer.width, 0) + layer.macs
    outside = memory.psram + (memory.constants if memory.constants_in == PSRAM else 0)
    shared = {name: spot.size for name, spot in memory.spots.items() if spot.place != PSRAM}
    largest = dict(sorted(shared.items(), key=lambda item: -item[1])[:5])
    return Cost(
        layers=layers,
        macs=macs,
        weights=memory.constants,
        activations=sum(layer.activations for layer in layers),
        dma=sum(layer.dma for layer in layers),
        shared=memory.need,
        shared_limit=memory.limit,
        psram=outside,
        psram_limit=row.external_memory or 0,
        largest=largest,
    )


_PARTIAL = ("Slice", "Gather")


def _layer(net: Net, memory: Memory, step: Step, seen: set[str]) -> LayerCost:
    """Return one layer; a constant that several read is counted at the first of them."""
    own = net.constants(step)
    weights = sum(memory.stored[t.name] for t in own if t.name not in seen)
    seen |= {t.name for t in own}
    made = [net.tensors[n] for n in step.outputs]
    most = sum(t.bytes for t in made) if step.op in _PARTIAL else None  # of its input it reads what it writes
    touched = {t.name: t.bytes if most is None else min(t.bytes, most) for t in net.data(step)}
    touched |= {t.name: t.bytes for t in made}
    outside = sum(size for name, size in touched.items() if memory.spots[name].place == PSRAM)
    fetched = sum(memory.stored[t.name] for t in own) if memory.constants_in == PSRAM else 0
    return LayerCost(
        step.origin or step.name,
        step.op,
        _macs(net, step),
        _width(net, step),
        weights,
        sum(touched.values()),
        memory.areas.get(step.name, 0),
        outside + fetched,
    )


def _macs(net: Net, step: Step) -> int:
    """Return the multiply-accumulates of a step."""
    shapes = [net.tensors[n].shape for n in step.inputs]
    result = net.tensors[step.outputs[0]]
    if step.op in (CONV2D.name, CONV1D.name):
        return result.elements * math.prod(shapes[1][1:])
    if step.op == CONV_TRANSPOSE2D.name:
        return math.prod(shapes[0]) * math.prod(shapes[1][1:])
    if step.op in (LINEAR.name, BMM.name):
        return result.elements * shapes[0][-1]
    if step.op in (LSTM.name, GRU.name):
        weights = [s for s in shapes[1:] if len(s) == 2]
        return result.shape[1] * sum(math.prod(s) for s in weights)
    return 0


def _width(net: Net, step: Step) -> str:
    """Return the widths of what is multiplied, such as 8x8."""
    widths = [8 * net.tensors[n].width for n in step.inputs[:2]]
    return "x".join(map(str, widths)) if _macs(net, step) else ""
