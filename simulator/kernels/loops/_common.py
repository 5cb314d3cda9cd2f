"""Shared helpers of operators: windows over images, clamping bounds, broadcasting.

Must not know: any particular operator, rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.kernel import Kernel, SimulatorError, TensorSpec, require

__all__ = [
    "ClampableKernel",
    "SlidingWindow",
    "broadcast_flat",
    "broadcast_shape",
    "channel_last_shape",
    "image_size",
    "make_window",
    "max_magnitude",
    "require_signed_integer",
    "to_channel_last_image",
]


class ClampableKernel(Kernel):
    """A kernel that saturates its results; `clip_bounds` (low, high) of a fused Relu or Clip."""

    clip_bounds: tuple[int, int] | None

    def is_nonnegative(self, inputs: Sequence[bool]) -> bool:
        """Whether the lower bound of a fused Relu or Clip is 0 or more."""
        return self.clip_bounds is not None and self.clip_bounds[0] >= 0

    def fuse(self, consumer: Kernel, specs: Sequence[TensorSpec]) -> Kernel | None:
        """Return this kernel with a following Relu or Clip fused in, as narrower `clip_bounds`.

        Returns None for any other consumer. `specs` are not used.
        """
        bounds = consumer.clamp_bounds
        if bounds is None:
            return None
        low, high = self.clip_bounds or bounds
        narrowed = tuple(min(max(value, bounds[0]), bounds[1]) for value in (low, high))
        fused: Any = self  # every subclass is a dataclass
        return replace(fused, clip_bounds=narrowed)


def require_signed_integer(spec: TensorSpec, operator: str) -> None:
    """Raise `SimulatorError`, naming `operator`, unless a tensor of `spec` has signed integers."""
    if spec.dtype.kind != "i":
        raise SimulatorError(f"{operator} requires signed integers, not {spec}")


def max_magnitude(dtype: np.dtype) -> int:
    """Return the largest |value| of signed integer type `dtype`, 2^(bits-1)."""
    return 1 << (8 * dtype.itemsize - 1)


def broadcast_shape(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the shape that tensors of `specs` broadcast to.

    Raises SimulatorError if they do not broadcast.
    """
    try:
        return np.broadcast_shapes(*(spec.shape for spec in specs))
    except ValueError:
        raise SimulatorError(f"shapes do not broadcast: {', '.join(map(str, specs))}") from None


def broadcast_flat(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return `x` broadcast to `shape`, flat, contiguous and writeable for compiled loops.

    A copy where that is needed.
    """
    expanded = x if x.shape == shape else np.broadcast_to(x, shape)
    return np.require(expanded, requirements=("C", "W")).reshape(-1)


def image_size(space: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of one or two spatial axes; one axis is an image with one row."""
    return (1, *space)[-2], space[-1]


def channel_last_shape(x: TensorSpec) -> tuple[int, ...]:
    """Return (-1, H, W, C), the channel-last array shape of logical x [N, C, W] or [N, C, H, W]."""
    return (-1, *image_size(x.shape[2:]), x.shape[1])


def to_channel_last_image(x: np.ndarray) -> np.ndarray:
    """Return a view of channel-last [N, W, C] as [N, 1, W, C].

    [N, H, W, C] is returned unchanged.
    """
    return x if x.ndim == 4 else x[:, None]


@dataclass(frozen=True)
class SlidingWindow:
    """A two-dimensional window that slides over a padded image.

    Attributes
    ----------
    kernel, strides, dilations
        Vertical and horizontal.
    pads
        Top, left, bottom, right.
    group
        Number of groups of channels.
    spatial_rank
        2, or 1 for a window over lines, whose vertical values are 1 (pads 0).
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    spatial_rank: int = 2

    def output_size(self, space: Sequence[int], ceil_mode: bool = False) -> tuple[int, ...]:
        """Return the number of windows along each spatial axis of sizes `space`.

        With `ceil_mode` the last window may extend beyond the padded image, but must not start
        after the end of the image. Raises SimulatorError if `space` has not `spatial_rank` axes, or
        no window fits.
        """
        require(
            len(space) == self.spatial_rank,
            f"a window over {self.spatial_rank} axes does not match spatial axes {list(space)}",
        )
        counts = []
        for axis, size in enumerate(image_size(space)):
            begin, end, stride = self.pads[axis], self.pads[axis + 2], self.strides[axis]
            free = size + begin + end - self.dilations[axis] * (self.kernel[axis] - 1) - 1
            count = (-(-free // stride) if ceil_mode else free // stride) + 1
            if ceil_mode and (count - 1) * stride >= size + begin:
                count -= 1
            require(
                count > 0,
                f"a window of {list(self.kernel)} does not fit spatial axes {list(space)}",
            )
            counts.append(count)
        return tuple(counts[2 - self.spatial_rank :])


def make_window(
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    group: int = 1,
) -> SlidingWindow:
    """Create a window over one or two spatial axes from ONNX attributes.

    Pads are in ONNX order, all begins and then all ends. None is 1 per axis, and 0 for pads. Raises
    SimulatorError unless there are one or two axes, as many strides and dilations, twice as many
    pads, no negative pads, and all other values positive.
    """
    rank = len(kernel)
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * 2 * rank)
    lengths_match = (len(strides), len(dilations), len(pads)) == (rank, rank, 2 * rank)
    is_valid = (
        rank in (1, 2)
        and lengths_match
        and min((*kernel, *strides, *dilations)) > 0
        and min(pads) >= 0
    )
    require(
        is_valid,
        f"invalid window: kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)}, "
        f"dilations {list(dilations)}",
    )
    if rank == 1:
        kernel, strides, dilations = (1, *kernel), (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    return SlidingWindow(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (pads[0], pads[1], pads[2], pads[3]),
        (dilations[0], dilations[1]),
        group,
        rank,
    )
