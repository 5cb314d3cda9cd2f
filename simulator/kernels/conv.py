"""Convolution and fully connected layers.

    y = rescale(sum (x - zero) * w + bias)      padded with `zero`, exact accumulators

zero is the integer of x that stands for 0: 0 itself, or what its scale gives it. It is folded into the bias,
`sum x * w + (bias - zero * sum w)`.

Owns: `Conv` (one and two dimensions, any groups) and `Linear`: checking, packing and choosing the loop. A
one-dimensional convolution is a two-dimensional one of height 1; a fully connected layer is a 1x1 convolution whose
pixels are the rows.

The accumulator is bounded by sum |w| * 2^(bits of x - 1) + |bias|, computed from the weights. The vector loops serve
int8 by int8 wherever 32 bits provably suffice; the plain loops serve everything else in int32 or int64, again by that
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from simulator.channels import ChannelRescale, ChannelScales, check_channels, requantize
from simulator.fixed import Rescale
from simulator.kernel import Run, Spec, require
from simulator.kernels.loops import _loops, _simd
from simulator.kernels.loops._common import Clipped, SlidingWindow, as_image, image_size, last_image, window_of
from simulator.native import In, Loop, Out

__all__ = ["Conv", "Linear", "multiplied"]


def checked(weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Return the bias as int64 [O], zeros for None, after checking the dtypes of both."""
    require(weight.dtype in (np.int8, np.int16), f"weights must be int8 or int16, not {weight.dtype}")
    if bias is None:
        return np.zeros(len(weight), np.int64)
    bias = np.asarray(bias)
    require(bias.shape == weight.shape[:1], f"a bias of {list(bias.shape)} does not fit weights {list(weight.shape)}")
    require(bias.dtype.kind == "i", f"a bias must be integer, not {bias.dtype}")
    return bias.astype(np.int64)


def multiplied(weight: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Return `weight`, or where there are `factors` of its shape the products, int16; MachineError beyond 16 bits."""
    if factors is None:
        return weight
    require(weight.shape == factors.shape, f"factors {list(factors.shape)} do not fit weights {list(weight.shape)}")
    products = weight.astype(np.int64) * factors
    fits = np.abs(products).max(initial=0) <= np.iinfo(np.int16).max
    require(bool(fits), "weights times their factors do not fit 16 bits")
    return products.astype(np.int16)


def folded(weight: np.ndarray, bias: np.ndarray, zero: int) -> np.ndarray:
    """Return bias int64 [O] less `zero` times the sum of the weights [O, ...] of each output."""
    return bias - zero * weight.reshape(len(weight), -1).astype(np.int64).sum(axis=1) if zero else bias


def bound(weight: np.ndarray, bias: np.ndarray, dtype: np.dtype) -> int:
    """Return the largest |accumulator| for inputs of `dtype`."""
    per_output = np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1).astype(object)
    per_output = per_output * (1 << (8 * dtype.itemsize - 1)) + np.abs(bias.astype(object))
    largest = int(per_output.max(initial=0))
    require(largest < 1 << 62, f"accumulators up to {largest} do not fit 62 bits")
    return largest


@dataclass(frozen=True, eq=False)
class Conv(Clipped):
    """Convolution of x [N, C, H, W] or [N, C, W], padded with what stands for 0.

    Parameters
    ----------
    weight
        int8 or int16 [O, C/group, *kernel].
    bias
        Integer [O] at the scale of the accumulator, or None.
    rescale
        Accumulator -> output, one for all channels or one for each; its bits give the dtype of the output.
    strides, pads, dilations
        One value per spatial axis; pads in ONNX order, all begins and then all ends. None stands for 1 and 0.
    group
        Number of groups.
    zero
        The integer of x that stands for 0.
    clip
        Bounds of an absorbed Relu or Clip.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale | ChannelRescale
    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    group: int = 1
    zero: int = 0
    clip: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x -> y [N, O, *space]."""
        (x,) = specs
        checked(self.weight, self.bias)
        rank, window = self.weight.ndim, self._window()
        require(len(x.shape) == rank, f"weights {list(self.weight.shape)} do not fit {x}")
        require(x.dtype in (np.int8, np.int16), f"a convolution takes int8 or int16, not {x.dtype}")
        outputs, channels = self.weight.shape[:2]
        require(
            x.shape[1] == channels * self.group and outputs % self.group == 0,
            f"weights {list(self.weight.shape)} in {self.group} groups do not fit {x}",
        )
        check_channels(self.rescale, outputs)
        return (Spec((x.shape[0], outputs, *window.out_size(x.shape[2:])), self.rescale.dtype),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Pack the weights for the size of x and choose the loop."""
        (x,), (y,) = specs, self.infer(*specs)
        weight = self.weight if self.weight.ndim == 4 else self.weight[:, :, None]
        bias, window = folded(weight, checked(self.weight, self.bias), self.zero), self._window()
        if self.zero and any(window.pads):
            return self._padded(weight, bias, window, x, y)
        loop = loop_for(weight, bias, window, x, self.rescale, self.clip)
        return loop(In(0, last_image(x)), Out(0, last_image(y)))

    def _padded(self, weight: np.ndarray, bias: np.ndarray, window: SlidingWindow, x: Spec, y: Spec) -> Run:
        """Return the loop over a copy of x with `zero` around it: the loops pad with 0."""
        (top, left, bottom, right), (rows, columns) = window.pads, image_size(x.shape[2:])
        wide = Spec((1, x.shape[1], top + rows + bottom, left + columns + right), x.dtype)
        build = loop_for(weight, bias, replace(window, pads=(0,) * 4, axes=2), wide, self.rescale, self.clip)
        loop = build(In(0, last_image(wide)), Out(0, last_image(y)))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            around = np.full((len(ins[0]), *wide.shape[2:], x.shape[1]), self.zero, x.dtype)
            around[:, top : top + rows, left : left + columns] = as_image(ins[0])
            loop([around], outs)

        return run

    def _window(self) -> SlidingWindow:
        require(self.weight.ndim in (3, 4), f"weights {list(self.weight.shape)} are not those of a convolution")
        return window_of(self.weight.shape[2:], self.strides, self.pads, self.dilations, self.group)


def loop_for(
    weight: np.ndarray,
    bias: np.ndarray,
    window: SlidingWindow,
    x: Spec,
    rescale: Rescale | ChannelRescale,
    clip: tuple[int, int] | None,
) -> Callable[[In, Out], Run]:
    """Return what makes the loop for x and the output, both channel-last and of rank 4."""
    largest = bound(weight, bias, x.dtype)
    if isinstance(rescale, ChannelRescale):
        return _by_channel(weight, bias, window, x, rescale.within(largest, clip), 32 if largest < 2**31 else 62)
    form = rescale.within(largest, clip)
    outputs, channels, kh, kw = weight.shape
    row = _simd.available() if largest < 2**31 else None
    byte = x.dtype == np.int8 and weight.dtype == np.int8
    if row is not None and (not byte or row.bytes != "quads" or _simd.fits(weight, bias)):
        return _simd.pack(row, weight, bias, window, x, form, rescale.dtype)

    accumulator = np.dtype(np.int32 if largest < 2**31 else np.int64)
    bias = bias.astype(accumulator)
    geometry = (*window.strides, *window.pads[:2], *window.dilations)
    if window.group == channels * window.group == outputs:
        taps = np.ascontiguousarray(weight[:, 0].transpose(1, 2, 0)).astype(accumulator)
        return lambda x, out: Loop(_loops.depthwise, (x, taps, bias, geometry, form, out))
    split = weight.reshape(window.group, outputs // window.group, channels, kh, kw)
    taps = np.ascontiguousarray(split.transpose(0, 3, 4, 2, 1)).astype(accumulator)
    return lambda x, out: Loop(_loops.dense, (x, taps, bias, geometry, form, out))


def _by_channel(
    weight: np.ndarray, bias: np.ndarray, window: SlidingWindow, x: Spec, form: ChannelScales, bits: int
) -> Callable[[In, Out], Run]:
    """Return the same in two steps: the accumulators, which `bits` bits hold, then every channel by its own ratio."""
    whole = Rescale.from_shift(0, bits)
    sums, outputs = loop_for(weight, bias, window, x, whole, None), len(weight)
    last = Loop(requantize, (In(0, (-1, outputs)), form, Out(0, (-1, outputs))))

    def loop(source: In, target: Out) -> Run:
        first = sums(source, target)

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            acc = np.empty(outs[0].shape, whole.dtype)
            first(ins, [acc])
            last([acc], outs)

        return run

    return loop


@dataclass(frozen=True, eq=False)
class Linear(Clipped):
    """Fully connected layer on the last axis: x [..., K] -> y [..., O].

    Parameters
    ----------
    weight
        int8 or int16 [O, K].
    bias, rescale, zero, clip
        As for `Conv`.
    factors
        What each weight is multiplied by, [O, K], where it is not 1: the products have at most 16 bits.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale | ChannelRescale
    zero: int = 0
    clip: tuple[int, int] | None = None
    factors: np.ndarray | None = None

    @property
    def products(self) -> np.ndarray:
        """What each weight counts for, [O, K]."""
        return multiplied(self.weight, self.factors)

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        """Map x -> y; one-dimensional x has no batch axis."""
        (x,) = specs
        checked(self.weight, self.bias)
        require(x.dtype in (np.int8, np.int16), f"a fully connected layer takes int8 or int16, not {x.dtype}")
        require(
            self.weight.ndim == 2 and x.shape[-1:] == self.weight.shape[1:],
            f"weights {list(self.weight.shape)} do not fit {x}",
        )
        check_channels(self.rescale, len(self.weight))
        return (Spec((*x.shape[:-1], len(self.weight)), self.rescale.dtype),)

    def build(self, specs: Sequence[Spec], channel_last: bool) -> Run:
        """Lay the rows out as pixels of a 1x1 convolution."""
        outputs, inputs = self.weight.shape
        window = SlidingWindow((1, 1), (1, 1), (0, 0, 0, 0))
        pixels = Spec((1, inputs, 1, max(math.prod(specs[0].shape[:-1]), 1)), specs[0].dtype)
        weight = self.products
        bias = folded(weight, checked(weight, self.bias), self.zero)
        loop = loop_for(weight[:, :, None, None], bias, window, pixels, self.rescale, self.clip)
        return loop(In(0, (1, 1, -1, inputs)), Out(0, (1, 1, -1, outputs)))
