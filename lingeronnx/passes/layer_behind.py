"""One factor in front of a Conv or Linear goes into its weight: Mul and Div by one constant, and Neg.

After the compositions of functions have been found, which may end in such a factor. Nobody else reads the product, and
it is not what the model is fed: pixels over 255 would need a scale that chips hardly hold.
"""

from __future__ import annotations

import numpy as np

from ..graph import ir, operators
from ._layers import is_layer


def layer_behind(model: ir.Graph) -> int:
    """Fold such factors of `model`; return how many."""
    changed = 0
    for node in list(model.graph):
        found = _factor(node)
        layer = ir.sole_consumer(node.outputs[0]) if found is not None else None
        weight = ir.const(layer.inputs[1]) if layer is not None and is_layer(layer) else None
        if found is None or layer is None or weight is None or layer.inputs[0] is not node.outputs[0]:
            continue
        source, factor = found
        ir.set_constant(model, layer, 1, (weight * np.float64(factor)).astype(weight.dtype), "scaled")
        layer.replace_input_with(0, source)
        model.graph.remove(node, safe=True)
        changed += 1
    return changed


def _factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return (x, the number) of a node that multiplies a computed x by one number."""
    if node.domain or node.op_type not in (*operators.FACTORS, "Neg"):
        return None
    computed = [value for value in node.inputs if value is not None and ir.const(value) is None]
    arrays = [array for value in node.inputs if (array := ir.const(value)) is not None]
    if len(computed) != 1 or computed[0].is_graph_input() or ir.shape(computed[0]) != ir.shape(node.outputs[0]):
        return None
    kind = computed[0].dtype
    if kind is None or kind.name != "FLOAT" or any(array.size != 1 for array in arrays):
        return None
    if node.op_type == "Neg":
        return computed[0], -1.0
    number = float(arrays[0].reshape(()))
    if node.op_type == "Div":
        return (computed[0], 1.0 / number) if node.inputs[0] is computed[0] and number else None
    return (computed[0], number) if number else None
