"""Fold nodes whose inputs are all constant, by running them once in onnxruntime.

Random and state-carrying operators are left alone, and so are results larger than `LIMIT` elements that would bloat
the file (a big ConstantOfShape, a Tile).
"""

from __future__ import annotations

from ...graph import ir, operators
from ...run.runners import FloatFallback
from .._pass import Answer, Reason

LIMIT = 1 << 24


def fold_constants(model: ir.Graph) -> Answer:
    """Replace constant nodes of `model` by initializers."""
    constant: set[str] = set()
    nodes = []
    for node in model.graph:
        known = all(v is None or v.name in constant or ir.const(v) is not None for v in node.inputs)
        if known and not ir.holds_graphs(node) and node.inputs and node.op_type not in operators.RANDOM:
            nodes.append(node)
            constant.update(str(v.name) for v in node.outputs)
    if not nodes:
        return Answer(0)
    fallback = FloatFallback(model, nodes, ())
    results = dict(zip(fallback.outputs, fallback(), strict=True)) if fallback.outputs else {}
    folded, why = 0, list[Reason]()
    for node in reversed(nodes):
        if any(v.is_graph_output() for v in node.outputs):
            why.append(Reason(node, "it is an output of the graph"))
            continue
        if any(name in results and results[name].size > LIMIT for name in (str(v.name) for v in node.outputs)):
            why.append(Reason(node, f"it makes more than {LIMIT} elements"))
            continue
        if any(v.uses() and str(v.name) not in results for v in node.outputs):
            why.append(Reason(node, "a node behind it stays that reads it"))
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
    return Answer(folded, why)
