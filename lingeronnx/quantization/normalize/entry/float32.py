"""Convert float16, bfloat16 and double tensors to float32, including graph inputs and outputs.

The simulator's reference is float32, and integer inputs and outputs are scaled from it. Constants
that exceed the range of float32 (masks of -1e308) are clipped to it. Integer arithmetic is not
changed.
"""

from __future__ import annotations

import numpy as np

from ....ir import ir
from .._pass import Condition

_OTHER_FLOAT_TYPES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
#: Attributes whose value is an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")


def _find_other_float(model: ir.Model) -> str | None:
    """Describe a value of another float type than float32; None if there is none."""
    for value in ir.iter_values(model):
        if value.dtype in _OTHER_FLOAT_TYPES:
            return f"'{value.name}' is {value.dtype}"
    return None


FLOAT32 = Condition("float32 as the only float type", _find_other_float)


def convert_to_float32(model: ir.Model) -> int:
    """Convert float16, bfloat16 and double of `model` to float32, in place, also in subgraphs.

    Returns the number of typed tensors and attributes that changed. Finite values of initializers
    and attributes are clipped to the range of float32.
    """
    values: list[ir.Value] = [*model.graph.inputs, *model.graph.initializers.values()]
    changes = 0
    for node in ir.iter_all_nodes(model, include_composites=False):
        changes += _convert_attributes(node)
        for attribute in node.attributes.values():
            for graph in ir.get_subgraphs(attribute):
                values += [*graph.inputs, *graph.initializers.values()]
        values += node.outputs
    unique_values = {id(value): value for value in values}
    for value in unique_values.values():
        if value.const_value is not None and value.const_value.dtype in _OTHER_FLOAT_TYPES:
            value.const_value = _convert_tensor(value.const_value)
        if value.dtype in _OTHER_FLOAT_TYPES:
            value.type = ir.TensorType(ir.DataType.FLOAT)
            changes += 1
    return changes


def _convert_attributes(node: ir.Node) -> int:
    """Convert float16, bfloat16 and double in attributes of `node` to float32, in place.

    Concerned are tensors and element types (such as `to` of Cast). Returns the number of changes.
    """
    changes = 0
    for name, attribute in list(node.attributes.items()):
        is_tensor = attribute.type == ir.AttributeType.TENSOR
        is_type = name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
        if is_tensor and attribute.value.dtype in _OTHER_FLOAT_TYPES:
            tensor = _convert_tensor(attribute.value)
            node.attributes[name] = ir.Attr(name, ir.AttributeType.TENSOR, tensor)
            changes += 1
        elif is_type and attribute.value in _OTHER_FLOAT_TYPES:
            ir.set_attr(node, name, int(ir.DataType.FLOAT))
            changes += 1
    return changes


def _convert_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return `tensor` as float32, with finite values clipped to its range."""
    limit = np.finfo(np.float32).max
    values = tensor.numpy().astype(np.float64)
    clipped = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return ir.tensor(clipped.astype(np.float32), name=tensor.name)
