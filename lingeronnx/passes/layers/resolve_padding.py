"""Padding as the four numbers the NPU takes.

Auto_pad resolved, a zero Pad in front of a window merged.
Convolutions pad with zeros themselves; an average without padding counts them (count_include_pad);
a maximum of numbers that are not negative, behind a Relu, is the same with zeros as without.

Needs static spatial dimensions for SAME padding; without them the node is left as it is (and later
stays in float).
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...ops import is_relu_like
from .._pass import PassResult, SkipReason

_WINDOWED_OPS = operators.WINDOWED_OPS - {"ConvTranspose"}


def resolve_padding(model: ir.Model) -> PassResult:
    """Resolve auto_pad and merge Pad nodes of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type in _WINDOWED_OPS and not node.domain:
            changed += _resolve_auto_pad(node)
            if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
                why.append(
                    SkipReason(node, "auto_pad needs static spatial dimensions and a known kernel")
                )
            pad = ir.producer(node.inputs[0])
            merged = _merge_pad(model, node)
            changed += merged
            if pad is not None and pad.op_type == "Pad" and not merged:
                why.append(SkipReason(pad, _explain_unmerged_pad(pad, node)))
    return PassResult(changed, why)


def _explain_unmerged_pad(pad: ir.Node, node: ir.Node) -> str:
    """Return why `pad` stays in front of the window `node`."""
    if ir.sole_consumer(pad.outputs[0]) is not node:
        return "it is read elsewhere too"
    pads = _get_zero_pads(pad)
    if pads is None:
        return "it does not pad with zeros, or its pads are computed at run time"
    half = len(pads) // 2
    if any(pads[:2]) or any(pads[half : half + 2]) or min(pads) < 0:
        return "it pads the batch or the channels, or takes away"
    return f"{node.op_type} {node.name} would not give the same with pads of its own"


def _resolve_auto_pad(node: ir.Node) -> int:
    mode = ir.get_attr(node, "auto_pad", "NOTSET")
    if mode == "NOTSET":
        return 0
    source = ir.get_shape(node.inputs[0])
    weight = ir.const_value(node.inputs[1]) if node.op_type == "Conv" else None
    kernel = ir.get_attr(node, "kernel_shape") or (
        list(weight.shape[2:]) if weight is not None else None
    )
    if kernel is None or source is None or any(d is None for d in source[2:]):
        return 0
    rank = len(kernel)
    strides, dilations = (
        ir.get_attr(node, "strides", [1] * rank),
        ir.get_attr(node, "dilations", [1] * rank),
    )
    begins, ends = [0] * rank, [0] * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis, (size, k, s, d) in enumerate(
            zip(source[2:], kernel, strides, dilations, strict=True)
        ):
            assert size is not None
            total = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
            small, large = total // 2, total - total // 2
            begins[axis], ends[axis] = (small, large) if mode == "SAME_UPPER" else (large, small)
    del node.attributes["auto_pad"]
    ir.set_attr(node, "pads", begins + ends)
    return 1


def _merge_pad(model: ir.Model, node: ir.Node) -> int:
    pad = ir.producer(node.inputs[0])
    if (
        pad is None
        or pad.op_type != "Pad"
        or pad.domain
        or ir.sole_consumer(pad.outputs[0]) is not node
    ):
        return 0
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return 0
    pads = _get_zero_pads(pad)
    if pads is None:
        return 0
    rank = len(pads) // 2
    begins, ends = pads[:rank], pads[rank:]
    if any(begins[:2]) or any(ends[:2]) or min(pads) < 0:
        return 0
    own = ir.get_attr(node, "pads", [0] * 2 * (rank - 2))
    if node.op_type != "Conv" and not _can_merge_into_pool(node, pad, own, begins[2:] + ends[2:]):
        return 0
    ir.set_attr(node, "pads", [a + b for a, b in zip(own, begins[2:] + ends[2:], strict=True)])
    ir.bypass_node(model, pad, ir.require_input(pad))
    return 1


def _get_zero_pads(pad: ir.Node) -> list[int] | None:
    """Return the pads of a Pad with zeros, for all axes; None for another Pad."""
    pads = ir.get_attr(pad, "pads") or (
        ir.const_value(pad.inputs[1]) if len(pad.inputs) > 1 else None
    )
    value = (
        ir.const_value(pad.inputs[2])
        if len(pad.inputs) > 2 and pad.inputs[2] is not None
        else ir.get_attr(pad, "value", 0.0)
    )
    if (
        pads is None
        or value is None
        or ir.get_attr(pad, "mode", "constant") != "constant"
        or np.any(value)
    ):
        return None
    pads = [int(p) for p in pads]
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        axes, shape = ir.const_value(pad.inputs[3]), ir.get_shape(pad.inputs[0])
        if axes is None or shape is None:
            return None
        full = [0] * 2 * len(shape)
        for i, axis in enumerate(axes.reshape(-1)):
            full[int(axis) % len(shape)], full[len(shape) + int(axis) % len(shape)] = (
                pads[i],
                pads[len(axes) + i],
            )
        pads = full
    return pads


def _can_merge_into_pool(node: ir.Node, pad: ir.Node, own: list[int], more: list[int]) -> bool:
    """Whether pooling with pads of its own is pooling over zeros.

    Each must be smaller than the kernel.
    """
    kernel = ir.get_attr(node, "kernel_shape")
    if (
        any(p >= k for p, k in zip(more, [*kernel, *kernel], strict=True))
        or any(own)
        or ir.get_attr(node, "ceil_mode", 0)
    ):
        return False
    if node.op_type == "AveragePool":
        ir.set_attr(node, "count_include_pad", 1)
        return True
    before = ir.producer(pad.inputs[0])
    return before is not None and is_relu_like(before)
