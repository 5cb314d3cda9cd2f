"""One float type: float16, bfloat16 and double tensors become float32, the graph's inputs and outputs included.

The simulator's reference is float32, and integer inputs and outputs are scaled from it. Constants
that float32 cannot hold (masks of -1e308) become its largest number. Integer arithmetic is left
alone.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from .._pass import Condition
from .reject_unsupported import iter_all_nodes

_OTHER_FLOAT_TYPES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
#: Attributes that name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")


def _find_other_float(model: ir.Model) -> str | None:
    return next(
        (
            f"'{v.name}' is {v.dtype}"
            for v in ir.iter_values(model)
            if v.dtype in _OTHER_FLOAT_TYPES
        ),
        None,
    )


FLOAT32 = Condition("float32 as the only float type", _find_other_float)


def convert_to_float32(model: ir.Model) -> int:
    """Convert the other float types of `model`; return how many tensors and attributes changed."""
    values: dict[int, ir.Value] = {
        id(v): v for v in (*model.graph.inputs, *model.graph.initializers.values())
    }
    changed = 0
    for node in iter_all_nodes(model):
        changed += _convert_attributes(node)
        for attribute in node.attributes.values():
            for graph in ir.get_subgraphs(attribute):
                values.update({id(v): v for v in (*graph.inputs, *graph.initializers.values())})
        values.update({id(v): v for v in node.outputs})
    for value in values.values():
        if value.const_value is not None and value.const_value.dtype in _OTHER_FLOAT_TYPES:
            value.const_value = _convert_tensor(value.const_value)
        if value.dtype in _OTHER_FLOAT_TYPES:
            value.type = ir.TensorType(ir.DataType.FLOAT)
            changed += 1
    return changed


def _convert_attributes(node: ir.Node) -> int:
    changed = 0
    for name, attribute in list(node.attributes.items()):
        if (
            attribute.type == ir.AttributeType.TENSOR
            and attribute.value.dtype in _OTHER_FLOAT_TYPES
        ):
            node.attributes[name] = ir.Attr(
                name, ir.AttributeType.TENSOR, _convert_tensor(attribute.value)
            )
            changed += 1
        elif (
            name in _TYPE_ATTRIBUTES
            and attribute.type == ir.AttributeType.INT
            and attribute.value in _OTHER_FLOAT_TYPES
        ):
            ir.set_attr(node, name, int(ir.DataType.FLOAT))
            changed += 1
    return changed


def _convert_tensor(tensor: ir.Tensor) -> ir.Tensor:
    array = tensor.numpy()
    limit = np.finfo(np.float32).max
    wide = array.astype(np.float64)
    narrow = np.where(np.isfinite(wide), np.clip(wide, -limit, limit), wide).astype(np.float32)
    return ir.tensor(narrow, name=tensor.name)
