"""Cost of a graph on a chip, per layer and in total: multiply-accumulates, bytes, transfers."""

from __future__ import annotations

import math

from ...operators.integer_ops import BMM, CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LINEAR, LSTM
from ...targets.verdict import GraphCost, LayerCost, PlannedBuffer
from .memory.plan import MemoryPlan
from .options import PSRAM, SHARE
from .packer_graph import PackerGraph, PackerStep

__all__ = ["compute_graph_cost"]


def compute_graph_cost(net: PackerGraph, memory: MemoryPlan, external_bytes: int) -> GraphCost:
    """Sum up multiply-accumulates, bytes and transfers of `net`, per layer and in total.

    `memory` is the plan of the transformed graph `net`; `external_bytes` is the size of the chip's
    external memory. The result also has shared memory and PSRAM with their limits (all in bytes)
    and the five largest allocations that are not in PSRAM.
    """
    counted_constants: set[str] = set()
    layers = [_compute_layer_cost(net, memory, step, counted_constants) for step in net.steps]
    macs: dict[str, int] = {}
    for layer in layers:
        if layer.macs:
            macs[layer.width] = macs.get(layer.width, 0) + layer.macs
    constants_in_psram = memory.constant_bytes if memory.constant_memory == PSRAM else 0
    shared_sizes = {
        name: allocation.size
        for name, allocation in memory.allocations.items()
        if allocation.memory != PSRAM
    }
    largest = dict(sorted(shared_sizes.items(), key=lambda item: -item[1])[:5])
    return GraphCost(
        layers=layers,
        macs=macs,
        weights=memory.constant_bytes,
        activations=sum(layer.activations for layer in layers),
        dma=sum(layer.dma for layer in layers),
        shared=memory.required_bytes,
        shared_limit=memory.limit_bytes,
        psram=memory.psram_bytes + constants_in_psram,
        psram_limit=external_bytes,
        largest=largest,
        buffers=[
            PlannedBuffer(name, used.kind, used.offset, used.size, used.first_step, used.last_step)
            for name, used in memory.allocations.items()
            if used.memory == SHARE and used.size
        ],
    )


#: Operators that read no more bytes of an input than they write.
_PARTIAL_READ_OPERATORS = ("Slice", "Gather")


def _compute_layer_cost(
    net: PackerGraph, memory: MemoryPlan, step: PackerStep, counted_constants: set[str]
) -> LayerCost:
    """Compute the cost of `step`: MACs, bytes of weights, activations and work area, and DMA bytes.

    DMA counts the activations in PSRAM and, if constants are in PSRAM, all constants of the step.
    Weights in `counted_constants` are not counted again; the step's constants are added to that set
    in place.
    """
    constants = net.get_constants(step)
    weights = sum(memory.stored_bytes[t.name] for t in constants if t.name not in counted_constants)
    counted_constants |= {t.name for t in constants}
    accessed = _get_accessed_bytes(net, step)
    psram_bytes = sum(
        size for name, size in accessed.items() if memory.allocations[name].memory == PSRAM
    )
    fetched_bytes = 0
    if memory.constant_memory == PSRAM:
        fetched_bytes = sum(memory.stored_bytes[t.name] for t in constants)
    return LayerCost(
        node=step.origin or step.name,
        op_type=step.op,
        macs=_count_macs(net, step),
        width=_format_mac_width(net, step),
        weights=weights,
        activations=sum(accessed.values()),
        work_area=memory.work_areas.get(step.name, 0),
        dma=psram_bytes + fetched_bytes,
    )


def _get_accessed_bytes(net: PackerGraph, step: PackerStep) -> dict[str, int]:
    """Return activation name -> bytes that `step` reads or writes.

    A Slice or Gather reads at most as many bytes of each input as it writes.
    """
    outputs = {name: net.tensors[name].size_bytes for name in step.outputs}
    inputs = {tensor.name: tensor.size_bytes for tensor in net.data(step)}
    if step.op in _PARTIAL_READ_OPERATORS:
        output_bytes = sum(net.tensors[name].size_bytes for name in step.outputs)
        inputs = {name: min(size, output_bytes) for name, size in inputs.items()}
    return {**inputs, **outputs}


def _count_macs(net: PackerGraph, step: PackerStep) -> int:
    """Return the multiply-accumulates of `step` for the tensor shapes in `net`.

    Counted are convolutions, LinearInt, BmmInt, LSTMInt and GRUInt (2-D weights times steps); 0 for
    any other operator.
    """
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
    """Return the bits of both operands of the products, such as "8x8"; "" if `step` has no MACs.

    A constant second operand counts with its declared weight bits if these are fewer.
    """
    widths = [8 * net.tensors[n].width for n in step.inputs[:2]]
    if len(widths) > 1 and net.tensors[step.inputs[1]].is_constant:
        widths[1] = min(widths[1], step.weight_bits)
    return "x".join(map(str, widths)) if _count_macs(net, step) else ""
