"""Measured values in words, for the terminal and for pages: one wording for both."""

from __future__ import annotations

import math

__all__ = ["decibel_text", "number_text", "points"]


def number_text(value: float, unit: str) -> str:
    """Return a value with its unit."""
    return decibel_text(value) if unit == "dB" else f"{value:.2f} {unit}" if unit else f"{value:.6g}"


def decibel_text(value: float) -> str:
    """Return a level in dB; words where there is none."""
    if math.isnan(value):
        return "not finite"
    return f"{value:.2f} dB" if math.isfinite(value) else "infinite (equal)" if value > 0 else "-infinite"


def points(unit: str) -> str:
    """Return the unit of a difference of values in `unit`."""
    return unit.replace("%", "points")
