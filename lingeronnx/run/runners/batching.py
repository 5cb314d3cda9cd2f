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

__all__ = ["Batching", "apart", "batching", "filled", "flat", "placed"]

#: Numbers in the longest vector that anybody computes with. A tensor of a multiple has nothing left at its end.
_VECTOR = 16
_LINE = 64  # bytes to whose multiples onnxruntime's own tensors are placed
_SMALL = 256  # numbers of a sample of which a vector of samples takes no longer than a few more calls

#: Of one number each, or of several at one place.
_NUMBERS = operators.ONE_TENSOR | operators.BROADCAST
#: The same for any batch: each number is rounded once or moved, each row computed by itself.
_STEADY = operators.EXACT | operators.MOVES | operators.ROWS
#: What keeps all its numbers: a multiple of a vector stays one, and each sample begins on a line as the first one does.
_KEEPING = operators.WHOLE | operators.ROWS | operators.NORMS | _NUMBERS


class Batching(Enum):
    """How samples are run."""

    AS_THEY_COME = "the same for any batch"
    FLAT = "as one line of numbers, filled to whole vectors"
    FILLED = "with others, to whole vectors of samples"
    ALONE = "one by one, each in its own place"


def batching(nodes: Sequence[ir.Node], constants: Collection[onnx.TensorProto], specs: Sequence[Spec]) -> Batching:
    """Return how nodes are run; specs : of all that they read and write, of one sample."""
    kinds = {"" if node.domain else node.op_type for node in nodes}
    if kinds <= _STEADY:
        return Batching.AS_THEY_COME
    sizes = [math.prod(spec.shape) for spec in specs]
    if kinds <= _KEEPING and all(size % _VECTOR == 0 for size in sizes):
        return Batching.AS_THEY_COME
    if not kinds <= _STEADY | _NUMBERS:
        return Batching.ALONE
    plain = all(len(tensor.dims) < 2 and math.prod(tensor.dims) == 1 for tensor in constants)
    if kinds <= _NUMBERS and plain and len({spec.shape for spec in specs}) == 1:
        return Batching.FLAT
    return Batching.FILLED if sum(sizes) <= _SMALL else Batching.ALONE


def filled(array: np.ndarray) -> np.ndarray:
    """Return a batch with its last sample repeated, to a multiple of a vector's samples."""
    missing = -len(array) % _VECTOR
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array


def flat(array: np.ndarray) -> np.ndarray:
    """Return all numbers of an array in one line, the last repeated to whole vectors."""
    return filled(array.reshape(-1))


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
    memory = np.empty((len(array) + 1) * each, np.uint8)
    start = -data_address(memory) % _LINE
    rows = memory[start : start + len(array) * each].reshape(len(array), each)[:, :size].view(array.dtype)
    rows[...] = array.reshape(len(array), -1)
    return [row.reshape(1, *array.shape[1:]) for row in rows]
