"""How samples go through float nodes so that none depends on those beside it, to the last bit.

onnxruntime computes whole vectors of numbers one way, and what is left at the end of a tensor another way; sums along
an axis depend on where a row begins in memory; products of matrices depend on the number of rows. One unit in the last
place is enough for another integer behind. What each operator does was measured (docs/reliability.md); of one that was
not, nothing is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
import onnx

from simulator.kernel import Spec
from simulator.native import data_address

from ...graph import ir, operators

__all__ = ["TOGETHER", "Batching", "abreast", "apart", "batching", "copies", "filled", "flat", "placed", "repeated"]

#: Samples that one call of `abreast` computes, each by itself.
TOGETHER = 16

#: Numbers in the longest vector that anybody computes with. A tensor of a multiple has nothing left at its end.
_VECTOR = 16
_LINE = 64  # bytes to whose multiples onnxruntime's own tensors are placed
_MOST_NODES = 16  # that `abreast` repeats
_MOST_NUMBERS = 1 << 15  # of a sample: beyond, a call costs nothing beside the computing
_SMALL = 256  # numbers of a sample of which a vector of samples takes no longer than a few more calls

_FREE = 1024  # further numbers of a sample that take no longer than nodes of its own

#: Of one number each, or of several at one place.
_NUMBERS = operators.ONE_TENSOR | operators.BROADCAST
#: The same for any batch: each number is rounded once or moved, each row computed by itself.
_STEADY = operators.EXACT | operators.MOVES | operators.ROWS
#: What keeps all its numbers: a multiple of a vector stays one, and each sample begins on a line as the first one does.
_KEEPING = operators.WHOLE | operators.ROWS | operators.NORMS | _NUMBERS
#: Of these a sample alone, whose end fills no vector, has the same bits as one of a multiple.
_KEEPING_BITS = operators.WHOLE | operators.ROWS | operators.NORMS | (_NUMBERS & operators.EXACT)


class Batching(Enum):
    """How samples are run."""

    AS_THEY_COME = "the same for any batch"
    FLAT = "as one line of numbers, filled to whole vectors"
    FILLED = "with others, to whole vectors of samples"
    REPEATED = "each as often as fills whole vectors, so that it begins on a line"
    ABREAST = "each in its own place, several in a call"
    ALONE = "one by one, each in its own place"


def batching(nodes: Sequence[ir.Node], constants: Collection[onnx.TensorProto], specs: Sequence[Spec]) -> Batching:
    """Return how nodes are run; specs : of all that they read and write, of one sample."""
    kinds = {"" if node.domain else node.op_type for node in nodes}
    if kinds <= _STEADY:
        return Batching.AS_THEY_COME
    sizes = [math.prod(spec.shape) for spec in specs]
    if kinds <= _KEEPING and all(size % _VECTOR == 0 for size in sizes):
        return Batching.AS_THEY_COME
    several = _repeatable(nodes, specs)
    if several and kinds <= _KEEPING_BITS and (copies(specs) - 1) * max(sizes) <= _FREE:
        return Batching.REPEATED
    if not kinds <= _STEADY | _NUMBERS:
        return Batching.ABREAST if several else Batching.ALONE
    plain = all(len(tensor.dims) < 2 and math.prod(tensor.dims) == 1 for tensor in constants)
    if kinds <= _NUMBERS and plain and len({spec.shape for spec in specs}) == 1:
        return Batching.FLAT
    if sum(sizes) <= _SMALL:
        return Batching.FILLED
    return Batching.ABREAST if several else Batching.ALONE


def copies(specs: Sequence[Spec]) -> int:
    """Return how often a sample must follow itself until whole vectors are full, in every tensor of `specs`."""
    return max((_VECTOR // math.gcd(math.prod(spec.shape), _VECTOR) for spec in specs), default=1)


def _repeatable(nodes: Sequence[ir.Node], specs: Sequence[Spec]) -> bool:
    """Whether `abreast` can repeat nodes, and it is worth while."""
    plain = all(spec.dtype == np.float32 for spec in specs) and not any(ir.holds_graphs(node) for node in nodes)
    few = len(nodes) <= _MOST_NODES and sum(math.prod(spec.shape) for spec in specs) <= _MOST_NUMBERS
    return plain and few


def abreast(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of `TOGETHER` samples that computes each by nodes of its own, from the model of one sample.

    onnxruntime puts each sample that is split off, and each tensor behind it, where a tensor of its own begins; so the
    numbers are those of as many calls.
    """
    found, held = onnx.ModelProto(), {tensor.name for tensor in proto.graph.initializer}
    found.CopyFrom(proto)
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    splits = [onnx.helper.make_node("Split", [v.name], _each(v.name), axis=0) for v in proto.graph.input]
    for split in splits if version >= 18 else ():
        split.attribute.append(onnx.helper.make_attribute("num_outputs", TOGETHER))
    made = splits
    for index in range(TOGETHER):
        for node in proto.graph.node:
            one = onnx.NodeProto()
            one.CopyFrom(node)
            one.name = f"{node.name}#{index}"
            one.input[:] = [name if name in held or not name else f"{name}#{index}" for name in node.input]
            one.output[:] = [f"{name}#{index}" if name else "" for name in node.output]
            made.append(one)
    made += [onnx.helper.make_node("Concat", _each(value.name), [value.name], axis=0) for value in proto.graph.output]
    del found.graph.node[:]
    found.graph.node.extend(made)
    return found


def _each(name: str) -> list[str]:
    return [f"{name}#{index}" for index in range(TOGETHER)]


def filled(array: np.ndarray) -> np.ndarray:
    """Return a batch with its last sample repeated, to a multiple of a vector's samples."""
    missing = -len(array) % _VECTOR
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def flat(array: np.ndarray) -> np.ndarray:
    """Return all numbers of an array in one line, the last repeated to whole vectors."""
    return filled(array.reshape(-1))


def _line(size: int) -> np.ndarray:
    """Return `size` new bytes that begin where a tensor of onnxruntime's own would."""
    memory = np.empty(size + _LINE, np.uint8)
    start = -data_address(memory) % _LINE
    return memory[start : start + size]


def repeated(array: np.ndarray, times: int) -> np.ndarray:
    """Return a batch with each sample `times` times in turn, the first one where a tensor of its own would begin."""
    samples = _line(array.nbytes * times).view(array.dtype).reshape(len(array), times, -1)
    samples[...] = array.reshape(len(array), 1, -1)
    return samples.reshape(len(array) * times, *array.shape[1:])


def placed(array: np.ndarray) -> np.ndarray:
    """Return an array whose memory begins where that of a tensor of onnxruntime's own would."""
    if array.ndim == 0 or array.dtype.hasobject or (array.flags.c_contiguous and data_address(array) % _LINE == 0):
        return array
    return apart(array[None])[0][0]


def apart(array: np.ndarray) -> list[np.ndarray]:
    """Return the samples of a batch, each of them where a tensor of onnxruntime's own would begin in memory."""
    if array.dtype.hasobject:
        return [array[i : i + 1] for i in range(len(array))]
    size = array.nbytes // len(array)
    each = -(-size // _LINE) * _LINE
    rows = _line(len(array) * each).reshape(len(array), each)[:, :size].view(array.dtype)
    rows[...] = array.reshape(len(array), -1)
    return [row.reshape(1, *array.shape[1:]) for row in rows]
