"""What the vendor's packer (3.0.4) takes and what its executor then computes right: numbers, one row per chip.

The one-line rules of `packer.limits` are filled in from here. Sizes in elements, memory in bytes of int8. Every number
was measured with graphs on both sides of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ...errors import ConfigError
from .._target import Target, Vendor
from ..limits import ConvLimits, PoolLimits
from .kernel_costs import KernelCosts

__all__ = [
    "ARCS",
    "PLATFORM_OPTIONS",
    "V3_ALIASES",
    "DEFAULT_PLATFORM_OPTION",
    "VENUS",
    "VENUSA",
    "ConvPackerLimits",
    "LayerSplitLimits",
    "TransposePackerLimits",
    "Int4Support",
    "PackerProfile",
    "PackerVendor",
    "PoolPackerLimits",
    "get_packer_profile",
    "get_kernel_costs",
]


@dataclass(frozen=True, kw_only=True)
class ConvPackerLimits(ConvLimits):
    """Limits of convolutions.

    A slab is the line buffer, what one row of results reads: channels, rounded up to `channel_align`, times the width,
    rounded up to 8 times the stride, times the kernel's height. The packer tries it along both axes.
    """

    dilations: tuple[int, ...]
    slab: int
    slab_depthwise: int
    inner_slab: int  # of the second check: channels rounded up to 8, the axes as chosen
    inner_width: int  # the width is rounded up to this times the stride there
    share_outputs: int  # a convolution's weights are cut over its outputs, into shares of a multiple of it
    share_weights: int
    max_shares: int | None  # of a convolution's weights: what ran; None: no more was seen to fail
    depthwise_weights: int | None  # kernel times channels rounded up to 8
    depthwise_multiplier: bool
    groups_1d: bool  # whether a 1-D convolution of several groups packs
    pre_pad: bool  # whether a map smaller than the kernel is padded in a node of its own
    max_map: int | None  # the input, channels rounded up to 8, width to 8 times the stride: the largest that was right
    max_maps: int | None  # input and output together
    memory_depthwise: int  # input and output together
    depthwise_align: int  # outputs of stored depthwise weights are rounded up to a multiple of it
    depthwise_rows: int  # and the kernel's height to a multiple of this


@dataclass(frozen=True, kw_only=True)
class PoolPackerLimits(PoolLimits):
    """Limits of pooling; the slab is that of convolutions, and `max_kernel` holds unless a side covers the map."""

    same_scale: bool = True

    max_pad: int  # max pooling
    max_kernel_named: int | None  # the same of a node with the attribute `platform`; None: as large as can be
    max_pad_named: int | None
    channel_align: int
    slab: int
    free_side: int  # a window with a longer side is let through whatever its slab
    free_right: bool  # whether such a window is computed right
    inner_slab_max: int | None  # max pooling: of channels rounded up to 8
    inner_slab_average: int | None  # average pooling, likewise: more packs and is wrong
    max_map_average: int | None  # a whole map that averages are taken of
    max_map_odd: int | None  # a whole map under a kernel with an odd side


@dataclass(frozen=True)
class TransposePackerLimits:
    """Limits of the operators that move data."""

    max_rotated: int | None = None  # bytes that a transpose of `rotations` takes
    rotations: tuple[tuple[int, ...], ...] = ((0, 2, 1), (0, 2, 3, 1))
    between_convolutions: tuple[tuple[int, ...], ...] = ()  # wrong there
    broken: tuple[tuple[int, ...], ...] = ()  # crash unless input and output lie in external memory ...
    max_broken: int = 65536  # ... and are no larger than this


class Int4Support(Enum):
    """What becomes of a node that says its weights have 4 bits; of an operator without an entry nobody reads it."""

    HALVED = "two weights in a byte"
    WRONG = "packs and is wrong"
    REFUSED = "does not pack"


#: What arcs and venusA make of operators with 4-bit weights. A Conv1dInt of several groups is wrong at any width.
_ARCS_VENUSA_INT4_SUPPORT: Mapping[str, Int4Support] = MappingProxyType(
    {
        "Conv2dInt": Int4Support.HALVED,
        "LinearInt": Int4Support.HALVED,
        "Gather": Int4Support.HALVED,
        "LayerNormInt": Int4Support.HALVED,
        "ConvTranspose2dInt": Int4Support.WRONG,
        "Conv1dInt": Int4Support.REFUSED,
    }
)


#: What -p may say, all lower or all upper case.
PLATFORM_OPTIONS = ("venus", "arcs", "venusa", "mars")

#: The chip of a graph in which no node names one.
DEFAULT_PLATFORM_OPTION = "venus"

#: Names of dialect v3 that the packer takes for those of v1, in operators and their attributes.
V3_ALIASES: Mapping[str, str] = MappingProxyType(
    {"QConv2d": "Conv2dInt", "w_bits": "parameter_bits", "x_bits": "data_bits"}
)

#: What the packer has an entry for, on every chip.
_OPERATORS = (
    "ArgMax",
    "AvgPool2dInt",
    "BatchNorm2dInt",
    "BmmInt",
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "Expand",
    "Flatten",
    "GRUInt",
    "Gather",
    "GluInt",
    "LSTMInt",
    "LayerNormInt",
    "LinearInt",
    "LogSoftmaxInt",
    "MaxPool",
    "Prelu",
    "Relu",
    "Requant",
    "Reshape",
    "ShuffleChannel",
    "Slice",
    "SoftmaxInt",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "iqAdd",
    "iqCat",
    "iqDiv",
    "iqMul",
    "iqPad",
    "iqSigmoid",
    "iqSub",
    "iqTanh",
)


@dataclass(frozen=True)
class LayerSplitLimits:
    """When a layer is cut over its outputs into several; bytes."""

    weights: int
    weights_lower: bool  # --threshold1 lowers `weights`; else it raises it
    outputs: int
    slab: int  # a larger map is computed row by row: one row of the output counts
    slab_width: int
    linear: int
    linear_align: int


@dataclass(frozen=True)
class PackerProfile:
    """One chip as the packer sees it.

    name : for its argument -p. attribute : what nodes say in their attribute `platform`, None where they have none.
    rounding : the attribute that integer layers must have. softmax_axis : the attribute that SoftmaxInt must have.
    """

    name: str
    attribute: str | None
    rounding: str
    softmax_axis: str
    conv: ConvPackerLimits
    pool: PoolPackerLimits
    move: TransposePackerLimits
    cut: LayerSplitLimits
    areas: str  # whose work areas (`packer.areas`)
    operators: tuple[str, ...] = _OPERATORS
    output_bits: tuple[int, ...] = (8, 16, 32)  # o_bits of a Conv2dInt that packs
    linear_bits: tuple[int, ...] = (8, 32)  # o_bits of a LinearInt that is right
    norm_width: int = 1  # bytes of a LayerNormInt's weight
    min_norm: int = 1  # elements of a line of a LayerNormInt that comes out right
    norm_behind: bool = True  # whether it writes lines behind a bias that lies in shared memory
    flat_norm: bool = False  # whether a LayerNormInt of two axes does, which always computes two lines
    batch_first: bool = False  # how LSTMInt is right
    even_hidden: bool = False  # whether an LSTMInt is right with an even hidden size only
    transposed_shared: bool = False  # whether input and output of a ConvTranspose2dInt must lie in shared memory
    transposed_weights: bool = False  # and its weight
    reserved_workspace: bool = True  # whether 'workspace' in a tensor's name does harm
    wide_states: bool = False  # whether LSTMInt writes its last state in 32 bits, planned in 8
    rows_outside: bool = False  # whether LinearInt of several rows is right with its output in PSRAM only
    needs_scale: bool = True  # whether an integer graph input is right only where its first reader tells its scale
    batches: bool = False  # whether convolutions compute more than the first sample
    unmeasured: tuple[str, ...] = ()  # operators that pack and whose results could not be measured
    curve_bits: Mapping[str, int] = field(default_factory=dict)  # what a curve reads; others are not right
    softmax_axes: tuple[int, ...] | None = None  # what its attribute may say where SoftmaxInt comes out right
    norm_area: tuple[int, int] = (27, 8)  # bytes that LayerNormInt writes: for each element of a line, and more
    narrow: Mapping[str, Int4Support] = field(
        default_factory=lambda: _ARCS_VENUSA_INT4_SUPPORT
    )  # 4-bit weights, by operator


@dataclass(frozen=True)
class PackerVendor(Vendor):
    """A vendor's code that has a packing: what the packer takes of the chip.

    prices : what its kernels cost; None where nobody has published or measured that.
    """

    packing: PackerProfile
    prices: KernelCosts | None = None


def get_packer_profile(target: Target) -> PackerProfile:
    """Return what the packer takes of a chip of this family; ConfigError for another platform."""
    if not isinstance(target.vendor, PackerVendor):
        raise ConfigError(f"{target.name} has no packer; choose a chip")
    return target.vendor.packing


def get_kernel_costs(target: Target) -> KernelCosts | None:
    """Return what the kernels of a chip cost; None where nothing is known."""
    return target.vendor.prices if isinstance(target.vendor, PackerVendor) else None


VENUS = PackerProfile(
    name="venus",
    attribute=None,
    rounding="platform_quant",
    softmax_axis="dim",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=5,
        strides=(1, 2, 4),
        max_pad=4,
        dilations=(1,),
        channel_align=2,
        slab=65536,
        slab_depthwise=32768,
        inner_slab=65536,
        inner_width=8,
        share_outputs=2,
        share_weights=32768,
        max_shares=None,
        depthwise_weights=None,
        depthwise_multiplier=False,
        max_kernel_1d=5,
        groups_1d=True,
        pre_pad=True,
        max_map=262144,
        max_maps=507904,
        memory_depthwise=512 * 1024 - 1,
        depthwise_align=16,
        depthwise_rows=1,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_named=5,
        max_pad_named=4,
        channel_align=2,
        slab=65536,
        free_side=7,
        free_right=True,
        inner_slab_max=65536,
        inner_slab_average=65536,
        max_map_average=None,
        max_map_odd=None,
        max_average_area=127,
        area_per_channel=None,
    ),
    move=TransposePackerLimits(max_rotated=65536, between_convolutions=((0, 1, 3, 2),)),
    cut=LayerSplitLimits(
        weights=32768, weights_lower=True, outputs=65536, slab=65536, slab_width=8, linear=0, linear_align=4
    ),
    areas="venus",
    norm_width=2,
    min_norm=4,
    norm_behind=False,
    flat_norm=True,
    batch_first=True,
    even_hidden=True,
    transposed_shared=True,
    transposed_weights=True,
    reserved_workspace=False,
    linear_bits=(8, 16, 32),
    operators=(*_OPERATORS, "Resize"),
    needs_scale=False,
    batches=True,
    norm_area=(8, 0),
    unmeasured=("SoftmaxInt",),
    curve_bits=MappingProxyType({"iqSigmoid": 16, "iqTanh": 16}),
    narrow=MappingProxyType(
        {
            **dict.fromkeys(("Conv2dInt", "Conv1dInt"), Int4Support.REFUSED),
            **dict.fromkeys(("ConvTranspose2dInt", "Gather", "LayerNormInt"), Int4Support.WRONG),
        }
    ),
)

ARCS = PackerProfile(
    name="arcs",
    attribute="arcs",
    rounding="quant_mode",
    softmax_axis="axis",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=12,
        strides=(1, 2, 4),
        max_pad=11,
        dilations=(1, 2, 4, 8),
        channel_align=2,
        slab=16384,
        slab_depthwise=16384,
        inner_slab=16384,
        inner_width=4,
        share_outputs=2,
        share_weights=8192,
        max_shares=43,
        depthwise_weights=8192,
        depthwise_multiplier=True,
        max_kernel_1d=12,
        groups_1d=False,
        pre_pad=False,
        max_map=None,
        max_maps=None,
        memory_depthwise=384 * 1024,
        depthwise_align=8,
        depthwise_rows=1,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_named=12,
        max_pad_named=11,
        channel_align=2,
        slab=16384,
        free_side=5,
        free_right=False,
        inner_slab_max=None,
        inner_slab_average=None,
        max_map_average=None,
        max_map_odd=65536,
        max_average_area=600,
        area_per_channel=4,
    ),
    move=TransposePackerLimits(),
    cut=LayerSplitLimits(
        weights=8192, weights_lower=False, outputs=32768, slab=16384, slab_width=4, linear=16384, linear_align=4
    ),
    areas="arcs",
    transposed_shared=True,
    output_bits=(8, 32),
    curve_bits=MappingProxyType({"iqSigmoid": 8}),
    softmax_axes=(-1, 1),
)

VENUSA = PackerProfile(
    name="venusa",
    attribute="venusA",
    rounding="quant_mode",
    softmax_axis="axis",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=12,
        strides=(1, 2, 4),
        max_pad=11,
        dilations=(1, 2, 4, 8),
        channel_align=4,
        slab=65536,
        slab_depthwise=32768,
        inner_slab=65536,
        inner_width=8,
        share_outputs=4,
        share_weights=32768,
        max_shares=None,
        depthwise_weights=None,
        depthwise_multiplier=True,
        max_kernel_1d=12,
        groups_1d=True,
        pre_pad=False,
        max_map=None,
        max_maps=None,
        memory_depthwise=384 * 1024,
        depthwise_align=8,
        depthwise_rows=2,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_named=None,
        max_pad_named=None,
        channel_align=4,
        slab=65536,
        free_side=7,
        free_right=True,
        inner_slab_max=None,
        inner_slab_average=None,
        max_map_average=65536,
        max_map_odd=None,
        max_average_area=600,
        area_per_channel=4,
    ),
    move=TransposePackerLimits(broken=((0, 2, 1, 3), (0, 3, 2, 1))),
    cut=LayerSplitLimits(
        weights=32768, weights_lower=False, outputs=65536, slab=65536, slab_width=8, linear=65536, linear_align=8
    ),
    areas="venusA",
    rows_outside=True,
    wide_states=True,
    unmeasured=("iqSigmoid",),
    narrow=MappingProxyType({**_ARCS_VENUSA_INT4_SUPPORT, "LinearInt": Int4Support.WRONG}),
)
