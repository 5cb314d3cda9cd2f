"""What is taken out of a Concat along its axis, where it is just one of the parts, is that part.

    Concat -> Slice of one part            the part
    Concat -> Gather of a row              what was unsqueezed to that row
    Unsqueeze -> Squeeze of the same axes  what was unsqueezed

So the last of the steps that a loop has stacked is read from the step itself.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from ...formats.data_movement.selection import sliced_positions
from ...graph import ir
from .._pass import PassResult, SkipReason

__all__ = ["bypass_concat"]


def bypass_concat(model: ir.Model) -> PassResult:
    """Let readers of single parts of the Concats in `model` read these.

    Return how many nodes went.
    """
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        part = None if node.domain else _find_concat_part(node)
        if part is None:
            continue
        if ir.can_bypass_node(node, part):
            ir.bypass_node(model, node, part)
            changed += 1
        else:
            why.append(SkipReason(node, "the names on both of its sides are needed"))
    return PassResult(changed, why)


def _find_concat_part(node: ir.Node) -> ir.Value | None:
    """Return what `node` takes: a part that was joined, or what had no axis before.

    None for anything else.
    """
    maker = ir.producer(node.inputs[0]) if node.inputs else None
    if maker is None or maker.domain:
        return None
    if node.op_type == "Squeeze":
        added, rank = _unsqueezed_axes(maker), len(ir.get_shape(node.inputs[0]) or ())
        return (
            ir.require_input(maker)
            if added and added == {axis % rank for axis in ir.get_axes(node) or ()}
            else None
        )
    whole = ir.get_shape(node.inputs[0])
    if maker.op_type != "Concat" or not whole:
        return None
    axis = ir.get_attr(maker, "axis") % len(whole)
    sizes = [
        ir.require_shape(value)[axis] if ir.get_shape(value) else None for value in maker.inputs
    ]
    if any(size is None for size in sizes):
        return None
    parts = [
        range(*ends) for ends in pairwise(accumulate((int(size or 0) for size in sizes), initial=0))
    ]
    if node.op_type == "Slice":
        taken = sliced_positions(node, axis)
        return ir.require_input(maker, parts.index(taken)) if taken in parts else None
    chosen = ir.const_value(node.inputs[1]) if node.op_type == "Gather" else None
    if chosen is None or chosen.ndim or ir.get_attr(node, "axis", 0) % len(whole) != axis:
        return None
    row = int(chosen) % parts[-1].stop
    unsqueezed = ir.producer(maker.inputs[next(i for i, part in enumerate(parts) if row in part)])
    return (
        ir.require_input(unsqueezed)
        if unsqueezed is not None and _unsqueezed_axes(unsqueezed) == {axis}
        else None
    )


def _unsqueezed_axes(node: ir.Node) -> set[int]:
    """Return the axes that an Unsqueeze adds, none for anything else."""
    if node.op_type != "Unsqueeze" or node.domain:
        return set()
    rank = len(ir.get_shape(node.outputs[0]) or ())
    return {axis % rank for axis in ir.get_axes(node) or ()} if rank else set()
