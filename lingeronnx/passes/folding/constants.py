"""Fold nodes whose inputs are all constant, by running them once in onnxruntime.

Random and state-carrying operators are left alone, and so are results larger than
`MAX_FOLDED_ELEMENTS` elements that would bloat the file (a big ConstantOfShape, a Tile).
"""

from __future__ import annotations

from ...graph import ir, operators
from ...run.runners import FloatFallback
from .._pass import PassResult, SkipReason

MAX_FOLDED_ELEMENTS = 1 << 24


def fold_constants(model: ir.Model) -> PassResult:
    """Replace constant nodes of `model` by initializers."""
    constant: set[str] = set()
    nodes = []
    for node in model.graph:
        known = all(
            v is None or v.name in constant or ir.const_value(v) is not None for v in node.inputs
        )
        if (
            known
            and not ir.has_subgraphs(node)
            and node.inputs
            and node.op_type not in operators.RANDOM_OPS
        ):
            nodes.append(node)
            constant.update(str(v.name) for v in node.outputs)
    if not nodes:
        return PassResult(0)
    fallback = FloatFallback(model, nodes, ())
    results = dict(zip(fallback.outputs, fallback(), strict=True)) if fallback.outputs else {}
    folded, why = 0, list[SkipReason]()
    for node in reversed(nodes):
        if any(v.is_graph_output() for v in node.outputs):
            why.append(SkipReason(node, "it is an output of the graph"))
            continue
        if any(
            name in results and results[name].size > MAX_FOLDED_ELEMENTS
            for name in (str(v.name) for v in node.outputs)
        ):
            why.append(SkipReason(node, f"it makes more than {MAX_FOLDED_ELEMENTS} elements"))
            continue
        if any(v.uses() and str(v.name) not in results for v in node.outputs):
            why.append(SkipReason(node, "a node behind it stays that reads it"))
            continue
        for value in node.outputs:
            name = str(value.name)
            if value.uses():
                value.name = None
                constant_value = ir.add_initializer(model, name, results[name])
                for user, index in list(value.uses()):
                    user.replace_input_with(index, constant_value)
        model.graph.remove(node, safe=True)
        folded += 1
    return PassResult(folded, why)
