"""Convert CastLike to a Cast to the element type of the other tensor.

Exporters write CastLike around constants of any type.
"""

from __future__ import annotations

from ...graph import ir
from .._pass import PassResult, SkipReason


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
