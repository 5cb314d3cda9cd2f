"""The only module that imports onnx_ir: its classes and functions under their own names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from ._deferred_import import defer_imports

# onnx_ir needs sympy only for symbolic dimension arithmetic, and it takes half of the import time.
with defer_imports("sympy", "onnx_ir._symbolic_shapes"):
    import onnx_ir as oir
    from onnx_ir.passes import common as common_passes

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Attr",
    "AttributeType",
    "DataType",
    "Dim",
    "Function",
    "Graph",
    "InlinePass",
    "Model",
    "Node",
    "RefAttr",
    "Shape",
    "ShapeInferencePass",
    "SymbolicDim",
    "TensorProtocol",
    "TensorType",
    "Value",
    "common_passes",
    "node",
    "oir",
    "serialize_function",
    "serialize_node",
    "tensor",
    "to_proto",
]

# Its log messages about files do not concern users.
logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)

Model = oir.Model  # before or after lowering
Node = oir.Node
Value = oir.Value
Graph = oir.Graph  # the nodes of a model, of a function or of a branch
Function = oir.Function
Attr = oir.Attr
RefAttr = oir.RefAttr
AttributeType = oir.AttributeType
DataType = oir.DataType
TensorType = oir.TensorType
TensorProtocol = oir.TensorProtocol
Shape = oir.Shape
SymbolicDim = oir.SymbolicDim
InlinePass = common_passes.InlinePass
ShapeInferencePass = common_passes.ShapeInferencePass

#: A dimension: a number, a name or symbol, or None if it is unknown.
Dim = int | str | SymbolicDim | None

node = oir.node
to_proto = oir.to_proto
serialize_node = oir.serde.serialize_node
serialize_function = oir.serde.serialize_function


def tensor(
    value: npt.ArrayLike, dtype: DataType | None = None, name: str | None = None
) -> TensorProtocol:
    """Create a constant from an array or from anything that onnx_ir converts to one.

    onnx_ir would first test whether an array has the methods of a tensor, which takes longer than
    everything else about a constant.
    """
    if isinstance(value, np.ndarray):
        return oir.Tensor(value, dtype=dtype, name=name)
    return oir.tensor(value, dtype=dtype, name=name)
