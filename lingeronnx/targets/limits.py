"""What a platform takes of an operator, as frozen values; an operator without any takes what its definition takes.

Sizes are in elements, memory in bytes. The one-line rules that a user reads are the constraints of `ops`, filled in
from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "CurveLimits", "Limits", "MatrixLimits", "NormLimits", "OperandLimits", "PadLimits",
    "RecurrentLimits", "RowLimits", "SliceLimits", "TransposeLimits",
]  # fmt: skip


@dataclass(frozen=True)
class OperandLimits:
    """Of sums and products of two tensors: equal shapes, no constant. per_channel: the second may be [N, C, 1, 1]."""

    per_channel: bool = False


@dataclass(frozen=True)
class MatrixLimits:
    """Of products of two activations. rank : axes of both."""

    rank: int


@dataclass(frozen=True)
class TransposeLimits:
    """Of permutations; those that come out wrong stand in `packing.MovePacking`."""

    max_rank: int


@dataclass(frozen=True)
class SliceLimits:
    """Of ranges of positions."""

    steps: tuple[int, ...]


@dataclass(frozen=True)
class PadLimits:
    """Of padding as a node of its own."""

    rank: int
    modes: tuple[str, ...]


@dataclass(frozen=True)
class CurveLimits:
    """Of sigmoid where GluInt stands in, fed by a LinearInt that doubles the last axis by a half of 1s."""

    ranks: tuple[int, ...]
    max_length: int


@dataclass(frozen=True)
class RowLimits:
    """Limits of a softmax's rows."""

    max_length: int


@dataclass(frozen=True)
class NormLimits:
    """Of layer normalisation. epsilon : what is added to the variance, whatever the node says."""

    max_length: int
    max_axes: int
    epsilon: float


@dataclass(frozen=True)
class RecurrentLimits:
    """Of recurrent layers: they begin at zero and walk to the end of the input; nobody reads the cell."""

    square: bool = False  # as many steps as elements in a step


Limits: TypeAlias = (
    OperandLimits
    | MatrixLimits
    | TransposeLimits
    | SliceLimits
    | PadLimits
    | CurveLimits
    | RowLimits
    | NormLimits
    | RecurrentLimits
)
