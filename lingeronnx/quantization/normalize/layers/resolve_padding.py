"""Convert auto_pad, and a Pad with zeros before a windowed operator, to its explicit pads.

Convolutions pad with zeros themselves; an average can count padded zeros (count_include_pad); a
maximum of nonnegative values, after a Relu, is the same with zeros.

SAME padding needs static spatial dimensions; without them the node is not changed (and later stays
in float).
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from ....operators.lowerings import is_relu_like
from .._pass import PassResult, SkipReason

_WINDOWED_OPS = float_ops.WINDOWED_OPS - {"ConvTranspose"}


def resolve_padding(model: ir.Model) -> PassResult:
    """Give Conv and pools of `model` explicit pads: for `auto_pad`, and for a Pad before them.

    In place. A Pad with zeros is merged into the operator that alone reads it. Nodes whose
    `auto_pad` remains because sizes are unknown, and Pads that cannot be merged, are skipped with a
    reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in _WINDOWED_OPS or node.domain:
            continue
        changes += _resolve_auto_pad(node)
        if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
            reason = "auto_pad needs static spatial dimensions and a known kernel"
            skipped.append(SkipReason(node, reason))
        pad = ir.producer(node.inputs[0])
        if pad is None or pad.op_type != "Pad":
            continue
        if _merge_pad(model, node, pad):
            changes += 1
        else:
            skipped.append(SkipReason(pad, _explain_unmerged_pad(pad, node)))
    return PassResult(changes, skipped)


def _explain_unmerged_pad(pad: ir.Node, node: ir.Node) -> str:
    """Explain why `pad` was not merged into the windowed operator `node`, its consumer."""
    if ir.sole_consumer(pad.outputs[0]) is not node:
        return "it is used elsewhere too"
    pads = _get_zero_pads(pad)
    if pads is None:
        return "it does not pad with zeros, or its pads are computed at run time"
    if not _pads_space_only(pads):
        return "it pads the batch or the channels, or crops"
    return f"{node.op_type} {node.name} would not give the same result with these pads"


def _pads_space_only(pads: list[int]) -> bool:
    """Whether `pads` (all begins, then all ends) are >= 0, and 0 for batch and channels."""
    rank = len(pads) // 2
    return not any(pads[:2]) and not any(pads[rank : rank + 2]) and min(pads) >= 0


def _resolve_auto_pad(node: ir.Node) -> int:
    """Replace `auto_pad` of `node` by `pads`, in place; return 1, or 0 if a size is unknown.

    0 also without `auto_pad`. An odd total of SAME_UPPER has its larger half at the end, of
    SAME_LOWER at the beginning; VALID has no pads.
    """
    mode = ir.get_attr(node, "auto_pad", "NOTSET")
    if mode == "NOTSET":
        return 0
    shape, kernel = ir.get_shape(node.inputs[0]), _get_kernel_shape(node)
    if not kernel or shape is None or None in shape[2:]:
        return 0
    pads = [0] * 2 * len(kernel)
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = _total_same_padding(node, ir.get_sample_dims(node.inputs[0])[1:], kernel)
        smaller = [total // 2 for total in totals]
        larger = [total - total // 2 for total in totals]
        pads = smaller + larger if mode == "SAME_UPPER" else larger + smaller
    del node.attributes["auto_pad"]
    ir.set_attr(node, "pads", pads)
    return 1


def _get_kernel_shape(node: ir.Node) -> list[int] | None:
    """Return `kernel_shape`, or for a Conv without it the spatial dimensions of the weight.

    None if neither is known.
    """
    kernel: list[int] | None = ir.get_attr(node, "kernel_shape")
    if kernel or node.op_type != "Conv":
        return kernel
    weight = ir.const_value(node.inputs[1])
    return None if weight is None else list(weight.shape[2:])


def _total_same_padding(node: ir.Node, sizes: list[int], kernel: list[int]) -> list[int]:
    """Return the total padding (begin + end) per spatial axis for an output of ceil(size / stride).

    `sizes` are the input's spatial dimensions, `kernel` the window's. At least 0.
    """
    strides = ir.get_attr(node, "strides", [1] * len(kernel))
    dilations = ir.get_attr(node, "dilations", [1] * len(kernel))
    return [
        max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
        for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]


def _merge_pad(model: ir.Model, node: ir.Node, pad: ir.Node) -> bool:
    """Add the pads of the Pad node `pad` to the windowed operator `node` after it; return whether.

    False, without a change, unless it pads spatial axes with zeros and only `node` reads it; for
    pools, the mean or maximum must stay the same.
    """
    if pad.domain or ir.sole_consumer(pad.outputs[0]) is not node:
        return False
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    pads = _get_zero_pads(pad)
    if pads is None or not _pads_space_only(pads):
        return False
    rank = len(pads) // 2
    added = pads[2:rank] + pads[rank + 2 :]
    current = ir.get_attr(node, "pads", [0] * 2 * (rank - 2))
    if node.op_type != "Conv" and not _can_merge_into_pool(node, pad, current, added):
        return False
    ir.set_attr(node, "pads", [a + b for a, b in zip(current, added, strict=True)])
    ir.bypass_node(model, pad, ir.require_input(pad))
    return True


def _get_zero_pads(pad: ir.Node) -> list[int] | None:
    """Return the pads of all axes of a Pad with zeros: all begins, then all ends.

    Axes not listed in input 3 get 0. None if the mode or the value differs, or if pads or axes are
    computed at run time.
    """
    if ir.get_attr(pad, "mode", "constant") != "constant" or not _pads_with_zeros(pad):
        return None
    pads = _get_stored_pads(pad)
    if pads is None:
        return None
    if len(pad.inputs) <= 3 or pad.inputs[3] is None:
        return pads
    axes, shape = ir.const_value(pad.inputs[3]), ir.get_shape(pad.inputs[0])
    if axes is None or shape is None:
        return None
    return _expand_pads(pads, [int(axis) for axis in axes.reshape(-1)], len(shape))


def _get_stored_pads(pad: ir.Node) -> list[int] | None:
    """Return the pads of a Pad node, from its attribute or constant input 1; None if computed."""
    pads = ir.get_attr(pad, "pads")
    if not pads:
        pads = ir.const_value(pad.inputs[1]) if len(pad.inputs) > 1 else None
    return None if pads is None else [int(count) for count in pads]


def _expand_pads(pads: list[int], axes: list[int], rank: int) -> list[int]:
    """Return the pads of `rank` axes from `pads` of `axes`, with 0 for the others.

    Both lists have all begins first, then all ends. `axes` may be negative.
    """
    full_pads = [0] * 2 * rank
    for index, axis in enumerate(axes):
        full_pads[axis % rank] = pads[index]
        full_pads[rank + axis % rank] = pads[len(axes) + index]
    return full_pads


def _pads_with_zeros(pad: ir.Node) -> bool:
    """Whether the value of a Pad is the constant zero, which is the default."""
    value = ir.get_attr(pad, "value", 0.0)
    if len(pad.inputs) > 2 and pad.inputs[2] is not None:
        value = ir.const_value(pad.inputs[2])
    return value is not None and not np.any(value)


def _can_merge_into_pool(node: ir.Node, pad: ir.Node, current: list[int], added: list[int]) -> bool:
    """Whether the pool `node` with pads `added` computes the same as after `pad`, a Pad with zeros.

    False if it has pads (`current`) or `ceil_mode`, if a pad is as large as the kernel, or if the
    input of a MaxPool may be negative. If True for an AveragePool, sets its `count_include_pad`, in
    place.
    """
    kernel = ir.get_attr(node, "kernel_shape")
    if any(count >= taps for count, taps in zip(added, [*kernel, *kernel], strict=True)):
        return False
    if any(current) or ir.get_attr(node, "ceil_mode", 0):
        return False
    if node.op_type == "AveragePool":
        ir.set_attr(node, "count_include_pad", 1)
        return True
    producer = ir.producer(pad.inputs[0])
    return producer is not None and is_relu_like(producer)
