"""What a graph costs on a chip: multiply-accumulates, bytes, memory, transfers.

Per layer and in total.
"""

from __future__ import annotations

import math

from ....formats import BMM, CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LINEAR, LSTM
from ...verdict import GraphCost, LayerCost
from .memory.plan import MemoryPlan
from .options import PSRAM
from .packer_graph import PackerGraph, PackerStep

__all__ = ["compute_graph_cost"]


def compute_graph_cost(net: PackerGraph, memory: MemoryPlan, external_bytes: int) -> GraphCost:
    """Return what the prepared graph costs under its plan.

    External : bytes of the memory outside.
    """
    counted: set[str] = set()
    layers = [_compute_layer_cost(net, memory, step, counted) for step in net.steps]
    macs: dict[str, int] = {}
    for layer in layers:
        if layer.macs:
            macs[layer.width] = macs.get(layer.width, 0) + layer.macs
    outside = memory.psram_bytes + (memory.constant_bytes if memory.constant_memory == PSRAM else 0)
    shared = {name: spot.size for name, spot in memory.allocations.items() if spot.place != PSRAM}
    largest = dict(sorted(shared.items(), key=lambda item: -item[1])[:5])
    return GraphCost(
        layers=layers,
        macs=macs,
        weights=memory.constant_bytes,
        activations=sum(layer.activations for layer in layers),
        dma=sum(layer.dma for layer in layers),
        shared=memory.required_bytes,
        shared_limit=memory.limit_bytes,
        psram=outside,
        psram_limit=external_bytes,
        largest=largest,
    )


_PARTIAL_READ_OPERATORS = ("Slice", "Gather")


def _compute_layer_cost(
    net: PackerGraph, memory: MemoryPlan, step: PackerStep, counted: set[str]
) -> LayerCost:
    """Return one layer; a constant that several read is counted at the first of them."""
    own = net.get_constants(step)
    weights = sum(memory.stored_bytes[t.name] for t in own if t.name not in counted)
    counted |= {t.name for t in own}
    outputs = [net.tensors[n] for n in step.outputs]
    most = (
        sum(t.size_bytes for t in outputs) if step.op in _PARTIAL_READ_OPERATORS else None
    )  # of its input it reads what it writes
    touched = {
        t.name: t.size_bytes if most is None else min(t.size_bytes, most) for t in net.data(step)
    }
    touched |= {t.name: t.size_bytes for t in outputs}
    outside = sum(size for name, size in touched.items() if memory.allocations[name].place == PSRAM)
    fetched = (
        sum(memory.stored_bytes[t.name] for t in own) if memory.constant_memory == PSRAM else 0
    )
    return LayerCost(
        node=step.origin or step.name,
        op_type=step.op,
        macs=_count_macs(net, step),
        width=_format_mac_width(net, step),
        weights=weights,
        activations=sum(touched.values()),
        work_area=memory.work_areas.get(step.name, 0),
        dma=outside + fetched,
    )


def _count_macs(net: PackerGraph, step: PackerStep) -> int:
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


def _format_mac_width(net: PackerGraph, step: PackerStep) -> str:
    """Return the widths of what is multiplied, such as 8x8."""
    widths = [8 * net.tensors[n].width for n in step.inputs[:2]]
    if len(widths) > 1 and net.tensors[step.inputs[1]].is_constant:
        widths[1] = min(widths[1], step.weight_bits)
    return "x".join(map(str, widths)) if _count_macs(net, step) else ""
