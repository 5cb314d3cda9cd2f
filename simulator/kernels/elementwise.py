"""Operators that work number by number.

    AddShift   sat(sat(rsh(x, sx)) + sign * sat(rsh(y, sy)))
    AddScaled  out(x_rescale(x) + sign * y_rescale(y))       operands at 2^16 times the output's
    scale, wide Mul        rescale(x * y)
    Affine     rescale((x - zero) * w[c] + b[c])
    Requant    rescale(x)
    Relu, Clip

Operands of equal rank keep whatever layout they have; the binary operators broadcast as NumPy does.
One flat loop each, which vectorises by itself. Must not know: shapes beyond broadcasting, how a
`fixed` form rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit
from simulator.fixed_point import Rescale, RescaleForm, RoundingMode, apply_rescale, narrow_to_int32
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
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
    broadcast_into_scratch,
    make_broadcast_arguments,
)
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["AddScaled", "AddShift", "ChannelAffine", "Clip", "Mul", "Relu", "Requant"]


@jit
def _add(
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
    """Fill out with rescale(rescale_x(x) + sign * rescale_y(y)) on operands that broadcast, see `build_broadcast_loop`.

    x, y, out : integers of rank 4. wide_x, wide_y : scratch of the types of x and y, for an operand
    that is stretched. sign : 1, or -1 for a difference.
    """
    a, b, flat = (
        broadcast_into_scratch(x, out.shape, wide_x),
        broadcast_into_scratch(y, out.shape, wide_y),
        out.reshape(out.size),
    )
    for i in range(flat.size):
        flat[i] = apply_rescale(
            rescale,
            np.int64(apply_rescale(rescale_x, a[i]))
            + sign * np.int64(apply_rescale(rescale_y, b[i])),
        )


@jit
def _mul(
    x: Array, y: Array, wide_x: Array, wide_y: Array, out: Array, rescale: RescaleForm
) -> None:
    """Fill out with rescale(x * y), arguments as for `_add`."""
    a, b, flat = (
        broadcast_into_scratch(x, out.shape, wide_x),
        broadcast_into_scratch(y, out.shape, wide_y),
        out.reshape(out.size),
    )
    for i in range(flat.size):
        flat[i] = apply_rescale(rescale, np.int64(a[i]) * b[i])


@jit
def _affine(x: Array, weight: Array, bias: Array, rescale: RescaleForm, out: Array) -> None:
    for i in range(x.shape[0]):
        source, target = x[i], out[i]
        for c in range(weight.size):
            target[c] = apply_rescale(rescale, source[c] * weight[c] + bias[c])


@jit
def rescale_flat(x: Array, rescale: RescaleForm, out: Array) -> None:
    """Rescale flat integers into `out`."""
    for i in range(out.size):
        out[i] = apply_rescale(rescale, x[i])


@jit
def _shift_left_wrapping(x: Array, left: int, out: Array) -> None:
    for i in range(out.size):
        out[i] = np.int64(x[i]) << left  # what does not fit is cut off


@jit
def _clip(x: Array, low: int, high: int, out: Array) -> None:
    for i in range(out.size):
        out[i] = min(max(x[i], low), high)


def build_broadcast_loop(
    kernel: Kernel,
    specs: Sequence[TensorSpec],
    channel_last: bool,
    loop: Any,
    constants: tuple[Any, ...],
) -> RunFunction:
    """Return `loop(x, y, scratch_x, scratch_y, out, *constants)` for operands of `make_broadcast_arguments`."""
    (out,) = kernel.infer(*specs)
    places = make_broadcast_arguments(specs, out, channel_last)
    if places is not None:
        return NativeLoop(loop, (*places, *constants))

    def run(
        ins: Sequence[np.ndarray], outs: Sequence[np.ndarray]
    ) -> None:  # more axes than the loop has
        x, y, target = (
            a.reshape(1, 1, 1, -1)
            for a in (*(broadcast_flat(x, outs[0].shape) for x in ins), outs[0])
        )
        loop(x, y, x[0, 0, 0], y[0, 0, 0], target, *constants)

    return run


class _BinaryKernel(ClampableKernel):
    """Map x, y -> out of their common shape; subclasses bring `_compile`."""

    layout: ClassVar[str] = "any"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x, y -> out of the shape that both broadcast to."""
        x, y = specs
        require_signed_integer(x, type(self).__name__)
        require_signed_integer(y, type(self).__name__)
        return (TensorSpec(broadcast_shape(specs), self._output_dtype()),)

    def _output_dtype(self) -> np.dtype:
        raise NotImplementedError


class _Sum(_BinaryKernel):
    """out = rescale(x form + sign * y form)."""

    sign: int

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        raise NotImplementedError

    def _output_dtype(self) -> np.dtype:
        return self._rescales()[2].dtype

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pick the forms by the widths of the operands."""
        require(self.sign in (1, -1), f"the sign of a sum is 1 or -1, not {self.sign}")
        rescale_x, rescale_y, rescale = self._rescales()
        bounds = [max_magnitude(spec.dtype) for spec in specs]
        form_x, form_y = (
            narrow_to_int32(r.compile_for_bound(b), b)
            for r, b in zip((rescale_x, rescale_y), bounds, strict=True)
        )
        bound = rescale_x.output_bound(bounds[0]) + rescale_y.output_bound(bounds[1])
        form = narrow_to_int32(rescale.compile_for_bound(bound, self.clip_bounds), bound)
        return build_broadcast_loop(
            self, specs, channel_last, _add, (form_x, form_y, np.int32(self.sign), form)
        )


@dataclass(frozen=True, eq=False)
class AddShift(_Sum):
    """Sum of two operands that are each shifted right by `shift_x`, `shift_y` and saturated to `bits` bits first."""

    shift_x: int
    shift_y: int
    bits: int = 8
    sign: int = 1
    clip_bounds: tuple[int, int] | None = None

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        x, y, out = (
            Rescale.from_shift(shift, self.bits) for shift in (self.shift_x, self.shift_y, 0)
        )
        return x, y, out


@dataclass(frozen=True, eq=False)
class AddScaled(_Sum):
    """Sum of two operands brought to a common fine scale by `rescale_x` and `rescale_y`, then to the output's by `out`.

    A `fixed.Rounded` will do for each of the three.
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
        """Sum with ratios scale_out / scale_x and scale_out / scale_y, below 2^14.

        The fine scale has 16 bits more.
        zero : the integer of the sum that stands for 0. rounding : of the sum; the operands round
        half up.
        """
        x, y = (Rescale.from_ratio(math.ldexp(ratio, 16), 61) for ratio in (ratio_x, ratio_y))
        return cls(
            rescale_x=x, rescale_y=y, out=Rescale(1 << 30, 46, bits, zero, rounding), sign=sign
        )

    def _rescales(self) -> tuple[Rescale, Rescale, Rescale]:
        return self.rescale_x, self.rescale_y, self.out


@dataclass(frozen=True, eq=False)
class Mul(_BinaryKernel):
    """Product of two tensors."""

    rescale: Rescale
    clip_bounds: tuple[int, int] | None = None

    def _output_dtype(self) -> np.dtype:
        return self.rescale.dtype

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pick the form by the width of the product."""
        bound = max_magnitude(specs[0].dtype) * max_magnitude(specs[1].dtype)
        require(bound < 1 << 62, f"a product of {specs[0]} and {specs[1]} does not fit 62 bits")
        return build_broadcast_loop(
            self,
            specs,
            channel_last,
            _mul,
            (narrow_to_int32(self.rescale.compile_for_bound(bound, self.clip_bounds), bound),),
        )


@dataclass(frozen=True, eq=False)
class ChannelAffine(ClampableKernel):
    """One factor and one summand per channel (axis 1).

    Integer `weight` [C], `bias` [C] at the scale of the product.
    zero : the integer of x that stands for 0.
    """

    weight: np.ndarray
    bias: np.ndarray
    rescale: Rescale
    zero: int = 0
    clip_bounds: tuple[int, int] | None = None

    layout: ClassVar[str] = "nhwc"

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the same shape."""
        (x,) = specs
        require_signed_integer(x, "Affine")
        require(
            x.shape[1:2] == self.weight.shape == self.bias.shape,
            f"{list(self.weight.shape)} weights and {list(self.bias.shape)} biases do not fit {x}",
        )
        return (TensorSpec(x.shape, self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Choose the width of the accumulator; channels are the last axis."""
        size = max_magnitude(specs[0].dtype)
        folded = np.asarray(self.bias).astype(np.int64) - self.zero * np.asarray(
            self.weight
        ).astype(np.int64)
        bound = max(
            (size * abs(int(w)) + abs(int(b)) for w, b in zip(self.weight, folded, strict=True)),
            default=0,
        )
        require(bound < 1 << 62, f"accumulators up to {bound} do not fit 62 bits")
        accumulator = np.int32 if bound < 1 << 31 else np.int64
        form, channels = (
            narrow_to_int32(self.rescale.compile_for_bound(bound, self.clip_bounds), bound),
            len(self.weight),
        )
        weight, bias = np.asarray(self.weight).astype(accumulator), folded.astype(accumulator)
        return NativeLoop(
            _affine, (InputRef(0, (-1, channels)), weight, bias, form, OutputRef(0, (-1, channels)))
        )


class _Unary(Kernel):
    layout: ClassVar[str] = "any"


@dataclass(frozen=True, eq=False)
class Requant(_Unary):
    """Integers to another scale and width.

    With `saturate=False` a left shift keeps the low bits of the result.
    """

    rescale: Rescale
    saturate: bool = True

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y of the same shape."""
        require_signed_integer(specs[0], "Requant")
        return (TensorSpec(specs[0].shape, self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Pick the form by the width of x."""
        bound = max_magnitude(specs[0].dtype)
        require(bound < 1 << 62, f"Requant takes up to 32 bits, not {specs[0]}")
        right = self.rescale.pow2_shift
        if right is not None and right < 0 and not self.saturate:
            return NativeLoop(_shift_left_wrapping, (FLAT_IN, -right, FLAT_OUT))
        return NativeLoop(
            rescale_flat,
            (FLAT_IN, narrow_to_int32(self.rescale.compile_for_bound(bound), bound), FLAT_OUT),
        )


@dataclass(frozen=True, eq=False)
class Clip(_Unary):
    """Clamp integers to [low, high]; the dtype stays."""

    low: int
    high: int

    @property
    def clamp_bounds(self) -> tuple[int, int]:
        """(low, high), so that the kernel before can absorb this one."""
        return self.low, self.high

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Map x -> y like x."""
        require_signed_integer(specs[0], type(self).__name__)
        return specs

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Narrow the bounds to the dtype."""
        size = max_magnitude(specs[0].dtype)
        low, high = (min(max(value, -size), size - 1) for value in self.clamp_bounds)
        kind = specs[0].dtype.type
        return NativeLoop(_clip, (FLAT_IN, kind(low), kind(high), FLAT_OUT))


@dataclass(frozen=True, eq=False)
class Relu(Clip):
    """Negative integers become 0: max(x, 0)."""

    low: int = 0
    high: int = 1 << 62
