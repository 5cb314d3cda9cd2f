"""Rounding modes that kernels, platforms and graphs share.

Imports no Numba.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RoundingMode"]


class RoundingMode(IntEnum):
    """How a number between two integers is rounded; compiled code compares the integer values."""

    HALF_UP = 0  #: to the nearest integer, ties towards +infinity; the NPU supports only this mode
    DOWN = 1
    UP = 2
    HALF_EVEN = 3  #: to the nearest integer, ties to the even one
    HALF_AWAY = 4  #: to the nearest integer, ties away from 0
