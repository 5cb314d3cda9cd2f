"""Sizes that are known become constants.

What exporters compute with Shape, Gather and Slice, apart from the batch.
Needs traced shapes. ``Shape(x)`` whose dimensions are all numbers is a constant; else ``Gather``
and ``Slice`` of it that take known dimensions only are. ``Size(x)`` likewise.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def fold_known_shapes(model: ir.Model) -> PassResult:
    """Replace what is known of shapes in `model` by constants, counted by nodes."""
    changed = 0
    for node in list(model.graph):
        if node.domain or node.op_type not in ("Shape", "Size") or node.graph is None:
            continue
        dims = ir.get_shape(node.inputs[0])
        if dims is None:
            continue
        if node.op_type == "Size":
            changed += None not in dims and _replace_with_constant(
                model, node, np.array(np.prod(np.array(dims, np.int64)), np.int64)
            )
            continue
        dims = dims[slice(ir.get_attr(node, "start", 0), ir.get_attr(node, "end"))]
        if None not in dims:
            changed += _replace_with_constant(model, node, np.array(dims, np.int64))
            continue
        for use in list(node.outputs[0].uses()):
            picked = (
                _select_known_dims(use.node, dims)
                if use.idx == 0 and use.node.graph is model.graph
                else None
            )
            if picked is not None:
                changed += _replace_with_constant(model, use.node, picked)
    left = [n for n in model.graph if n.op_type in ("Shape", "Size") and not n.domain]
    return PassResult(changed, [SkipReason(node, _explain_unchanged(node)) for node in left])


def _explain_unchanged(node: ir.Node) -> str:
    """Return why `node` is left."""
    if node.outputs[0].is_graph_output():
        return "it is an output of the graph"
    unknown = ir.get_shape(node.inputs[0]) is None
    return (
        "the shape is not known" if unknown else "a size is read that is not known before the run"
    )


def _select_known_dims(node: ir.Node, dims: tuple[int | None, ...]) -> np.ndarray | None:
    """Return what a Gather or Slice takes of `dims`, or None where that is not known."""
    index: np.ndarray | None = None
    positions = np.arange(len(dims))
    if node.op_type == "Gather" and not node.domain:
        array = ir.const_value(node.inputs[1])
        if (
            array is not None
            and array.size
            and (array >= -len(dims)).all()
            and (array < len(dims)).all()
        ):
            index = positions[array]
    elif node.op_type == "Slice" and not node.domain:
        arrays = [ir.const_value(v) for v in node.inputs[1:]]
        if len(arrays) >= 2 and all(a is not None and a.size == 1 for a in arrays):
            start, end = (int(a.reshape(())) for a in arrays[:2] if a is not None)
            step = int(arrays[3].reshape(())) if len(arrays) > 3 and arrays[3] is not None else 1
            index = positions[start:end:step] if step > 0 else None
    if index is None or any(dims[i] is None for i in index.reshape(-1)):
        return None
    return np.array([dims[i] for i in index.reshape(-1)], np.int64).reshape(index.shape)


def _replace_with_constant(model: ir.Model, node: ir.Node, array: np.ndarray) -> int:
    """Let the readers of `node` read the constant `array`.

    0 where nobody does or the outside reads it.
    """
    result = node.outputs[0]
    if result.is_graph_output():
        return 0
    uses = list(result.uses())
    if uses:
        value = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{result.name}_known"), array
        )
        for user, index in uses:
            user.replace_input_with(index, value)
    model.graph.remove(node, safe=True)
    return 1
