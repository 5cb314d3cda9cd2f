"""Map integer tensors of a graph to the float tensors that they represent."""

from __future__ import annotations

from ..formats import DEQUANT, QUANT, REQUANT, find_integer_op
from ..graph import ir

__all__ = ["map_to_float_names"]


def map_to_float_names(graph: ir.Model) -> dict[str, str]:
    """Map each integer tensor at a Quant or Dequant to the float tensor that it represents.

    A tensor with several Dequants is mapped to the output of the first. A Requant only changes the
    scale, so its output is mapped like its input, or else to its input. Other integer tensors are
    missing.
    """
    float_names: dict[str, str] = {}
    requants = []
    for node in graph.graph:
        integer_op = find_integer_op(node)
        if integer_op is None or not node.inputs or node.inputs[0] is None:
            continue
        if integer_op is QUANT:
            float_names[ir.output_name(node)] = ir.input_name(node)
        elif integer_op is DEQUANT:
            float_names.setdefault(ir.input_name(node), ir.output_name(node))
        elif integer_op is REQUANT:
            requants.append(node)
    for node in requants:
        source = ir.input_name(node)
        float_names.setdefault(ir.output_name(node), float_names.get(source, source))
    return float_names
