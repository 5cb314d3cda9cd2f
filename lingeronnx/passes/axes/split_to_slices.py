"""Split as one Slice per part that somebody reads.

Every node of the integer graph then has one output.
The names of the parts stay. Needs a static size along the axis; the batch axis is left alone.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def convert_split_to_slices(model: ir.Model) -> PassResult:
    """Turn the Split nodes of `model` into Slice nodes."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "Split" or node.domain:
            continue
        shape = ir.get_shape(node.inputs[0])
        sizes = _get_split_sizes(node, shape) if shape else None
        if not shape or sizes is None:
            why.append(
                SkipReason(node, "it splits the batch, or the sizes of its parts are not known")
            )
            continue
        axis = ir.get_attr(node, "axis", 0) % len(shape)
        ends = np.cumsum(sizes)
        parts = [
            (v, int(end - size), int(end))
            for v, size, end in zip(node.outputs, sizes, ends, strict=True)
        ]
        names = {}
        for part, start, end in parts:
            if part.name and (part.uses() or part.is_graph_output()):
                names[_insert_slice(model, node, part, (start, end, axis))] = part.name
        model.graph.remove(node, safe=True)
        for result, name in names.items():
            result.name = name
        changed += 1
    return PassResult(changed, why)


def _get_split_sizes(node: ir.Node, shape: tuple[int | None, ...]) -> list[int] | None:
    """Return the sizes of the parts.

    None when they, or the axis, are not known or the axis is the batch.
    """
    axis = ir.get_attr(node, "axis", 0) % len(shape)
    size, count = shape[axis], len(node.outputs)
    if axis == 0 or size is None:
        return None
    stored_sizes = ir.get_attr(node, "split")
    if stored_sizes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        array = ir.const_value(node.inputs[1])
        if array is None:
            return None
        stored_sizes = [int(n) for n in array.reshape(-1)]
    each = -(-size // count)
    sizes = stored_sizes or [each] * (count - 1) + [size - each * (count - 1)]
    return sizes if len(sizes) == count and sum(sizes) == size and min(sizes) >= 0 else None


def _insert_slice(
    model: ir.Model, node: ir.Node, part: ir.Value, bounds: tuple[int, int, int]
) -> ir.Value:
    """Put a Slice (start, end, axis) in front of `node` in place of its output `part`.

    Return what it writes.
    """
    constants = [
        ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{part.name}_{key}"), np.array([value], np.int64)
        )
        for key, value in zip(("start", "end", "axis"), bounds, strict=True)
    ]
    new = ir.make_node(
        "Slice",
        [node.inputs[0], *constants],
        origin=node,
        suffix=str(part.name),
        output="",
        like=part,
    )
    model.graph.insert_before(node, new)
    ir.replace_all_uses(part, new.outputs[0])
    return new.outputs[0]
