"""CastLike becomes Cast to the type that the other tensor has.

Exporters write it around constants of any type.
"""

from __future__ import annotations

from ...graph import ir
from .._pass import PassResult, SkipReason


def convert_cast_like(model: ir.Model) -> PassResult:
    """Rewrite the CastLike nodes of `model` whose target type is known."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if (
            node.op_type != "CastLike"
            or node.domain
            or len(node.inputs) < 2
            or node.inputs[1] is None
        ):
            continue
        kind = node.inputs[1].dtype
        if kind is None:
            why.append(
                SkipReason(node, f"the element type of '{node.inputs[1].name}' is not known")
            )
            continue
        new = ir.make_node(
            "Cast",
            [node.inputs[0]],
            {"to": int(kind)},
            origin=node,
            output="",
            like=node.outputs[0],
        )
        ir.replace_nodes(model, [node], [new])
        changed += 1
    return PassResult(changed, why)
