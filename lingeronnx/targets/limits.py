"""What a platform takes of an operator, as frozen values.

An operator without any takes what its definition takes.
Sizes are in elements, memory in bytes. The one-line rules that a user reads are the constraints of
`ops`, filled in from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "BinaryOperandLimits",
    "ConvLimits",
    "LayerNormLimits",
    "Limits",
    "MatrixLimits",
    "PadLimits",
    "PoolLimits",
    "RecurrentLimits",
    "SigmoidLimits",
    "SliceLimits",
    "SoftmaxLimits",
    "TransposeLimits",
]


@dataclass(frozen=True)
class ConvLimits:
    """Of convolutions, as far as rewrites aim at it: what a layer is cut or spread into.

    Sizes of one side.
    The vendor's own limits (`Vendor.limits`) decide what has to be rewritten.
    """

    max_kernel: int
    max_kernel_dilated: int  # per side, of a kernel that is dilated along that side
    max_kernel_1d: int
    strides: tuple[int, ...]
    max_pad: int
    channel_align: int  # layers are cut into multiples of so many channels

    @property
    def stride_text(self) -> str:
        """The strides in words: 1, 2 or 4."""
        *others, last = map(str, self.strides)
        return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class PoolLimits:
    """Of pooling, likewise."""

    max_kernel: int  # a side of max pooling
    max_average_area: int  # elements of the window
    max_global_area_per_channel: (
        int | None
    )  # a whole-map average of no power of two has at most this times the channels elements
    needs_same_scale: bool = False  # an average is wrong where its scale changes


@dataclass(frozen=True)
class BinaryOperandLimits:
    """Of sums and products of two tensors: equal shapes, no constant.

    Per_channel: the second may be [N, C, 1, 1].
    supports_images : whether it is right on images. either : whether either operand of a sum may be
    the one to be shifted; else the first.
    """

    supports_per_channel: bool = False
    supports_images: bool = True
    can_shift_either: bool = True


@dataclass(frozen=True)
class MatrixLimits:
    """Of products of matrices.

    Rank : axes of an operand; of a fully connected layer at most so many.
    """

    rank: int


@dataclass(frozen=True)
class TransposeLimits:
    """Of permutations. broken : those that are not written.

    Whole : bytes that are permuted in one piece.
    """

    max_rank: int
    unsupported_perms: tuple[tuple[int, ...], ...] = ()
    max_bytes: int | None = None


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
class SigmoidLimits:
    """Of sigmoid where GluInt stands in, fed by a LinearInt that doubles the last axis by a half of 1s.

    work_bytes_per_element : bytes of shared memory that it works in, for each number that it gives.
    """

    ranks: tuple[int, ...]
    max_length: int
    work_bytes_per_element: int = 0


@dataclass(frozen=True)
class SoftmaxLimits:
    """Limits of a softmax's rows."""

    max_length: int


@dataclass(frozen=True)
class LayerNormLimits:
    """Of layer normalisation. epsilon : what is added to the variance, whatever the node says.

    min_length : elements of a line, at least. lines : whether the tensor has three axes, [1, lines,
    elements].
    """

    max_length: int
    max_axes: int
    epsilon: float
    min_length: int = 1
    lines: bool = False


@dataclass(frozen=True)
class RecurrentLimits:
    """Of recurrent layers: they begin at zero and walk to the end of the input.

    Nobody reads the cell.
    """

    needs_square_input: bool = False  # as many steps as elements in a step


Limits: TypeAlias = (
    ConvLimits
    | PoolLimits
    | BinaryOperandLimits
    | MatrixLimits
    | TransposeLimits
    | SliceLimits
    | PadLimits
    | SigmoidLimits
    | SoftmaxLimits
    | LayerNormLimits
    | RecurrentLimits
)
