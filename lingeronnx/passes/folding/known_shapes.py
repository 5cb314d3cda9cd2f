"""Replace known sizes by constants: the Shape, Gather and Slice nodes that exporters write.

Needs traced shapes. ``Shape(x)`` becomes a constant if all dimensions are numbers; otherwise
``Gather`` and ``Slice`` of it do if they only select known dimensions. The same applies to
``Size(x)``.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def fold_known_shapes(model: ir.Model) -> PassResult:
    """Replace Shape and Size nodes of known shapes by constants, in place.

    Of a Shape with unknown sizes, only the consumers that select known ones are replaced. Changes
    are counted by removed nodes; Shape and Size nodes that remain are listed as skipped.
    """
    changes = 0
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Shape", "Size") or node.graph is None:
            continue
        dims = ir.get_shape(node.inputs[0])
        if dims is None:
            continue
        if node.op_type == "Shape":
            dims = dims[slice(ir.get_attr(node, "start", 0), ir.get_attr(node, "end"))]
            changes += _fold_shape(model, node, dims)
        elif None not in dims:
            size = np.array(np.prod(np.array(dims, np.int64)), np.int64)
            changes += _replace_with_constant(model, node, size)
    remaining = [node for node in model.graph if ir.is_standard_op(node, "Shape", "Size")]
    return PassResult(changes, [SkipReason(node, _explain_unchanged(node)) for node in remaining])


def _fold_shape(model: ir.Model, node: ir.Node, dims: tuple[int | None, ...]) -> int:
    """Replace a Shape node by a constant of `dims`; return the number of removed nodes.

    If a dimension is unknown (None), only consumers are replaced: each Gather or Slice in the same
    graph that selects known ones.
    """
    if None not in dims:
        return _replace_with_constant(model, node, np.array(dims, np.int64))
    changes = 0
    for use in list(node.outputs[0].uses()):
        if use.idx != 0 or use.node.graph is not model.graph:
            continue
        selected = _select_known_dims(use.node, dims)
        if selected is not None:
            changes += _replace_with_constant(model, use.node, selected)
    return changes


def _explain_unchanged(node: ir.Node) -> str:
    """Return why the Shape or Size `node` is not replaced.

    It is a graph output, the rank is not known, or an unknown dimension is used.
    """
    if node.outputs[0].is_graph_output():
        return "it is an output of the graph"
    if ir.get_shape(node.inputs[0]) is None:
        return "the shape is not known"
    return "a size that is not known before the run is used"


def _select_known_dims(node: ir.Node, dims: tuple[int | None, ...]) -> np.ndarray | None:
    """Return the elements of `dims` that `node`, a Gather or Slice of a Shape, selects, as int64.

    None for another operator, for a selection that is not constant, or if one of the elements is
    unknown.
    """
    if node.domain:
        return None
    axes: np.ndarray | None = None
    if node.op_type == "Gather":
        axes = _gathered_positions(node, len(dims))
    elif node.op_type == "Slice":
        axes = _sliced_positions(node, len(dims))
    if axes is None:
        return None
    selected = [dims[axis] for axis in axes.reshape(-1)]
    if None in selected:
        return None
    return np.array(selected, np.int64).reshape(axes.shape)


def _gathered_positions(node: ir.Node, length: int) -> np.ndarray | None:
    """Return the constant indices of a Gather from `length` elements, negative ones counted from 0.

    None if the indices are computed at run time, empty, or out of range.
    """
    indices = ir.const_value(node.inputs[1])
    if indices is None or not indices.size:
        return None
    if (indices < -length).any() or (indices >= length).any():
        return None
    return np.asarray(np.arange(length)[indices])


def _sliced_positions(node: ir.Node, length: int) -> np.ndarray | None:
    """Return the positions that a Slice selects from `length` elements, or None if unknown.

    None also for a negative step and for several axes.
    """
    arrays = [ir.const_value(value) for value in node.inputs[1:]]
    bounds = [int(array.reshape(())) for array in arrays if array is not None and array.size == 1]
    if len(bounds) != len(arrays) or len(bounds) < 2:
        return None
    step = bounds[3] if len(bounds) > 3 else 1
    return np.arange(length)[bounds[0] : bounds[1] : step] if step > 0 else None


def _replace_with_constant(model: ir.Model, node: ir.Node, array: np.ndarray) -> int:
    """Remove `node` and let all consumers of its output read a new initializer `array`.

    Returns 1, or 0 without a change if the output is a graph output.
    """
    result = node.outputs[0]
    if result.is_graph_output():
        return 0
    uses = list(result.uses())
    if uses:
        name = ir.unique_tensor_name(model, f"{result.name}_known")
        value = ir.add_initializer(model, name, array)
        for user, index in uses:
            user.replace_input_with(index, value)
    model.graph.remove(node, safe=True)
    return 1
