"""What several operators share: windows over images, clamping bounds, broadcasting.

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
    """A kernel that ends in a saturation.

    Its `clip_bounds` (low, high) can absorb a following Relu or Clip.
    """

    clip_bounds: tuple[int, int] | None

    def fuse(self, consumer: Kernel) -> Kernel | None:
        """Narrow the saturation to the bounds of a Relu or Clip."""
        bounds = consumer.clamp_bounds
        if bounds is None:
            return None
        low, high = self.clip_bounds or bounds
        narrowed = tuple(min(max(value, bounds[0]), bounds[1]) for value in (low, high))
        fused: Any = self  # a dataclass, by the rule of this package
        return replace(fused, clip_bounds=narrowed)


def require_signed_integer(spec: TensorSpec, what: str) -> None:
    """Raise `SimulatorError` unless the tensor holds signed integers."""
    require(spec.dtype.kind == "i", f"{what} takes signed integers, not {spec}")


def max_magnitude(dtype: np.dtype) -> int:
    """Return the largest |value| of a signed integer type."""
    return 1 << (8 * dtype.itemsize - 1)


def broadcast_shape(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the shape that the inputs broadcast to."""
    try:
        return np.broadcast_shapes(*(spec.shape for spec in specs))
    except ValueError:
        raise SimulatorError(f"shapes do not broadcast: {', '.join(map(str, specs))}") from None


def broadcast_flat(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return `x` broadcast to `shape`, contiguous and flat.

    Writeable, as compiled loops take their arguments.
    """
    return np.require(
        x if x.shape == shape else np.broadcast_to(x, shape), requirements=("C", "W")
    ).reshape(-1)


def image_size(space: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of one or two spatial axes; a line is an image of one row."""
    return (1, *space)[-2], space[-1]


def channel_last_shape(x: TensorSpec) -> tuple[int, ...]:
    """Return the shape [-1, H, W, C] of the channel-last array of logical x [N, C, W] or [N, C, H, W]."""
    return (-1, *image_size(x.shape[2:]), x.shape[1])


def to_channel_last_image(x: np.ndarray) -> np.ndarray:
    """Return channel-last [N, W, C] or [N, H, W, C] as [N, H, W, C]."""
    return x if x.ndim == 4 else x[:, None]


@dataclass(frozen=True)
class SlidingWindow:
    """A two-dimensional window sliding over a padded image.

    `spatial_rank` of them are real, the first may be a filled-in one.
    kernel, strides, dilations: (vertical, horizontal); pads: top, left, bottom, right.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    spatial_rank: int = 2

    def output_size(self, space: Sequence[int], ceil_mode: bool = False) -> tuple[int, ...]:
        """Return the number of windows along each axis of `space`.

        With `ceil_mode` a last window may hang over the end of the padded image, but must not start
        behind the image.
        """
        require(
            len(space) == self.spatial_rank,
            f"a window over {self.spatial_rank} axes does not fit a space of {list(space)}",
        )
        counts = []
        for axis, size in enumerate(image_size(space)):
            begin, end, stride = self.pads[axis], self.pads[axis + 2], self.strides[axis]
            free = size + begin + end - self.dilations[axis] * (self.kernel[axis] - 1) - 1
            count = (-(-free // stride) if ceil_mode else free // stride) + 1
            if ceil_mode and (count - 1) * stride >= size + begin:
                count -= 1
            require(
                count > 0, f"a window of {list(self.kernel)} does not fit a space of {list(space)}"
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
    """Return the window for one value per axis (ONNX order of pads: all begins, all ends).

    None stands for 1 and 0.
    """
    axes = len(kernel)
    steps, gaps = (tuple(value or (1,) * axes) for value in (strides, dilations))
    edges = tuple(pads or (0,) * 2 * axes)
    fits = axes in (1, 2) and (len(steps), len(gaps), len(edges)) == (axes, axes, 2 * axes)
    require(
        fits and min((*kernel, *steps, *gaps)) > 0 and min(edges) >= 0,
        (
            f"kernel {list(kernel)}, strides {list(steps)}, pads {list(edges)} and dilations "
            f"{list(gaps)} make no window"
        ),
    )
    if axes == 1:
        kernel, steps, gaps, edges = (
            (1, *kernel),
            (1, *steps),
            (1, *gaps),
            (0, edges[0], 0, edges[1]),
        )
    return SlidingWindow(
        (kernel[0], kernel[1]),
        (steps[0], steps[1]),
        (edges[0], edges[1], edges[2], edges[3]),
        (gaps[0], gaps[1]),
        group,
        axes,
    )
