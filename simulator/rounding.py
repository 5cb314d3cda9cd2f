"""The ways to round, as values: what kernels, platforms and graphs mean by the same member.

Imports no Numba.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RoundingMode"]


class RoundingMode(IntEnum):
    """How a number between two integers becomes one of them; compiled code compares the numbers."""

    HALF_UP = 0  #: the nearer one, a tie goes up: what the NPU does, whatever it is told
    DOWN = 1
    UP = 2
    HALF_EVEN = 3  #: the nearer one, a tie goes to the even one
    HALF_AWAY = 4  #: the nearer one, a tie goes away from 0
