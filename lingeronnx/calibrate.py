"""Calibrators: from the statistics of a tensor to the scale that holds it best.

`max` holds the whole range, `mse` has the least mean squared error, trading rare large values for resolution. Both
are aware of sign and of the integer range's asymmetry: [-1, 127/128] fits scale 2^7 exactly, 0..255 fits 2^-1.
"""

from __future__ import annotations

import math

from .observe import TensorStats

__all__ = ["best_scale", "candidates", "full_range_scale"]

_POWER_STEPS = 4  # candidates above the full-range exponent
_FINE_STEPS = 48  # candidates of a free scale, up to four times the full-range scale


def full_range_scale(stats: TensorStats, bits: int) -> float:
    """Return the largest scale at which no value is off by more than half a step.

    The top value may round to one past the largest integer and saturate: that costs half a step, no more.
    """
    top, bottom = (1 << (bits - 1)) - 0.5, (1 << (bits - 1)) + 0.5
    limits = [top / stats.high] if stats.high > 0 else []
    limits += [bottom / -stats.low] if stats.low < 0 else []
    return min(limits)


def best_scale(stats: TensorStats, bits: int, *, power: bool, calibrator: str) -> float:
    """Return the scale for a tensor of signed `bits`.

    power : only powers of two. calibrator : "max" or "mse". An all-zero tensor gets 2**(bits-1).
    """
    if stats.squares == 0:
        return float(1 << (bits - 1))
    tried = candidates(stats, bits, power=power)
    if calibrator == "max":
        return tried[0]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return min(tried, key=lambda scale: stats.error(scale, low, high))


def candidates(stats: TensorStats, bits: int, *, power: bool) -> list[float]:
    """Return the scales to choose from, from the one that holds the whole range upwards."""
    if power:
        base = 2.0 ** math.floor(math.log2(full_range_scale(stats, bits)))
        return [base * 2.0**step for step in range(_POWER_STEPS + 1)]
    full = ((1 << (bits - 1)) - 1) / max(stats.high, -stats.low)  # MaxValue
    return [full * 4.0 ** (step / _FINE_STEPS) for step in range(_FINE_STEPS + 1)]
