"""What a platform takes of an operator, as frozen values; an operator without any takes what its definition takes.

Sizes are in elements, memory in bytes. The one-line rules that a user reads are the constraints of `ops`, filled in
from these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "ConvLimits", "CurveLimits", "DeconvLimits", "Limits", "MatrixLimits", "NormLimits", "OperandLimits", "PadLimits",
    "PoolLimits", "RecurrentLimits", "RowLimits", "SliceLimits", "TransposeLimits",
]  # fmt: skip


@dataclass(frozen=True)
class ConvLimits:
    """What the packer takes of convolutions."""

    max_kernel: int
    max_kernel_dilated: int  # per side, of a kernel that is dilated along that side
    strides: tuple[int, ...]
    max_pad: int
    dilations: tuple[int, ...]
    slab: int  # bytes of kernel rows of the input held at once
    slab_depthwise: int
    slab_padded: bool  # whether the padding counts
    memory_depthwise: int  # bytes of input and output together
    channel_align: int
    depthwise_multiplier: bool
    max_kernel_1d: int


@dataclass(frozen=True)
class DeconvLimits:
    """What the packer takes of a transposed convolution besides `ConvLimits`."""

    groups: tuple[int, ...]
    dilations: tuple[int, ...]


@dataclass(frozen=True)
class PoolLimits:
    """What the packer and the executor take of pooling."""

    max_kernel: int  # max pooling, per side
    max_average_area: int  # average pooling, elements of the window
    #: A global average of a power-of-two area, or of more elements than this times the channels, comes out wrong.
    global_area_per_channel: int | None = None
    max_shared_area: int | None = None  # a larger average was measured wrong unless all tensors are in external memory
    external_args: str = ""  # the packer arguments that put them there


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
    """Of permutations. broken : those that crash the executor."""

    max_rank: int
    broken: tuple[tuple[int, ...], ...] = ()


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
    """Of softmax."""

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
    ConvLimits | DeconvLimits | PoolLimits | OperandLimits | MatrixLimits | TransposeLimits | SliceLimits | PadLimits
    | CurveLimits | RowLimits | NormLimits | RecurrentLimits
)  # fmt: skip
