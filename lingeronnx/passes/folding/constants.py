"""Fold nodes whose inputs are all constant, by running them once in onnxruntime.

Random and state-carrying operators are left alone, and so are results larger than `LIMIT` elements that would bloat
the file (a big ConstantOfShape, a Tile).
"""

from __future__ import annotations

from ...graph import ir, operators
from ...run.runners import FloatIsland

LIMIT = 1 << 24


def fold_constants(model: ir.Graph) -> int:
    """Replace constant nodes of `model` by initializers; return how many."""
    constant: set[str] = set()
    nodes = []
    for node in model.graph:
        known = all(v is None or v.name in constant or ir.const(v) is not None for v in node.inputs)
        if known and not ir.holds_graphs(node) and node.inputs and node.op_type not in operators.RANDOM:
            nodes.append(node)
            constant.update(str(v.name) for v in node.outputs)
    if not nodes:
        return 0
    island = FloatIsland(model, nodes, ())
    results = dict(zip(island.outputs, island(), strict=True)) if island.outputs else {}
    folded = 0
    for node in reversed(nodes):
        if any(v.is_graph_output() for v in node.outputs):
            continue
        if any(name in results and results[name].size > LIMIT for name in (str(v.name) for v in node.outputs)):
            continue
        if any(v.uses() and str(v.name) not in results for v in node.outputs):
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
    return folded
