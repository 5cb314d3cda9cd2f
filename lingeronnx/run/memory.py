"""How many samples a pass over the data takes at a time, so that its tensors stay within a budget of bytes.

A pass lays its samples out in pieces: what a piece computes is looked at and let go before the next
one. An eighth of the budget is for the tensors of a piece: onnxruntime holds them a second time
while it hands them over, and the data themselves and what the pass keeps of them take the rest.
"""

from __future__ import annotations

import ctypes
import math
import sys

from ..graph import ir

__all__ = ["bytes_per_sample", "choose_batch_size", "trim_memory"]


def bytes_per_sample(model: ir.Model) -> int:
    """Return the bytes of all tensors of one sample of the float `model`.

    Sizes that are not known count as 1.
    """
    shapes = [ir.get_shape(value) for value in ir.iter_values(model)]
    return sum(4 * math.prod(int(d or 1) for d in shape[1:]) for shape in shapes if shape)


def choose_batch_size(sample_bytes: int, max_batch: int, budget_bytes: int) -> int:
    """Return how many samples of `sample_bytes` bytes each a piece has under `budget_bytes` bytes.

    At least 1, at most `max_batch`.
    """
    return max(1, min(budget_bytes // 8 // max(sample_bytes, 1), max_batch))


def trim_memory() -> None:
    """Give back to the system what was freed.

    Glibc keeps it for each thread that has ever asked for some.
    """
    if (
        sys.platform == "linux"
        and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None
    ):
        trim(0)
