"""Bypass a Concat whose consumer selects exactly one of the concatenated tensors.

    Concat -> Slice of one tensor              that tensor
    Concat -> Gather of one position           the tensor that was unsqueezed to that position
    Unsqueeze -> Squeeze of the same axes      the input of the Unsqueeze

So the last step of an unrolled loop is read directly, not from the stacked steps.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from ....ir import ir
from ....operators.selection.integer_op import sliced_positions
from .._pass import PassResult, SkipReason

__all__ = ["bypass_concat"]


def bypass_concat(model: ir.Model) -> PassResult:
    """Bypass nodes of `model` that take one operand out of a Concat or undo an Unsqueeze.

    In place. The node is a Slice or Gather that selects exactly one operand of the Concat, or the
    Squeeze of an Unsqueeze. Its consumers read that operand; it is removed and counts as a change.
    Skipped with a reason if the names of both tensors are needed.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        part = None if node.domain else _find_concat_part(node)
        if part is None:
            continue
        if ir.can_bypass_node(node, part):
            ir.bypass_node(model, node, part)
            changes += 1
        else:
            skipped.append(
                SkipReason(node, "the names of both its input and its output are needed")
            )
    return PassResult(changes, skipped)


def _find_concat_part(node: ir.Node) -> ir.Value | None:
    """Return the tensor that `node` takes out of a Concat or Unsqueeze unchanged, or None.

    `node` is a Slice that selects exactly one operand of the Concat, a Gather of a position whose
    operand an Unsqueeze computes, or the Squeeze of an Unsqueeze.
    """
    producer = ir.producer(node.inputs[0]) if node.inputs else None
    if producer is None:
        return None
    if node.op_type == "Squeeze":
        return _find_unsqueezed_tensor(node, producer)
    shape = ir.get_shape(node.inputs[0])
    if not ir.is_standard_op(producer, "Concat") or not shape:
        return None
    axis = ir.get_attr(producer, "axis") % len(shape)
    ranges = _concat_ranges(producer, axis)
    if ranges is None:
        return None
    if node.op_type == "Slice":
        return _find_sliced_part(node, producer, ranges, axis)
    is_gather = node.op_type == "Gather" and ir.get_attr(node, "axis", 0) % len(shape) == axis
    return _find_gathered_part(node, producer, ranges, axis) if is_gather else None


def _find_sliced_part(
    slice_node: ir.Node, concat: ir.Node, ranges: list[range], axis: int
) -> ir.Value | None:
    """Return the operand of `concat` that `slice_node` selects exactly along `axis`, or None.

    `ranges` has the positions of each operand.
    """
    positions = sliced_positions(slice_node, axis)
    if positions is None or positions not in ranges:
        return None
    return ir.require_input(concat, ranges.index(positions))


def _find_unsqueezed_tensor(squeeze: ir.Node, unsqueeze: ir.Node) -> ir.Value | None:
    """Return the input of `unsqueeze` if it adds the axes that `squeeze` removes, else None."""
    rank = len(ir.get_shape(squeeze.inputs[0]) or ())
    added_axes = _unsqueezed_axes(unsqueeze)
    if not added_axes or added_axes != {axis % rank for axis in ir.get_axes(squeeze) or ()}:
        return None
    return ir.require_input(unsqueeze)


def _find_gathered_part(
    gather: ir.Node, concat: ir.Node, ranges: list[range], axis: int
) -> ir.Value | None:
    """Return the tensor that was unsqueezed to the only position that `gather` selects, or None.

    None unless the index is a scalar constant and the operand of `concat` at that position is the
    result of an Unsqueeze of `axis` only. `ranges` has the positions of each operand along `axis`.
    """
    index = ir.const_value(gather.inputs[1])
    if index is None or index.ndim:
        return None
    position = int(index) % ranges[-1].stop
    operand_index = next(i for i, positions in enumerate(ranges) if position in positions)
    unsqueeze = ir.producer(concat.inputs[operand_index])
    if unsqueeze is None or _unsqueezed_axes(unsqueeze) != {axis}:
        return None
    return ir.require_input(unsqueeze)


def _concat_ranges(concat: ir.Node, axis: int) -> list[range] | None:
    """Return the positions that each operand takes along `axis` of the output, in order.

    None if the size of an operand along `axis` is unknown.
    """
    sizes: list[int] = []
    for value in concat.inputs:
        size = ir.require_shape(value)[axis] if ir.get_shape(value) else None
        if size is None:
            return None
        sizes.append(size)
    return [range(*bounds) for bounds in pairwise(accumulate(sizes, initial=0))]


def _unsqueezed_axes(node: ir.Node) -> set[int]:
    """Return the axes that an Unsqueeze inserts, or an empty set for any other node."""
    if node.op_type != "Unsqueeze" or node.domain:
        return set()
    rank = len(ir.get_shape(node.outputs[0]) or ())
    return {axis % rank for axis in ir.get_axes(node) or ()} if rank else set()
