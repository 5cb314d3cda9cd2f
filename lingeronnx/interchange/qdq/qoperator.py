"""Convert QDQ nodes to the integer operators of standard ONNX.

    DequantizeLinear, Conv, QuantizeLinear             -> QLinearConv
    DequantizeLinear, MatMul, QuantizeLinear           -> QLinearMatMul
    DequantizeLinear, data movement, QuantizeLinear    -> the data movement on int8

The standard has no others; all other nodes keep their QuantizeLinear and DequantizeLinear. Results
do not change.
"""

from __future__ import annotations

import numpy as np

from ...ir import float_ops, ir

__all__ = ["MOVES", "to_qoperator"]

#: Operators that only move or select elements of input 0, of any type.
MOVES = (
    float_ops.RESHAPING_OPS
    | float_ops.SELECTION_OPS
    | float_ops.REPEAT_OPS
    | {"MaxPool", "Transpose"}
)

_PRODUCTS = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul"}
_EIGHT_BIT_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


def to_qoperator(model: ir.Model) -> int:
    """Convert QDQ nodes of `model` to integer operators of ONNX in place; return their number.

    Conv and MatMul between QDQ nodes of 8 bits become QLinearConv and QLinearMatMul; data movement
    between QDQ nodes of equal parameters moves the integers.
    """
    count = 0
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type in _PRODUCTS:
            count += _fuse_product(model, node)
        elif node.op_type in MOVES:
            count += _fuse_move(model, node)
    ir.remove_unused(model)
    return count


def _find_dequantize_input(node: ir.Node, index: int) -> ir.Node | None:
    """Return the DequantizeLinear that produces input `index` of `node`, or None."""
    producer = ir.producer(node.inputs[index]) if index < len(node.inputs) else None
    return producer if producer is not None and producer.op_type == "DequantizeLinear" else None


def _find_quantize_output(node: ir.Node) -> ir.Node | None:
    """Return the QuantizeLinear that alone reads the only output of `node`, or None."""
    consumer = ir.sole_consumer(node.outputs[0]) if len(node.outputs) == 1 else None
    if consumer is None or consumer.op_type != "QuantizeLinear":
        return None
    return consumer if consumer.inputs[0] is node.outputs[0] else None


def _fuse_product(model: ir.Model, node: ir.Node) -> bool:
    """Replace a Conv or MatMul between QDQ nodes by its integer operator, and return True.

    Returns False, without a change, if the bias is float, an operand or the result has not 8 bits,
    or a QDQ node is missing.
    """
    x, weight, bias = (_find_dequantize_input(node, index) for index in range(3))
    quantize = _find_quantize_output(node)
    if x is None or weight is None or quantize is None:
        return False
    has_float_bias = len(node.inputs) > 2 and bias is None
    if has_float_bias or not _is_int8_product(x, weight, quantize):
        return False
    inputs: list[ir.Value | None] = [*x.inputs[:3], *weight.inputs[:3], *quantize.inputs[1:3]]
    if bias is not None:
        inputs.append(bias.inputs[0])
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    op_type, result = _PRODUCTS[node.op_type], quantize.outputs[0]
    product = ir.make_node(op_type, inputs, attributes, output="", origin=node, like=result)
    ir.replace_nodes(model, [node, quantize], [product])
    return True


def _is_int8_product(x: ir.Node, weight: ir.Node, quantize: ir.Node) -> bool:
    """Whether operands and result have 8 bits and zero points, and x has one constant scale.

    `x` and `weight` are the DequantizeLinear of the operands, `quantize` is the QuantizeLinear of
    the product.
    """
    scale = ir.const_value(x.inputs[1])
    if scale is None or scale.size > 1:
        return False
    if any(len(node.inputs) < 3 for node in (x, weight, quantize)):
        return False
    integers = ir.require_input(x), ir.require_input(weight), quantize.outputs[0]
    return all(value.dtype in _EIGHT_BIT_TYPES for value in integers)


def _fuse_move(model: ir.Model, node: ir.Node) -> bool:
    """Let the data movement `node` between QDQ nodes of equal parameters move the integers.

    Returns True; False, without a change, for other parameters or types, and if a QDQ node is
    missing.
    """
    dequantize, quantize = _find_dequantize_input(node, 0), _find_quantize_output(node)
    if dequantize is None or quantize is None:
        return False
    integers, result = ir.require_input(dequantize), quantize.outputs[0]
    if integers.dtype not in _EIGHT_BIT_TYPES or not _has_same_qparams(dequantize, quantize):
        return False
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    moved = ir.make_node(
        node.op_type, [integers, *node.inputs[1:]], attributes, output="", origin=node, like=result
    )
    ir.replace_nodes(model, [node, quantize], [moved])
    return True


def _has_same_qparams(dequantize: ir.Node, quantize: ir.Node) -> bool:
    """Whether both QDQ nodes have equal scales and zero points, as far as these are constants.

    Inputs that are not constant count as equal; a zero point in only one of them does not.
    """
    if len(dequantize.inputs) != len(quantize.inputs):
        return False
    for first, second in zip(dequantize.inputs[1:], quantize.inputs[1:], strict=True):
        a, b = ir.const_value(first), ir.const_value(second)
        if a is None or b is None:
            continue
        if not np.array_equal(a, b) or a.dtype != b.dtype:
            return False
    return True
