"""Shared by passes: what a weight layer is and how to scale its output channels."""

from __future__ import annotations

import numpy as np

from ...graph import ir


def is_weight_layer(node: ir.Node) -> bool:
    """Whether `node` multiplies by a weight whose axis 0 is the output channel."""
    return (node.op_type == "Conv" and not node.domain) or (
        node.op_type == "Linear" and node.domain == ir.FUNCTION_DOMAIN
    )


def channel_axis(node: ir.Node) -> int:
    """Return the axis of the output that the weight's axis 0 runs along.

    1 for Conv, the last for Linear.
    """
    return 1 if node.op_type == "Conv" else -1


def scale_layer_outputs(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Make `node` compute ``factor * y + offset`` per output channel.

    False when it has no constant weight.
    factor, offset : float64 [O].
    """
    if not is_weight_layer(node):
        return False
    weight = ir.const_value(node.inputs[1])
    old = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(old)
    if weight is None or (old is not None and bias is None):
        return False
    if len(factor) not in (1, weight.shape[0]):
        return False
    factor = np.broadcast_to(factor, weight.shape[:1])
    new_weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))  # [O, ...] * [O, 1, ...]
    new_bias = (0.0 if bias is None else bias.astype(np.float64)) * factor + offset
    ir.set_constant_input(model, node, 1, new_weight.astype(weight.dtype), "scaled")
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    if old is None:
        name = ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_bias")
        node.replace_input_with(2, ir.add_initializer(model, name, new_bias.astype(weight.dtype)))
    else:
        ir.set_constant_input(model, node, 2, new_bias.astype(weight.dtype), "scaled")
    return True


def fold_affine_into_layer_inputs(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Make `node` compute what it does of ``factor * x + offset`` per input channel.

    False when it has no constants.
    factor, offset : float64 [I]. Nothing is padded where the offset is not 0.
    """
    weight = ir.const_value(node.inputs[1])
    old = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(old)
    if weight is None or (old is not None and bias is None):
        return False
    group = int(ir.get_attr(node, "group", 1)) if node.op_type == "Conv" else 1
    rows = (len(weight) // group, weight.shape[1])
    of = np.arange(group)[:, None, None] * rows[1] + np.arange(
        rows[1]
    )  # [G, 1, I/G]: the input channel
    channels = np.broadcast_to(of, (group, *rows)).reshape(weight.shape[:2])
    lines = weight.astype(np.float64).reshape(*weight.shape[:2], -1)
    shift = (lines.sum(axis=2) * offset[channels]).sum(axis=1)
    scaled = (lines * factor[channels][..., None]).reshape(weight.shape)
    ir.set_constant_input(model, node, 1, scaled.astype(weight.dtype), "scaled")
    if old is not None and bias is not None:
        ir.set_constant_input(
            model, node, 2, (bias.astype(np.float64) + shift).astype(weight.dtype), "scaled"
        )
    elif shift.any():
        node.resize_inputs(3)
        name = ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_bias")
        node.replace_input_with(2, ir.add_initializer(model, name, shift.astype(weight.dtype)))
    return True
