"""Which float tensors the integer tensors of a graph hold, as its Quants and Dequants say; no name is read for it."""

from __future__ import annotations

from ..formats import DEQUANT, QUANT, REQUANT, integer_format
from ..graph import ir

__all__ = ["float_names"]


def float_names(graph: ir.Graph) -> dict[str, str]:
    """Return {integer tensor: the float tensor it holds} of an integer graph, as its Quants and Dequants say.

    A tensor that leaves through several Dequants goes by the first; a Requant changes how a tensor is held, no more.
    """
    found: dict[str, str] = {}
    for node in graph.graph:
        form = integer_format(node)
        if form is None or not node.inputs or node.inputs[0] is None:
            continue
        if form is QUANT:
            found[ir.written_name(node)] = ir.read_name(node)
        elif form is DEQUANT:
            found.setdefault(ir.read_name(node), ir.written_name(node))
    for node in graph.graph:
        form = integer_format(node)
        if form is REQUANT and node.inputs and node.inputs[0] is not None:
            found.setdefault(ir.written_name(node), found.get(ir.read_name(node), ir.read_name(node)))
    return found
