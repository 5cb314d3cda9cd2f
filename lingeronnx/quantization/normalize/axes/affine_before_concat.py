"""Move a multiplication by constants before the Concat that it scales.

    Concat(x, y) * (a, b)  =  Concat(x * a, y * b)

and the same for a BatchNormalization over the concatenated axis, and for an addition directly
behind. This is exact. Factors that differ between the operands of the Concat even out their ranges:
batch normalization divides by the deviation that it has seen. Behind the Concat all operands
already share one scale, which leaves few integers to the one with the smallest range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from ....operators.batch_norm.lowering import fold_batch_norm_parameters
from .._pass import PassResult, SkipReason

__all__ = ["move_affine_before_concat"]

#: Ratio of the typical factors of two operands from which they lose 3 bits in a shared scale.
_MIN_FACTOR_RATIO = 8.0


def move_affine_before_concat(model: ir.Model) -> PassResult:
    """Move affine functions of `model` before the Concat that only they read.

    In place. A Mul, Div or BatchNormalization is moved if its factors differ by 8 or more between
    the operands of the Concat; then also Add, Sub, Mul and Div by constants directly behind it.
    Skipped with a reason if the Concat is used elsewhere too.
    """
    changes, skipped = 0, list[SkipReason]()
    for concat in list(model.graph):
        bounds = _concatenated_bounds(concat) if ir.is_standard_op(concat, "Concat") else None
        if bounds is None:
            continue
        consumers = [use.node for use in concat.outputs[0].uses()]
        uneven = [node for node in consumers if _has_uneven_factors(node, concat, bounds)]
        node = ir.sole_consumer(concat.outputs[0])
        if not uneven or node is None:
            reason = f"the output of {concat.name} is used elsewhere too"
            skipped += [SkipReason(consumer, reason) for consumer in uneven]
            continue
        while node is not None:
            arrays = _read_constants(node, concat, bounds)
            if arrays is None:
                break
            concat = _move_before(model, node, concat, arrays)
            changes += 1
            node = ir.sole_consumer(concat.outputs[0])
    return PassResult(changes, skipped)


def _concatenated_bounds(concat: ir.Node) -> np.ndarray | None:
    """Return where the operands of `concat` begin along its axis, and the total size at the end.

    None if there are fewer than two operands, or a size is unknown or 0.
    """
    axis, sizes = _concat_axis(concat), []
    for value in concat.inputs:
        shape = ir.get_shape(value) or ()
        size = shape[axis] if axis < len(shape) else None
        if not size:
            return None
        sizes.append(size)
    return np.cumsum([0, *sizes]) if len(sizes) > 1 else None


def _concat_axis(concat: ir.Node) -> int:
    """Return the axis of `concat`, counted from the front; 0 if its rank is unknown."""
    rank = len(ir.get_shape(concat.outputs[0]) or ())
    return ir.get_attr(concat, "axis") % rank if rank else 0


def _has_uneven_factors(node: ir.Node, concat: ir.Node, bounds: np.ndarray) -> bool:
    """Whether `node` multiplies the operands of `concat` by factors of very different size.

    Compared are the medians of their magnitudes, which must be 8 times as large in one operand as
    in another. `bounds` is where the operands begin.
    """
    arrays, axis = _read_constants(node, concat, bounds), _concat_axis(concat)
    if arrays is None or node.op_type not in ("BatchNormalization", *float_ops.SCALING_OPS):
        return False
    factors = arrays[0]
    if node.op_type == "BatchNormalization":
        parameters = fold_batch_norm_parameters(node)
        assert parameters is not None
        factors, axis = parameters[0], 0
    magnitudes = [float(np.median(np.abs(part))) for part in _split(factors, bounds, axis)]
    lowest, highest = min(magnitudes), max(magnitudes)
    return bool(lowest > 0 and _MIN_FACTOR_RATIO * lowest <= highest < np.inf)


def _read_constants(node: ir.Node, concat: ir.Node, bounds: np.ndarray) -> list[np.ndarray] | None:
    """Return the constants of an affine `node` behind `concat` whose values differ along its axis.

    For a BatchNormalization over that axis its four parameters [C], else the constant operand,
    with as many axes as the result. None if `node` is no such function, or would change the shape.
    """
    shape, axis = ir.get_shape(concat.outputs[0]) or (), _concat_axis(concat)
    if ir.is_standard_op(node, "BatchNormalization"):
        arrays = [ir.const_value(value) for value in node.inputs[1:5]]
        known = [array for array in arrays if array is not None and len(array) == bounds[-1]]
        is_inference = not ir.get_attr(node, "training_mode", 0)
        return known if axis == 1 and is_inference and len(known) == 4 else None
    operand = ir.match_constant_operand(node)
    if not ir.is_standard_op(node, *float_ops.AFFINE_OPS) or operand is None or operand.is_first:
        return None
    array = operand.array
    if array.dtype != np.float32 or array.ndim > len(shape):
        return None
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(size not in (1, dim) for size, dim in zip(array.shape, shape, strict=True)):
        return None
    return [np.repeat(array, bounds[-1], axis) if array.shape[axis] == 1 else array]


def _split(array: np.ndarray, bounds: np.ndarray, axis: int) -> list[np.ndarray]:
    """Split `array` along `axis` into the parts of the operands of a Concat."""
    return np.split(array, bounds[1:-1], axis)


def _move_before(
    model: ir.Model, node: ir.Node, concat: ir.Node, arrays: Sequence[np.ndarray]
) -> ir.Node:
    """Replace `concat` and the affine `node` behind it by one such node per operand and a Concat.

    `arrays` are the constants of `node`. Returns the new Concat.
    """
    build = SubgraphBuilder(model, node)
    axis, bounds = _concat_axis(concat), _concatenated_bounds(concat)
    assert bounds is not None
    is_batch_norm = node.op_type == "BatchNormalization"
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    parts = [_split(array, bounds, 0 if is_batch_norm else axis) for array in arrays]
    operands = []
    for index, source in enumerate(concat.inputs):
        constants = [build.constant(part[index], f"operand{index}") for part in parts]
        shape = list(ir.require_shape(source))
        inputs = [source, *constants]
        operands.append(build(node.op_type, inputs, shape, f"of{index}", attributes))
    shape = list(ir.require_shape(node.outputs[0]))
    build("Concat", operands, shape, "joined", {"axis": axis})
    joined = build.nodes[-1]
    build.replace_node()
    model.graph.remove(concat, safe=True)
    return joined
