"""Dequantize constant tables before the Gather that selects from them.

onnxruntime's `quantize_dynamic` stores the table of an embedding as integers, selects from it, and
dequantizes what was selected, also behind a Transpose or other operators that only move data:

    y = DequantizeLinear(Transpose(Gather(integers, x)), scale, zero)

With one scale and zero point, the table can be dequantized instead, with equal results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import float_ops, ir
from .constant_types import is_number

__all__ = ["restore_gathered_tables"]

_DEQUANTIZE = "DequantizeLinear"
_FLOAT = ir.TensorType(ir.DataType.FLOAT)
#: They read their data from input 0 alone; Concat would need each of its inputs to be converted.
_MOVEMENT_OPS = float_ops.PERMUTATION_OPS | float_ops.SELECTION_OPS | float_ops.REPEAT_OPS


def restore_gathered_tables(model: ir.Model) -> int:
    """Replace tables of integers that are dequantized after a Gather by float ones, in place.

    Returns their number. A table stays if anything else reads the selected integers, and unless all
    that dequantizes them has the same scale and zero point, constant and one for all elements.
    """
    count = 0
    for node in list(model.graph):
        if not ir.is_standard_op(node, "Gather"):
            continue
        table = ir.const_value(node.inputs[0])
        values = _find_moved_values(node.outputs[0])
        if table is None or table.dtype.kind not in "iu" or not values:
            continue
        dequantizers = _find_dequantizers(values)
        parameters = _read_parameters(dequantizers)
        if parameters is None:
            continue
        scale, zero_point = parameters
        array = ((table.astype(np.int64) - zero_point) * scale).astype(np.float32)
        name = ir.unique_tensor_name(model, f"{ir.require_input(node).name}_dequantized")
        node.replace_input_with(0, ir.add_initializer(model, name, array))
        for value in values:
            value.type = _FLOAT
        _remove_dequantizers(model, dequantizers)
        count += 1
    if count:
        ir.remove_unused(model)
    return count


def _find_moved_values(selected: ir.Value) -> list[ir.Value]:
    """Return `selected` and the values that operators which move data make of it.

    Empty if one is a graph output, or if an operator reads one that neither moves data nor
    dequantizes it.
    """
    values = [selected]
    for value in values:  # grows while it is read
        if value.is_graph_output():
            return []
        for use in value.uses():
            if use.idx == 0 and ir.is_standard_op(use.node, *_MOVEMENT_OPS):
                values += use.node.outputs
            elif use.idx != 0 or not ir.is_standard_op(use.node, _DEQUANTIZE):
                return []
    return values


def _find_dequantizers(values: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that read `values`."""
    nodes = []
    for value in values:
        nodes += [use.node for use in value.uses() if ir.is_standard_op(use.node, _DEQUANTIZE)]
    return nodes


def _read_parameters(dequantizers: Sequence[ir.Node]) -> tuple[float, int] | None:
    """Return the scale and zero point that all `dequantizers` have; None if they differ.

    None also for more than one scale, for scales that are computed or no float32, and if the result
    of one is a graph output, which needs a node of its own.
    """
    pairs = set()
    for node in dequantizers:
        scale = ir.const_value(node.inputs[1])
        zero_input = ir.get_input(node, 2)
        zero = np.zeros(1, np.int64) if zero_input is None else ir.const_value(zero_input)
        if scale is None or zero is None or not is_number(scale) or not is_number(zero):
            return None
        if scale.dtype != np.float32 or (scale.size, zero.size) != (1, 1):
            return None
        if node.outputs[0].is_graph_output():
            return None
        pairs.add((float(scale.reshape(())), int(zero.reshape(()))))
    return pairs.pop() if len(pairs) == 1 else None


def _remove_dequantizers(model: ir.Model, dequantizers: Sequence[ir.Node]) -> None:
    """Let the consumers of `dequantizers` read their inputs, which take over their names."""
    for node in dequantizers:
        source, output = ir.require_input(node), node.outputs[0]
        name = str(output.name)
        output.replace_all_uses_with(source)
        model.graph.remove(node, safe=True)
        source.name = name
