"""Fold nodes whose inputs are all constant by running them once in onnxruntime.

Random and stateful operators are not folded, and neither are results of more than
`MAX_FOLDED_ELEMENTS` elements, which would enlarge the file (a big ConstantOfShape, a Tile).

A CastLike, which exporters write around constants of any type, first becomes a Cast to the element
type of the other tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir import float_ops, ir
from ....runtime.runners import FloatFallback
from .._pass import PassResult, SkipReason

MAX_FOLDED_ELEMENTS = 1 << 24


def fold_constants(model: ir.Model) -> PassResult:
    """Replace nodes of `model` that depend on constants only by initializers, in place.

    They are run once in onnxruntime. Skipped with a reason are nodes that compute graph outputs,
    results of more than `MAX_FOLDED_ELEMENTS` elements, and nodes with a constant consumer that is
    not folded.
    """
    nodes = _find_constant_nodes(model)
    if not nodes:
        return PassResult(0)
    fallback = FloatFallback(model, nodes, ())
    results = dict(zip(fallback.outputs, fallback(), strict=True)) if fallback.outputs else {}
    changes, skipped = 0, list[SkipReason]()
    for node in reversed(nodes):
        reason = _explain_unfolded(node, results)
        if reason is not None:
            skipped.append(SkipReason(node, reason))
            continue
        for value in node.outputs:
            if not value.uses():
                continue
            name = str(value.name)
            value.name = None
            initializer = ir.add_initializer(model, name, results[name])
            for user, index in list(value.uses()):
                user.replace_input_with(index, initializer)
        model.graph.remove(node, safe=True)
        changes += 1
    return PassResult(changes, skipped)


def _find_constant_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes whose inputs are constants or outputs of such nodes, in graph order.

    Leaves out nodes without inputs, with subgraphs, and random operators.
    """
    constant_names: set[str] = set()
    nodes = []
    for node in model.graph:
        if not node.inputs or ir.has_subgraphs(node) or node.op_type in float_ops.RANDOM_OPS:
            continue
        computed = [v for v in node.inputs if v is not None and ir.const_value(v) is None]
        if constant_names.issuperset(str(value.name) for value in computed):
            nodes.append(node)
            constant_names.update(str(value.name) for value in node.outputs)
    return nodes


def _explain_unfolded(node: ir.Node, results: Mapping[str, np.ndarray]) -> str | None:
    """Explain why a constant node is not folded to `results` (tensor name -> array), or None.

    Reasons: an output is a graph output, has more than `MAX_FOLDED_ELEMENTS` elements, or is used
    but not in `results`.
    """
    if any(value.is_graph_output() for value in node.outputs):
        return "it is an output of the graph"
    arrays = [results.get(str(value.name)) for value in node.outputs]
    if any(array is not None and array.size > MAX_FOLDED_ELEMENTS for array in arrays):
        return f"its output has more than {MAX_FOLDED_ELEMENTS} elements"
    for value, array in zip(node.outputs, arrays, strict=True):
        if value.uses() and array is None:
            return "a consumer of it is not folded"
    return None


def convert_cast_like(model: ir.Model) -> PassResult:
    """Convert each CastLike of `model` to a Cast to the element type of its input 1, in place.

    Nodes whose input 1 has an unknown element type are listed as skipped.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "CastLike" or node.domain or len(node.inputs) < 2:
            continue
        like = node.inputs[1]
        if like is None:
            continue
        if like.dtype is None:
            skipped.append(SkipReason(node, f"the element type of '{like.name}' is not known"))
            continue
        cast = ir.make_node(
            "Cast",
            [node.inputs[0]],
            {"to": int(like.dtype)},
            origin=node,
            output="",
            like=node.outputs[0],
        )
        ir.replace_nodes(model, [node], [cast])
        changes += 1
    return PassResult(changes, skipped)
