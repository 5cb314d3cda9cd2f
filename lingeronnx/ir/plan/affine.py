"""Affine quantization parameters, and the rounding to integers outside `simulator/fixed_point.py`.

    q = clamp(round(x * scale) + zero_point, low, high)        x = (q - zero_point) / scale

A scale is integer steps per unit, the inverse of ONNX's ``y_scale``. The same class describes
tensors of plans, weights, biases, streamed tensors, and tensors of a file with QuantizeLinear.
`ConstantSource` says how a constant of an integer graph is derived with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_GROUP_FACTOR",
    "Affine",
    "Granularity",
    "PerAxis",
    "PerGroup",
    "PerTensor",
    "Rounding",
    "make_grouped_qparams",
    "ArrayTransform",
    "ConstantSource",
    "identity_transform",
    "make_bias_qparams",
]


@dataclass(frozen=True)
class PerTensor:
    """One scale for all elements; the arrays of scales and zero points are 0-D."""


@dataclass(frozen=True)
class PerAxis:
    """One scale per index along `axis` of the tensor, which may be negative.

    The arrays of scales and zero points are 1-D.
    """

    axis: int


@dataclass(frozen=True)
class PerGroup:
    """One scale per group of `size` adjacent elements along `axis` of the tensor.

    The arrays of scales and zero points have the shape of the tensor with `axis` divided by `size`
    and rounded up (the last group may be shorter), as for a blocked QuantizeLinear.
    """

    axis: int
    size: int


Granularity = PerTensor | PerAxis | PerGroup

#: The largest factor of a group: it fits in 8 bits, and its product with an 8-bit weight in 16.
MAX_GROUP_FACTOR = 255

#: A ratio of two factors, times a third one, is this close to an integer or at least 1 / 255 away.
_RATIO_TOLERANCE = 1e-4


class Rounding(Enum):
    """Rounding of a value between two integers."""

    HALF_UP = "half up"  #: ``floor(v + 1/2)``, as the chips do
    HALF_EVEN = "half even"  #: as QuantizeLinear does


def _to_readonly_array(
    values: npt.ArrayLike, dtype: type, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Return a read-only copy of `values` as `dtype`, broadcast to `shape` if one is passed."""
    array: np.ndarray = np.array(values, dtype)
    if shape is not None and array.shape != shape:
        array = np.broadcast_to(array, shape).copy()
    array.flags.writeable = False
    return array


@dataclass(frozen=True, init=False, eq=False)
class Affine:
    """Affine quantization parameters of a tensor.

    Parameters
    ----------
    scale
        One or more scales in integer steps per unit; positive, float64, of the shape that
        `granularity` requires.
    bits
        Width of the integers, 1 to 64.
    granularity
        Which elements share a scale.
    zero_point
        Integers that represent 0, of the shape of `scale` or one for all; int64.
    signed
        Whether the integers are signed.
    rounding
        Rounding to integers.

    Attributes
    ----------
    low, high
        Smallest and largest integer of the width: -2^(bits - 1) and 2^(bits - 1) - 1, or 0 and
        2^bits - 1 if unsigned.
    single
        Whether all elements of the tensor share one scale.

    Raises
    ------
    ValueError
        If the arrays do not match the granularity, or bits or zero points are out of range.
    """

    scales: np.ndarray
    bits: int
    granularity: Granularity
    zero_points: np.ndarray
    signed: bool
    rounding: Rounding
    low: int
    high: int
    single: bool

    def __init__(
        self,
        scale: npt.ArrayLike,
        bits: int = 8,
        granularity: Granularity = PerTensor(),
        zero_point: npt.ArrayLike = 0,
        signed: bool = True,
        rounding: Rounding = Rounding.HALF_UP,
    ) -> None:
        """Check the quantization parameters and store them as read-only arrays.

        Scales become float64, zero points int64, broadcast to the shape of the scales. Raises
        ValueError if `bits` is not 1 to 64, if the rank of `scale` does not match `granularity` (0
        per tensor, 1 with at least two scales per axis), or if a zero point is outside the integer
        range.
        """
        if not 1 <= bits <= 64:
            raise ValueError(f"bits must be 1 to 64; got {bits}")
        scales = _to_readonly_array(scale, np.float64)
        required_ndim = {PerTensor: 0, PerAxis: 1}.get(type(granularity), scales.ndim or 1)
        is_single_axis_scale = isinstance(granularity, PerAxis) and scales.size < 2
        if scales.ndim != required_ndim or is_single_axis_scale:
            raise ValueError(
                f"scale {scales.tolist()} does not match {granularity}: pass one scale per tensor, "
                "or at least two along an axis"
            )
        zero_points = _to_readonly_array(zero_point, np.int64, scales.shape)
        low = -(1 << (bits - 1)) if signed else 0
        high = low + (1 << bits) - 1
        if zero_points.any() and not ((zero_points >= low) & (zero_points <= high)).all():
            raise ValueError(f"zero point {zero_points.tolist()} is out of range for {bits} bits")
        vars(self).update(
            scales=scales,
            bits=bits,
            granularity=granularity,
            zero_points=zero_points,
            signed=signed,
            rounding=rounding,
            low=low,
            high=high,
            single=isinstance(granularity, PerTensor),
        )

    def __eq__(self, other: object) -> bool:
        """Whether `other` represents the same integers: all fields are equal, scales bit by bit."""
        return isinstance(other, Affine) and self._key == other._key

    def __hash__(self) -> int:
        """Return a hash of all fields, so that equal parameters have equal hashes."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        """All fields, arrays as bytes, as a hashable tuple for `==` and the hash."""
        scales, zeros = self.scales, self.zero_points
        return (
            self.granularity,
            scales.shape,
            scales.tobytes(),
            zeros.tobytes(),
            self.bits,
            self.signed,
            self.rounding,
        )

    def __repr__(self) -> str:
        """Return ``Affine(scales, bits)``, with zero points and granularity only if unusual.

        Unusual are zero points other than 0, and several scales; signedness and rounding are left
        out.
        """
        zero_points = f", zero_point={self.zero_points.tolist()}" if self.shifted else ""
        granularity = "" if self.single else f", {self.granularity}"
        return f"Affine({self.scales.tolist()}, {self.bits}{granularity}{zero_points})"

    # ---- properties ------------------------------------------------------------------------------

    @property
    def axis(self) -> int | None:
        """The axis along which the scales differ (also of groups); None with a single scale."""
        return None if isinstance(self.granularity, PerTensor) else self.granularity.axis

    @property
    def scale(self) -> float:
        """The single scale, in integer steps per unit; raises ValueError if there are several."""
        if not self.single:
            raise ValueError(f"there is no single scale: {self.scales.size} {self.granularity}")
        return float(self.scales)

    @property
    def zero_point(self) -> int:
        """The single zero point; raises ValueError if there are several."""
        if not self.single:
            raise ValueError(
                f"there is no single zero point: {self.scales.size} {self.granularity}"
            )
        return int(self.zero_points)

    @property
    def signed_zero(self) -> int:
        """The zero point that the integers would have if they were stored as signed.

        Of unsigned 8-bit ones it is the zero point - 128; of signed ones the zero point itself.
        Raises ValueError if there are several zero points.
        """
        return self.zero_point - self.low - (1 << (self.bits - 1))

    @property
    def shifted(self) -> bool:
        """Whether any zero point differs from 0."""
        return bool(self.zero_points.any())

    @property
    def ends(self) -> tuple[float, float]:
        """(smallest, largest) float that any element can represent, over all scales."""
        low = (self.low - self.zero_points) / self.scales
        return float(low.min()), float(((self.high - self.zero_points) / self.scales).max())

    @property
    def coarsest(self) -> Affine:
        """Per-tensor parameters with the smallest of the scales, and the zero point of that one.

        A scale is the number of steps per unit, so that the smallest one has the largest step.
        """
        index = np.unravel_index(np.argmin(self.scales), self.scales.shape)
        return Affine(
            self.scales[index],
            self.bits,
            PerTensor(),
            self.zero_points[index],
            self.signed,
            self.rounding,
        )

    @property
    def exponent(self) -> int | None:
        """log2 of the scale if it is a single power of two, else None."""
        if not self.single:
            return None
        mantissa, exponent = math.frexp(self.scale)
        return exponent - 1 if mantissa == 0.5 else None

    @property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        return bool((np.frexp(self.scales)[0] == 0.5).all())

    @property
    def text(self) -> str:
        """The single scale for display, such as ``2^7``, ``93.5`` or ``2^4 from -3`` (zero point).

        Raises ValueError if there are several scales.
        """
        scale = f"2^{self.exponent}" if self.exponent is not None else f"{self.scale:.6g}"
        return f"{scale} from {self.zero_point}" if self.shifted else scale

    # ---- derived parameters ----------------------------------------------------------------------

    def changed(
        self,
        scale: npt.ArrayLike | None = None,
        bits: int | None = None,
        zero_point: npt.ArrayLike | None = None,
    ) -> Affine:
        """Return a copy in which each argument that is not None replaces the field.

        New scales must have the granularity of the old ones; signedness and rounding are unchanged.
        """
        return Affine(
            self.scales if scale is None else scale,
            self.bits if bits is None else bits,
            self.granularity,
            self.zero_points if zero_point is None else zero_point,
            self.signed,
            self.rounding,
        )

    def along(self, axis: int) -> Affine:
        """Return a copy with the scales along `axis` instead of the present one.

        The scales of a matrix in groups are transposed if the axis changes; others are unchanged.
        It is used where a weight is transposed.
        """
        scales, zero_points = self.scales, self.zero_points
        granularity: Granularity = PerAxis(axis)
        if isinstance(self.granularity, PerGroup):
            granularity = PerGroup(axis, self.granularity.size)
            if axis != self.granularity.axis:
                scales, zero_points = scales.T, zero_points.T
        return Affine(scales, self.bits, granularity, zero_points, self.signed, self.rounding)

    def mapped(self, change: Callable[[float], float]) -> Affine:
        """Return a copy with `change` (scale -> scale) applied to every scale."""
        scales = np.array([change(float(scale)) for scale in self.scales.flat])
        return self.changed(scales.reshape(self.scales.shape))

    @property
    def attribute(self) -> float | tuple[float, ...]:
        """The scale, or a tuple of scales, as an attribute such as scale_w of an integer operator.

        Scales per axis give one per index. Scales per group of a matrix, which are S / m with a row
        scale S and integers m, give the S of each row.
        """
        if isinstance(self.granularity, PerGroup):
            return tuple(self.factors[0].tolist())
        return self.scale if self.single else tuple(self.scales.tolist())

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Factorization of the scales [O, groups] of a matrix [O, I] in groups: scales = S / m.

        A product ``q * m`` of an integer weight has the scale S of its row. The factors of a row
        are the smallest integers from 1 to `MAX_GROUP_FACTOR`, and S is rounded to float32, as in a
        file.

        Returns
        -------
        S : ndarray of shape [O], float64
        m : ndarray of shape [O, groups], int64

        Raises
        ------
        ValueError
            If the ratios of the scales of a row are not ratios of such integers.
        """
        assert isinstance(self.granularity, PerGroup)
        if self.scales.ndim != 2 or self.granularity.axis != 1:
            raise ValueError(
                f"scales {self.granularity} of {self.scales.ndim} axes; factors require groups "
                "along the rows of a matrix"
            )
        min_scales = self.scales.min(axis=1, keepdims=True)
        ratios = min_scales / self.scales
        row_scales, factors = np.zeros(len(ratios)), np.zeros(ratios.shape, np.int64)
        for max_factor in range(1, MAX_GROUP_FACTOR + 1):
            rounded = np.rint(max_factor * ratios)
            is_solved = (
                (np.abs(rounded - max_factor * ratios) < _RATIO_TOLERANCE).all(axis=1)
                & (rounded >= 1).all(axis=1)
                & (row_scales == 0)
            )
            row_scales[is_solved] = np.float32(max_factor * min_scales[is_solved, 0])
            factors[is_solved] = rounded[is_solved]
        if not row_scales.all():
            (unsolved_rows,) = np.nonzero(row_scales == 0)
            raise ValueError(
                f"the scales of row {unsolved_rows[0]} are not ratios of integers from 1 to "
                f"{MAX_GROUP_FACTOR}"
            )
        return row_scales, factors

    @property
    def sums(self) -> Affine:
        """Parameters of the products that are accumulated with a weight of these parameters.

        With scales per group, which are S / m with a row scale S and integers m, they have one
        scale S per row (axis 0), or per tensor if there is a single row. Otherwise these parameters
        themselves are returned.
        """
        if not isinstance(self.granularity, PerGroup):
            return self
        row_scales, _ = self.factors
        if len(row_scales) > 1:
            return Affine(row_scales, self.bits, PerAxis(0))
        return Affine(row_scales[0], self.bits)

    @property
    def stored(self) -> Affine:
        """A copy with scales rounded to float32, as they are read back from a file.

        With scales per group, which are S / m with a row scale S and integers m, the S are rounded.
        """
        if isinstance(self.granularity, PerGroup):
            return make_grouped_qparams(*self.factors, self.granularity.size, self.bits)
        return self.changed(self.scales.astype(np.float32))

    # ---- conversion of arrays --------------------------------------------------------------------

    def broadcast(self, shape: Sequence[int]) -> float | np.ndarray:
        """Return the scales in a form that multiplies an array of `shape`.

        It is a float if there is a single scale, otherwise an array with the scales along their
        axis and length 1 on others, or, with groups, along the axis at full length.
        """
        return self.scale if self.single else self.spread(self.scales, shape)

    def centre(self, shape: Sequence[int]) -> int | np.ndarray:
        """Return the zero points in a form that is added to an array of `shape`.

        It is an int if there is a single one, otherwise an array with the zero points along their
        axis.
        """
        return self.zero_point if self.single else self.spread(self.zero_points, shape)

    def spread(self, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return `values`, one per scale, in a form that broadcasts with an array of `shape`.

        With groups, each is repeated along the group's axis, which then has the array's length.
        Otherwise they lie along the axis of the scales (axis 0 if there is none), with length 1 on
        all other axes.
        """
        if isinstance(self.granularity, PerGroup):
            axis = self.granularity.axis
            return np.repeat(values, self.granularity.size, axis).take(range(shape[axis]), axis)
        axis = (self.axis or 0) % len(shape)
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def counts(self, array: np.ndarray) -> np.ndarray:
        """Return `array` times the scales, not rounded, clipped or shifted by the zero point.

        The result is float64, in integer steps above the zero point, and has the shape of `array`.
        """
        return np.asarray(array.astype(np.float64) * self.broadcast(array.shape))

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Quantize the floats `array`: scale, round, add the zero point, clip to the width.

        The result has the same shape and the smallest integer type of the width, int64 above 32
        bits; `array` is not changed.
        """
        rounded = _round_in_place(self.counts(array), self.rounding)
        rounded += self.centre(array.shape)
        return np.clip(rounded, self.low, self.high, out=rounded).astype(self.dtype)

    def real(self, integers: np.ndarray) -> np.ndarray:
        """Dequantize `integers` of any shape to float64: (q - zero point) / scale."""
        offsets = integers.astype(np.float64)
        if self.shifted:
            offsets -= self.centre(integers.shape)
        return np.asarray(offsets / self.broadcast(integers.shape))

    def __rtruediv__(self, integers: npt.ArrayLike) -> np.ndarray:
        """Return the real values of `integers`, in float64; a zero point is subtracted first.

        This makes ``integers / affine`` work, which reads like a division by the scale.
        """
        return self.real(np.asarray(integers))

    #: Makes NumPy use the method above for an array divided by an `Affine`.
    __array_ufunc__ = None

    def on_grid(self, array: np.ndarray) -> np.ndarray:
        """Round the floats `array` to values that integers represent, clipped to their range.

        The result has the same float type. It is computed in that type, or in float64 if the
        integers have more than 20 bits.
        """
        dtype = np.float64 if self.bits > 20 else array.dtype
        scale, zero_point = np.asarray(self.broadcast(array.shape), dtype), self.centre(array.shape)
        rounded = _round_in_place(array * scale, self.rounding)
        np.clip(rounded, self.low - zero_point, self.high - zero_point, out=rounded)
        rounded /= scale
        return rounded.astype(array.dtype, copy=False)

    @property
    def dtype(self) -> np.dtype:
        """The smallest integer type of 8, 16, 32 or 64 bits that can store the integers.

        It is unsigned if they are.
        """
        width = next(width for width in (8, 16, 32, 64) if self.bits <= width)
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")


def _round_in_place(counts: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Round the float array `counts` in place and return it: half to even, or else half up."""
    if rounding is Rounding.HALF_EVEN:
        np.rint(counts, out=counts)
    else:
        counts += 0.5
        np.floor(counts, out=counts)
    return counts


def make_grouped_qparams(scale: npt.ArrayLike, factors: np.ndarray, size: int, bits: int) -> Affine:
    """Make the parameters of a matrix [O, I] with scales per group of `size` elements along I.

    The scales are S / m, such that a product ``q * m`` of an integer weight has the scale S of its
    row.

    Parameters
    ----------
    scale
        Scales S of the products, [O]; rounded to float32 after the common factor is divided out.
    factors
        Integers m, [O, groups], from 1 to `MAX_GROUP_FACTOR`. The common factor of a row is moved
        into its scale.
    size
        Elements of a group.
    bits
        Width of the integers q.
    """
    common_factors = np.gcd.reduce(factors.astype(np.int64), axis=1)
    row_scales = np.asarray(np.asarray(scale / common_factors, np.float32), np.float64)
    scales = row_scales[:, None] / (factors // common_factors[:, None])
    return Affine(scales, bits, PerGroup(1, size))


#: Rearranges the elements of an array.
ArrayTransform = Callable[[np.ndarray], np.ndarray]


def identity_transform(array: np.ndarray) -> np.ndarray:
    """Return `array` unchanged."""
    return array


class ConstantSource(NamedTuple):
    """How an integer initializer is derived: ``view(qparams.integers(float)).astype(dtype)``.

    name : the float initializer.
    view : moves or repeats its elements, or inserts zeros; it does not change values.
    qparams : quantization parameters of the float initializer.
    dtype : type of the integer initializer.
    """

    name: str
    view: ArrayTransform
    qparams: Affine
    dtype: np.dtype

    def quantize(self, array: np.ndarray) -> np.ndarray:
        """Return the integer initializer for `array`, the values of the float initializer.

        They are quantized with `qparams`, then rearranged by `view` and cast to `dtype`.
        """
        return self.view(self.qparams.integers(array)).astype(self.dtype, copy=False)


def make_bias_qparams(scale: npt.ArrayLike, wide: bool) -> Affine:
    """Return the parameters of a bias with the scale, or one scale per element, `scale`.

    The width is 32 bits, or 61 bits if `wide` (for products that exceed 32 bits).
    """
    granularity = PerAxis(0) if np.ndim(scale) else PerTensor()
    return Affine(scale, 61 if wide else 32, granularity)
