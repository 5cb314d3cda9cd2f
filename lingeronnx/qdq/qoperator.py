"""QuantizeLinear and DequantizeLinear around a node, taken up by the standard operator on integers where there is one.

    DequantizeLinear, Conv, QuantizeLinear      -> QLinearConv
    DequantizeLinear, MatMul, QuantizeLinear    -> QLinearMatMul
    the same around what only moves int8        -> the operator itself on int8

The standard has no others; everything else keeps its QuantizeLinear and DequantizeLinear. The
numbers stay the same.
"""

from __future__ import annotations

import numpy as np

from ..graph import ir, operators

__all__ = ["MOVES", "to_qoperator"]

#: Operators that only move or choose elements, whatever these are: input 0 is what they move.
MOVES = (
    operators.RESHAPING_OPS
    | operators.SELECTION_OPS
    | operators.REPEAT_OPS
    | {"MaxPool", "Transpose"}
)

_PRODUCTS = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul"}
_EIGHT_BIT_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)


def to_qoperator(model: ir.Model) -> int:
    """Rewrite `model` in place; return how many nodes became operators on integers."""
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
    """Return the DequantizeLinear that gives input `index`."""
    maker = ir.producer(node.inputs[index]) if index < len(node.inputs) else None
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _find_quantize_output(node: ir.Node) -> ir.Node | None:
    """Return the QuantizeLinear that alone reads the only output of `node`."""
    reader = ir.sole_consumer(node.outputs[0]) if len(node.outputs) == 1 else None
    quantizes = (
        reader is not None
        and reader.op_type == "QuantizeLinear"
        and reader.inputs[0] is node.outputs[0]
    )
    return reader if quantizes else None


def _fuse_product(model: ir.Model, node: ir.Node) -> int:
    before, after = (
        [_find_dequantize_input(node, index) for index in range(2)],
        _find_quantize_output(node),
    )
    bias = _find_dequantize_input(node, 2)
    if (
        after is None
        or any(dequantize is None for dequantize in before)
        or (len(node.inputs) > 2 and bias is None)
    ):
        return 0
    dequantizes = [dequantize for dequantize in before if dequantize is not None]
    kinds = [ir.require_input(dequantize).dtype for dequantize in dequantizes] + [
        after.outputs[0].dtype
    ]
    step = ir.const_value(dequantizes[0].inputs[1])
    wide = any(kind not in _EIGHT_BIT_TYPES for kind in kinds)
    if (
        wide
        or step is None
        or step.size > 1
        or any(len(dequantize.inputs) < 3 for dequantize in [*dequantizes, after])
    ):
        return 0
    inputs: list[ir.Value | None] = [
        value for dequantize in dequantizes for value in dequantize.inputs[:3]
    ]
    inputs += after.inputs[1:3]
    if bias is not None:
        inputs.append(bias.inputs[0])
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    product = ir.make_node(
        _PRODUCTS[node.op_type], inputs, attributes, output="", origin=node, like=after.outputs[0]
    )
    ir.replace_nodes(model, [node, after], [product])
    return 1


def _fuse_move(model: ir.Model, node: ir.Node) -> int:
    before, after = _find_dequantize_input(node, 0), _find_quantize_output(node)
    if before is None or after is None or ir.require_input(before).dtype not in _EIGHT_BIT_TYPES:
        return 0
    if len(before.inputs) != len(after.inputs) or not all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in (
            (ir.const_value(x), ir.const_value(y))
            for x, y in zip(before.inputs[1:], after.inputs[1:], strict=True)
        )
        if a is not None and b is not None
    ):
        return 0
    integers, result = ir.require_input(before), after.outputs[0]
    attributes = {key: ir.get_attr(node, key) for key in node.attributes}
    moved = ir.make_node(
        node.op_type, [integers, *node.inputs[1:]], attributes, output="", origin=node, like=result
    )
    ir.replace_nodes(model, [node, after], [moved])
    return 1
