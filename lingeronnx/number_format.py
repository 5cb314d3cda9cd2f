"""Measured values in words, for the terminal and for pages: one wording for both."""

from __future__ import annotations

import math

__all__ = ["difference_unit", "format_decibels", "format_value"]


def format_value(value: float, unit: str) -> str:
    """Return a value with its unit."""
    return (
        format_decibels(value)
        if unit == "dB"
        else f"{value:.2f} {unit}"
        if unit
        else f"{value:.6g}"
    )


def format_decibels(value: float) -> str:
    """Return a level in dB; words where there is none."""
    if math.isnan(value):
        return "not finite"
    return (
        f"{value:.2f} dB"
        if math.isfinite(value)
        else "infinite (equal)"
        if value > 0
        else "-infinite"
    )


def difference_unit(unit: str) -> str:
    """Return the unit of a difference of values in `unit`."""
    return unit.replace("%", "points")
