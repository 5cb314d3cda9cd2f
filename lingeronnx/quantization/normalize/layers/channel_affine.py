"""Fold multiplication and addition by constants per channel into the layer before them.

Mul, Div, Add and Sub with a constant operand of one value, or one value per output channel, and
Neg, are folded into a Conv or Linear whose output is not used elsewhere. A Squeeze, an Unsqueeze or
a Transpose may be in between, for positive factors also Relu, LeakyRelu and pools, and for a single
factor Reshape and Flatten. Elsewhere, on four-dimensional tensors, they become a
BatchNormalization, which the NPU has as an operator (`y = a*x + c` per channel: mean 0, variance 1,
epsilon 0). Remaining Div and Sub by several constants become Mul and Add.
"""

from __future__ import annotations

import numpy as np

from ....ir import float_ops, ir
from .._pass import PassResult, SkipReason
from .weight_layers import channel_axis, is_weight_layer, scale_layer_outputs

_FLATTENING_OPS = ("Flatten", "Reshape")


def fold_affine(model: ir.Model) -> PassResult:
    """Fold Add, Sub, Mul and Div with a constant per channel, and Neg, of `model`, in place.

    The node goes into weight and bias of the layer before it. If that is not possible, it becomes a
    BatchNormalization on a four-dimensional tensor, or a Div or Sub by several constants becomes
    Mul or Add. Else it is skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    used_names = ir.get_tensor_names(model)  # once: reading all of them takes linear time
    for node in list(model.graph):
        if ir.is_standard_op(node, "Neg"):
            changes += _fold_neg(model, node)
            continue
        if not ir.is_standard_op(node, *float_ops.AFFINE_OPS):
            continue
        operand = _match_constant_operand(node)
        if operand is None:
            continue
        if _fold_into_layer(model, node, node.op_type, operand):
            changes += 1
            continue
        reason = _explain_unchanged(node, operand)
        changed = _convert_to_batch_norm(model, node, operand, used_names)
        if changed or _convert_div_sub(model, node, operand):
            changes += 1
        else:
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def fold_factor(model: ir.Model, node: ir.Node) -> bool:
    """Fold the Mul `node` by a constant into the Conv or Linear before it.

    Return whether it was folded. False, without a change, if there is no such layer, or its
    parameters are computed at run time.
    """
    operand = _match_constant_operand(node)
    return operand is not None and _fold_into_layer(model, node, node.op_type, operand)


def _fold_neg(model: ir.Model, node: ir.Node) -> int:
    """Fold the Neg `node` as a factor of -1 into the Conv or Linear before it.

    Returns 1, or 0 without a change if that is not possible or the input is not float32.
    """
    source = ir.require_input(node)
    if not ir.is_float32(source):
        return 0
    operand = ir.ConstantOperand(source, np.array(-1.0, np.float32), False)
    return int(_fold_into_layer(model, node, "Mul", operand))


def _fold_into_layer(
    model: ir.Model, node: ir.Node, op_type: str, operand: ir.ConstantOperand
) -> bool:
    """Fold `node`, which computes `op_type` with a constant, into the Conv or Linear before it.

    Returns whether it was folded. The constant (in `operand`) moves upstream through nodes that
    commute with the operation and have one consumer. False, without a change, if it does not reach
    a layer, or if the layer's parameters are not constant or the constant is not per channel.
    """
    source = operand.source
    value, array, user = source, operand.array, node
    intermediate: list[ir.Value] = []
    while (producer := ir.producer(value)) is not None and ir.sole_consumer(value) is user:
        if is_weight_layer(producer):
            coefficients = channel_affine_coefficients(
                op_type, array, operand.is_first, ir.get_shape(value), channel_axis(producer)
            )
            if coefficients is None or not scale_layer_outputs(model, producer, *coefficients):
                return False
            for inner in intermediate:  # a new name, because its elements have changed
                inner.name = ir.unique_tensor_name(model, f"{inner.name}_folded")
            ir.absorb_consumer(model, ir.producer(source) or producer, node)
            return True
        is_scaling = op_type in float_ops.SCALING_OPS and not operand.is_first
        moved = _move_constant_before(producer, array, is_scaling and _is_positive(array))
        if moved is None:
            return False
        value, array, user = ir.require_input(producer), moved, producer
        intermediate.append(value)
    return False


def _is_positive(array: np.ndarray) -> bool:
    """Whether `array` is floating-point and all its elements are above 0."""
    return array.dtype.kind == "f" and bool((array > 0).all())


def _convert_div_sub(model: ir.Model, node: ir.Node, operand: ir.ConstantOperand) -> int:
    """Convert a Div by several constants to Mul, or such a Sub to Add, in place; return 1, else 0.

    The constant must be the second operand, floating-point, with several elements, and without
    zeros for a Div. The constant is replaced by its reciprocal or negative.
    """
    array = operand.array
    if operand.is_first or array.size < 2 or array.dtype.kind != "f":
        return 0
    if node.op_type == "Div":
        if not array.all():
            return 0
        op_type, values = "Mul", 1.0 / array.astype(np.float64)
    elif node.op_type == "Sub":
        op_type, values = "Add", -array
    else:
        return 0
    node.op_type = op_type
    ir.set_constant_input(model, node, 1, values.astype(array.dtype), "turned")
    return 1


def _move_constant_before(
    node: ir.Node, array: np.ndarray, is_positive_factor: bool
) -> np.ndarray | None:
    """Return the constant that acts on the input of `node` as `array` acts on its output.

    So that an operation with a constant can move upstream. With `is_positive_factor` the operation
    multiplies by positive numbers; then `node` may also be positively homogeneous (such as Relu),
    or flatten axes if `array` is one number. Otherwise only Transpose, Squeeze and Unsqueeze
    commute; None for others.
    """
    rank = len(ir.get_shape(node.outputs[0]) or ())
    if node.domain or array.ndim > rank or len(node.outputs) != 1:
        return None
    if is_positive_factor:
        if node.op_type in float_ops.POSITIVELY_HOMOGENEOUS_OPS:
            return array
        if node.op_type in _FLATTENING_OPS and array.size == 1:
            return array.reshape(())
    aligned = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if node.op_type == "Transpose":
        perm = ir.get_attr(node, "perm") or list(range(rank))[::-1]
        return aligned.transpose(np.argsort(perm))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return _revert_unit_axes(node, aligned)
    return None


def _revert_unit_axes(node: ir.Node, array: np.ndarray) -> np.ndarray | None:
    """Return `array`, which has the axes of the output of `node`, with those of its input.

    None if the axes are not known, or if `array` varies along an inserted axis.
    """
    axes = ir.get_axes(node)
    if axes is None:
        return None
    larger_rank = max(array.ndim, len(ir.get_shape(node.inputs[0]) or ()))
    unit_axes = tuple(sorted(axis % larger_rank for axis in axes))
    if node.op_type == "Squeeze":
        return np.expand_dims(array, unit_axes)
    if any(array.shape[axis] != 1 for axis in unit_axes):
        return None
    return np.squeeze(array, unit_axes)


def _explain_unchanged(node: ir.Node, operand: ir.ConstantOperand) -> str:
    """Explain why `node`, an arithmetic operation with the constant `operand`, is not folded.

    The first that applies: no layer before it, other consumers of the layer, parameters of the
    layer that are not constant, a division that is not per channel, a constant that is not per
    channel.
    """
    layer = ir.producer(operand.source)
    if layer is None or not is_weight_layer(layer):
        return (
            "there is no Conv or Linear before it, and its input is not four-dimensional with a "
            "constant per channel"
        )
    if ir.sole_consumer(operand.source) is not node:
        return f"the output of {layer.name} is used elsewhere too"
    coefficients = channel_affine_coefficients(
        node.op_type,
        operand.array,
        operand.is_first,
        ir.get_shape(operand.source),
        channel_axis(layer),
    )
    if coefficients is not None:
        return f"weight or bias of {layer.name} is computed at run time"
    if node.op_type == "Div":
        return "it divides by zero, by the activation, or by a constant that is not per channel"
    return (
        f"its constant of shape {list(operand.array.shape)} is neither one number nor one per "
        "channel"
    )


def _match_constant_operand(node: ir.Node) -> ir.ConstantOperand | None:
    """Return constant and computed operand of a binary `node`, or None without such a pair.

    None also if the constant is not finite: an infinite weight gives sums that are NaN, while the
    product of the layer's output and infinity is infinite.
    """
    operand = ir.match_constant_operand(node)
    if operand is None:
        return None
    if operand.array.dtype.kind == "f" and not np.isfinite(operand.array).all():
        return None
    return operand


def channel_affine_coefficients(
    op_type: str,
    array: np.ndarray,
    is_first: bool,
    shape: tuple[int | None, ...] | None,
    axis: int,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Express an operation with a constant as ``y = a*x + c`` per channel.

    Parameters
    ----------
    op_type
        "Mul", "Div", "Add" or "Sub".
    array
        The constant.
    is_first
        Whether the constant is operand 0.
    shape, axis
        Shape and channel axis of x.

    Returns
    -------
    (a, c) or None
        float64, [1] or [C]; None if the constant is not per channel.
    """
    if array.dtype.kind != "f" or (op_type == "Div" and is_first):
        return None
    if not _is_per_channel(array, shape, axis):
        return None
    row = array.reshape(-1).astype(np.float64)
    ones, zeros = np.ones_like(row), np.zeros_like(row)
    if op_type == "Mul":
        return row, zeros
    if op_type == "Div":
        return None if not row.all() else (1.0 / row, zeros)
    if op_type == "Add":
        return ones, row
    return (-ones, row) if is_first else (ones, -row)


def _is_per_channel(array: np.ndarray, shape: tuple[int | None, ...] | None, axis: int) -> bool:
    """Whether `array` has one element, or one per index along `axis` of a tensor of `shape`.

    It is aligned at the last axis, as for broadcasting, and must have size 1 along all other axes
    and no more axes than `shape`. With `shape` None, only one element is accepted.
    """
    if shape is None:
        return array.size == 1
    if array.ndim > len(shape):
        return False
    if array.size == 1:
        return True
    aligned = (1,) * (len(shape) - array.ndim) + array.shape
    channel = axis % len(shape)
    if any(size != 1 for index, size in enumerate(aligned) if index != channel):
        return False
    return aligned[channel] == shape[channel]


def _convert_to_batch_norm(
    model: ir.Model, node: ir.Node, operand: ir.ConstantOperand, used_names: set[str]
) -> int:
    """Convert `node`, arithmetic of a 4-D tensor and a constant, to BatchNormalization.

    Returns 1; 0, without a change, unless the tensor is float32 with known channels on axis 1, and
    the constant is one number or one per channel. `used_names` are those of all tensors of `model`;
    the names of the new constants are added.
    """
    source, shape = operand.source, ir.get_shape(operand.source)
    if shape is None or len(shape) != 4 or shape[1] is None:
        return 0
    if not ir.is_float32(source):
        return 0
    coefficients = channel_affine_coefficients(
        node.op_type, operand.array, operand.is_first, shape, 1
    )
    if coefficients is None:
        return 0
    channels = int(shape[1])
    scale, offset = (np.broadcast_to(row, (channels,)).astype(np.float32) for row in coefficients)
    parameters = {
        "scale": scale,
        "offset": offset,
        "mean": np.zeros(channels, np.float32),
        "var": np.ones(channels, np.float32),
    }
    base = node.outputs[0].name
    inputs = [
        ir.add_initializer(model, ir.reserve_name(f"{base}_{key}", used_names), array)
        for key, array in parameters.items()
    ]
    batch_norm = ir.make_node(
        "BatchNormalization",
        [source, *inputs],
        {"epsilon": 0.0},
        origin=node,
        output="",
        like=node.outputs[0],
    )
    ir.replace_nodes(model, [node], [batch_norm])
    return 1
