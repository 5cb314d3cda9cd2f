"""What scales and shifts channels in front of a Conv or Linear goes into its weight and bias.

`fold_factor_into_next_layer` takes one factor: Mul and Div by one constant, and Neg.
`fold_batch_norm_into_next_layer` takes a BatchNormalization that no layer in front took up, behind
an activation for instance; where the layer pads, only one without an offset. Two that follow each
other become one. Each saves a rounding.

After the compositions of functions have been found, which may end in such a factor. Nobody else
reads the product, and it is not what the model is fed: pixels over 255 would need a scale that
chips hardly hold.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...ops.layers.batch_norm import fold_batch_norm_parameters
from .._pass import PassResult, SkipReason
from .weight_layers import fold_affine_into_layer_inputs, is_weight_layer


def fold_factor_into_next_layer(model: ir.Model) -> PassResult:
    """Fold such factors of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        match = _match_scalar_factor(node)
        layer = ir.sole_consumer(node.outputs[0]) if match is not None else None
        weight = (
            ir.const_value(layer.inputs[1])
            if layer is not None and is_weight_layer(layer)
            else None
        )
        if (
            match is None
            or layer is None
            or weight is None
            or layer.inputs[0] is not node.outputs[0]
        ):
            layers = [
                use.node
                for use in node.outputs[0].uses()
                if is_weight_layer(use.node) and use.idx == 0
            ]
            if match is not None and layers:
                known = (
                    "it is read elsewhere too"
                    if layer is None
                    else f"the weight of {layer.name} is computed"
                )
                why.append(SkipReason(node, known))
            continue
        source, factor = match
        ir.set_constant_input(
            model, layer, 1, (weight * np.float64(factor)).astype(weight.dtype), "scaled"
        )
        layer.replace_input_with(0, source)
        model.graph.remove(node, safe=True)
        changed += 1
    return PassResult(changed, why)


def fold_batch_norm_into_next_layer(model: ir.Model) -> PassResult:
    """Fold the batch normalisations of `model` into what alone reads them."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        folded, reader = fold_batch_norm_parameters(node), ir.sole_consumer(node.outputs[0])
        if folded is None or ir.get_attr(node, "training_mode", 0):
            why.append(SkipReason(node, "its parameters are computed at run time"))
        elif ir.require_input(node).is_graph_input():
            why.append(SkipReason(node, "it reads what the model is fed"))
        elif reader is None or reader.inputs[0] is not node.outputs[0]:
            why.append(SkipReason(node, "no single node reads it"))
        elif (
            _compose_batch_norms(model, reader, *folded)
            if reader.op_type == node.op_type
            else _fold_into_layer(model, reader, *folded)
        ):
            reader.replace_input_with(0, node.inputs[0])
            model.graph.remove(node, safe=True)
            changed += 1
        else:
            why.append(SkipReason(node, f"{reader.op_type} {reader.name} cannot take it up"))
    return PassResult(changed, why)


def _compose_batch_norms(
    model: ir.Model, node: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Make the BatchNormalization `node` do first what ``factor * x + offset`` does, [C] both.

    False if it cannot.
    """
    own = fold_batch_norm_parameters(node)
    if own is None or node.domain or ir.get_attr(node, "training_mode", 0):
        return False
    one, zero = np.ones_like(factor), np.zeros_like(factor)
    for index, values in enumerate((own[0] * factor, own[0] * offset + own[1], zero, one), 1):
        ir.set_constant_input(model, node, index, values.astype(np.float32), "joined")
    ir.set_attr(node, "epsilon", 0.0)
    return True


def _fold_into_layer(
    model: ir.Model, layer: ir.Node, factor: np.ndarray, offset: np.ndarray
) -> bool:
    """Make the `layer` read what ``factor * x + offset`` was computed from, [C] both.

    False if it cannot.
    """
    if not is_weight_layer(layer) or ir.const_value(layer.inputs[1]) is None:
        return False
    shape, padded = ir.get_shape(layer.inputs[0]), any(ir.get_attr(layer, "pads", ()) or ())
    if layer.op_type == "Linear":
        fits = shape is not None and len(shape) == 2
    else:
        fits = ir.get_attr(layer, "auto_pad", "NOTSET") in ("NOTSET", "VALID") and not (
            padded and offset.any()
        )
    return fits and fold_affine_into_layer_inputs(model, layer, factor, offset)


def _match_scalar_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return (x, the number) of a node that multiplies a computed x by one number."""
    if node.domain or node.op_type not in (*operators.SCALING_OPS, "Neg"):
        return None
    computed = [
        value for value in node.inputs if value is not None and ir.const_value(value) is None
    ]
    arrays = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
    if (
        len(computed) != 1
        or computed[0].is_graph_input()
        or ir.get_shape(computed[0]) != ir.get_shape(node.outputs[0])
    ):
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
