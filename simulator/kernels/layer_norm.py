"""Layer normalization and instance normalization over rows, in integers.

    S = sum x      Q = sum x^2               T elements in a row
    D = T*Q - S^2 + eps                      D = T^2 * variance
    t = D / 4^k in [256, 1023]
    r = min(32767, floor(2^14 / sqrt(t / 1024)))
    n = rsh((T*x - S) * r, k + 19 - fraction)                       saturated
    y = rescale(n * gamma + beta)

Executors have `fraction` = 10 and n in int16, later ones 15 and n in int32. The training library of
generation 3 has 15, n and the sum in int32, and the sum rounded to float32.

In instance normalization a row is a channel of a sample. It has one gamma and one beta, `fraction`
= 15, n in int32 and an exact sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from simulator._jit import jit, register_inline
from simulator.fixed_point import Rescale, RescaleForm, apply_rescale, round_shift_right, saturate
from simulator.kernel import Array, Kernel, RunFunction, TensorSpec, require
from simulator.kernels.loops._common import max_magnitude, require_signed_integer
from simulator.native import InputRef, NativeLoop, OutputRef

__all__ = ["InstanceNorm", "LayerNorm"]

#: Largest number of elements of a row times their largest magnitude: its square fits 62 bits.
_MAX_ROW_SUM = 1 << 31


def _make_inverse_sqrt_table() -> np.ndarray:
    """Return the exact floor(2^19 / sqrt(t)), at most 32767, for t = 0..1023, as int64 [1024].

    Entries from 256 on are used.
    """
    return np.array([min(32767, math.isqrt((1 << 38) // max(t, 1))) for t in range(1024)], np.int64)


@register_inline
def _variance_exponent(total: Any) -> Any:
    """Return k with total / 4^k in [256, 1023] for total > 0."""
    bits = 0
    while total >> bits:
        bits += 1
    return (bits - 1) // 2 - 4


@register_inline
def _measure_row(row: Any, epsilon: Any, roots: Any) -> Any:
    """Return (sum, root, k) of a row of integers [T]: roots[spread / 4^k] with the row's spread.

    The spread is T * sum x^2 - (sum x)^2 + epsilon; if it is not positive, k is 0 and the root that
    of 256.
    """
    total, squares = np.int64(0), np.int64(0)
    for i in range(len(row)):
        value = np.int64(row[i])
        total += value
        squares += value * value
    spread = len(row) * squares - total * total + epsilon
    k, root = 0, roots[256]
    if spread > 0:
        k = _variance_exponent(spread)
        root = roots[spread >> 2 * k if k >= 0 else spread << -2 * k]
    return total, root, k


@jit
def _layer_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    epsilon: int,
    fraction: int,
    single: bool,
    roots: Array,
    rescale: RescaleForm,
    out: Array,
) -> None:
    """Fill out with the normalized rows of x.

    Per row, in integers: spread = T * sum x^2 - (sum x)^2 + epsilon; k with spread / 4^k in [256,
    1023] (a spread of 0 counts as 256); n = (T * x - sum x) * roots[spread / 4^k] >> (k + 19 -
    fraction), rounded; out = rescale(n * gamma + beta). n is saturated to 16 bits if fraction is
    10, otherwise to 32. With `single`, n * gamma + beta is then saturated to 32 bits and rounded to
    float32.

    Parameters
    ----------
    x
        Integers [R, T], R rows.
    gamma, beta
        int64 [T]; beta is at 2^fraction times the scale of gamma.
    epsilon
        eps * (scale of x)^2 * T^2, rounded; eps is that of the ONNX operator.
    fraction
        Fractional bits of the normalized number, 10 or 15.
    single
        Whether the sum is rounded to float32; not with 10 fractional bits.
    roots
        int64 [1024]: floor(2^19 / sqrt(t)) for t = 0..1023, at most 32767.
    rescale
        n * gamma + beta -> output.
    out
        [R, T], filled.
    """
    count = x.shape[1]
    for row in range(x.shape[0]):
        total, root, k = _measure_row(x[row], epsilon, roots)
        shift = k + 19 - fraction
        bits = 16 if fraction == 10 else 32
        if single:
            for i in range(count):
                n = round_shift_right((count * np.int64(x[row, i]) - total) * root, shift)
                acc = saturate(saturate(n, bits) * gamma[i] + beta[i], 32)
                out[row, i] = apply_rescale(rescale, np.int64(np.float32(acc)))
        else:
            for i in range(count):
                n = round_shift_right((count * np.int64(x[row, i]) - total) * root, shift)
                out[row, i] = apply_rescale(rescale, saturate(n, bits) * gamma[i] + beta[i])


@dataclass(frozen=True, eq=False)
class LayerNorm(Kernel):
    """Layer normalization of int8 or int16 x over its last axes.

    Parameters
    ----------
    gamma, beta
        Integers [T], beta at 2^fraction_bits times the scale of gamma, within int32.
    epsilon
        eps * (scale of x)^2 * T^2, rounded; see `scale_epsilon`.
    rescale
        n * gamma + beta -> output.
    row_axes
        Number of last axes that form a row of T elements.
    fraction_bits
        Fractional bits of the normalized number, 10 or 15.
    rounds_to_float32
        Whether n * gamma + beta with 15 fractional bits is saturated to 32 bits and rounded to
        float32.
    """

    gamma: np.ndarray
    beta: np.ndarray
    epsilon: int
    rescale: Rescale
    row_axes: int = 1
    fraction_bits: int = 10
    rounds_to_float32: bool = True

    layout: ClassVar[str] = "plain"

    @staticmethod
    def scale_epsilon(epsilon: float, scale: float, count: int) -> int:
        """Return eps * scale^2 * count^2, rounded half up, for a float `epsilon`.

        That is the epsilon of the kernel for rows of `count` elements at `scale` integers per unit.
        """
        return math.floor(epsilon * scale * scale * count * count + 0.5)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the rescale.

        Raises SimulatorError if x is not int8 or int16, gamma and beta do not have the size of the
        last `row_axes` axes, `fraction_bits` is not 10 or 15, or `epsilon` is not within 0..2^60-1.
        """
        (x,) = specs
        require_signed_integer(x, "LayerNorm")
        require(x.dtype.itemsize <= 2, f"LayerNorm requires int8 or int16, not {x}")
        count = math.prod(x.shape[len(x.shape) - self.row_axes :])
        require(
            0 < self.row_axes <= len(x.shape) and self.gamma.shape == self.beta.shape == (count,),
            f"gamma [{len(self.gamma)}] and beta [{len(self.beta)}] do not match rows of {x}",
        )
        require(
            self.fraction_bits in (10, 15),
            f"LayerNorm supports 10 or 15 fractional bits, not {self.fraction_bits}",
        )
        require(0 <= self.epsilon < 1 << 60, f"epsilon {self.epsilon} is out of range")
        return (TensorSpec(x.shape, self.rescale.dtype),)

    def supports_batch(self, specs: Sequence[TensorSpec], batched: Sequence[bool]) -> bool:
        """Whether samples may be stacked on axis 0: it must precede the axes of a row."""
        return self.row_axes < len(specs[0].shape) and super().supports_batch(specs, batched)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the normalization loop with the rescale form for the largest |n * gamma + beta|.

        Normalized elements n have 16 bits with 10 fractional bits, else 32. Raises SimulatorError
        if the sums of a row do not fit 62 bits.
        """
        count, size = len(self.gamma), max_magnitude(specs[0].dtype)
        require(count * size <= _MAX_ROW_SUM, f"sums of rows of {count} do not fit 62 bits")
        gamma, beta = (np.ascontiguousarray(v, np.int64) for v in (self.gamma, self.beta))
        top = 1 << (15 if self.fraction_bits == 10 else 31)
        bound = top * int(np.abs(gamma).max(initial=0)) + int(np.abs(beta).max(initial=0))
        single = self.fraction_bits == 15 and self.rounds_to_float32
        form = self.rescale.compile_for_bound(min(bound, 1 << 31) if single else bound)
        roots, fraction = _make_inverse_sqrt_table(), self.fraction_bits
        constants = gamma, beta, self.epsilon, fraction, single, roots, form
        rows = (-1, count)
        return NativeLoop(_layer_norm, (InputRef(0, rows), *constants, OutputRef(0, rows)))


@jit
def _instance_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    epsilon: int,
    roots: Array,
    rescale: RescaleForm,
    out: Array,
) -> None:
    """Fill out with the normalized rows of x; row r belongs to channel r mod C.

    Per row, in integers, as in `_layer_norm` with 15 fractional bits: n = (T * x - sum x) *
    roots[spread / 4^k] >> (k + 4), rounded and saturated to 32 bits; out = rescale(n * gamma +
    beta).

    Parameters
    ----------
    x
        Integers [N * C, T].
    gamma, beta
        int64 [C]; beta is at 2^15 times the scale of gamma.
    epsilon
        eps * (scale of x)^2 * T^2, rounded.
    roots
        int64 [1024]: floor(2^19 / sqrt(t)) for t = 0..1023, at most 32767.
    rescale
        n * gamma + beta -> output.
    out
        [N * C, T], filled.
    """
    count, channels = x.shape[1], gamma.shape[0]
    for row in range(x.shape[0]):
        total, root, k = _measure_row(x[row], epsilon, roots)
        factor, offset = gamma[row % channels], beta[row % channels]
        for i in range(count):
            n = round_shift_right((count * np.int64(x[row, i]) - total) * root, k + 4)
            out[row, i] = apply_rescale(rescale, saturate(n, 32) * factor + offset)


@dataclass(frozen=True, eq=False)
class InstanceNorm(Kernel):
    """Normalization of each channel of each sample of int8 or int16 x [N, C, ...].

    Parameters
    ----------
    gamma, beta
        Integers [C], beta at 2^15 times the scale of gamma, within 2^47.
    epsilon
        eps * (scale of x)^2 * T^2, rounded, for T elements in a channel; see
        `LayerNorm.scale_epsilon`.
    rescale
        n * gamma + beta -> output, where n is the normalized number with 15 fractional bits.
    """

    gamma: np.ndarray
    beta: np.ndarray
    epsilon: int
    rescale: Rescale

    layout: ClassVar[str] = "plain"

    @staticmethod
    def get_max_elements(dtype: np.dtype) -> int:
        """Return the largest number of elements of a channel of type `dtype`: its sums fit."""
        return _MAX_ROW_SUM // max_magnitude(dtype)

    def infer(self, *specs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Infer y, of the shape of x and the type of the rescale.

        Raises SimulatorError if x is not int8 or int16 [N, C, ...] of rank 3 or more, gamma or beta
        is not [C], or `epsilon` is not within 0..2^60-1.
        """
        (x,) = specs
        require_signed_integer(x, "InstanceNorm")
        require(x.dtype.itemsize <= 2, f"InstanceNorm requires int8 or int16, not {x}")
        require(
            len(x.shape) > 2 and self.gamma.shape == self.beta.shape == (x.shape[1],),
            f"gamma [{len(self.gamma)}] and beta [{len(self.beta)}] do not match channels of {x}",
        )
        require(0 <= self.epsilon < 1 << 60, f"epsilon {self.epsilon} is out of range")
        return (TensorSpec(x.shape, self.rescale.dtype),)

    def build(self, specs: Sequence[TensorSpec], channel_last: bool) -> RunFunction:
        """Return the normalization loop with the rescale form for the largest |n * gamma + beta|.

        Raises SimulatorError if the sums of a channel do not fit 62 bits.
        """
        count, limit = math.prod(specs[0].shape[2:]), self.get_max_elements(specs[0].dtype)
        require(count <= limit, f"a channel has {count} elements; the limit is {limit}")
        gamma, beta = (np.ascontiguousarray(v, np.int64) for v in (self.gamma, self.beta))
        bound = (1 << 31) * int(np.abs(gamma).max()) + int(np.abs(beta).max())
        form = self.rescale.compile_for_bound(bound)
        constants = gamma, beta, self.epsilon, _make_inverse_sqrt_table(), form
        rows = (-1, count)
        return NativeLoop(_instance_norm, (InputRef(0, rows), *constants, OutputRef(0, rows)))
