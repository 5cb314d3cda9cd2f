"""What fake quantizers share.

Where one stands, counts as tensors, exact widths, what the simulator computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from simulator import program as machine
from simulator.kernel import Kernel, Step, TensorSpec
from simulator.kernels.loops._common import SlidingWindow, max_magnitude

from .rounding import FLOAT32_EXACT

__all__ = [
    "FakeQuantContext",
    "FakeQuantizer",
    "cast_to_exact_dtype",
    "get_accumulator_bound",
    "pad_window",
    "run_kernel",
    "subtract_zero_points",
    "to_counts",
    "to_flat_int64",
    "to_image",
    "to_integers",
]


@dataclass(frozen=True)
class FakeQuantContext:
    """Where a fake quantizer stands.

    input_dtypes : of the inputs, as the simulator has them. given : parameters in counts, in place
    of the integers that the kernel holds, by the node's input index; of a recurrent layer, whose
    weights stand behind what it is given, by the kernel's field, or "h" and "c". probe : log2 of
    the output's scale, where its gradient is wanted. floats : of a float island, tensors in place
    of its own constants, by name.
    """

    input_dtypes: Sequence[np.dtype]
    parameters: Mapping[int | str, Any] = field(default_factory=dict)
    log2_scale: Any = None
    floats: Mapping[str, Any] = field(default_factory=dict)

    def size(self, index: int = 0) -> int:
        """Return the largest |count| of an input."""
        return max_magnitude(self.input_dtypes[index])

    def held(self, index: int | str, array: np.ndarray | None, like: Any) -> Any:
        """Return parameter `index`, else the kernel's own `array`; None where there is neither."""
        if index in self.parameters:
            return self.parameters[index]
        return None if array is None else to_counts(array, like)


FakeQuantizer = Callable[[Any, Sequence[Any], FakeQuantContext], tuple[Any, ...]]


def to_counts(array: np.ndarray, like: Any) -> Any:
    """Return an integer array as a tensor of counts on the device of `like`.

    Float32 where that holds them exactly.
    """
    wide = array.dtype.itemsize > 2 and bool(
        np.abs(array.astype(np.float64)).max(initial=0) >= 1 << 24
    )
    return torch.from_numpy(array.astype(np.float64 if wide else np.float32)).to(like.device)


def get_accumulator_bound(weight: Any, bias: Any, size: int) -> int:
    """Return the largest |accumulator| for inputs of at most `size`.

    `weight` has the outputs on axis 0.
    """
    sums = weight.detach().abs().flatten(1).sum(1, dtype=torch.float64) * size
    if bias is not None:
        sums = sums + bias.detach().abs()
    return int(sums.max().item()) + 1 if sums.numel() else 1


def cast_to_exact_dtype(bound: int, *tensors: Any) -> list[Any]:
    """Return the tensors in a type that is exact up to `bound`."""
    kind = torch.float32 if bound < FLOAT32_EXACT else torch.float64
    return [None if t is None else t.to(kind) for t in tensors]


def pad_window(
    x: Any, window: SlidingWindow, axes: int, value: float = 0.0, extra_ends: Sequence[int] = (0, 0)
) -> Any:
    """Return `x` with the window's padding around, and `extra_ends` at the ends."""
    top, left, bottom, right = window.pads
    around = [left, right + extra_ends[1], top, bottom + extra_ends[0]][: 2 * axes]
    return F.pad(x, around, value=value) if any(around) else x


def subtract_zero_points(inputs: Sequence[Any], *zeros: int) -> list[Any]:
    """Return counts less what stands for 0: their padding is 0 then, whatever it was."""
    return [x - zero if zero else x for x, zero in zip(inputs, zeros, strict=True)]


def to_image(x: Any) -> Any:
    """Return a line [.., .., W] as an image of one row."""
    return x if x.ndim == 4 else x[:, :, None]


def run_kernel(kernel: Kernel, arrays: Sequence[np.ndarray], like: Any) -> list[Any]:
    """Return what the simulator's kernel gives for integer (or float) arrays.

    Of a single one, axis 0 is the batch.
    """
    names = [f"x{i}" for i in range(len(arrays))]
    ones = [TensorSpec((1, *a.shape[1:]), a.dtype) for a in arrays]
    follows = len(arrays) == 1 and arrays[0].ndim > 0 and kernel.supports_batch(ones, [True])
    specs = dict(
        zip(names, ones if follows else [TensorSpec(a.shape, a.dtype) for a in arrays], strict=True)
    )
    outputs = [f"y{i}" for i in range(len(kernel.infer(*specs.values())))]
    program = machine.compile_program([Step(kernel, tuple(names), tuple(outputs))], specs, outputs)
    made = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [to_counts(made[name], like) for name in outputs]


def to_integers(x: Any, dtype: np.dtype) -> np.ndarray:
    """Return counts as integers of a type."""
    return x.detach().cpu().numpy().astype(dtype)


def to_flat_int64(tensor: Any) -> np.ndarray:
    """Return parameters in counts as a flat array of int64."""
    return tensor.detach().cpu().numpy().reshape(-1).astype(np.int64)
