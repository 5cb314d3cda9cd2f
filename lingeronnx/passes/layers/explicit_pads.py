"""Padding as the four numbers the NPU takes: auto_pad resolved, a zero Pad in front of a window merged.

Convolutions pad with zeros themselves; an average without padding counts them (count_include_pad); a maximum of
numbers that are not negative, behind a Relu, is the same with zeros as without.

Needs static spatial dimensions for SAME padding; without them the node is left as it is (and later stays in float).
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...ops import is_relu
from .._pass import Answer, Reason

_WINDOWED = operators.WINDOWS - {"ConvTranspose"}


def explicit_pads(model: ir.Graph) -> Answer:
    """Resolve auto_pad and merge Pad nodes of `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type in _WINDOWED and not node.domain:
            changed += _resolve(node)
            if ir.attr(node, "auto_pad", "NOTSET") != "NOTSET":
                why.append(Reason(node, "auto_pad needs static spatial dimensions and a known kernel"))
            pad = ir.producer(node.inputs[0])
            merged = _merge(model, node)
            changed += merged
            if pad is not None and pad.op_type == "Pad" and not merged:
                why.append(Reason(pad, _reason(pad, node)))
    return Answer(changed, why)


def _reason(pad: ir.Node, node: ir.Node) -> str:
    """Return why `pad` stays in front of the window `node`."""
    if ir.sole_consumer(pad.outputs[0]) is not node:
        return "it is read elsewhere too"
    pads = _zeros(pad)
    if pads is None:
        return "it does not pad with zeros, or its pads are computed at run time"
    half = len(pads) // 2
    if any(pads[:2]) or any(pads[half : half + 2]) or min(pads) < 0:
        return "it pads the batch or the channels, or takes away"
    return f"{node.op_type} {node.name} would not give the same with pads of its own"


def _resolve(node: ir.Node) -> int:
    mode = ir.attr(node, "auto_pad", "NOTSET")
    if mode == "NOTSET":
        return 0
    source = ir.shape(node.inputs[0])
    weight = ir.const(node.inputs[1]) if node.op_type == "Conv" else None
    kernel = ir.attr(node, "kernel_shape") or (list(weight.shape[2:]) if weight is not None else None)
    if kernel is None or source is None or any(d is None for d in source[2:]):
        return 0
    rank = len(kernel)
    strides, dilations = ir.attr(node, "strides", [1] * rank), ir.attr(node, "dilations", [1] * rank)
    begins, ends = [0] * rank, [0] * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis, (size, k, s, d) in enumerate(zip(source[2:], kernel, strides, dilations, strict=True)):
            assert size is not None
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = total // 2, total - total // 2
            begins[axis], ends[axis] = (small, large) if mode == "SAME_UPPER" else (large, small)
    del node.attributes["auto_pad"]
    ir.set_attr(node, "pads", begins + ends)
    return 1


def _merge(model: ir.Graph, node: ir.Node) -> int:
    pad = ir.producer(node.inputs[0])
    if pad is None or pad.op_type != "Pad" or pad.domain or ir.sole_consumer(pad.outputs[0]) is not node:
        return 0
    if ir.attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return 0
    pads = _zeros(pad)
    if pads is None:
        return 0
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    if any(begins[:2]) or any(ends[:2]) or min(pads) < 0:
        return 0
    own = ir.attr(node, "pads", [0] * 2 * (rank - 2))
    if node.op_type != "Conv" and not _pools_alike(node, pad, own, begins[2:] + ends[2:]):
        return 0
    ir.set_attr(node, "pads", [a + b for a, b in zip(own, begins[2:] + ends[2:], strict=True)])
    ir.remove(model, pad, ir.source(pad))
    return 1


def _zeros(pad: ir.Node) -> list[int] | None:
    """Return the pads of a Pad with zeros, for all axes; None for another Pad."""
    pads = ir.attr(pad, "pads") or (ir.const(pad.inputs[1]) if len(pad.inputs) > 1 else None)
    value = ir.const(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] is not None else ir.attr(pad, "value", 0.0)
    if pads is None or value is None or ir.attr(pad, "mode", "constant") != "constant" or np.any(value):
        return None
    pads = [int(p) for p in pads]
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        axes, shape = ir.const(pad.inputs[3]), ir.shape(pad.inputs[0])
        if axes is None or shape is None:
            return None
        full = [0] * 2 * len(shape)
        for i, axis in enumerate(axes.reshape(-1)):
            full[int(axis) % len(shape)], full[len(shape) + int(axis) % len(shape)] = pads[i], pads[len(axes) + i]
        pads = full
    return pads


def _pools_alike(node: ir.Node, pad: ir.Node, own: list[int], more: list[int]) -> bool:
    """Whether pooling with pads of its own is pooling over zeros; each must be smaller than the kernel."""
    kernel = ir.attr(node, "kernel_shape")
    if any(p >= k for p, k in zip(more, [*kernel, *kernel], strict=True)) or any(own) or ir.attr(node, "ceil_mode", 0):
        return False
    if node.op_type == "AveragePool":
        ir.set_attr(node, "count_include_pad", 1)
        return True
    before = ir.producer(pad.inputs[0])
    return before is not None and is_relu(before)
