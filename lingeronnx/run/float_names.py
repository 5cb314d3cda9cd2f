"""Which float tensors the integer tensors of a graph hold, as its Quants and Dequants say.

No name is read for it.
"""

from __future__ import annotations

from ..formats import DEQUANT, QUANT, REQUANT, find_integer_op
from ..graph import ir

__all__ = ["map_to_float_names"]


def map_to_float_names(graph: ir.Model) -> dict[str, str]:
    """Return {integer tensor.

    The float tensor it holds} of an integer graph, as its Quants and Dequants say.
    A tensor that leaves through several Dequants goes by the first; a Requant changes how a tensor
    is held, no more.
    """
    found: dict[str, str] = {}
    for node in graph.graph:
        form = find_integer_op(node)
        if form is None or not node.inputs or node.inputs[0] is None:
            continue
        if form is QUANT:
            found[ir.output_name(node)] = ir.input_name(node)
        elif form is DEQUANT:
            found.setdefault(ir.input_name(node), ir.output_name(node))
    for node in graph.graph:
        form = find_integer_op(node)
        if form is REQUANT and node.inputs and node.inputs[0] is not None:
            found.setdefault(
                ir.output_name(node), found.get(ir.input_name(node), ir.input_name(node))
            )
    return found
