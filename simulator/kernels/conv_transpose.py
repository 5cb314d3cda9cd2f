"""Transposed convolution.

    y = rescale(sum over all input positions of (x - zero) * w, `stride` outputs apart, + bias)

It is an ordinary convolution, with the flipped kernel, of the input with zeros inserted between its
elements: element i is at index i * stride + dilation * (kernel - 1) - pad of a line that is as long
as the output plus the kernel. The inserted value is `zero`, the zero point of x.

Owns: `ConvTranspose`, the insertion of zeros and the flipping of the kernel. The sums are those of
`conv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simulator.channel_rescale import ChannelRescale, check_channel_count
from simulator.fixed_point import Rescale
from simulator.kernel import RunFunction, TensorSpec, require
from simulator.kernels.conv import (
    check_weight_and_bias,
    fold_zero_point_into_bias,
    select_conv_loop,
)
from simulator.kernels.loops._common import (
    ClampableKernel,
    SlidingWindow,
    channel_last_shape,
    image_size,
    make_window,
    to_channel_last_image,
)
from simulator.native import InputRef, OutputRef

__all__ = ["ConvTranspose"]


@dataclass(frozen=True, eq=False)
class ConvTranspose(ClampableKernel):
    """Transposed convolution of x [N, C, H, W] or [N, C, W].

    Parameters
    ----------
    weight
        int8 or int16 [C, O/group, kh, kw] or [C, O/group, kw].
    bias
        Integer [O] at the scale of the accumulator, or None.
    rescale
        Accumulator -> output, one for all channels or one per channel.
    strides, pads, dilations
        One value per spatial axis; pads, all begins and then all ends, are removed from the result.
        None is 1, and 0 for pads.
    output_padding
        Rows and columns added at the end of the result (they are computed, not zeros).
    group
        Number of groups.
    zero
        Zero point of x.
    clip_bounds
        Bounds of a fused Relu or Clip.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale | ChannelRescale
    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    output_padding: Sequence[int] | None = None
    group: int = 1
    zero: int = 0
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y [N, O, *space], of the type of the rescale, from x [N, C, *space].

        An axis has stride * (n - 1) + dilation * (k - 1) + 1 - pads + output_padding elements.
        SimulatorError unless x is int8 or int16 and matches the weights [C, O/group, *kernel], with
        one or two kernel axes, or if no output element is left.
        """
        (x,) = specs
        rank = self.weight.ndim
        require(
            rank in (3, 4),
            f"weights {list(self.weight.shape)} must have one or two kernel axes",
        )
        require(
            x.dtype in (np.int8, np.int16),
            f"a transposed convolution requires int8 or int16, not {x.dtype}",
        )
        is_compatible = (
            len(x.shape) == rank and x.shape[1] == len(self.weight) and x.shape[1] % self.group == 0
        )
        require(
            is_compatible,
            f"weights {list(self.weight.shape)} in {self.group} groups do not match {x}",
        )
        check_weight_and_bias(self._flipped_weight(), self.bias)
        check_channel_count(self.rescale, self.weight.shape[1] * self.group)
        window = self._window()
        output_padding = (0, *(self.output_padding or (0, 0)[: rank - 2]))[-2:]
        space = []
        for axis, size in enumerate(image_size(x.shape[2:])):
            reach = window.dilations[axis] * (window.kernel[axis] - 1)
            full_size = window.strides[axis] * (size - 1) + reach + 1
            removed = window.pads[axis] + window.pads[axis + 2]
            space.append(full_size - removed + int(output_padding[axis]))
        require(min(space) > 0, f"the pads {list(window.pads)} leave no output for {x}")
        shape = (x.shape[0], self.weight.shape[1] * self.group, *space[4 - rank :])
        return (TensorSpec(shape, self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return a loop that inserts zeros into x and convolves it with the flipped kernel.

        Zeros are the zero point of x. The image with zeros has the size of y plus the reach of the
        kernel; the convolution has stride 1 and no padding.
        """
        (x,), (y,) = specs, self.infer(*specs)
        window, source, target = self._window(), image_size(x.shape[2:]), image_size(y.shape[2:])
        reach = [d * (k - 1) for d, k in zip(window.dilations, window.kernel, strict=True)]
        size = [n + r for n, r in zip(target, reach, strict=True)]
        rows, columns = (
            _placement_slices(
                source[axis], window.strides[axis], reach[axis] - window.pads[axis], size[axis]
            )
            for axis in (0, 1)
        )
        flipped = self._flipped_weight()
        dense_window = SlidingWindow(
            window.kernel, (1, 1), (0, 0, 0, 0), window.dilations, self.group
        )
        dilated = TensorSpec((1, x.shape[1], *size), x.dtype)
        bias = fold_zero_point_into_bias(
            flipped, check_weight_and_bias(flipped, self.bias), self.zero
        )
        build = select_conv_loop(
            flipped, bias, dense_window, dilated, self.rescale, self.clip_bounds
        )
        loop = build(InputRef(0, channel_last_shape(dilated)), OutputRef(0, channel_last_shape(y)))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Place x in an image of zero points, in steps of the strides, and run the loop."""
            image = np.full((len(ins[0]), *size, x.shape[1]), self.zero, x.dtype)
            selected = to_channel_last_image(ins[0])[:, rows[0], columns[0]]
            image[:, rows[1], columns[1]] = selected
            loop([image], outs)

        return run

    def _window(self) -> SlidingWindow:
        """Return the sliding window with kernel, strides, pads, dilations and groups."""
        return make_window(
            self.weight.shape[2:], self.strides, self.pads, self.dilations, self.group
        )

    def _flipped_weight(self) -> np.ndarray:
        """Return the weights of the equivalent convolution, [O, C/group, kh, kw], kernels reversed.

        A weight with one spatial axis gets kh = 1.
        """
        weight = self.weight if self.weight.ndim == 4 else self.weight[:, :, None]
        inputs, outputs, kh, kw = weight.shape
        by_group = weight.reshape(self.group, inputs // self.group, outputs, kh, kw)[
            ..., ::-1, ::-1
        ]
        flipped = by_group.transpose(0, 2, 1, 3, 4).reshape(
            self.group * outputs, inputs // self.group, kh, kw
        )
        return np.ascontiguousarray(flipped)


def _placement_slices(count: int, stride: int, first: int, size: int) -> tuple[slice, slice]:
    """Return (slice of the elements that lie inside, slice of their target indices) on one axis.

    Element i of `count` elements is placed at index first + i * stride; inside is 0 to size - 1.
    """
    begin = max(0, -(first // stride))
    end = min(count, max(begin, -(-(size - first) // stride)))
    start = first + begin * stride
    return slice(begin, end), slice(start, start + (end - begin) * stride, stride)
