"""Padding as the four numbers the NPU takes: auto_pad resolved, a zero Pad in front of a convolution merged.

Needs static spatial dimensions for SAME padding; without them the node is left as it is (and later stays in float).
"""

from __future__ import annotations

import numpy as np

from .. import ir

_WINDOWED = ("Conv", "MaxPool", "AveragePool")


def explicit_pads(model: ir.Graph) -> int:
    """Resolve auto_pad and merge Pad nodes of `model`; return the number of changes."""
    changed = 0
    for node in list(model.graph):
        if node.op_type in _WINDOWED and not node.domain:
            changed += _resolve(node)
            if node.op_type == "Conv":
                changed += _merge(model, node)
    return changed


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
    if pad is None or pad.op_type != "Pad" or ir.sole_consumer(pad.outputs[0]) is not node:
        return 0
    if ir.attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return 0
    pads = ir.attr(pad, "pads") or (ir.const(pad.inputs[1]) if len(pad.inputs) > 1 else None)
    value = ir.const(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] is not None else ir.attr(pad, "value", 0.0)
    axes = len(pad.inputs) > 3 and pad.inputs[3] is not None
    if pads is None or value is None or axes or ir.attr(pad, "mode", "constant") != "constant" or np.any(value):
        return 0
    pads = [int(p) for p in pads]
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    if any(begins[:2]) or any(ends[:2]) or min(pads) < 0:
        return 0
    own = ir.attr(node, "pads", [0] * 2 * (rank - 2))
    ir.set_attr(node, "pads", [a + b for a, b in zip(own, begins[2:] + ends[2:], strict=True)])
    ir.remove(model, pad, ir.source(pad))
    return 1
