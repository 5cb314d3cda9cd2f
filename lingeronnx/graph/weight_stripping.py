"""Replace the weights of a model by patterns, so that it can be shared in a bug report.

Nodes, names, types and shapes stay the same. Most bugs depend only on the graph. Each constant is
replaced by a pattern of the same type and shape: floats by a cosine of period 251, divided by the
square root of the elements per row, so that sums stay near 1; integers by -3 ... 3, or 0 ... 6 if
unsigned. Scalars (limits, scales, zero points) and integers of at most 64 elements (shapes, axes,
pads) are not replaced, because the structure of the graph depends on them. Doc strings and foreign
metadata are removed.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .onnx_file import iter_tensors

__all__ = ["strip_weights"]

_MAX_STRUCTURE_ELEMENTS = 64  # integer constants up to this size are shapes, axes and the like
_PATTERN_PERIOD = 251  # prime, so that rows differ; short, so that the file compresses well
_MAX_TOTAL_BYTES = 1 << 28  # of all constants together
_METADATA_PREFIX = "lingeronnx."
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def strip_weights(model: ModelProto) -> ModelProto | None:
    """Return a copy of `model` with patterns in place of weights, and without doc strings.

    None if its constants, at 4 bytes per element, exceed _MAX_TOTAL_BYTES. Constants on which the
    structure may depend (of one element, or small and not float) keep their values; only metadata
    whose key begins with _METADATA_PREFIX is left. External data need not be loaded: of these only
    types and shapes are used.
    """
    tensors = list(iter_tensors(model))
    if sum(math.prod(tensor.dims) * 4 for tensor in tensors) > _MAX_TOTAL_BYTES:
        return None
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for tensor in iter_tensors(stripped):
        if not _is_structural_constant(tensor):
            tensor.CopyFrom(_make_pattern_tensor(tensor))
        tensor.doc_string = ""
    stripped.doc_string = stripped.graph.doc_string = ""
    for node in stripped.graph.node:
        node.doc_string = ""
    metadata = {
        entry.key: entry.value
        for entry in stripped.metadata_props
        if entry.key.startswith(_METADATA_PREFIX)
    }
    del stripped.metadata_props[:]
    helper.set_model_props(stripped, metadata)
    return stripped


def _is_structural_constant(tensor: TensorProto) -> bool:
    """Whether the graph structure may depend on `tensor`, so that it must keep its values.

    These are tensors of at most one element, and of at most _MAX_STRUCTURE_ELEMENTS if not of a
    float type; none in external data.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    count = math.prod(tensor.dims)
    return count <= 1 or (count <= _MAX_STRUCTURE_ELEMENTS and tensor.data_type not in _FLOAT_TYPES)


def _make_pattern_tensor(tensor: TensorProto) -> TensorProto:
    """Make a tensor of the same name, type and shape with a periodic pattern as data.

    With k = element index mod _PATTERN_PERIOD in C order: floats are cos(2 k) divided by the square
    root of the elements per index of axis 0, integers k mod 7, less 3 if signed, and strings are
    empty.
    """
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        return helper.make_tensor(
            tensor.name, tensor.data_type, list(tensor.dims), np.full(count, b"")
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    phase = np.arange(count) % _PATTERN_PERIOD
    if tensor.data_type in _FLOAT_TYPES:
        rows = max(tensor.dims[0] if tensor.dims else 1, 1)
        row_length = max(count // rows, 1)
        values = np.cos(phase * 2.0) / math.sqrt(row_length)
    else:
        values = phase % 7 - (3 if np.issubdtype(dtype, np.signedinteger) else 0)
    return numpy_helper.from_array(values.astype(dtype).reshape(tensor.dims), tensor.name)
