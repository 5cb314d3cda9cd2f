"""The part of an integer graph that goes to the chip: from the Quants to the Dequants, the host part cut off.

The vendor's packer takes no float operator, so a graph that ends in a Softmax on the host is packed without it. Tensor
names stay: the cut graph's inputs and outputs are the float tensors at the borders.
"""

from __future__ import annotations

from . import ir
from .emit import OPSET
from .ops import integer_op, is_quantized_domain

__all__ = ["chip_part"]


def chip_part(graph: ir.Graph) -> ir.Graph:
    """Return a copy of the chip-ready integer `graph` without its host part; the same graph when it has none."""
    if all(_integer(node) for node in graph.graph):
        return graph
    part = ir.clone(graph)
    inner = part.graph
    kept = [node for node in inner if _integer(node)]
    inputs = []
    for node in kept:
        if node.op_type == "Quant":
            source = ir.source(node)
            if not source.is_graph_input():
                entry = ir.Value(name=source.name, type=source.type, shape=source.shape)
                for user, index in list(source.uses()):
                    if _integer(user):
                        user.replace_input_with(index, entry)
                source.name = ir.fresh_name(part, f"{source.name}_host")
                source = entry
            if source not in inputs:
                inputs.append(source)
    outputs = [node.outputs[0] for node in kept if node.op_type == "Dequant" or _real(node)]
    inner.outputs[:] = outputs
    ir.remove_unused(part)
    inner.inputs[:] = inputs
    part.functions.clear()
    inner.opset_imports.clear()
    inner.opset_imports.update({"": OPSET, "thinker": 1})
    return part


def _real(node: ir.Node) -> bool:
    """Whether the integer `node` writes floats without a Dequant."""
    kind = node.outputs[0].dtype
    return kind is not None and kind.name == "FLOAT"


def _integer(node: ir.Node) -> bool:
    """Whether the chip runs `node`: an integer operator, or a standard one on integer tensors."""
    if is_quantized_domain(node):
        return True
    source = node.inputs[0] if node.inputs else None
    kind = None if source is None else source.dtype
    return integer_op(node) is not None and kind is not None and kind.name in ("INT8", "INT16", "INT32")
