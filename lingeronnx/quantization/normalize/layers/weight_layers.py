"""Scale the output or input channels of Conv and Linear; shared by several passes."""

from __future__ import annotations

import numpy as np

from ....ir import ir


def is_weight_layer(node: ir.Node) -> bool:
    """Whether `node` is a Conv or the model-local Linear, with the outputs on weight axis 0."""
    return (node.op_type == "Conv" and not node.domain) or (
        node.op_type == "Linear" and node.domain == ir.FUNCTION_DOMAIN
    )


def channel_axis(node: ir.Node) -> int:
    """Return the channel axis of the output of `node`: 1 for a Conv, -1 (the last) for a Linear."""
    return 1 if node.op_type == "Conv" else -1


def scale_layer_outputs(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Change weight and bias so that `node` computes ``factor * y + offset`` per output channel.

    In place; a missing bias is added.

    Parameters
    ----------
    model
        The model of the node.
    node
        The layer.
    factor, offset
        float64, [O] or [1].

    Returns
    -------
    bool
        False, without a change, if `node` is no Conv or Linear, its weight or bias is computed at
        run time, or `factor` has another length.
    """
    if not is_weight_layer(node):
        return False
    weight = ir.const_value(node.inputs[1])
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    if len(factor) not in (1, weight.shape[0]):
        return False
    factor = np.broadcast_to(factor, weight.shape[:1])
    new_weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))  # [O, ...] * [O, 1, ...]
    new_bias = (0.0 if bias is None else bias.astype(np.float64)) * factor + offset
    ir.set_constant_input(model, node, 1, new_weight.astype(weight.dtype), "scaled")
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    if bias_value is None:
        name = ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_bias")
        node.replace_input_with(2, ir.add_initializer(model, name, new_bias.astype(weight.dtype)))
    else:
        ir.set_constant_input(model, node, 2, new_bias.astype(weight.dtype), "scaled")
    return True


def fold_affine_into_layer_inputs(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Change weight and bias so that `node` reads ``factor * x + offset`` per input channel.

    In place; a missing bias is added if needed. The layer must not pad unless the offset is 0.

    Parameters
    ----------
    model
        The model of the node.
    node
        The layer.
    factor, offset
        float64, [I].

    Returns
    -------
    bool
        False, without a change, if the weight, or a bias that it has, is not constant.
    """
    weight = ir.const_value(node.inputs[1])
    bias_value = node.inputs[2] if len(node.inputs) > 2 else None
    bias = ir.const_value(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    group = int(ir.get_attr(node, "group", 1)) if node.op_type == "Conv" else 1
    out_per_group, in_per_group = len(weight) // group, weight.shape[1]
    # input channel of each weight: [G, 1, I/G], broadcast to [O, I/G]
    group_channels = np.arange(group)[:, None, None] * in_per_group + np.arange(in_per_group)
    channels = np.broadcast_to(group_channels, (group, out_per_group, in_per_group))
    channels = channels.reshape(weight.shape[:2])
    kernels = weight.astype(np.float64).reshape(*weight.shape[:2], -1)
    shift = (kernels.sum(axis=2) * offset[channels]).sum(axis=1)
    scaled = (kernels * factor[channels][..., None]).reshape(weight.shape)
    ir.set_constant_input(model, node, 1, scaled.astype(weight.dtype), "scaled")
    if bias_value is not None and bias is not None:
        new_bias = (bias.astype(np.float64) + shift).astype(weight.dtype)
        ir.set_constant_input(model, node, 2, new_bias, "scaled")
    elif shift.any():
        node.resize_inputs(3)
        name = ir.unique_tensor_name(model, f"{ir.input_name(node, 1)}_bias")
        node.replace_input_with(2, ir.add_initializer(model, name, shift.astype(weight.dtype)))
    return True
