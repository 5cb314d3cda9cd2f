"""Elementwise operators.

    AddShift       sat(sat(rsh(x, sx)) + sign * sat(rsh(y, sy)))
    AddScaled      out(rescale_x(x) + sign * rescale_y(y))    operands at 2^16 times the output's
                                                              scale
    Mul            rescale(x * y)
    ChannelAffine  rescale((x - zero) * w[c] + b[c])
    Requant        rescale(x)
    Relu, Clip

Operands of equal rank keep their layout; the binary operators broadcast as NumPy does. Each has one
flat loop, which the compiler vectorizes. Must not know: shapes beyond broadcasting, how a form of
`fixed_point` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import (
    Rescale,
    RescaleForm,
    RoundedShift,
    RoundingMode,
    apply_rescale,
    narrow_to_int32,
)
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.lookup_table import Table, all_integers
from simulator.kernels.loops._common import (
    ClampableKernel,
    broadcast_flat,
    broadcast_shape,
    max_magnitude,
    require_signed_integer,
)
from simulator.kernels.loops._copy import (
    FLAT_IN,
    FLAT_OUT,
    broadcast_operands,
    make_broadcast_arguments,
    slice_repeated,
)
from simulator.kernels.loops._view import view_as
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["AddScaled", "AddShift", "ChannelAffine", "Clip", "Mul", "Relu", "Requant"]


@jit
def _add(
    x: Array,
    y: Array,
    out: Array,
    rescale_x: RescaleForm,
    rescale_y: RescaleForm,
    sign: int,
    rescale: RescaleForm,
) -> None:
    """Fill out with rescale(rescale_x(x) + sign * rescale_y(y)), all flat integers.

    x or y may be that of one sample, which serves all. `sign` is 1, or -1 for a difference.
    """
    count = min(x.size, y.size)
    for first in range(0, out.size, max(count, 1)):
        a, b = slice_repeated(x, first, count), slice_repeated(y, first, count)
        target = out[first : first + count]
        for i in range(count):
            target[i] = apply_rescale(
                rescale,
                np.int64(apply_rescale(rescale_x, a[i]))
                + sign * np.int64(apply_rescale(rescale_y, b[i])),
            )


@jit
def _add_broadcast(
    x: Array,
    y: Array,
    wide_x: Array,
    wide_y: Array,
    out: Array,
    rescale_x: RescaleForm,
    rescale_y: RescaleForm,
    sign: int,
    rescale: RescaleForm,
) -> None:
    """Compute `_add` of x and y of rank 4 that broadcast to out.

    `wide_x` and `wide_y` are scratch memory of the types of x and y, flat, of at least out.size
    elements each if the operand must be expanded; overwritten.
    """
    a, b = broadcast_operands(x, y, wide_x, wide_y, out)
    _add(a, b, view_as(out, (out.size,)), rescale_x, rescale_y, sign, rescale)


@jit
def _mul(x: Array, y: Array, out: Array, rescale: RescaleForm) -> None:
    """Fill out with rescale(x * y), all flat integers.

    x or y may be that of one sample, which serves all.
    """
    count = min(x.size, y.size)
    for first in range(0, out.size, max(count, 1)):
        a, b = slice_repeated(x, first, count), slice_repeated(y, first, count)
        target = out[first : first + count]
        for i in range(count):
            target[i] = apply_rescale(rescale, np.int64(a[i]) * b[i])


@jit
def _mul_broadcast(
    x: Array, y: Array, wide_x: Array, wide_y: Array, out: Array, rescale: RescaleForm
) -> None:
    """Compute `_mul` of x and y of rank 4 that broadcast to out.

    `wide_x` and `wide_y` are scratch memory of the types of x and y, flat, of at least out.size
    elements each if the operand must be expanded; overwritten.
    """
    a, b = broadcast_operands(x, y, wide_x, wide_y, out)
    _mul(a, b, view_as(out, (out.size,)), rescale)


@jit
def _affine(x: Array, weight: Array, bias: Array, rescale: RescaleForm, out: Array) -> None:
    """Fill out [N, C] with rescale(x [N, C] * weight [C] + bias [C]).

    weight and bias have the type of the accumulator, int32 or int64; x and out are integers.
    """
    for i in range(x.shape[0]):
        source, target = x[i], out[i]
        for c in range(weight.size):
            target[c] = apply_rescale(rescale, source[c] * weight[c] + bias[c])


@jit
def rescale_flat(x: Array, rescale: RescaleForm, out: Array) -> None:
    """Fill flat `out` with flat `x`, both integers, requantized by the form `rescale`."""
    for i in range(out.size):
        out[i] = apply_rescale(rescale, x[i])


@jit
def _shift_left_wrapping(x: Array, left: int, out: Array) -> None:
    """Fill flat `out` with x << left; bits beyond the width of `out` are lost."""
    for i in range(out.size):
        out[i] = np.int64(x[i]) << left


@jit
def _clip(x: Array, low: int, high: int, out: Array) -> None:
    """Fill flat `out` with flat x clamped to [low, high]."""
    for i in range(out.size):
        out[i] = min(max(x[i], low), high)


def build_binary_loop(
    kernel: Kernel,
    specs: Sequence[TensorSpec],
    channel_last: bool,
    loops: tuple[Any, Any],
    constants: tuple[Any, ...],
) -> RunFunction:
    """Build the function of a binary operator that broadcasts.

    Operands of equal shapes, and those of outputs of up to four axes, are compiled; others run in
    Python on expanded operands.

    Parameters
    ----------
    kernel
        The operator, for the inference of its output.
    specs
        Logical specs of both inputs.
    channel_last
        Whether all arrays are channel-last.
    loops
        Two jitted functions. The first takes (x, y, out, *constants), flat, where x or y may be
        that of one sample. The second takes (x, y, scratch_x, scratch_y, out, *constants): operands
        and output of four axes, and flat scratch memory of each operand's type to expand it in.
    constants
        Last arguments of both.
    """
    flat_loop, broadcast_loop = loops
    if specs[0].shape == specs[1].shape:
        return NativeLoop(flat_loop, (FLAT_IN, InputRef(1, (-1,)), FLAT_OUT, *constants))
    (out,) = kernel.infer(*specs)
    array_arguments = make_broadcast_arguments(specs, out, channel_last)
    if array_arguments is not None:
        return NativeLoop(broadcast_loop, (*array_arguments, *constants))

    def run_expanded(ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Run the loop on expanded operands, which have too many axes for compiled broadcasting."""
        x, y = (broadcast_flat(operand, outs[0].shape) for operand in ins)
        flat_loop(x, y, outs[0].reshape(-1), *constants)

    return run_expanded


class _BinaryKernel(ClampableKernel):
    """An operator on integers x, y that broadcast; subclasses define `build` and the dtype."""

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer the output, of the shape that x and y broadcast to.

        Raises SimulatorError unless both are signed integers and broadcast.
        """
        x, y = specs
        require_signed_integer(x, type(self).__name__)
        require_signed_integer(y, type(self).__name__)
        return (TensorSpec(broadcast_shape(specs), self._output_dtype()),)

    def _output_dtype(self) -> np.dtype:
        """Return the dtype of the output.

        This base raises NotImplementedError; subclasses define it.
        """
        raise NotImplementedError


class _Sum(_BinaryKernel):
    """out = rescale(rescale_x(x) + sign * rescale_y(y)); sign is 1 or -1."""

    sign: int

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        """Return the rescales of x, y and the sum.

        This base raises NotImplementedError; subclasses define it.
        """
        raise NotImplementedError

    def _output_dtype(self) -> np.dtype:
        """Return the dtype of the result, that of the rescale of the sum."""
        return self._rescales()[2].dtype

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop that requantizes x and y, adds or subtracts, and requantizes the result.

        The forms are exact for the widths of the operands. Raises SimulatorError if `sign` is not 1
        or -1.
        """
        require(self.sign in (1, -1), f"the sign of a sum must be 1 or -1, not {self.sign}")
        rescale_x, rescale_y, rescale = self._rescales()
        bound_x, bound_y = (max_magnitude(spec.dtype) for spec in specs)
        form_x = narrow_to_int32(rescale_x.compile_for_bound(bound_x), bound_x)
        form_y = narrow_to_int32(rescale_y.compile_for_bound(bound_y), bound_y)
        bound = rescale_x.output_bound(bound_x) + rescale_y.output_bound(bound_y)
        form = narrow_to_int32(rescale.compile_for_bound(bound, self.clip_bounds), bound)
        return build_binary_loop(
            self,
            specs,
            channel_last,
            (_add, _add_broadcast),
            (form_x, form_y, np.int32(self.sign), form),
        )


@dataclass(frozen=True, eq=False)
class AddShift(_Sum):
    """Sum of x and y, each first shifted right and saturated to `bits` bits.

    The right shifts are `shift_x` and `shift_y`, rounded half up. `sign` is 1, or -1 for x - y.
    """

    shift_x: int
    shift_y: int
    bits: int = 8
    sign: int = 1
    clip_bounds: tuple[int, int] | None = None

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        """Return the rescales of x, y and the sum: right shifts by shift_x, shift_y and 0 bits."""
        x, y, out = (
            Rescale.from_shift(shift, self.bits) for shift in (self.shift_x, self.shift_y, 0)
        )
        return x, y, out


@dataclass(frozen=True, eq=False)
class AddScaled(_Sum):
    """Sum of two operands at a common fine scale: out(rescale_x(x) + sign * rescale_y(y)).

    A `RoundedShift` may replace each of the three rescales.
    """

    rescale_x: Rescale
    rescale_y: Rescale
    out: Rescale
    sign: int = 1
    clip_bounds: tuple[int, int] | None = None

    @classmethod
    def from_ratios(
        cls,
        ratio_x: float,
        ratio_y: float,
        bits: int,
        sign: int = 1,
        zero: int = 0,
        rounding: RoundingMode = RoundingMode.HALF_UP,
    ) -> AddScaled:
        """Create a sum whose fine scale is 2^16 times the output's.

        Parameters
        ----------
        ratio_x, ratio_y
            scale_out / scale_x and scale_out / scale_y, below 2^14.
        bits
            Width of the result.
        sign
            1, or -1 for x - y.
        zero
            Zero point of the result.
        rounding
            Rounding mode of the sum; the operands round half up.
        """
        x, y = (Rescale.from_ratio(math.ldexp(ratio, 16), 61) for ratio in (ratio_x, ratio_y))
        out = Rescale(1 << 30, 46, bits, zero, rounding)
        return cls(rescale_x=x, rescale_y=y, out=out, sign=sign)

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        """Return the rescales of x, y and the sum, as given."""
        return self.rescale_x, self.rescale_y, self.out


@dataclass(frozen=True, eq=False)
class Mul(_BinaryKernel):
    """Product of two tensors."""

    rescale: Rescale
    clip_bounds: tuple[int, int] | None = None

    def _output_dtype(self) -> np.dtype:
        """Return the dtype of the product after its rescale."""
        return self.rescale.dtype

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of the product, with the rescale form for its width.

        Raises SimulatorError if a product may reach 2^62.
        """
        bound = max_magnitude(specs[0].dtype) * max_magnitude(specs[1].dtype)
        require(bound < 1 << 62, f"a product of {specs[0]} and {specs[1]} does not fit 62 bits")
        form = narrow_to_int32(self.rescale.compile_for_bound(bound, self.clip_bounds), bound)
        return build_binary_loop(self, specs, channel_last, (_mul, _mul_broadcast), (form,))


@dataclass(frozen=True, eq=False)
class ChannelAffine(ClampableKernel):
    """Multiply by a factor and add a bias per channel (axis 1): rescale((x - zero) * w[c] + b[c]).

    Parameters
    ----------
    weight
        Integers [C].
    bias
        Integers [C] at the scale of the product.
    rescale
        Sum -> output.
    zero
        Zero point of x.
    clip_bounds
        Bounds of a fused Relu or Clip.
    """

    weight: np.ndarray
    bias: np.ndarray
    rescale: Rescale
    zero: int = 0
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the rescale.

        Raises SimulatorError unless x is a signed integer and weight and bias have one value per
        channel (axis 1).
        """
        (x,) = specs
        require_signed_integer(x, "ChannelAffine")
        require(
            x.shape[1:2] == self.weight.shape == self.bias.shape,
            f"{list(self.weight.shape)} weights and {list(self.bias.shape)} biases do not match "
            f"the channels of {x}",
        )
        return (TensorSpec(x.shape, self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop of x * weight + bias per channel.

        The zero point of x is folded into the bias. Accumulators are int32 if their bound is below
        2^31, else int64. Raises SimulatorError if they exceed 62 bits.
        """
        size = max_magnitude(specs[0].dtype)
        wide_weight = np.asarray(self.weight).astype(np.int64)
        folded = np.asarray(self.bias).astype(np.int64) - self.zero * wide_weight
        bound = max(
            (size * abs(int(w)) + abs(int(b)) for w, b in zip(self.weight, folded, strict=True)),
            default=0,
        )
        require(bound < 1 << 62, f"accumulators up to {bound} do not fit 62 bits")
        accumulator = np.int32 if bound < 1 << 31 else np.int64
        form = narrow_to_int32(self.rescale.compile_for_bound(bound, self.clip_bounds), bound)
        channels = len(self.weight)
        weight, bias = np.asarray(self.weight).astype(accumulator), folded.astype(accumulator)
        return NativeLoop(
            _affine, (InputRef(0, (-1, channels)), weight, bias, form, OutputRef(0, (-1, channels)))
        )


class _Unary(Kernel):
    """An elementwise operator with one input, in any layout."""

    layout: ClassVar[str] = "any"


@dataclass(frozen=True, eq=False)
class Requant(_Unary):
    """Requantize integers to another scale and width.

    With `saturate=False` a left shift keeps the low bits of the result instead of saturating.
    """

    rescale: Rescale | RoundedShift
    saturate: bool = True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the rescale.

        Raises SimulatorError unless x is a signed integer.
        """
        require_signed_integer(specs[0], "Requant")
        return (TensorSpec(specs[0].shape, self.rescale.dtype),)

    def fuse(self, consumer: Kernel, specs: Sequence[TensorSpec]) -> Kernel | None:
        """Return the table of the requantized integers of int8 x that `consumer` looks up.

        None for other types, consumers that are no tables, and a `RoundedShift`.
        """
        if not isinstance(consumer, Table) or specs[0].dtype != np.int8:
            return None
        if not isinstance(self.rescale, Rescale):
            return None
        x, right = all_integers(8), self.rescale.pow2_shift
        if right is not None and right < 0 and not self.saturate:
            requantized = (x << -right).astype(self.rescale.dtype).astype(np.int64)
        else:
            requantized = self.rescale(x)
        return Table(consumer.values[requantized + len(consumer.values) // 2])

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop that requantizes x, with the form for the width of x.

        Without `saturate`, a left shift wraps instead of saturating. Raises SimulatorError if x has
        more than 32 bits.
        """
        bound = max_magnitude(specs[0].dtype)
        require(bound < 1 << 62, f"Requant requires at most 32 bits, not {specs[0]}")
        right = self.rescale.pow2_shift
        if right is not None and right < 0 and not self.saturate:
            return NativeLoop(_shift_left_wrapping, (FLAT_IN, -right, FLAT_OUT))
        form = narrow_to_int32(self.rescale.compile_for_bound(bound), bound)
        return NativeLoop(rescale_flat, (FLAT_IN, form, FLAT_OUT))


@dataclass(frozen=True, eq=False)
class Clip(_Unary):
    """Clamp integers to [low, high] in their dtype."""

    low: int
    high: int

    @property
    def clamp_bounds(self) -> tuple[int, int]:
        """Bounds (low, high), with which the producer can fuse this kernel."""
        return self.low, self.high

    def is_nonnegative(self, inputs: Sequence[bool]) -> bool:
        """Whether the lower bound is 0 or more."""
        return self.low >= 0

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape and dtype of x.

        Raises SimulatorError unless x is a signed integer.
        """
        require_signed_integer(specs[0], type(self).__name__)
        return specs

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the loop that clamps x, with the bounds narrowed to its dtype."""
        size = max_magnitude(specs[0].dtype)
        low, high = (min(max(value, -size), size - 1) for value in self.clamp_bounds)
        kind = specs[0].dtype.type
        return NativeLoop(_clip, (FLAT_IN, kind(low), kind(high), FLAT_OUT))


@dataclass(frozen=True, eq=False)
class Relu(Clip):
    """max(x, 0)."""

    low: int = 0
    high: int = 1 << 62
