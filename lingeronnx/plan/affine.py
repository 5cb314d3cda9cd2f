"""How a tensor is held in integers, and the only rounding to integers outside `simulator/fixed_point.py`.

    q = clamp(round(x * scale) + zero_point, low, high)        x = (q - zero_point) / scale

A scale is counts per real unit, the inverse of ONNX's ``y_scale``. One value serves plans, weights,
biases, tensors of a stream, and what stands in a file with QuantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

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
]


@dataclass(frozen=True)
class PerTensor:
    """One scale for all elements; the arrays of scales and zero points have no axis."""


@dataclass(frozen=True)
class PerAxis:
    """A scale for each element along `axis` of the tensor, which may count from the end.

    The arrays have one axis.
    """

    axis: int


@dataclass(frozen=True)
class PerGroup:
    """A scale for each run of `size` neighbours along `axis` of the tensor.

    The arrays have the tensor's shape, with `axis` divided by `size` and rounded up (the last run
    may be shorter), as a blocked QuantizeLinear has them.
    """

    axis: int
    size: int


Granularity = PerTensor | PerAxis | PerGroup

#: The largest factor of a group: a byte, and with a weight of 8 bits its product is one of 16.
MAX_GROUP_FACTOR = 255

_RATIO_TOLERANCE = (
    1e-4  # a ratio of two factors times a third one is this near to a whole number, or 1 / 255 away
)


class Rounding(Enum):
    """What becomes of a value between two integers."""

    HALF_UP = "half up"  #: ``floor(v + 1/2)``, as the chips do
    HALF_EVEN = "half even"  #: as QuantizeLinear does


def _to_readonly_array(
    values: npt.ArrayLike, dtype: type, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Return `values` as an array of its own that cannot be written to, spread to `shape`."""
    array: np.ndarray = np.array(values, dtype)
    array = array if shape is None or array.shape == shape else np.broadcast_to(array, shape).copy()
    array.flags.writeable = False
    return array


@dataclass(frozen=True, init=False, eq=False)
class Affine:
    """How a tensor is held in integers.

    scales : float64, counts per unit, of the shape that `granularity` says; positive. zero_points :
    int64 of the same shape, the integers that stand for 0. bits : the width. signed : of the
    integers. rounding : of `integers`. ValueError for arrays that do not fit the granularity, a
    width that no type has, and zero points beyond it.
    """

    scales: np.ndarray
    bits: int
    granularity: Granularity
    zero_points: np.ndarray
    signed: bool
    rounding: Rounding

    def __init__(
        self,
        scale: npt.ArrayLike,
        bits: int = 8,
        granularity: Granularity = PerTensor(),
        zero_point: npt.ArrayLike = 0,
        signed: bool = True,
        rounding: Rounding = Rounding.HALF_UP,
    ) -> None:
        """Make one of a scale (or an array of scales) and a zero point (or an array of them)."""
        if not 1 <= bits <= 64:
            raise ValueError(f"integers of {bits} bits: 1 to 64 are held")
        scales = _to_readonly_array(scale, np.float64)
        wanted = {PerTensor: 0, PerAxis: 1}.get(type(granularity), scales.ndim or 1)
        if scales.ndim != wanted or (isinstance(granularity, PerAxis) and scales.size < 2):
            raise ValueError(
                f"scale {scales.tolist()} {granularity}: one scale per tensor, or at least two "
                "along an axis"
            )
        for name, value in (
            ("scales", scales),
            ("bits", bits),
            ("granularity", granularity),
            ("zero_points", _to_readonly_array(zero_point, np.int64, scales.shape)),
            ("signed", signed),
            ("rounding", rounding),
        ):
            object.__setattr__(self, name, value)
        if not ((self.zero_points >= self.low) & (self.zero_points <= self.high)).all():
            raise ValueError(f"zero point {self.zero_points.tolist()} is no integer of {bits} bits")

    def __eq__(self, other: object) -> bool:
        """Whether both mean the same integers, to the last bit of the scales."""
        return isinstance(other, Affine) and self._key == other._key

    def __hash__(self) -> int:
        """Return a hash of what `==` looks at."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
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
        zero = f", zero_point={self.zero_points.tolist()}" if self.shifted else ""
        kind = "" if self.single else f", {self.granularity}"
        return f"Affine({self.scales.tolist()}, {self.bits}{kind}{zero})"

    # ---- what it is ----------------------------------------------------------------------------------------------

    @property
    def single(self) -> bool:
        """Whether there is one scale for all elements."""
        return isinstance(self.granularity, PerTensor)

    @property
    def axis(self) -> int | None:
        """The axis along which the scales differ, None with one scale."""
        return None if isinstance(self.granularity, PerTensor) else self.granularity.axis

    @property
    def scale(self) -> float:
        """The scale, where there is one; ValueError where there are several."""
        if not self.single:
            raise ValueError(
                f"one scale is asked for where there are {self.scales.size} {self.granularity}"
            )
        return float(self.scales)

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0, where there is one; ValueError where there are several."""
        if not self.single:
            raise ValueError(
                f"one zero point is asked for where there are {self.scales.size} {self.granularity}"
            )
        return int(self.zero_points)

    @property
    def signed_zero(self) -> int:
        """The zero point of the same integers counted as signed ones, where there is one."""
        return self.zero_point - self.low - (1 << (self.bits - 1))

    @property
    def shifted(self) -> bool:
        """Whether 0 is held as another integer than 0 anywhere."""
        return bool(self.zero_points.any())

    @property
    def low(self) -> int:
        """The most negative integer of the width."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest integer of the width."""
        return self.low + (1 << self.bits) - 1

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest real number that some element may hold."""
        low = (self.low - self.zero_points) / self.scales
        return float(low.min()), float(((self.high - self.zero_points) / self.scales).max())

    @property
    def coarsest(self) -> Affine:
        """One scale for all: that with the fewest counts per unit, with its zero point."""
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
        """log2 of the scale where there is one scale and it is a power of two, else None."""
        return _exact_log2(self.scale) if self.single else None

    @property
    def power_of_two(self) -> bool:
        """Whether every scale is a power of two."""
        return bool((np.frexp(self.scales)[0] == 0.5).all())

    @property
    def text(self) -> str:
        """The scale where there is one, as people read it.

        ``2^7`` or ``93.5``, and another zero point than 0.
        """
        scale = f"2^{self.exponent}" if self.exponent is not None else f"{self.scale:.6g}"
        return f"{scale} from {self.zero_point}" if self.shifted else scale

    # ---- others like it ------------------------------------------------------------------------------------------

    def changed(
        self,
        scale: npt.ArrayLike | None = None,
        bits: int | None = None,
        zero_point: npt.ArrayLike | None = None,
    ) -> Affine:
        """Return the same with other scales of the same granularity, another width, other zero points."""
        return Affine(
            self.scales if scale is None else scale,
            self.bits if bits is None else bits,
            self.granularity,
            self.zero_points if zero_point is None else zero_point,
            self.signed,
            self.rounding,
        )

    def along(self, axis: int) -> Affine:
        """Return the same with its scales along another axis; a matrix in groups is turned."""
        scales, zeros, kind = self.scales, self.zero_points, PerAxis(axis)
        if isinstance(self.granularity, PerGroup):
            turned = axis != self.granularity.axis
            scales, zeros = (scales.T, zeros.T) if turned else (scales, zeros)
            return Affine(
                scales,
                self.bits,
                PerGroup(axis, self.granularity.size),
                zeros,
                self.signed,
                self.rounding,
            )
        return Affine(scales, self.bits, kind, zeros, self.signed, self.rounding)

    def mapped(self, change: Callable[[float], float]) -> Affine:
        """Return the same with `change` of every scale."""
        return self.changed(
            np.array([change(float(s)) for s in self.scales.flat]).reshape(self.scales.shape)
        )

    @property
    def attribute(self) -> float | tuple[float, ...]:
        """The scale as an attribute of an integer operator has it.

        A number, or one for each element along the axis.
        Of groups, that of their products (`factors`).
        """
        if isinstance(self.granularity, PerGroup):
            return tuple(self.factors[0].tolist())
        return self.scale if self.single else tuple(self.scales.tolist())

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Scales S [O] in float64 and factors m [O, groups] in int64 of a matrix [O, I] in groups: scales = S / m.

        A product ``q * m`` is counted in the scale S of its row. The factors of a row are whole
        numbers from 1 to `MAX_GROUP_FACTOR`, the smallest that there are, and S has the precision
        of float32, as a file holds it. ValueError where the scales of a row stand in no such ratio.
        """
        assert isinstance(self.granularity, PerGroup)
        if self.scales.ndim != 2 or self.granularity.axis != 1:
            raise ValueError(
                f"scales {self.granularity} of {self.scales.ndim} axes; factors are those of a "
                "row's groups"
            )
        least = self.scales.min(axis=1, keepdims=True)
        shares = least / self.scales
        scale, factor = np.zeros(len(shares)), np.zeros(shares.shape, np.int64)
        for most in range(1, MAX_GROUP_FACTOR + 1):
            near = np.rint(most * shares)
            fits = (
                (np.abs(near - most * shares) < _RATIO_TOLERANCE).all(axis=1)
                & (near >= 1).all(axis=1)
                & (scale == 0)
            )
            scale[fits], factor[fits] = np.float32(most * least[fits, 0]), near[fits]
        if not scale.all():
            (row,) = np.nonzero(scale == 0)
            raise ValueError(
                f"the scales of row {row[0]} stand in no ratio of whole numbers from 1 to "
                f"{MAX_GROUP_FACTOR}"
            )
        return scale, factor

    @property
    def sums(self) -> Affine:
        """How the products with this weight are counted.

        As it is itself, of groups with one scale for each row.
        """
        if not isinstance(self.granularity, PerGroup):
            return self
        scale, _ = self.factors
        return (
            Affine(scale, self.bits, PerAxis(0)) if len(scale) > 1 else Affine(scale[0], self.bits)
        )

    @property
    def stored(self) -> Affine:
        """The same with its scales as a file holds them, in float32.

        Of groups, those of their products.
        """
        if isinstance(self.granularity, PerGroup):
            return make_grouped_qparams(*self.factors, self.granularity.size, self.bits)
        return self.mapped(lambda scale: float(np.float32(scale)))

    # ---- integers and reals --------------------------------------------------------------------------------------

    def broadcast(self, shape: Sequence[int]) -> float | np.ndarray:
        """Return the scales so that they multiply an array of `shape`.

        A number where there is one scale.
        """
        return self.scale if self.single else self.spread(self.scales, shape)

    def centre(self, shape: Sequence[int]) -> int | np.ndarray:
        """Return the zero points so that an array of `shape` adds them.

        A number where there is one.
        """
        return self.zero_point if self.single else self.spread(self.zero_points, shape)

    def spread(self, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return `values`, one for each scale, so that they stand beside the elements of an array of `shape`."""
        if isinstance(self.granularity, PerGroup):
            axis = self.granularity.axis
            return np.repeat(values, self.granularity.size, axis).take(range(shape[axis]), axis)
        axis = (self.axis or 0) % len(shape)
        return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def counts(self, array: np.ndarray) -> np.ndarray:
        """Return reals of any shape in counts above the zero point, float64, neither rounded nor clamped."""
        return np.asarray(array.astype(np.float64) * self.broadcast(array.shape))

    def integers(self, array: np.ndarray) -> np.ndarray:
        """Return reals of any shape as integers, in the smallest type that has them all (int64 above 32 bits)."""
        rounded = _round_in_place(self.counts(array), self.rounding)
        rounded += self.centre(array.shape)
        return np.clip(rounded, self.low, self.high, out=rounded).astype(self.dtype)

    def real(self, integers: np.ndarray) -> np.ndarray:
        """Return the reals that integers of any shape stand for, float64."""
        above = integers.astype(np.float64)
        if self.shifted:
            above -= self.centre(integers.shape)
        return np.asarray(above / self.broadcast(integers.shape))

    def __rtruediv__(self, integers: npt.ArrayLike) -> np.ndarray:
        """Return the reals that `integers` stand for, as integers over a scale are where 0 stands for 0."""
        return self.real(np.asarray(integers))

    #: An array over an `Affine` is left to the method above.
    __array_ufunc__ = None

    def on_grid(self, array: np.ndarray) -> np.ndarray:
        """Return reals, of any float type, as they come back from the integers; the same type.

        Computed in that type, in float64 above 20 bits.
        """
        kind = np.float64 if self.bits > 20 else array.dtype
        factor, centre = np.asarray(self.broadcast(array.shape), kind), self.centre(array.shape)
        rounded = _round_in_place(array * factor, self.rounding)
        np.clip(rounded, self.low - centre, self.high - centre, out=rounded)
        rounded /= factor
        return rounded.astype(array.dtype, copy=False)

    @property
    def dtype(self) -> np.dtype:
        """The smallest type of 8, 16, 32 or 64 bits that holds the integers."""
        width = next(width for width in (8, 16, 32, 64) if self.bits <= width)
        return np.dtype(f"{'int' if self.signed else 'uint'}{width}")


def _round_in_place(counts: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Round `counts`, which is an array of its own, in place."""
    if rounding is Rounding.HALF_EVEN:
        return np.rint(counts, out=counts)
    counts += 0.5
    return np.floor(counts, out=counts)


def make_grouped_qparams(scale: npt.ArrayLike, factors: np.ndarray, size: int, bits: int) -> Affine:
    """Return how a matrix [O, I] of `bits` is held in groups of `size` along I.

    A product ``q * m`` at `scale` [O].
    factors : whole numbers m [O, groups], 1 to `MAX_GROUP_FACTOR`; what those of a row have in
    common goes into its scale, which is rounded to float32.
    """
    common = np.gcd.reduce(factors.astype(np.int64), axis=1)
    row = np.asarray(np.asarray(scale / common, np.float32), np.float64)
    return Affine(row[:, None] / (factors // common[:, None]), bits, PerGroup(1, size))


def _exact_log2(scale: float) -> int | None:
    mantissa, exponent = math.frexp(scale)
    return exponent - 1 if mantissa == 0.5 else None
