"""A transposed convolution without a stride is a convolution of the weight turned round.

With taps t at a distance d, ``y[o] = sum x[i] * w[t]`` over ``i + t*d = o + p``. Counted from the
last tap, ``t' = k-1 - t``, that is ``i = o + t'*d - ((k-1)*d - p)``: a convolution that pads
``(k-1)*d - p``. The weight [I, O/G, k...] becomes [O, I/G, k...], group by group. Each number is
the same sum.

It is rewritten where that helps: with several groups, which no chip takes, and in front of a
BatchNormalization, which a convolution takes up. Left alone: what pads more than its kernel
reaches, and what has a stride.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason

__all__ = ["convert_unit_stride_conv_transpose"]


def convert_unit_stride_conv_transpose(model: ir.Model) -> PassResult:
    """Rewrite the transposed convolutions of `model` that have no stride."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "ConvTranspose" or node.domain or not _is_beneficial(node):
            continue
        weight = ir.const_value(node.inputs[1])
        barred = (
            "its weight is computed at run time"
            if weight is None
            else _explain_unconvertible(node, weight.ndim - 2)
        )
        if barred or weight is None:
            why.append(SkipReason(node, barred))
            continue
        _replace_with_conv(model, node, weight)
        changed += 1
    return PassResult(changed, why)


def _is_beneficial(node: ir.Node) -> bool:
    behind = ir.sole_consumer(node.outputs[0])
    return ir.get_attr(node, "group", 1) > 1 or (
        behind is not None and behind.op_type == "BatchNormalization"
    )


def _explain_unconvertible(node: ir.Node, rank: int) -> str:
    """Return why `node` is no convolution without a stride; empty where it is one."""
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        return "its padding follows from a wanted output size"
    if set(ir.get_attr(node, "strides", [1] * rank)) != {1} or any(
        ir.get_attr(node, "output_padding", [0] * rank)
    ):
        return "it has a stride"
    reach = _kernel_reach(node, ir.require_const_value(node.inputs[1]).shape[2:])
    if any(pad > most for pad, most in zip(_get_pads(node, rank), [*reach, *reach], strict=True)):
        return "it pads more than its kernel reaches"
    return ""


def _get_pads(node: ir.Node, rank: int) -> list[int]:
    return list(ir.get_attr(node, "pads", [0] * 2 * rank))


def _kernel_reach(node: ir.Node, kernel: tuple[int, ...]) -> list[int]:
    """Return from the first to the last tap, per axis."""
    return [
        (k - 1) * d
        for k, d in zip(kernel, ir.get_attr(node, "dilations", [1] * len(kernel)), strict=True)
    ]


def _replace_with_conv(model: ir.Model, node: ir.Node, weight: np.ndarray) -> None:
    kernel, group = weight.shape[2:], int(ir.get_attr(node, "group", 1))
    turned = np.flip(weight, axis=tuple(range(2, weight.ndim)))
    groups = turned.reshape(group, -1, *turned.shape[1:]).swapaxes(1, 2)  # [G, O/G, I/G, k...]
    array = np.ascontiguousarray(groups.reshape(-1, *groups.shape[2:]))
    held = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_turned"), array
    )
    reach = _kernel_reach(node, kernel)
    attributes = {
        "kernel_shape": list(kernel),
        "strides": [1] * len(kernel),
        "dilations": list(ir.get_attr(node, "dilations", [1] * len(kernel))),
        "pads": [
            most - pad
            for pad, most in zip(_get_pads(node, len(kernel)), [*reach, *reach], strict=True)
        ],
        "group": group,
    }
    inputs = [node.inputs[0], held, *node.inputs[2:]]
    new = ir.make_node("Conv", inputs, attributes, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [new])
