"""Move positive factors on tensors into the weights around them.

Used by `equalize` and `range_fitting`. Multiplying a tensor by f (one value, or one per channel)
and dividing it out in the weights that read it does not change the float function: ``W' = W * f_out
/ f_in``, ``b' = b * f_out``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir import ir
from ...operators.integer_ops import CLIP
from ..partition import Partition

__all__ = ["Factors", "apply_factors", "multiply_factors"]

#: Tensor name -> float64 [1] or [channels].
Factors = Mapping[str, np.ndarray]

_ONE = np.ones(1)


def multiply_factors(first: Factors, second: Factors) -> dict[str, np.ndarray]:
    """Return {tensor: product of its factors in `first` and `second`}, 1 where one has none."""
    return {name: first.get(name, _ONE) * second.get(name, _ONE) for name in {**first, **second}}


def apply_factors(partition: Partition, factors: Factors) -> None:
    """Scale parameters and clip bounds in place so that each tensor is multiplied by its factor.

    `factors` are {tensor: factors [1] or [channels]}; 1 if missing. Layers absorb the factors of
    input and output in their parameters; a Clip scales its bounds by the first value of its
    output's factor. Other nodes are not changed: their tensors must have equal factors.
    """
    model = partition.graph
    for node, op in partition.integer_nodes:
        f_in = factors.get(ir.input_name(node), _ONE)
        f_out = factors.get(ir.output_name(node), _ONE)
        if op.scale_constraints.factor_behavior == "absorbed":
            if np.any(f_in != 1) or np.any(f_out != 1):
                _scale_parameters(model, node, f_in, f_out)
        elif op.integer_op is CLIP and np.any(f_out != 1):
            _scale_bounds(model, node, float(f_out[0]))


def _scale_parameters(model: ir.Model, node: ir.Node, f_in: np.ndarray, f_out: np.ndarray) -> None:
    """Scale the weights and bias of a layer, in place, for factors on its input and output.

    Weights are divided by `f_in` and multiplied by `f_out`, the bias is multiplied by `f_out`; both
    have one value or one per channel. Of a BatchNormalization, scale, offset and mean (by `f_in`)
    are scaled. Parameters that are not constant stay.
    """
    if node.op_type == "BatchNormalization":
        changes = {1: f_out / f_in, 2: f_out, 3: f_in}
    else:
        weight = ir.const_value(node.inputs[1])
        assert weight is not None
        changes = {
            1: _weight_factor(weight.shape, int(ir.get_attr(node, "group", 1)), f_in, f_out),
            2: f_out,
        }
    for index, factor in changes.items():
        array = ir.const_value(node.inputs[index]) if len(node.inputs) > index else None
        if array is not None:
            ir.set_constant_input(
                model, node, index, (array * factor).astype(array.dtype), "ranged"
            )


def _weight_factor(
    shape: tuple[int, ...], group: int, f_in: np.ndarray, f_out: np.ndarray
) -> np.ndarray:
    """Return f_out / f_in for a weight of `shape` [O, I/group, ...], broadcastable to it.

    Each is one value or one per channel of output or input.
    """
    outputs, depth = shape[0], shape[1]
    per_input = np.broadcast_to(f_in, (depth * group,)).reshape(group, 1, depth)
    rows = np.broadcast_to(per_input, (group, outputs // group, depth)).reshape(outputs, depth)
    combined = np.broadcast_to(f_out, (outputs,))[:, None] / rows
    factors: np.ndarray = combined.reshape(outputs, depth, *[1] * (len(shape) - 2))
    return factors


def _scale_bounds(model: ir.Model, node: ir.Node, factor: float) -> None:
    """Multiply the constant bounds of a Clip, as inputs or attributes, by `factor`, in place.

    Bounds that are missing or computed stay as they are.
    """
    for index, name in ((1, "min"), (2, "max")):
        array = ir.const_value(node.inputs[index]) if len(node.inputs) > index else None
        if array is not None:
            ir.set_constant_input(
                model,
                node,
                index,
                (array.astype(np.float64) * factor).astype(array.dtype),
                "ranged",
            )
        elif name in node.attributes:
            ir.set_attr(node, name, float(ir.get_attr(node, name)) * factor)
