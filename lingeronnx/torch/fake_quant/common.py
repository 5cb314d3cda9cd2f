"""Common parts of the fake quantizers: context, counts as tensors, exact dtypes, kernel runs."""

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
    "run_without_gradient",
    "subtract_zero_points",
    "to_counts",
    "to_flat_int64",
    "to_image",
    "to_integers",
]


@dataclass(frozen=True)
class FakeQuantContext:
    """Context of a fake quantizer in a network.

    Attributes
    ----------
    input_dtypes
        Integer types of the inputs in the simulator.
    parameters
        Parameters as counts, which replace the integers of the kernel: by input index of the node,
        and for a recurrent layer by field of the kernel, or "h" and "c".
    log2_scale
        log2 of the output scale as a tensor, if its gradient is needed.
    floats
        For a float fallback, tensors that replace its constants, by name.
    """

    input_dtypes: Sequence[np.dtype]
    parameters: Mapping[int | str, Any] = field(default_factory=dict)
    log2_scale: Any = None
    floats: Mapping[str, Any] = field(default_factory=dict)

    def max_abs(self, index: int = 0) -> int:
        """Return the largest possible absolute count of input `index`, from its integer type."""
        return max_magnitude(self.input_dtypes[index])

    def get_parameter(self, key: int | str, array: np.ndarray | None, like: Any) -> Any:
        """Return the parameter `key` as counts if it is trained, else the kernel's own `array`.

        The array becomes a float tensor on the device of `like`. None if both are missing.
        """
        if key in self.parameters:
            return self.parameters[key]
        return None if array is None else to_counts(array, like)


FakeQuantizer = Callable[[Any, Sequence[Any], FakeQuantContext], tuple[Any, ...]]


def to_counts(array: np.ndarray, like: Any) -> Any:
    """Return an integer array as a float tensor on the device of `like`.

    The dtype is float32 if that is exact, else float64.
    """
    is_wide = False
    if array.dtype.itemsize > 2:
        is_wide = bool(np.abs(array.astype(np.float64)).max(initial=0) >= 1 << 24)
    dtype = np.float64 if is_wide else np.float32
    return torch.from_numpy(array.astype(dtype)).to(like.device)


def get_accumulator_bound(weight: Any, bias: Any, max_input: int) -> int:
    """Return an integer above every |sum| of products plus bias, for inputs up to `max_input`.

    `max_input` limits their magnitude. `weight` has the outputs on axis 0; `bias` may be None.
    """
    sums = weight.detach().abs().flatten(1).sum(1, dtype=torch.float64) * max_input
    if bias is not None:
        sums = sums + bias.detach().abs()
    return int(sums.max().item()) + 1 if sums.numel() else 1


def cast_to_exact_dtype(bound: int, *tensors: Any) -> list[Any]:
    """Cast tensors (or None) to float32 if it holds integers up to `bound`, else to float64."""
    dtype = torch.float32 if bound < FLOAT32_EXACT else torch.float64
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def pad_window(
    x: Any, window: SlidingWindow, axes: int, value: float = 0.0, extra_ends: Sequence[int] = (0, 0)
) -> Any:
    """Pad the last `axes` (1 or 2) axes of `x` with `value`, by the pads of a sliding window.

    `extra_ends` are further elements at the end of rows and columns. `x` itself if there is no
    padding.
    """
    top, left, bottom, right = window.pads
    amounts = [left, right + extra_ends[1], top, bottom + extra_ends[0]][: 2 * axes]
    return F.pad(x, amounts, value=value) if any(amounts) else x


def subtract_zero_points(inputs: Sequence[Any], *zero_points: int) -> list[Any]:
    """Return the inputs, each minus its zero point, so that padding zeros stand for real 0."""
    return [
        x - zero_point if zero_point else x
        for x, zero_point in zip(inputs, zero_points, strict=True)
    ]


def to_image(x: Any) -> Any:
    """Return [N, C, W] as an image [N, C, 1, W]; an image is returned unchanged."""
    return x if x.ndim == 4 else x[:, :, None]


def run_kernel(kernel: Kernel, arrays: Sequence[np.ndarray], like: Any) -> list[Any]:
    """Run a kernel of the simulator on arrays and return its outputs as float tensors of counts.

    They are on the device of `like`. Axis 0 of a single input is the batch, if the kernel supports
    one.
    """
    names = [f"x{index}" for index in range(len(arrays))]
    sample_specs = [TensorSpec((1, *array.shape[1:]), array.dtype) for array in arrays]
    is_batched = (
        len(arrays) == 1 and arrays[0].ndim > 0 and kernel.supports_batch(sample_specs, [True])
    )
    full_specs = [TensorSpec(array.shape, array.dtype) for array in arrays]
    specs = dict(zip(names, sample_specs if is_batched else full_specs, strict=True))
    outputs = [f"y{index}" for index in range(len(kernel.infer(*specs.values())))]
    program = machine.compile_program([Step(kernel, tuple(names), tuple(outputs))], specs, outputs)
    results = dict(program.run(dict(zip(names, arrays, strict=True))))
    return [to_counts(results[name], like) for name in outputs]


def to_integers(x: Any, dtype: np.dtype) -> np.ndarray:
    """Convert counts (integers in a float tensor) to an integer array of type `dtype`."""
    return x.detach().cpu().numpy().astype(dtype)


def to_flat_int64(tensor: Any) -> np.ndarray:
    """Convert counts (integers in a float tensor) to an int64 array with one axis."""
    return tensor.detach().cpu().numpy().reshape(-1).astype(np.int64)


def run_without_gradient(
    kernel: Any, inputs: Sequence[Any], context: FakeQuantContext
) -> tuple[Any, ...]:
    """Return the outputs of the simulator's kernel for counts `inputs`, without any gradient.

    For kernels such as ArgMax, whose result is an index.
    """
    with torch.no_grad():
        arrays = [
            to_integers(x, dtype) for x, dtype in zip(inputs, context.input_dtypes, strict=True)
        ]
        return tuple(run_kernel(kernel, arrays, inputs[0]))
