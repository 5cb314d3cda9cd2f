"""A model without its weights.

Same nodes, names, types and shapes, and numbers that anybody may see.
What a bug needs is nearly always the graph alone. Each constant is replaced by a pattern of the
same type and shape: floats by a cosine of period 251, divided by the square root of the numbers in
a row, so that sums stay near 1; integers by -3 ... 3, or 0 ... 6 where they have no sign. Kept are
single numbers (limits, scales, zero points) and integers of at most 64 elements (shapes, axes,
pads), without which the graph would be another one. Descriptions go, and so do metadata that are
not lingeronnx's own.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .onnx_file import iter_tensors

__all__ = ["strip_weights"]

_MAX_STRUCTURE_ELEMENTS = 64  # elements; integers up to here are shapes, axes and the like
_PATTERN_PERIOD = (
    251  # a prime number: no row of a weight is a multiple of it, and the file packs well
)
_MAX_TOTAL_BYTES = 1 << 28  # bytes of all constants together
_METADATA_PREFIX = "lingeronnx."
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def strip_weights(model: ModelProto) -> ModelProto | None:
    """Return a copy of `model` with patterns for weights.

    None where they would take more than 256 MB.
    `model` may have external data that were not loaded: only types and shapes are read of these.
    """
    held = list(iter_tensors(model))
    if sum(math.prod(tensor.dims) * 4 for tensor in held) > _MAX_TOTAL_BYTES:
        return None
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in iter_tensors(bare):
        if not _is_structural_constant(tensor):
            tensor.CopyFrom(_make_pattern_tensor(tensor))
        tensor.doc_string = ""
    bare.doc_string = bare.graph.doc_string = ""
    for node in bare.graph.node:
        node.doc_string = ""
    own = [
        (each.key, each.value)
        for each in bare.metadata_props
        if each.key.startswith(_METADATA_PREFIX)
    ]
    del bare.metadata_props[:]
    helper.set_model_props(bare, dict(own))
    return bare


def _is_structural_constant(tensor: TensorProto) -> bool:
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    count = math.prod(tensor.dims)
    return count <= 1 or (count <= _MAX_STRUCTURE_ELEMENTS and tensor.data_type not in _FLOAT_TYPES)


def _make_pattern_tensor(tensor: TensorProto) -> TensorProto:
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        return helper.make_tensor(
            tensor.name, tensor.data_type, list(tensor.dims), np.full(count, b"")
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    steps = np.arange(count)
    if tensor.data_type in _FLOAT_TYPES:
        row = max(count // max(tensor.dims[0] if tensor.dims else 1, 1), 1)
        numbers = np.cos(steps % _PATTERN_PERIOD * 2.0) / math.sqrt(row)
    else:
        numbers = steps % _PATTERN_PERIOD % 7 - (3 if np.issubdtype(dtype, np.signedinteger) else 0)
    return numpy_helper.from_array(numbers.astype(dtype).reshape(tensor.dims), tensor.name)
