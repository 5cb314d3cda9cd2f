"""Fold multiplication and addition by constants, one per channel, into the layer in front of them.

Mul, Div, Add and Sub with one constant operand of one value, or one value per output channel, and
Neg, right after a Conv or Linear whose output nobody else reads; a Squeeze, an Unsqueeze or a
Transpose may stand between, and for positive factors Relu, LeakyRelu, pools, and for one factor
Reshape and Flatten. Elsewhere, on four-dimensional tensors, they become a BatchNormalization, which
the NPU has as an operator (`y = a*x + c` per channel: mean 0, variance 1, epsilon 0). What is left
of Div and Sub by several constants becomes Mul and Add.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from .._pass import PassResult, SkipReason
from .weight_layers import channel_axis, is_weight_layer, scale_layer_outputs

_FLATTENING_OPS = ("Flatten", "Reshape")


def fold_affine(model: ir.Model) -> PassResult:
    """Fold per-channel arithmetic of `model`."""
    folded, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type == "Neg" and not node.domain:
            folded += _fold_neg(model, node)
            continue
        if node.op_type not in operators.AFFINE_OPS or node.domain or len(node.inputs) != 2:
            continue
        operands = _match_constant_operand(node)
        if operands is None:
            continue
        source, array, flipped = operands
        layer = ir.producer(source)
        if _fold_into_layer(model, node, node.op_type, source, array, flipped):
            folded += 1
            continue
        reason = _explain_unchanged(node, layer, source, array, flipped)
        alone = _convert_to_batch_norm(model, node, source, array, flipped) or _convert_div_sub(
            model, node, array, flipped
        )
        folded += alone
        if not alone:
            why.append(SkipReason(node, reason))
    return PassResult(folded, why)


def fold_factor(model: ir.Model, node: ir.Node) -> bool:
    """Fold the Mul `node` by a constant into the layer in front.

    False, and nothing is changed, where none takes it.
    """
    operands = _match_constant_operand(node)
    return operands is not None and _fold_into_layer(model, node, node.op_type, *operands)


def _fold_neg(model: ir.Model, node: ir.Node) -> int:
    """Fold the Neg `node` as a factor of -1."""
    source, kind = ir.require_input(node), ir.require_input(node).dtype
    if kind is None or kind.name != "FLOAT":
        return 0
    minus = np.array(-1.0, np.float32)
    return int(_fold_into_layer(model, node, "Mul", source, minus, False))


def _fold_into_layer(
    model: ir.Model, node: ir.Node, kind: str, source: ir.Value, array: np.ndarray, flipped: bool
) -> bool:
    """Fold `node`, which combines `source` and the constant `array` by `kind`, into the layer `source` comes from."""
    value, moved, user = source, array, node
    between: list[ir.Value] = []
    while (maker := ir.producer(value)) is not None and ir.sole_consumer(value) is user:
        if is_weight_layer(maker):
            folded = channel_affine_coefficients(
                kind, moved, flipped, ir.get_shape(value), channel_axis(maker)
            )
            if folded is None or not scale_layer_outputs(model, maker, *folded):
                return False
            for inner in between:  # these are no longer what the user called so
                inner.name = ir.unique_tensor_name(model, f"{inner.name}_folded")
            ir.absorb_consumer(model, ir.producer(source) or maker, node)
            return True
        positive = (
            kind in operators.SCALING_OPS
            and not flipped
            and moved.dtype.kind == "f"
            and bool((moved > 0).all())
        )
        before = _move_constant_before(maker, moved, positive)
        if before is None:
            return False
        value, moved, user = ir.require_input(maker), before, maker
        between.append(value)
    return False


def _convert_div_sub(model: ir.Model, node: ir.Node, array: np.ndarray, flipped: bool) -> int:
    """Write Div by several constants as Mul, Sub of them as Add."""
    if flipped or array.size < 2 or array.dtype.kind != "f" or node.op_type not in ("Div", "Sub"):
        return 0
    if node.op_type == "Div":
        if not array.all():
            return 0
        node.op_type, values = "Mul", 1.0 / array.astype(np.float64)
    else:
        node.op_type, values = "Add", -array
    ir.set_constant_input(model, node, 1, values.astype(array.dtype), "turned")
    return 1


def _move_constant_before(node: ir.Node, array: np.ndarray, positive: bool) -> np.ndarray | None:
    """Return a constant beside the input of `node` that does what `array` does beside its output.

    positive : whether `array` holds factors above 0.
    """
    rank = len(ir.get_shape(node.outputs[0]) or ())
    if node.domain or array.ndim > rank or len(node.outputs) != 1:
        return None
    if positive and node.op_type in operators.POSITIVELY_HOMOGENEOUS_OPS:
        return array
    if positive and node.op_type in _FLATTENING_OPS and array.size == 1:
        return array.reshape(())
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if node.op_type == "Transpose":
        order = ir.get_attr(node, "perm") or list(range(rank))[::-1]
        return full.transpose(np.argsort(order))
    if node.op_type not in ("Squeeze", "Unsqueeze"):
        return None
    axes, wide = ir.get_axes(node), max(rank, len(ir.get_shape(node.inputs[0]) or ()))
    if axes is None:
        return None
    places = tuple(sorted(axis % wide for axis in axes))
    if node.op_type == "Squeeze":
        return np.expand_dims(full, places)
    return np.squeeze(full, places) if all(full.shape[place] == 1 for place in places) else None


def _explain_unchanged(
    node: ir.Node, layer: ir.Node | None, source: ir.Value, array: np.ndarray, flipped: bool
) -> str:
    """Return why `node`, which combines `source` and a constant, stays."""
    if layer is None or not is_weight_layer(layer):
        return (
            "no Conv or Linear stands in front, and its input is not four-dimensional with a "
            "constant per channel"
        )
    if ir.sole_consumer(source) is not node:
        return f"the output of {layer.name} is read elsewhere too"
    if (
        channel_affine_coefficients(
            node.op_type, array, flipped, ir.get_shape(source), channel_axis(layer)
        )
        is None
    ):
        if node.op_type == "Div":
            return (
                "it divides by zero, by the activation, or by another number than one per channel"
            )
        return (
            f"its constant of shape {list(array.shape)} is neither one number nor one per channel"
        )
    return f"weight or bias of {layer.name} is computed at run time"


def _match_constant_operand(node: ir.Node) -> tuple[ir.Value, np.ndarray, bool] | None:
    """Return (what is computed, the constant, whether that stands first).

    None also where it is infinite.
    A weight that is infinite gives sums that are no numbers, where the layer's output times
    infinity is infinite.
    """
    left, right = node.inputs
    if left is None or right is None:
        return None
    constants = ir.const_value(left), ir.const_value(right)
    if (constants[0] is None) == (constants[1] is None):
        return None
    if any(
        array is not None and array.dtype.kind == "f" and not np.isfinite(array).all()
        for array in constants
    ):
        return None
    if constants[1] is not None:
        return left, constants[1], False
    return right, constants[0], True  # type: ignore[return-value]


def channel_affine_coefficients(
    kind: str, array: np.ndarray, flipped: bool, shape: tuple[int | None, ...] | None, axis: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (a, c) of ``y = a*x + c`` as float64 vectors of one value or one per channel, or None."""
    if array.dtype.kind != "f" or (kind == "Div" and flipped):
        return None
    if array.size == 1:
        if shape is not None and array.ndim > len(shape):
            return None
        row = array.reshape(1).astype(np.float64)
    else:
        if shape is None or array.ndim > len(shape):
            return None
        full = (1,) * (len(shape) - array.ndim) + array.shape
        channel = axis % len(shape)
        if (
            any(d != 1 for i, d in enumerate(full) if i != channel)
            or full[channel] != shape[channel]
        ):
            return None
        row = array.reshape(-1).astype(np.float64)
    one, zero = np.ones_like(row), np.zeros_like(row)
    if kind == "Mul":
        return row, zero
    if kind == "Div":
        return None if not row.all() else (1.0 / row, zero)
    if kind == "Add":
        return one, row
    return (-one, row) if flipped else (one, -row)


def _convert_to_batch_norm(
    model: ir.Model, node: ir.Node, source: ir.Value, array: np.ndarray, flipped: bool
) -> int:
    shape = ir.get_shape(source)
    if (
        shape is None
        or len(shape) != 4
        or shape[1] is None
        or source.dtype is None
        or source.dtype.name != "FLOAT"
    ):
        return 0
    per_channel = channel_affine_coefficients(node.op_type, array, flipped, shape, 1)
    if per_channel is None:
        return 0
    channels = int(shape[1])
    a, c = (np.broadcast_to(v, (channels,)).astype(np.float32) for v in per_channel)
    parts = {
        "scale": a,
        "offset": c,
        "mean": np.zeros(channels, np.float32),
        "var": np.ones(channels, np.float32),
    }
    base = node.outputs[0].name
    inputs = [
        ir.add_initializer(model, ir.unique_tensor_name(model, f"{base}_{k}"), v)
        for k, v in parts.items()
    ]
    new = ir.make_node(
        "BatchNormalization",
        [source, *inputs],
        {"epsilon": 0.0},
        origin=node,
        output="",
        like=node.outputs[0],
    )
    ir.replace_nodes(model, [node], [new])
    return 1
