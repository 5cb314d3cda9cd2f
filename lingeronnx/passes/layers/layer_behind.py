"""What scales and shifts channels in front of a Conv or Linear goes into its weight and bias.

`layer_behind` takes one factor: Mul and Div by one constant, and Neg. `batch_norm_behind` takes a BatchNormalization
that no layer in front took up, behind an activation for instance; where the layer pads, only one without an offset.
Two that follow each other become one. Each saves a rounding.

After the compositions of functions have been found, which may end in such a factor. Nobody else reads the product, and
it is not what the model is fed: pixels over 255 would need a scale that chips hardly hold.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...ops.layers.norm import factors
from .._pass import Answer, Reason
from .weights import is_layer, shift_layer


def layer_behind(model: ir.Graph) -> Answer:
    """Fold such factors of `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        match = _factor(node)
        layer = ir.sole_consumer(node.outputs[0]) if match is not None else None
        weight = ir.const(layer.inputs[1]) if layer is not None and is_layer(layer) else None
        if match is None or layer is None or weight is None or layer.inputs[0] is not node.outputs[0]:
            layers = [use.node for use in node.outputs[0].uses() if is_layer(use.node) and use.idx == 0]
            if match is not None and layers:
                known = "it is read elsewhere too" if layer is None else f"the weight of {layer.name} is computed"
                why.append(Reason(node, known))
            continue
        source, factor = match
        ir.set_constant(model, layer, 1, (weight * np.float64(factor)).astype(weight.dtype), "scaled")
        layer.replace_input_with(0, source)
        model.graph.remove(node, safe=True)
        changed += 1
    return Answer(changed, why)


def batch_norm_behind(model: ir.Graph) -> Answer:
    """Fold the batch normalisations of `model` into what alone reads them."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        folded, reader = factors(node), ir.sole_consumer(node.outputs[0])
        if folded is None or ir.attr(node, "training_mode", 0):
            why.append(Reason(node, "its parameters are computed at run time"))
        elif ir.source(node).is_graph_input():
            why.append(Reason(node, "it reads what the model is fed"))
        elif reader is None or reader.inputs[0] is not node.outputs[0]:
            why.append(Reason(node, "no single node reads it"))
        elif _join(model, reader, *folded) if reader.op_type == node.op_type else _take_up(model, reader, *folded):
            reader.replace_input_with(0, node.inputs[0])
            model.graph.remove(node, safe=True)
            changed += 1
        else:
            why.append(Reason(node, f"{reader.op_type} {reader.name} cannot take it up"))
    return Answer(changed, why)


def _join(model: ir.Graph, node: ir.Node, factor: np.ndarray, offset: np.ndarray) -> bool:
    """Make the BatchNormalization `node` do first what ``factor * x + offset`` does, [C] both; False if it cannot."""
    own = factors(node)
    if own is None or node.domain or ir.attr(node, "training_mode", 0):
        return False
    one, zero = np.ones_like(factor), np.zeros_like(factor)
    for index, values in enumerate((own[0] * factor, own[0] * offset + own[1], zero, one), 1):
        ir.set_constant(model, node, index, values.astype(np.float32), "joined")
    ir.set_attr(node, "epsilon", 0.0)
    return True


def _take_up(model: ir.Graph, layer: ir.Node, factor: np.ndarray, offset: np.ndarray) -> bool:
    """Make the `layer` read what ``factor * x + offset`` was computed from, [C] both; False if it cannot."""
    if not is_layer(layer) or ir.const(layer.inputs[1]) is None:
        return False
    shape, padded = ir.shape(layer.inputs[0]), any(ir.attr(layer, "pads", ()) or ())
    if layer.op_type == "Linear":
        fits = shape is not None and len(shape) == 2
    else:
        fits = ir.attr(layer, "auto_pad", "NOTSET") in ("NOTSET", "VALID") and not (padded and offset.any())
    return fits and shift_layer(model, layer, factor, offset)


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
