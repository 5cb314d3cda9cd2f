"""Formatting of measured values, for the terminal and for pages."""

from __future__ import annotations

import math

__all__ = ["difference_unit", "format_decibels", "format_value"]


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit: two decimals, or six significant digits without a unit.

    In dB, values that are not finite become words.
    """
    if unit == "dB":
        return format_decibels(value)
    return f"{value:.2f} {unit}" if unit else f"{value:.6g}"


def format_decibels(value: float) -> str:
    """Format a level in dB with two decimals; values that are not finite become words.

    NaN is "not finite", infinity "infinite (equal)", -infinity "-infinite".
    """
    if math.isnan(value):
        return "not finite"
    if math.isfinite(value):
        return f"{value:.2f} dB"
    return "infinite (equal)" if value > 0 else "-infinite"


def difference_unit(unit: str) -> str:
    """Return the unit of a difference of two values in `unit`: "%" becomes "points"."""
    return unit.replace("%", "points")
