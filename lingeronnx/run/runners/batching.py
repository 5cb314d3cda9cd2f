"""How samples go through float nodes so that none depends on those beside it, to the last bit.

onnxruntime computes whole vectors of numbers one way, and what is left at the end of a tensor
another way; sums along an axis depend on where a row begins in memory; products of matrices depend
on the number of rows. One unit in the last place is enough for another integer behind. What each
operator does was measured (docs/reliability.md); of one that was not, nothing is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
import onnx

from simulator.kernel import TensorSpec
from simulator.native import data_address

from ...graph import ir, operators

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

#: Samples that one call of `build_parallel_model` computes, each by itself.
PARALLEL_SAMPLES = 16

#: Numbers in the longest vector that anybody computes with. A tensor of a multiple has nothing left at its end.
_VECTOR_LENGTH = 16
_ALIGNMENT_BYTES = 64  # bytes to whose multiples onnxruntime's own tensors are placed
_MAX_PARALLEL_NODES = 16  # that `build_parallel_model` repeats
_MAX_PARALLEL_ELEMENTS = 1 << 15  # of a sample: beyond, a call costs nothing beside the computing
_MAX_PADDED_ELEMENTS = (
    256  # numbers of a sample of which a vector of samples takes no longer than a few more calls
)

_MAX_EXTRA_ELEMENTS = 1024  # further numbers of a sample that take no longer than nodes of its own

#: Of one number each, or of several at one place.
_ELEMENTWISE_OPS = operators.UNARY_ELEMENTWISE_OPS | operators.BROADCASTING_OPS
#: The same for any batch: each number is rounded once or moved, each row computed by itself.
_BATCH_INVARIANT_OPS = (
    operators.CORRECTLY_ROUNDED_OPS | operators.DATA_MOVEMENT_OPS | operators.SOFTMAX_FAMILY_OPS
)
#: What keeps all its numbers: a multiple of a vector stays one, and each sample begins on a line as the first one does.
_INVARIANT_IF_ALIGNED_OPS = (
    operators.PERMUTATION_OPS
    | operators.SOFTMAX_FAMILY_OPS
    | operators.NORMALIZATION_OPS
    | _ELEMENTWISE_OPS
)
#: Of these a sample alone, whose end fills no vector, has the same bits as one of a multiple.
_INVARIANT_IF_REPEATED_OPS = (
    operators.PERMUTATION_OPS
    | operators.SOFTMAX_FAMILY_OPS
    | operators.NORMALIZATION_OPS
    | (_ELEMENTWISE_OPS & operators.CORRECTLY_ROUNDED_OPS)
)


class Batching(Enum):
    """How samples are run."""

    ANY_BATCH = "the same for any batch"
    FLATTENED = "as one line of numbers, filled to whole vectors"
    PADDED = "with others, to whole vectors of samples"
    REPEATED = "each as often as fills whole vectors, so that it begins on a line"
    PARALLEL = "each in its own place, several in a call"
    SINGLE = "one by one, each in its own place"


def choose_batching(
    nodes: Sequence[ir.Node], constants: Collection[onnx.TensorProto], specs: Sequence[TensorSpec]
) -> Batching:
    """Return how nodes are run; specs : of all that they read and write, of one sample."""
    kinds = {"" if node.domain else node.op_type for node in nodes}
    if kinds <= _BATCH_INVARIANT_OPS:
        return Batching.ANY_BATCH
    sizes = [math.prod(spec.shape) for spec in specs]
    if kinds <= _INVARIANT_IF_ALIGNED_OPS and all(size % _VECTOR_LENGTH == 0 for size in sizes):
        return Batching.ANY_BATCH
    several = _repeatable(nodes, specs)
    if (
        several
        and kinds <= _INVARIANT_IF_REPEATED_OPS
        and (repeats_to_fill_vectors(specs) - 1) * max(sizes) <= _MAX_EXTRA_ELEMENTS
    ):
        return Batching.REPEATED
    if not kinds <= _BATCH_INVARIANT_OPS | _ELEMENTWISE_OPS:
        return Batching.PARALLEL if several else Batching.SINGLE
    plain = all(len(tensor.dims) < 2 and math.prod(tensor.dims) == 1 for tensor in constants)
    if kinds <= _ELEMENTWISE_OPS and plain and len({spec.shape for spec in specs}) == 1:
        return Batching.FLATTENED
    if sum(sizes) <= _MAX_PADDED_ELEMENTS:
        return Batching.PADDED
    return Batching.PARALLEL if several else Batching.SINGLE


def repeats_to_fill_vectors(specs: Sequence[TensorSpec]) -> int:
    """Return how often a sample must follow itself until whole vectors are full, in every tensor of `specs`."""
    return max(
        (_VECTOR_LENGTH // math.gcd(math.prod(spec.shape), _VECTOR_LENGTH) for spec in specs),
        default=1,
    )


def _repeatable(nodes: Sequence[ir.Node], specs: Sequence[TensorSpec]) -> bool:
    """Whether `build_parallel_model` can repeat nodes, and it is worth while."""
    plain = all(spec.dtype == np.float32 for spec in specs) and not any(
        ir.has_subgraphs(node) for node in nodes
    )
    few = (
        len(nodes) <= _MAX_PARALLEL_NODES
        and sum(math.prod(spec.shape) for spec in specs) <= _MAX_PARALLEL_ELEMENTS
    )
    return plain and few


def build_parallel_model(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Build a model of `PARALLEL_SAMPLES` samples that computes each sample by separate nodes.

    onnxruntime puts each sample that is split off, and each tensor behind it, where a tensor of its
    own begins; so the numbers are those of as many calls.
    """
    found, held = onnx.ModelProto(), {tensor.name for tensor in proto.graph.initializer}
    found.CopyFrom(proto)
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    splits = [
        onnx.helper.make_node("Split", [v.name], _numbered_names(v.name), axis=0)
        for v in proto.graph.input
    ]
    for split in splits if version >= 18 else ():
        split.attribute.append(onnx.helper.make_attribute("num_outputs", PARALLEL_SAMPLES))
    made = splits
    for index in range(PARALLEL_SAMPLES):
        for node in proto.graph.node:
            one = onnx.NodeProto()
            one.CopyFrom(node)
            one.name = f"{node.name}#{index}"
            one.input[:] = [
                name if name in held or not name else f"{name}#{index}" for name in node.input
            ]
            one.output[:] = [f"{name}#{index}" if name else "" for name in node.output]
            made.append(one)
    made += [
        onnx.helper.make_node("Concat", _numbered_names(value.name), [value.name], axis=0)
        for value in proto.graph.output
    ]
    del found.graph.node[:]
    found.graph.node.extend(made)
    return found


def _numbered_names(name: str) -> list[str]:
    return [f"{name}#{index}" for index in range(PARALLEL_SAMPLES)]


def pad_to_vector(array: np.ndarray) -> np.ndarray:
    """Return a batch with its last sample repeated, to a multiple of a vector's samples."""
    missing = -len(array) % _VECTOR_LENGTH
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def flatten_padded(array: np.ndarray) -> np.ndarray:
    """Return all numbers of an array in one line, the last repeated to whole vectors."""
    return pad_to_vector(array.reshape(-1))


def _allocate_aligned(size: int) -> np.ndarray:
    """Return `size` new bytes that begin where a tensor of onnxruntime's own would."""
    memory = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    start = -data_address(memory) % _ALIGNMENT_BYTES
    return memory[start : start + size]


def repeat_samples(array: np.ndarray, times: int) -> np.ndarray:
    """Return a batch with each sample `times` times in turn, the first one where a tensor of its own would begin."""
    samples = (
        _allocate_aligned(array.nbytes * times).view(array.dtype).reshape(len(array), times, -1)
    )
    samples[...] = array.reshape(len(array), 1, -1)
    return samples.reshape(len(array) * times, *array.shape[1:])


def align_array(array: np.ndarray) -> np.ndarray:
    """Return an array whose memory begins where that of a tensor of onnxruntime's own would."""
    if (
        array.ndim == 0
        or array.dtype.hasobject
        or (array.flags.c_contiguous and data_address(array) % _ALIGNMENT_BYTES == 0)
    ):
        return array
    return split_aligned(array[None])[0][0]


def split_aligned(array: np.ndarray) -> list[np.ndarray]:
    """Return the samples of a batch, each of them where a tensor of onnxruntime's own would begin in memory."""
    if array.dtype.hasobject:
        return [array[i : i + 1] for i in range(len(array))]
    size = array.nbytes // len(array)
    each = -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    rows = (
        _allocate_aligned(len(array) * each).reshape(len(array), each)[:, :size].view(array.dtype)
    )
    rows[...] = array.reshape(len(array), -1)
    return [row.reshape(1, *array.shape[1:]) for row in rows]
