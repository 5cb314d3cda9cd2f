"""Choose the batch size of a pass over data, so that its tensors stay within a memory budget.

A pass processes its samples in batches, and releases the results of one batch before the next. An
eighth of the budget is for the tensors of a batch: onnxruntime has a second copy of them while it
returns them, and the data and the results of the pass need the remainder.
"""

from __future__ import annotations

import ctypes
import math
import sys

from ..ir import ir

__all__ = ["bytes_per_sample", "choose_batch_size", "elements_per_sample", "trim_memory"]


def elements_per_sample(value: ir.Value) -> int:
    """Return the number of elements of one sample of a tensor; axis 0 is the batch.

    Unknown sizes count as 1, and so does a tensor of unknown rank.
    """
    return math.prod(ir.get_sample_dims(value))


def bytes_per_sample(model: ir.Model) -> int:
    """Return the bytes of all tensors of one sample of a float model, 4 per element.

    Unknown dimensions count as 1, tensors of unknown shape as 0; axis 0 is the batch.
    """
    values = (value for value in ir.iter_values(model) if ir.get_shape(value))
    return 4 * sum(map(elements_per_sample, values))


def choose_batch_size(sample_bytes: int, max_batch: int, budget_bytes: int) -> int:
    """Choose a batch size, 1 to `max_batch`, for samples of `sample_bytes` bytes.

    The tensors of a batch use at most an eighth of `budget_bytes`, except for batch size 1.
    """
    return max(1, min(budget_bytes // 8 // max(sample_bytes, 1), max_batch))


def trim_memory() -> None:
    """Return freed memory to the operating system by glibc's malloc_trim.

    Does nothing elsewhere. glibc otherwise keeps it for each thread.
    """
    if sys.platform != "linux":
        return
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
