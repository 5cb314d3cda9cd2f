"""Convert Split to one Slice per output that is used, so that every integer node has one output.

The outputs keep their names. Needs a static size along the axis; the batch is not split.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from .._pass import PassResult, SkipReason


def convert_split_to_slices(model: ir.Model) -> PassResult:
    """Convert the Split nodes of `model` to one Slice per output that is used, in place.

    Skipped with a reason are those of the batch axis, and of unknown sizes.
    """
    changes, skipped = 0, list[SkipReason]()
    used_names = ir.get_tensor_names(model)  # once: reading all of them takes linear time
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Split"):
            continue
        shape = ir.get_shape(node.inputs[0])
        sizes = _get_split_sizes(node, shape) if shape else None
        if not shape or sizes is None:
            reason = "it splits the batch, or the sizes of its outputs are not known"
            skipped.append(SkipReason(node, reason))
            continue
        axis = ir.get_attr(node, "axis", 0) % len(shape)
        _replace_with_slices(model, node, sizes, axis, used_names)
        changes += 1
    return PassResult(changes, skipped)


def _replace_with_slices(
    model: ir.Model, node: ir.Node, sizes: list[int], axis: int, used_names: set[str]
) -> None:
    """Remove the Split `node`, and insert a Slice for each output that is used or a graph output.

    Output i has ``sizes[i]`` elements along `axis`; each Slice takes over the name of its output.
    Names of constants are reserved in `used_names`.
    """
    names = {}
    start = 0
    for output, size in zip(list(node.outputs), sizes, strict=True):
        bounds = {"start": start, "end": start + size, "axis": axis}
        if output.name and (output.uses() or output.is_graph_output()):
            slice_output = _insert_slice(model, node, output, bounds, used_names)
            names[slice_output] = output.name
        start += size
    model.graph.remove(node, safe=True)
    for result, name in names.items():
        result.name = name


def _get_split_sizes(node: ir.Node, shape: tuple[int | None, ...]) -> list[int] | None:
    """Return the size of each output of a Split along its axis, or None.

    `shape` is that of its input. None if the batch is split, or if sizes are unknown or do not add
    up. Without explicit sizes all outputs have the same one, the last possibly less.
    """
    axis = ir.get_attr(node, "axis", 0) % len(shape)
    total, count = shape[axis], len(node.outputs)
    if axis == 0 or total is None:
        return None
    sizes = _get_stored_sizes(node)
    if sizes is None:
        return None
    if not sizes:
        chunk = -(-total // count)
        sizes = [chunk] * (count - 1) + [total - chunk * (count - 1)]
    is_valid = len(sizes) == count and sum(sizes) == total and min(sizes) >= 0
    return sizes if is_valid else None


def _get_stored_sizes(node: ir.Node) -> list[int] | None:
    """Return the sizes in attribute `split` or, if absent, in constant input 1.

    Empty if neither exists; None if input 1 is computed at run time.
    """
    sizes = ir.get_attr(node, "split")
    if sizes is not None:
        return list(sizes)
    if len(node.inputs) <= 1 or node.inputs[1] is None:
        return []
    array = ir.const_value(node.inputs[1])
    return None if array is None else [int(size) for size in array.reshape(-1)]


def _insert_slice(
    model: ir.Model,
    node: ir.Node,
    output: ir.Value,
    bounds: dict[str, int],
    used_names: set[str],
) -> ir.Value:
    """Insert a Slice of the input of `node` that replaces `output`; return its result.

    `bounds` are "start", "end" and "axis", in this order. Names of constants are reserved in
    `used_names`.
    """
    constants = []
    for key, bound in bounds.items():
        name = ir.reserve_name(f"{output.name}_{key}", used_names)
        constants.append(ir.add_initializer(model, name, np.array([bound], np.int64)))
    slice_node = ir.make_node(
        "Slice",
        [node.inputs[0], *constants],
        origin=node,
        suffix=str(output.name),
        output="",
        like=output,
    )
    model.graph.insert_before(node, slice_node)
    output.replace_all_uses_with(slice_node.outputs[0], replace_graph_outputs=True)
    return slice_node.outputs[0]
