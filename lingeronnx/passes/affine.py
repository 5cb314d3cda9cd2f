"""Fold multiplication and addition by constants, one per channel, into the layer in front of them.

Mul, Div, Add and Sub with one constant operand of one value, or one value per output channel, right after a Conv or
Linear whose output nobody else reads. Elsewhere, on four-dimensional tensors, they become a BatchNormalization, which
the NPU has as an operator (`y = a*x + c` per channel: mean 0, variance 1, epsilon 0).
"""

from __future__ import annotations

import numpy as np

from ..graph import ir
from ._layers import channel_axis, is_layer, scale_layer
from ._pass import Answer, Reason, refused

_SIGNS = ("Mul", "Div", "Add", "Sub")


def fold_affine(model: ir.Graph) -> Answer:
    """Fold per-channel arithmetic of `model`."""
    folded, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type not in _SIGNS or node.domain or len(node.inputs) != 2:
            continue
        found = _operands(node)
        if found is None:
            continue
        source, array, flipped = found
        layer = ir.producer(source)
        if layer is not None and is_layer(layer) and ir.sole_consumer(source) is node:
            factors = _factors(node.op_type, array, flipped, ir.shape(source), channel_axis(layer))
            if factors is not None and scale_layer(model, layer, *factors):
                ir.absorb(model, layer, node)
                folded += 1
                continue
        alone = _as_batch_norm(model, node, source, array, flipped)
        folded += alone
        if not alone:
            why.append(refused(node, _reason(node, layer, source, array, flipped)))
    return Answer(folded, why)


def _reason(node: ir.Node, layer: ir.Node | None, source: ir.Value, array: np.ndarray, flipped: bool) -> str:
    """Return why `node`, which combines `source` and a constant, stays."""
    if layer is None or not is_layer(layer):
        return "no Conv or Linear stands in front, and its input is not four-dimensional with a constant per channel"
    if ir.sole_consumer(source) is not node:
        return f"the output of {layer.name} is read elsewhere too"
    if _factors(node.op_type, array, flipped, ir.shape(source), channel_axis(layer)) is None:
        if node.op_type == "Div":
            return "it divides by zero, by the activation, or by another number than one per channel"
        return f"its constant of shape {list(array.shape)} is neither one number nor one per channel"
    return f"weight or bias of {layer.name} is computed at run time"


def _operands(node: ir.Node) -> tuple[ir.Value, np.ndarray, bool] | None:
    left, right = node.inputs
    if left is None or right is None:
        return None
    constants = ir.const(left), ir.const(right)
    if (constants[0] is None) == (constants[1] is None):
        return None
    if constants[1] is not None:
        return left, constants[1], False
    return right, constants[0], True  # type: ignore[return-value]


def _factors(
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
        if any(d != 1 for i, d in enumerate(full) if i != channel) or full[channel] != shape[channel]:
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


def _as_batch_norm(model: ir.Graph, node: ir.Node, source: ir.Value, array: np.ndarray, flipped: bool) -> int:
    shape = ir.shape(source)
    if shape is None or len(shape) != 4 or shape[1] is None or source.dtype is None or source.dtype.name != "FLOAT":
        return 0
    factors = _factors(node.op_type, array, flipped, shape, 1)
    if factors is None:
        return 0
    channels = int(shape[1])
    a, c = (np.broadcast_to(v, (channels,)).astype(np.float32) for v in factors)
    parts = {"scale": a, "offset": c, "mean": np.zeros(channels, np.float32), "var": np.ones(channels, np.float32)}
    base = node.outputs[0].name
    inputs = [ir.add_initializer(model, ir.fresh_name(model, f"{base}_{k}"), v) for k, v in parts.items()]
    new = ir.make_node("BatchNormalization", [source, *inputs], {"epsilon": 0.0}, of=node, output="",
                       like=node.outputs[0])  # fmt: skip
    ir.replace(model, [node], [new])
    return 1
