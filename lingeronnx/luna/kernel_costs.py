"""Cycle costs of a chip's kernels, as data.

Cycles are of the one clock that the NPU, its DMA and the host core share. The figures of arcs
come from the vendor's published estimator, whose constants are fitted to calls measured on a chip.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["ARCS", "CopyCost", "CostCorrection", "KernelCosts", "VectorKernelCost"]


class CopyCost(NamedTuple):
    """Cycles of one copy route.

    Attributes
    ----------
    measured_points
        Measured (bytes, cycles) pairs, in ascending order.
    polynomial_coefficients
        Coefficients of the vendor's polynomial, highest power first. It passes through the points
        and is wrong above the last one, so it is used below the first one only.
    """

    measured_points: Sequence[tuple[int, int]]
    polynomial_coefficients: Sequence[float]

    def cycles(self, size: int) -> float:
        """Return the cycles of a copy of `size` bytes.

        Interpolates linearly between measured points and extrapolates with the last slope; below
        the first point the vendor's polynomial applies.
        """
        index = bisect.bisect_left(self.measured_points, (size,))
        if index == 0 and size < self.measured_points[0][0]:
            return self.estimate_cycles_by_fit(size)
        index = min(max(index, 1), len(self.measured_points) - 1)
        (x0, y0), (x1, y1) = self.measured_points[index - 1 : index + 1]
        return y0 + (size - x0) * (y1 - y0) / (x1 - x0)

    def estimate_cycles_by_fit(self, size: int) -> float:
        """Return the cycles of a copy of `size` bytes by the vendor's polynomial, truncated."""
        return float(int(self.evaluate_polynomial(size)))

    def evaluate_polynomial(self, size: int) -> float:
        """Evaluate the vendor's polynomial at `size` bytes."""
        total = 0.0
        for coefficient in self.polynomial_coefficients:
            total = total * size + coefficient
        return total


class VectorKernelCost(NamedTuple):
    """Cost of a vector kernel: cycles = start + max(input bits / 64, output bits / 128).

    Attributes
    ----------
    start_cycles
        Cycles before the first element, by (input element bits, output element bits).
    is_half_rate
        Whether 8-bit elements with 8-bit results are read four a cycle instead of eight.
    """

    start_cycles: Mapping[tuple[int, int], int]
    is_half_rate: bool = False


class CostCorrection(NamedTuple):
    """Factors that a board's measurement applies to a kernel's start and element cycles."""

    start: float = 1.0
    rest: float = 1.0


@dataclass(frozen=True)
class KernelCosts:
    """Costs of the kernels of one chip, in cycles.

    Attributes
    ----------
    vector_kernels
        Vector kernels by name.
    memset_start_cycles
        Start of a memset, by element bits.
    copies
        Copy costs by route.
    fft
        Cycles by number of points.
    corrections
        Corrections by kernel family, for costs that are fitted to a board.
    node_overhead_cycles
        Cycles of the host core per node.
    relative_spread
        Measured relative error of the total, or None to use the bounds of `timing`.
    clock_mhz
        Clock of the measured board, or None if it is unknown.
    """

    vector_kernels: Mapping[str, VectorKernelCost]
    memset_start_cycles: Mapping[int, int]
    copies: Mapping[str, CopyCost]
    fft: Mapping[int, int]
    corrections: Mapping[str, CostCorrection] = field(default_factory=dict)
    node_overhead_cycles: float = 0.0
    relative_spread: float | None = None
    clock_mhz: float | None = None


def _make_start_cycles(*cycles: int) -> dict[tuple[int, int], int]:
    """Return (in bits, out bits) -> cycles, for `cycles` in the order 8-8, 8-32, 32-8, 32-32.

    Raises ValueError for another number of values.
    """
    return dict(zip(((8, 8), (8, 32), (32, 8), (32, 32)), cycles, strict=True))


_SUM, _CLIP = _make_start_cycles(536, 540, 554, 556), _make_start_cycles(474, 474, 476, 476)
_ADD, _COMPARE = _make_start_cycles(534, 534, 476, 476), _make_start_cycles(484, 484, 476, 476)
_ACTIVATION = _make_start_cycles(406, 406, 406, 406)

_COPY_SIZES = (256, 512, 784, 1024, 2048, 4096, 8192, 16384, 32768, 49152, 65536)


def _make_copy_cost(cycles: Sequence[int], fit: Sequence[float]) -> CopyCost:
    """Make the cost of a copy route from `cycles` measured for `_COPY_SIZES` bytes.

    `fit` are the coefficients of a polynomial. There may be fewer cycles than sizes.
    """
    return CopyCost(tuple(zip(_COPY_SIZES, cycles, strict=False)), fit)


ARCS = KernelCosts(
    vector_kernels={
        "add": VectorKernelCost(_ADD),
        "sub": VectorKernelCost(_ADD),
        "offset": VectorKernelCost(_ADD),
        "mul": VectorKernelCost(_make_start_cycles(521, 530, 551, 531), is_half_rate=True),
        "scale": VectorKernelCost(_make_start_cycles(536, 540, 554, 526), is_half_rate=True),
        "compare_vectors": VectorKernelCost(_COMPARE, is_half_rate=True),
        "compare_scalar": VectorKernelCost(_COMPARE, is_half_rate=True),
        "relu": VectorKernelCost(_COMPARE, is_half_rate=True),
        "prelu": VectorKernelCost(_COMPARE, is_half_rate=True),
        "relux": VectorKernelCost(_CLIP),
        "max": VectorKernelCost(_CLIP),
        "min": VectorKernelCost(_CLIP),
        "sum": VectorKernelCost(_SUM, is_half_rate=True),
        "dot": VectorKernelCost({**_SUM, (8, 64): 540, (32, 64): 526}, is_half_rate=True),
        "sigmoid": VectorKernelCost(_ACTIVATION, is_half_rate=True),
        "tanh": VectorKernelCost(_ACTIVATION, is_half_rate=True),
    },
    memset_start_cycles={8: 350, 16: 335, 32: 335},
    copies={
        "psram_to_share": _make_copy_cost(
            (821, 1150, 1451, 1645, 2633, 4612, 8566, 16468, 32284, 48106, 63922),
            fit=(
                -6.081258061281055e-17,
                8.20500336146979e-12,
                -3.4588203418230155e-07,
                0.9701120765126572,
                642.0573996714573,
            ),
        ),
        "flash_to_share": _make_copy_cost(
            (2278, 3814, 5446, 6890, 13034, 25322, 49898, 99050, 197350, 295658, 393962),
            fit=(
                -1.5662656275485727e-17,
                2.1081210822701885e-12,
                -8.735290404194311e-08,
                6.001131855956702,
                742.5326037008142,
            ),
        ),
        "share_to_share": _make_copy_cost(
            (801, 970, 1152, 1307, 1979, 3323, 6010, 11385, 22137, 32891, 43643),
            fit=(
                -3.975572063839733e-18,
                4.52208468178755e-13,
                -1.2557582813911547e-08,
                0.6562511171457269,
                634.8925433961132,
            ),
        ),
        "share_to_psram": _make_copy_cost(
            (829, 1021, 1235, 1405, 2197, 3778, 6940, 13261, 25909, 38560, 51205),
            fit=(
                1.326692195809252e-17,
                -2.1340217834375452e-12,
                1.1432915878510655e-07,
                0.7697210459372988,
                625.6178834483536,
            ),
        ),
        "memcpy": _make_copy_cost(
            (498, 548, 570, 616, 755, 1054, 1629, 2776),
            fit=(
                1.1659906841848802e-14,
                -3.1928277782675043e-10,
                2.259625951396248e-06,
                0.13830662612542519,
                467.4532986095012,
            ),
        ),
        "memcpy_from_psram": _make_copy_cost(
            (837, 1113, 1416, 2289, 4128, 7692, 14895, 29337, 58205, 87048, 115908),
            fit=(
                -3.447781705078594e-16,
                5.0017650401933625e-11,
                -2.3902452044209995e-06,
                1.8029903603093662,
                291.3270163792185,
            ),
        ),
    },
    fft={64: 2320, 128: 2734, 256: 3680, 512: 5542},
)
