"""Convolution and fully connected layers.

    y = rescale(sum (x - zero) * w + bias)      padded with `zero`, exact accumulators

`zero` is the zero point of x. It is folded into the bias: `sum x * w + (bias - zero * sum w)`.

Owns: `Conv` (one and two dimensions, any groups), `Linear` and, for inputs or weights of 32 bits,
`WideLinear`: checking, packing and selecting the loop. A one-dimensional convolution is a
two-dimensional one of height 1; a fully connected layer is a 1x1 convolution whose pixels are the
rows.

The accumulator is bounded by sum |w| * 2^(bits of x - 1) + |bias|, computed from the weights. The
vector loops are used wherever 32 bits provably suffice, the scalar loops elsewhere, in int32 or
int64 according to that bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from simulator.channel_rescale import (
    ChannelRescale,
    ChannelScaleForms,
    check_channel_count,
    requantize_channels,
)
from simulator.fixed_point import Rescale
from simulator.kernel import NumpyKernel, RunFunction, TensorSpec, require
from simulator.kernels.loops import _conv_scalar, _conv_simd
from simulator.kernels.loops._common import (
    ClampableKernel,
    SlidingWindow,
    channel_last_shape,
    image_size,
    make_window,
    max_magnitude,
    require_signed_integer,
    to_channel_last_image,
)
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["Conv", "Linear", "WideLinear", "apply_weight_factors"]


def check_weight_and_bias(weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Check the dtypes of weights and bias, and return the bias as int64 [O], zeros for None.

    Weights [O, ...] must be int8 or int16, the bias [O] integers; otherwise SimulatorError.
    """
    require(
        weight.dtype in (np.int8, np.int16), f"weights must be int8 or int16, not {weight.dtype}"
    )
    if bias is None:
        return np.zeros(len(weight), np.int64)
    bias = np.asarray(bias)
    require(
        bias.shape == weight.shape[:1],
        f"a bias of {list(bias.shape)} does not match weights {list(weight.shape)}",
    )
    require(bias.dtype.kind == "i", f"a bias must be integer, not {bias.dtype}")
    return bias.astype(np.int64)


def apply_weight_factors(weight: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """Multiply weights elementwise by integer factors.

    Parameters
    ----------
    weight
        Integers of any shape.
    factors
        Integers of the same shape, or None for `weight` itself.

    Returns
    -------
    array
        The products, int16; `weight` itself without factors.

    Raises
    ------
    SimulatorError
        If the shapes differ, or a product does not fit 16 bits.
    """
    if factors is None:
        return weight
    require(
        weight.shape == factors.shape,
        f"factors {list(factors.shape)} do not match weights {list(weight.shape)}",
    )
    products = weight.astype(np.int64) * factors
    largest = np.abs(products).max(initial=0)
    require(
        bool(largest <= np.iinfo(np.int16).max),
        f"weights times their factors reach {largest}, which does not fit 16 bits",
    )
    return products.astype(np.int16)


def fold_zero_point_into_bias(weight: np.ndarray, bias: np.ndarray, zero: int) -> np.ndarray:
    """Return bias - zero * sum(w) per output, int64 [O], for weights [O, ...].

    Returns `bias` itself if `zero` is 0.
    """
    if not zero:
        return bias
    return bias - zero * weight.reshape(len(weight), -1).astype(np.int64).sum(axis=1)


def accumulator_bound(weight: np.ndarray, bias: np.ndarray, dtype: np.dtype) -> int:
    """Return the largest |accumulator| for inputs of `dtype`; SimulatorError beyond 62 bits.

    It is the largest over the outputs of sum |weight| times the largest |input|, plus |bias|.
    """
    magnitudes = np.abs(weight.reshape(len(weight), -1), dtype=np.int32)  # of 16 bits at most
    per_output = magnitudes.sum(axis=1, dtype=np.int64).astype(object)
    per_output = per_output * (1 << (8 * dtype.itemsize - 1)) + np.abs(bias.astype(object))
    largest = int(per_output.max(initial=0))
    require(largest < 1 << 62, f"accumulators up to {largest} do not fit 62 bits")
    return largest


@dataclass(frozen=True, eq=False)
class Conv(ClampableKernel):
    """Convolution of x [N, C, H, W] or [N, C, W], padded with the zero point of x.

    Parameters
    ----------
    weight
        int8 or int16 [O, C/group, *kernel].
    bias
        Integer [O] at the scale of the accumulator, or None.
    rescale
        Accumulator -> output, one for all channels or one per channel; its bits give the dtype of
        the output.
    strides, pads, dilations
        One value per spatial axis; pads in ONNX order, all begins and then all ends. None is 1, and
        0 for pads.
    group
        Number of groups.
    zero
        Zero point of x.
    clip_bounds
        Bounds of a fused Relu or Clip.
    is_input_nonnegative
        Whether no element of x is negative, which a program proves from the steps before.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale | ChannelRescale
    strides: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    dilations: Sequence[int] | None = None
    group: int = 1
    zero: int = 0
    clip_bounds: tuple[int, int] | None = None
    is_input_nonnegative: bool = False

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y [N, O, *space], of the type of the rescale, from x [N, C, *space].

        Raises SimulatorError if x is not int8 or int16, or if channels, groups, rank or the number
        of rescales do not match the weights.
        """
        (x,) = specs
        check_weight_and_bias(self.weight, self.bias)
        rank, window = self.weight.ndim, self._window()
        require(len(x.shape) == rank, f"weights {list(self.weight.shape)} do not match {x}")
        require(
            x.dtype in (np.int8, np.int16), f"a convolution requires int8 or int16, not {x.dtype}"
        )
        outputs, channels = self.weight.shape[:2]
        require(
            x.shape[1] == channels * self.group and outputs % self.group == 0,
            f"weights {list(self.weight.shape)} in {self.group} groups do not match {x}",
        )
        check_channel_count(self.rescale, outputs)
        return (
            TensorSpec((x.shape[0], outputs, *window.output_size(x.shape[2:])), self.rescale.dtype),
        )

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pack the weights for the size of x and return the fastest exact convolution loop.

        The zero point of x is folded into the bias. If there is also padding, the loop reads a
        padded copy of x instead, because padded elements have the zero point.
        """
        (x,), (y,) = specs, self.infer(*specs)
        weight = self.weight if self.weight.ndim == 4 else self.weight[:, :, None]
        bias = check_weight_and_bias(self.weight, self.bias)
        bias, window = fold_zero_point_into_bias(weight, bias, self.zero), self._window()
        if self.zero and any(window.pads):
            return self._build_padded_loop(weight, bias, window, x, y)
        loop = select_conv_loop(
            weight, bias, window, x, self.rescale, self.clip_bounds, self.is_input_nonnegative
        )
        return loop(InputRef(0, channel_last_shape(x)), OutputRef(0, channel_last_shape(y)))

    def assume_nonnegative_input(self) -> Conv:
        """Return this convolution for an x without negative elements."""
        return replace(self, is_input_nonnegative=True)

    def _build_padded_loop(
        self,
        weight: np.ndarray,
        bias: np.ndarray,
        window: SlidingWindow,
        x: TensorSpec,
        y: TensorSpec,
    ) -> RunFunction:
        """Return a function that pads x with its zero point and runs the convolution without pads.

        The loops themselves pad with 0. `x` and `y` are the specs of input and output of one
        sample.
        """
        (top, left, bottom, right), (rows, columns) = window.pads, image_size(x.shape[2:])
        padded = TensorSpec((1, x.shape[1], top + rows + bottom, left + columns + right), x.dtype)
        unpadded_window = replace(window, pads=(0,) * 4, spatial_rank=2)
        build = select_conv_loop(
            weight, bias, unpadded_window, padded, self.rescale, self.clip_bounds
        )
        loop = build(InputRef(0, channel_last_shape(padded)), OutputRef(0, channel_last_shape(y)))

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Copy x into an image filled with the zero point, and run the loop on it."""
            image = np.full((len(ins[0]), *padded.shape[2:], x.shape[1]), self.zero, x.dtype)
            image[:, top : top + rows, left : left + columns] = to_channel_last_image(ins[0])
            loop([image], outs)

        return run

    def _window(self) -> SlidingWindow:
        """Return the sliding window of the convolution.

        Raises SimulatorError unless the weights have 3 or 4 axes.
        """
        require(
            self.weight.ndim in (3, 4),
            f"convolution weights {list(self.weight.shape)} must have 3 or 4 axes",
        )
        return make_window(
            self.weight.shape[2:], self.strides, self.pads, self.dilations, self.group
        )


def select_conv_loop(
    weight: np.ndarray,
    bias: np.ndarray,
    window: SlidingWindow,
    x: TensorSpec,
    rescale: Rescale | ChannelRescale,
    clip: tuple[int, int] | None,
    is_nonnegative: bool = False,
) -> Callable[[InputRef, OutputRef], RunFunction]:
    """Select and pack the fastest exact loop for a convolution.

    Parameters
    ----------
    weight
        int8 or int16 [O, C/group, kh, kw].
    bias
        int64 [O], with the zero point of x folded in.
    window
        Kernel size, strides, pads, dilations and groups.
    x
        Logical spec of one sample of the input.
    rescale
        Accumulator -> output.
    clip
        Bounds of a fused Relu or Clip.
    is_nonnegative
        Whether no element of x is negative.

    Returns
    -------
    callable
        Function of (input, output) references, both channel-last of rank 4, that returns the loop.
    """
    largest = accumulator_bound(weight, bias, x.dtype)
    if isinstance(rescale, ChannelRescale):
        channel_forms = rescale.compile_for_bound(largest, clip)
        accumulator_bits = 32 if largest < 2**31 else 62
        return _make_per_channel_loop(
            weight, bias, window, x, channel_forms, accumulator_bits, is_nonnegative
        )
    form = rescale.compile_for_bound(largest, clip)
    instructions = _conv_simd.active_instruction_set() if largest < 2**31 else None
    if instructions is not None:
        is_int8 = x.dtype == np.int8 and weight.dtype == np.int8
        has_offset = is_int8 and instructions.int8_operands == "quads"
        if not has_offset or _conv_simd.fits_int32(weight, bias):
            return _conv_simd.pack_convolution(
                instructions, weight, bias, window, x, form, rescale.dtype, is_nonnegative
            )
    outputs, channels, kh, kw = weight.shape
    accumulator = np.dtype(np.int32 if largest < 2**31 else np.int64)
    bias = bias.astype(accumulator)
    geometry = (*window.strides, *window.pads[:2], *window.dilations)
    if window.group == channels * window.group == outputs:
        taps = np.ascontiguousarray(weight[:, 0].transpose(1, 2, 0)).astype(accumulator)
        return lambda x, out: NativeLoop(
            _conv_scalar.convolve_depthwise, (x, taps, bias, geometry, form, out)
        )
    by_group = weight.reshape(window.group, outputs // window.group, channels, kh, kw)
    taps = np.ascontiguousarray(by_group.transpose(0, 3, 4, 2, 1)).astype(accumulator)
    return lambda x, out: NativeLoop(
        _conv_scalar.convolve_dense, (x, taps, bias, geometry, form, out)
    )


def _make_per_channel_loop(
    weight: np.ndarray,
    bias: np.ndarray,
    window: SlidingWindow,
    x: TensorSpec,
    form: ChannelScaleForms,
    bits: int,
    is_nonnegative: bool,
) -> Callable[[InputRef, OutputRef], RunFunction]:
    """Select a convolution loop with rescales per channel: accumulators, then requantization.

    `weight` is int8 or int16 [O, C/group, kh, kw], `bias` int64 [O], `x` the spec of one sample,
    `form` the forms of all channels, `bits` the width of the accumulators, and `is_nonnegative`
    whether no element of x is negative. Returns a function of (input, output) references that
    returns the loop.
    """
    identity = Rescale.from_shift(0, bits)
    build_accumulators = select_conv_loop(weight, bias, window, x, identity, None, is_nonnegative)
    outputs = len(weight)
    requantize = NativeLoop(
        requantize_channels, (InputRef(0, (-1, outputs)), form, OutputRef(0, (-1, outputs)))
    )

    def build_loop(source: InputRef, target: OutputRef) -> RunFunction:
        """Return a function that accumulates into a new array and requantizes it into `target`."""
        accumulate = build_accumulators(source, target)

        def run(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
            """Compute the accumulators of x in a new array, then requantize them into y."""
            acc = np.empty(outs[0].shape, identity.dtype)
            accumulate(ins, [acc])
            requantize([acc], outs)

        return run

    return build_loop


@dataclass(frozen=True, eq=False)
class Linear(ClampableKernel):
    """Fully connected layer on the last axis: x [..., K] -> y [..., O].

    Parameters
    ----------
    weight
        int8 or int16 [O, K].
    bias
        Integer [O] at the scale of the accumulator, or None.
    rescale
        Accumulator -> output, one for all outputs or one per output; its bits give the dtype of y.
    zero
        Zero point of x.
    clip_bounds
        Bounds of a fused Relu or Clip.
    factors
        Integers [O, K] that multiply the weights, or None; the products have at most 16 bits.
    is_input_nonnegative
        Whether no element of x is negative, which a program proves from the steps before.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale | ChannelRescale
    zero: int = 0
    clip_bounds: tuple[int, int] | None = None
    factors: np.ndarray | None = None
    is_input_nonnegative: bool = False

    @property
    def scaled_weight(self) -> np.ndarray:
        """Weights times their factors, [O, K]: int16, or the weights themselves without factors.

        Raises SimulatorError if a product does not fit 16 bits.
        """
        return apply_weight_factors(self.weight, self.factors)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y [..., O], of the type of the rescale, from x [..., K].

        One-dimensional x has no batch axis. Raises SimulatorError if x is not int8 or int16, or K
        does not match the weights [O, K].
        """
        (x,) = specs
        check_weight_and_bias(self.weight, self.bias)
        require(
            x.dtype in (np.int8, np.int16),
            f"a fully connected layer requires int8 or int16, not {x.dtype}",
        )
        require(
            self.weight.ndim == 2 and x.shape[-1:] == self.weight.shape[1:],
            f"weights {list(self.weight.shape)} do not match {x}",
        )
        check_channel_count(self.rescale, len(self.weight))
        return (TensorSpec((*x.shape[:-1], len(self.weight)), self.rescale.dtype),)

    def assume_nonnegative_input(self) -> Linear:
        """Return this layer for an x without negative elements."""
        return replace(self, is_input_nonnegative=True)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of the layer: a 1x1 convolution whose pixels are the rows of x.

        The zero point of x is folded into the bias.
        """
        outputs, inputs = self.weight.shape
        window = SlidingWindow((1, 1), (1, 1), (0, 0, 0, 0))
        pixels = TensorSpec((1, inputs, 1, max(math.prod(specs[0].shape[:-1]), 1)), specs[0].dtype)
        weight = self.scaled_weight
        bias = fold_zero_point_into_bias(
            weight, check_weight_and_bias(weight, self.bias), self.zero
        )
        loop = select_conv_loop(
            weight[:, :, None, None],
            bias,
            window,
            pixels,
            self.rescale,
            self.clip_bounds,
            self.is_input_nonnegative,
        )
        return loop(InputRef(0, (1, 1, -1, inputs)), OutputRef(0, (1, 1, -1, outputs)))


@dataclass(frozen=True, eq=False)
class WideLinear(NumpyKernel):
    """Fully connected layer like `Linear`, for inputs and weights of up to 32 bits.

    Accumulators are exact: int64 where the weights show that 62 bits suffice, else Python integers.

    Parameters
    ----------
    weight
        Integers [O, K] of at most 32 bits.
    bias
        Integer [O] at the scale of the accumulator, or None.
    rescale
        Accumulator -> output.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    rescale: Rescale

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y [..., O], of the type of the rescale, from integers x [..., K].

        Raises SimulatorError if x is not an integer, or K does not match the weights [O, K].
        """
        (x,) = specs
        require_signed_integer(x, type(self).__name__)
        require(
            self.weight.ndim == 2 and x.shape[-1:] == self.weight.shape[1:],
            f"weights {list(self.weight.shape)} do not match {x}",
        )
        return (TensorSpec((*x.shape[:-1], len(self.weight)), self.rescale.dtype),)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Compute x @ weight^T + bias exactly, and rescale it."""
        (x,) = arrays
        largest = np.abs(self.weight.astype(object)).sum(axis=1).max(initial=0)
        is_narrow = int(largest) * max_magnitude(x.dtype) < 1 << 62
        kind = np.int64 if is_narrow else object
        total = x.astype(kind) @ self.weight.T.astype(kind)
        if self.bias is not None:
            total = total + self.bias
        return (self.rescale(total).astype(self.rescale.dtype),)
