"""Replace dynamically quantized layers by the float layers that they approximate.

onnxruntime's `quantize_dynamic` writes

    q, s, z = DynamicQuantizeLinear(x)
    y = Cast(MatMulInteger(q, w, z, wz)) * (s * ws)  =  MatMul(x, w - wz) * ws, but for rounding

or ConvInteger. The scale s is computed from the data of each run, and cancels: with s = 1 and x in
place of q the graph computes the float layer. Older versions also round the bias to a multiple of
s * ws; that rounding is removed. Operators of onnxruntime that do the same in one node (a product,
an LSTM) are replaced as well, and so are tables of embeddings (`gathered_tables`). Weights keep the
values that their integers represent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from .constant_types import is_number
from .gathered_tables import restore_gathered_tables
from .qoperators import DYNAMIC_OPS, is_dynamically_quantized

__all__ = ["restore_dynamic_layers"]

_QUANTIZE, _LSTM = "DynamicQuantizeLinear", "DynamicQuantizeLSTM"
_FLOAT_FORMS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
#: Product with a float result -> indices of its data, weight, scale and zero point, and bias.
_PRODUCTS = {"DynamicQuantizeMatMul": (0, 1, 2, 3, 4), "MatMulIntegerToFloat": (0, 1, 3, 5, 6)}
_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def restore_dynamic_layers(model: ir.Model) -> int:
    """Replace the dynamically quantized layers of `model` by float ones; return their number.

    In place. Raises ModelError for a node whose scales are computed at run time and that is not
    part of such a layer.
    """
    if not is_dynamically_quantized(model):
        return 0
    ir.lift_constants(model)
    count = restore_gathered_tables(model)
    quantizers = [node for node in model.graph if node.op_type == _QUANTIZE]
    sources = {node.outputs[0]: ir.require_input(node) for node in quantizers}
    for node in list(model.graph):
        if node.op_type in _FLOAT_FORMS:
            count += _restore_layer(model, node, sources)
        elif node.op_type in _PRODUCTS:
            count += _restore_product(model, node, sources)
        elif node.op_type == _LSTM:
            count += _restore_lstm(model, node)
    for node in quantizers:
        _replace_scale(model, node)
    ir.remove_unused(model)
    for node in ir.iter_all_nodes(model):
        if node.op_type in DYNAMIC_OPS:
            raise ModelError(
                f"{node.op_type} {node.name}: dynamic quantization: activation scales are computed "
                "at run time and not stored; use the original float model"
            )
    return count


def _restore_layer(model: ir.Model, node: ir.Node, sources: Mapping[ir.Value, ir.Value]) -> bool:
    """Change a MatMulInteger or ConvInteger to a MatMul or Conv of float tensors.

    Returns False, without a change, if an operand is neither constant nor written by a
    DynamicQuantizeLinear (`sources`).
    """
    operands: list[ir.Value | None] = []
    for index, zero_index in ((0, 2), (1, 3)):
        value, zero = ir.get_input(node, index), ir.get_input(node, zero_index)
        if value not in sources:
            axis = 0 if node.op_type == "ConvInteger" else -1
            array = _dequantize(value, None, zero, axis)
            value = None if array is None else _add_constant(model, node, array)
        operands.append(None if value is None else sources.get(value, value))
    if None in operands:
        return False
    result = node.outputs[0]
    _change_operator(node, _FLOAT_FORMS[node.op_type], operands)
    result.type = _FLOAT
    for use in list(result.uses()):
        if ir.is_standard_op(use.node, "Add"):
            _restore_bias(use.node, result)
    return True


def _restore_bias(add: ir.Node, sums: ir.Value) -> None:
    """Let `add`, which added a rounded bias to the former integers `sums`, add a float one.

    The bias is divided by the scale, then rounded by Floor and Cast, and reshaped.
    """
    for value in add.inputs:
        node = None if value is sums else ir.producer(value)
        while node is not None and ir.is_standard_op(node, "Reshape", "Cast", "Floor"):
            if node.op_type == "Reshape":
                node.outputs[0].type = _FLOAT
            else:
                node.outputs[0].replace_all_uses_with(ir.require_input(node))
            node = ir.producer(node.inputs[0])
    add.outputs[0].type = _FLOAT


def _restore_product(model: ir.Model, node: ir.Node, sources: Mapping[ir.Value, ir.Value]) -> bool:
    """Change a product of onnxruntime with a float result to a MatMul, and an Add for its bias.

    Returns False, without a change, if the weight is not constant, or its data are integers that
    no DynamicQuantizeLinear writes (`sources`).
    """
    data, weight, scale, zero, bias = (ir.get_input(node, i) for i in _PRODUCTS[node.op_type])
    array = _dequantize(weight, scale, zero, -1)
    if node.op_type == "MatMulIntegerToFloat":
        data = sources.get(data) if data is not None else None
    if data is None or array is None:
        return False
    _change_operator(node, "MatMul", [data, _add_constant(model, node, array)])
    if bias is not None:
        result = node.outputs[0]
        product = ir.make_node(
            "MatMul",
            node.inputs,
            output=ir.unique_tensor_name(model, f"{result.name}_product"),
            origin=node,
            suffix="product",
            like=result,
        )
        model.graph.insert_before(node, product)
        _change_operator(node, "Add", [product.outputs[0], bias])
    return True


def _restore_lstm(model: ir.Model, node: ir.Node) -> bool:
    """Change a DynamicQuantizeLSTM, whose weights are transposed, to an LSTM.

    Returns False, without a change, if its weights are not constant.
    """
    weights = []
    for index, scale_index in ((1, 8), (2, 10)):
        scale, zero = ir.get_input(node, scale_index), ir.get_input(node, scale_index + 1)
        array = _dequantize(ir.get_input(node, index), scale, zero, 0)
        if array is None or array.ndim != 3:
            return False
        weights.append(np.ascontiguousarray(array.transpose(0, 2, 1)))
    constants = [_add_constant(model, node, array) for array in weights]
    _change_operator(node, "LSTM", [node.inputs[0], *constants, *node.inputs[3:8]])
    return True


def _replace_scale(model: ir.Model, node: ir.Node) -> None:
    """Replace the scale that a DynamicQuantizeLinear computes by 1, if its integers are unused."""
    integers, scale, *zeros = node.outputs
    if any(value.uses() for value in (integers, *zeros)):
        return
    if any(value.is_graph_output() for value in node.outputs):
        return
    name = ir.unique_tensor_name(model, f"{scale.name}_one")
    scale.replace_all_uses_with(ir.add_initializer(model, name, np.array(1.0, np.float32)))


def _dequantize(
    value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, axis: int
) -> np.ndarray | None:
    """Return the float32 numbers that the integers of a constant represent.

    Several scales or zero points belong to `axis`; with two axes, to `axis` and the last one.
    Absent ones are 1 and 0. None if one is not constant, or their number does not match.
    """
    integers = ir.const_value(value)
    step = np.ones(1, np.float32) if scale is None else ir.const_value(scale)
    offset = np.zeros(1, np.int64) if zero is None else ir.const_value(zero)
    arrays = [array for array in (integers, step, offset) if array is not None and is_number(array)]
    if len(arrays) < 3:
        return None
    integers, step, offset = arrays
    try:
        steps, offsets = (_align(array, integers.ndim, axis) for array in (step, offset))
        real = (integers.astype(np.int64) - offsets.astype(np.int64)) * steps.astype(np.float64)
    except (ValueError, IndexError):
        return None
    return real.astype(np.float32) if real.shape == integers.shape else None


def _align(values: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """Return one value, or values per index of `axis`, with axes for a tensor of `rank`."""
    if values.size == 1:
        return values.reshape(())
    sizes = [1] * rank
    sizes[axis] = values.shape[0]
    if values.ndim == 2:
        sizes[-1] = values.shape[1]
    return values.reshape(sizes)


def _add_constant(model: ir.Model, node: ir.Node, array: np.ndarray) -> ir.Value:
    """Add `array` as an initializer named after `node`."""
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_weight")
    return ir.add_initializer(model, name, array)


def _change_operator(node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None]) -> None:
    """Make `node` a standard operator with other inputs, in place."""
    node.domain, node.op_type = "", op_type
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
