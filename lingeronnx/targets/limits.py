"""Limits of operators on a target, as frozen values.

An operator without limits supports everything that its definition allows. Sizes are in elements,
memory is in bytes. The rules that users read are the constraints of the lowering rules, filled in
from these numbers.
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
    """Limits of convolutions that rewrites aim at when they split or expand a layer.

    Kernel sizes are per side. The vendor's own limits (`Vendor.get_limit_checks`) decide which
    layers have to be rewritten.
    """

    max_kernel: int
    max_kernel_dilated: int  # along a dilated axis
    max_kernel_1d: int
    strides: tuple[int, ...]
    max_pad: int
    channel_align: int  # layers are split into multiples of this number of channels

    @property
    def stride_text(self) -> str:
        """The supported strides as text such as "1, 2 or 4"."""
        *others, last = map(str, self.strides)
        return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class PoolLimits:
    """Limits of pools that rewrites aim at."""

    max_kernel: int  # side of a max pooling window
    max_average_area: int  # elements of an average pooling window
    #: A global average over a number of elements that is not a power of two has at most this many
    #: elements per channel; None without a limit.
    max_global_area_per_channel: int | None
    needs_same_scale: bool = False  # an average must have the scale of its input


@dataclass(frozen=True)
class BinaryOperandLimits:
    """Limits of sums and products of two activations, which must have equal shapes.

    supports_per_channel : the second operand may be [N, C, 1, 1].
    supports_images : 4-D tensors are computed correctly.
    can_shift_either : either operand of a sum may be shifted; otherwise only the first.
    """

    supports_per_channel: bool = False
    supports_images: bool = True
    can_shift_either: bool = True


@dataclass(frozen=True)
class MatrixLimits:
    """Limits of matrix products.

    rank : rank of an operand; the maximum rank for a fully connected layer.
    """

    rank: int


@dataclass(frozen=True)
class TransposeLimits:
    """Limits of permutations.

    unsupported_perms : permutations that are not written.
    max_bytes : maximum bytes of a tensor that is permuted at once.
    """

    max_rank: int
    unsupported_perms: tuple[tuple[int, ...], ...] = ()
    max_bytes: int | None = None


@dataclass(frozen=True)
class SliceLimits:
    """Limits of Slice."""

    steps: tuple[int, ...]


@dataclass(frozen=True)
class PadLimits:
    """Limits of padding as a separate node."""

    rank: int
    modes: tuple[str, ...]


@dataclass(frozen=True)
class SigmoidLimits:
    """Limits of a sigmoid that is computed by a GluInt.

    A LinearInt doubles the last axis for the GluInt: one half is the input, the other is ones.
    work_bytes_per_element : bytes of shared memory used per output element.
    """

    ranks: tuple[int, ...]
    max_length: int
    work_bytes_per_element: int = 0


@dataclass(frozen=True)
class SoftmaxLimits:
    """Limits of softmax rows."""

    max_length: int


@dataclass(frozen=True)
class LayerNormLimits:
    """Limits of layer normalization.

    epsilon : value added to the variance, whatever the node says.
    min_length : minimum elements of a row.
    lines : whether the tensor must have three axes, [1, rows, elements].
    """

    max_length: int
    max_axes: int
    epsilon: float
    min_length: int = 1
    lines: bool = False


@dataclass(frozen=True)
class RecurrentLimits:
    """Limits of recurrent layers: zero initial state, full sequences, final cell not used."""

    needs_square_input: bool = False  # as many steps as features


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
