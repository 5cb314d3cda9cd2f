"""Remove nodes that return their input unchanged.

These are Identity, Dropout at inference, Cast, Pad and Transpose without effect, Concat of one
tensor; arithmetic with an identity operand (x*1, x/1, x+0, x-0, x^1); Reshape, Flatten, Expand,
Squeeze, Slice and Clip that change nothing; and Expand before products that would broadcast its
input in the same way: platforms multiply by one factor per channel. Operands of a Concat that have
no elements are left out first.

A node between a graph input and a graph output remains, because both names are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ....ir import float_ops, ir
from ....operators.clamp.lowering import get_clip_bounds
from .._pass import PassResult, SkipReason


def drop_identity(model: ir.Model) -> PassResult:
    """Remove the nodes of `model` that return their input unchanged, in place.

    Skipped with a reason are nodes with another output that is used, and those whose input and
    output must both keep their names, as between a graph input and output.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        changes += _drop_empty_operands(node)
        if not node.inputs or node.inputs[0] is None or not _is_no_op(node):
            continue
        source = _get_returned_input(node)
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            skipped.append(SkipReason(node, "another output of it is used"))
        elif ir.can_bypass_node(node, source):
            ir.bypass_node(model, node, source)
            changes += 1
        else:
            skipped.append(
                SkipReason(node, "the names of both its input and its output are needed")
            )
    return PassResult(changes, skipped)


def _drop_empty_operands(node: ir.Node) -> int:
    """Remove the operands of a Concat that have no elements, in place; return 1 if there were any.

    The shapes of operands are the same but for the joined axis: one without elements is empty along
    that axis, unless the result is empty too.
    """
    if not ir.is_standard_op(node, "Concat") or not _has_elements(node.outputs[0]):
        return 0
    operands = [value for value in node.inputs if _has_elements(value)]
    if not operands or len(operands) == len(node.inputs):
        return 0
    for index, value in enumerate(operands):
        node.replace_input_with(index, value)
    for index in range(len(operands), len(node.inputs)):
        node.replace_input_with(index, None)
    node.resize_inputs(len(operands))
    return 1


def _has_elements(value: ir.Value | None) -> bool:
    """Whether no axis of `value` is known to have the size 0."""
    return 0 not in (ir.get_shape(value) or ())


def _get_returned_input(node: ir.Node) -> ir.Value:
    """Return the input that `node`, which is known to have no effect, returns unchanged.

    It is input 0, but of Add and Mul the second one if the first is constant.
    """
    is_commutative = node.op_type in ("Add", "Mul") and len(node.inputs) == 2
    if is_commutative and ir.const_value(node.inputs[0]) is not None:
        return ir.require_input(node, 1)
    return ir.require_input(node)


def _is_no_op(node: ir.Node) -> bool:
    """Whether `node`, of the standard domain, returns its input unchanged.

    So do operators without effect by their attributes or constants, arithmetic with a neutral
    constant, and a reshape to the same shape.
    """
    if node.domain not in ("", "ai.onnx"):
        return False
    op_type = node.op_type
    if op_type in _NO_OP_TESTS:
        return _NO_OP_TESTS[op_type](node)
    if op_type in float_ops.IDENTITY_OPERANDS:
        return _has_identity_operand(node, float_ops.IDENTITY_OPERANDS[op_type])
    if op_type in float_ops.RESHAPING_OPS:
        return _has_same_shape(node.inputs[0], node.outputs[0])
    return False


def _is_inference_dropout(node: ir.Node) -> bool:
    """Whether a Dropout has no training mode, or a constant false one."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    mode = ir.const_value(training)
    return training is None or (mode is not None and not mode.any())


def _casts_to_same_type(node: ir.Node) -> bool:
    """Whether a Cast converts to the element type that its input is known to have."""
    source = node.inputs[0]
    if source is None or source.dtype is None:
        return False
    return bool(int(source.dtype) == ir.get_attr(node, "to"))


def _pads_nothing(node: ir.Node) -> bool:
    """Whether all pads of a Pad are zero, as attribute `pads` or as constant second input."""
    pads = ir.get_attr(node, "pads")
    if not pads:
        pads = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not np.any(np.asarray(pads))


def _keeps_axis_order(node: ir.Node) -> bool:
    """Whether a Transpose has the attribute `perm` and it is the identity."""
    perm = ir.get_attr(node, "perm")
    return perm is not None and perm == sorted(perm)


def _repeats_once(node: ir.Node) -> bool:
    """Whether all repeats of a Tile are constant ones."""
    # the shapes do not tell, because two unknown batch sizes look the same
    repeats = ir.const_value(node.inputs[1])
    return repeats is not None and bool((repeats == 1).all())


def _expands_nothing(node: ir.Node) -> bool:
    """Whether an Expand keeps the shape, or has no effect since its consumers broadcast."""
    return _is_broadcast_by_consumers(node) or _has_same_shape(node.inputs[0], node.outputs[0])


def _slices_nothing(node: ir.Node) -> bool:
    """Whether a Slice returns its input: the shape is the same and all steps are positive."""
    return _has_same_shape(node.inputs[0], node.outputs[0]) and _has_positive_steps(node)


def _has_identity_operand(node: ir.Node, identity: int) -> bool:
    """Whether `node` returns one operand, as all elements of the other one equal `identity`.

    The constant must not broadcast the other operand and have its element type. It may be the first
    operand for Add and Mul only.
    """
    operand = ir.match_constant_operand(node)
    if operand is None or (operand.is_first and node.op_type not in ("Add", "Mul")):
        return False
    source, array = operand.source, operand.array
    shape = ir.get_shape(source)
    if shape is None or array.ndim > len(shape) or not (array == identity).all():
        return False
    if source.dtype is not None and array.dtype != source.dtype.numpy():
        return False
    trailing = shape[len(shape) - array.ndim :]
    return all(size in (1, dim) for size, dim in zip(array.shape, trailing, strict=True))


def _has_same_shape(first: ir.Value | None, second: ir.Value | None) -> bool:
    """Whether `first` and `second` have the same known shape; axis 0 may be unknown in both."""
    first_shape, second_shape = ir.get_shape(first), ir.get_shape(second)
    if not first_shape or None in first_shape[1:]:
        return False
    return first_shape == second_shape


def _is_broadcast_by_consumers(node: ir.Node) -> bool:
    """Whether all consumers of an Expand are a Mul by another tensor that has the expanded shape.

    Then the Mul broadcasts the unexpanded tensor too. False without consumers and for a graph
    output.
    """
    result = node.outputs[0]
    uses = list(result.uses())
    if result.is_graph_output() or not uses:
        return False
    for use in uses:
        if use.node.op_type != "Mul" or use.node.domain or len(use.node.inputs) != 2:
            return False
        factor = use.node.inputs[1 - use.idx]
        if factor is result or not _has_same_shape(result, factor):
            return False
    return True


def _has_positive_steps(node: ir.Node) -> bool:
    """Whether all steps of a Slice are constant and positive, or absent (1)."""
    if len(node.inputs) <= 4 or node.inputs[4] is None:
        return True
    steps = ir.const_value(node.inputs[4])
    return steps is not None and bool((steps > 0).all())


_NO_OP_TESTS: dict[str, Callable[[ir.Node], bool]] = {
    "Identity": lambda node: True,
    "Dropout": _is_inference_dropout,
    "Cast": _casts_to_same_type,
    "Pad": _pads_nothing,
    "Transpose": _keeps_axis_order,
    "Tile": _repeats_once,
    "Expand": _expands_nothing,
    "Slice": _slices_nothing,
    "Clip": lambda node: get_clip_bounds(node) == (-math.inf, math.inf),
    "Concat": lambda node: len(node.inputs) == 1,
}
#: Operators that `drop_identity` may remove or change.
NO_OP_CANDIDATES = {*_NO_OP_TESTS, *float_ops.IDENTITY_OPERANDS, *float_ops.RESHAPING_OPS}
