"""Choose how samples run through float nodes so that each is bit-exact for any batch.

onnxruntime computes complete vectors and the remainder of a tensor differently; sums along an axis
depend on the alignment of a row in memory; matrix products depend on the number of rows. One unit
in the last place can change an integer downstream. The behaviour of each operator was measured
(docs/explanation/reliability.md); nothing is assumed for other operators.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
import onnx

from simulator.kernel import TensorSpec, data_address

from ...ir import float_ops, ir

__all__ = [
    "PARALLEL_SAMPLES",
    "Batching",
    "build_parallel_model",
    "split_aligned",
    "choose_batching",
    "repeats_to_fill_vectors",
    "pad_to_vector",
    "flatten_padded",
    "align_array",
    "repeat_samples",
]

#: Number of samples that one call of a model of `build_parallel_model` computes separately.
PARALLEL_SAMPLES = 16

#: Elements of the longest SIMD vector. A tensor with a multiple of it has no remainder.
_VECTOR_LENGTH = 16
_ALIGNMENT_BYTES = 64  # of tensors that onnxruntime allocates
_MAX_PARALLEL_NODES = 16  # nodes that `build_parallel_model` repeats
_MAX_PARALLEL_ELEMENTS = 1 << 15  # of a sample; for more, the cost of a call is negligible
# Elements of a sample for which a vector of samples takes no longer than a few more calls.
_MAX_PADDED_ELEMENTS = 256
# Additional elements of a sample that take no longer than separate nodes.
_MAX_EXTRA_ELEMENTS = 1024

#: Operators on single elements, or on elements at the same index.
_ELEMENTWISE_OPS = float_ops.UNARY_ELEMENTWISE_OPS | float_ops.BROADCASTING_OPS
#: Bit-exact for any batch: each element is rounded once or moved, each row computed separately.
_BATCH_INVARIANT_OPS = (
    float_ops.CORRECTLY_ROUNDED_OPS | float_ops.DATA_MOVEMENT_OPS | float_ops.SOFTMAX_FAMILY_OPS
)
#: Operators that preserve the number of elements: each sample stays aligned if the first is.
_INVARIANT_IF_ALIGNED_OPS = (
    float_ops.PERMUTATION_OPS
    | float_ops.SOFTMAX_FAMILY_OPS
    | float_ops.NORMALIZATION_OPS
    | _ELEMENTWISE_OPS
)
#: Operators for which a sample with a remainder has the same bits as repeated, without one.
_INVARIANT_IF_REPEATED_OPS = (
    float_ops.PERMUTATION_OPS
    | float_ops.SOFTMAX_FAMILY_OPS
    | float_ops.NORMALIZATION_OPS
    | (_ELEMENTWISE_OPS & float_ops.CORRECTLY_ROUNDED_OPS)
)


class Batching(Enum):
    """How the samples of a batch are run."""

    ANY_BATCH = "as one batch"
    FLATTENED = "flattened and padded to complete vectors"
    PADDED = "as a batch padded to complete vectors of samples"
    REPEATED = "each repeated to complete vectors, so that it is aligned"
    PARALLEL = "by separate nodes in one call, each aligned"
    SINGLE = "one by one, each aligned"


def choose_batching(
    nodes: Sequence[ir.Node], constants: Collection[onnx.TensorProto], specs: Sequence[TensorSpec]
) -> Batching:
    """Choose how to run consecutive float nodes so that each sample is bit-exact.

    The fastest way that is certain: by operators, sizes of the tensors, and constants.

    Parameters
    ----------
    nodes, constants
        The nodes and their constants.
    specs
        Types of all their inputs and outputs for one sample.
    """
    op_types = {"" if node.domain else node.op_type for node in nodes}
    if op_types <= _BATCH_INVARIANT_OPS:
        return Batching.ANY_BATCH
    sizes = [math.prod(spec.shape) for spec in specs]
    has_no_remainder = all(size % _VECTOR_LENGTH == 0 for size in sizes)
    if op_types <= _INVARIANT_IF_ALIGNED_OPS and has_no_remainder:
        return Batching.ANY_BATCH
    is_parallelizable = _is_parallelizable(nodes, specs)
    if is_parallelizable and op_types <= _INVARIANT_IF_REPEATED_OPS:
        extra_elements = (repeats_to_fill_vectors(specs) - 1) * max(sizes)
        if extra_elements <= _MAX_EXTRA_ELEMENTS:
            return Batching.REPEATED
    separate = Batching.PARALLEL if is_parallelizable else Batching.SINGLE
    if not op_types <= _BATCH_INVARIANT_OPS | _ELEMENTWISE_OPS:
        return separate
    has_one_shape = len({spec.shape for spec in specs}) == 1
    if op_types <= _ELEMENTWISE_OPS and has_one_shape and _are_scalars(constants):
        return Batching.FLATTENED
    return Batching.PADDED if sum(sizes) <= _MAX_PADDED_ELEMENTS else separate


def _are_scalars(constants: Collection[onnx.TensorProto]) -> bool:
    """Whether all of `constants` have one element and at most one axis."""
    return all(len(tensor.dims) < 2 and math.prod(tensor.dims) == 1 for tensor in constants)


def repeats_to_fill_vectors(specs: Sequence[TensorSpec]) -> int:
    """Count the repetitions of a sample with which each tensor of `specs` fills whole vectors.

    The maximum over the tensors; 1 without any. A vector has `_VECTOR_LENGTH` elements.
    """
    return max(
        (_VECTOR_LENGTH // math.gcd(math.prod(spec.shape), _VECTOR_LENGTH) for spec in specs),
        default=1,
    )


def _is_parallelizable(nodes: Sequence[ir.Node], specs: Sequence[TensorSpec]) -> bool:
    """Whether one call may compute several samples by repeated nodes, and is expected to be faster.

    That needs float32 tensors only (`specs`), no subgraphs, and at most `_MAX_PARALLEL_NODES` nodes
    and `_MAX_PARALLEL_ELEMENTS` elements in all tensors of a sample.
    """
    if any(spec.dtype != np.float32 for spec in specs):
        return False
    if any(ir.has_subgraphs(node) for node in nodes):
        return False
    element_count = sum(math.prod(spec.shape) for spec in specs)
    return len(nodes) <= _MAX_PARALLEL_NODES and element_count <= _MAX_PARALLEL_ELEMENTS


def build_parallel_model(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Build a model of `PARALLEL_SAMPLES` samples that computes each sample by separate nodes.

    `proto`, for one sample, is not changed. onnxruntime aligns each sample that is split off, and
    each tensor downstream, as a separate tensor, so the result is bit-equal to that of separate
    calls.
    """
    parallel = onnx.ModelProto()
    parallel.CopyFrom(proto)
    del parallel.graph.node[:]
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    for value in proto.graph.input:
        split = onnx.helper.make_node("Split", [value.name], _numbered_names(value.name), axis=0)
        if opset >= 18:
            split.attribute.append(onnx.helper.make_attribute("num_outputs", PARALLEL_SAMPLES))
        parallel.graph.node.append(split)
    constants = {tensor.name for tensor in proto.graph.initializer}
    for index in range(PARALLEL_SAMPLES):
        for node in proto.graph.node:
            _copy_numbered(node, index, constants, parallel.graph.node.add())
    for value in proto.graph.output:
        names = _numbered_names(value.name)
        parallel.graph.node.append(onnx.helper.make_node("Concat", names, [value.name], axis=0))
    return parallel


def _copy_numbered(
    node: onnx.NodeProto, index: int, constants: Collection[str], copy: onnx.NodeProto
) -> None:
    """Fill `copy` with `node`, whose name and tensors get the suffix ``#INDEX``.

    Names in `constants` and absent inputs keep theirs.
    """
    copy.CopyFrom(node)
    copy.name = f"{node.name}#{index}"
    for position, name in enumerate(node.input):
        if name and name not in constants:
            copy.input[position] = f"{name}#{index}"
    copy.output[:] = [f"{name}#{index}" if name else "" for name in node.output]


def _numbered_names(name: str) -> list[str]:
    """Return the names NAME#0, NAME#1, ... of a tensor's samples in a parallel model."""
    return [f"{name}#{index}" for index in range(PARALLEL_SAMPLES)]


def pad_to_vector(array: np.ndarray) -> np.ndarray:
    """Repeat the last sample until the number of samples is a multiple of `_VECTOR_LENGTH`.

    Returns `array` itself if it is one.
    """
    missing = -len(array) % _VECTOR_LENGTH
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def flatten_padded(array: np.ndarray) -> np.ndarray:
    """Flatten an array, and repeat its last element up to a multiple of `_VECTOR_LENGTH`."""
    return pad_to_vector(array.reshape(-1))


def _allocate_aligned(size: int) -> np.ndarray:
    """Allocate `size` uninitialized bytes with the alignment of onnxruntime's tensors."""
    memory = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    start = -data_address(memory) % _ALIGNMENT_BYTES
    return memory[start : start + size]


def repeat_samples(array: np.ndarray, times: int) -> np.ndarray:
    """Return `array` with each sample (axis 0) repeated `times` times in a row: a, a, b, b, ...

    The new array [N * times, ...] lies in aligned memory.
    """
    samples = (
        _allocate_aligned(array.nbytes * times).view(array.dtype).reshape(len(array), times, -1)
    )
    samples[...] = array.reshape(len(array), 1, -1)
    return samples.reshape(len(array) * times, *array.shape[1:])


def align_array(array: np.ndarray) -> np.ndarray:
    """Return `array` contiguous and aligned as onnxruntime's tensors, copied if necessary.

    Scalars and arrays of objects are returned unchanged.
    """
    if (
        array.ndim == 0
        or array.dtype.hasobject
        or (array.flags.c_contiguous and data_address(array) % _ALIGNMENT_BYTES == 0)
    ):
        return array
    aligned: np.ndarray = split_aligned(array[None])[0][0]
    return aligned


def split_aligned(array: np.ndarray) -> list[np.ndarray]:
    """Split a batch into samples [1, ...] that are each aligned as a tensor of onnxruntime.

    The samples are copies, except arrays of objects, which are views.
    """
    if array.dtype.hasobject:
        return [array[i : i + 1] for i in range(len(array))]
    count, sample_bytes = len(array), array.nbytes // len(array)
    stride = -(-sample_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    memory = _allocate_aligned(count * stride).reshape(count, stride)
    samples = memory[:, :sample_bytes].view(array.dtype)
    samples[...] = array.reshape(count, -1)
    return [sample.reshape(1, *array.shape[1:]) for sample in samples]
