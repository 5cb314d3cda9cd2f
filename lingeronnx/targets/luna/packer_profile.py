"""What the vendor's packer (3.0.4) takes and what its executor then computes right.

Numbers, one row per chip.
The one-line rules of `packer.limits` are filled in from here. Sizes in elements, memory in bytes of
int8. Every number was measured with graphs on both sides of it.
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

    A slab is the line buffer, what one row of results reads: channels, rounded up to
    `channel_align`, times the width, rounded up to 8 times the stride, times the kernel's height.
    The packer tries it along both axes.
    """

    dilations: tuple[int, ...]
    line_buffer_bytes: int
    depthwise_line_buffer_bytes: int
    second_line_buffer_bytes: (
        int  # of the second check: channels rounded up to 8, the axes as chosen
    )
    second_width_align: int  # the width is rounded up to this times the stride there
    weight_slice_outputs: (
        int  # a convolution's weights are cut over its outputs, into shares of a multiple of it
    )
    weight_slice_bytes: int
    max_weight_slices: (
        int | None
    )  # of a convolution's weights: what ran; None: no more was seen to fail
    max_depthwise_weight_bytes: int | None  # kernel times channels rounded up to 8
    supports_depthwise_multiplier: bool
    supports_groups_1d: bool  # whether a 1-D convolution of several groups packs
    hoists_padding: bool  # whether a map smaller than the kernel is padded in a node of its own
    max_input_bytes: (
        int | None
        # the input, channels rounded up to 8, width to 8 times the stride: the largest that was right
    )
    max_input_output_bytes: int | None  # input and output together
    max_depthwise_input_output_bytes: int  # input and output together
    depthwise_output_align: (
        int  # outputs of stored depthwise weights are rounded up to a multiple of it
    )
    depthwise_kernel_row_align: int  # and the kernel's height to a multiple of this


@dataclass(frozen=True, kw_only=True)
class PoolPackerLimits(PoolLimits):
    """Limits of pooling; the slab is that of convolutions, and `max_kernel` holds unless a side covers the map."""

    needs_same_scale: bool = True

    max_pad: int  # max pooling
    max_kernel_with_platform: (
        int | None
    )  # the same of a node with the attribute `platform`; None: as large as can be
    max_pad_with_platform: int | None
    channel_align: int
    line_buffer_bytes: int
    unchecked_side: int  # a window with a longer side is let through whatever its slab
    is_unchecked_correct: bool  # whether such a window is computed right
    max_pool_line_buffer_bytes: int | None  # max pooling: of channels rounded up to 8
    average_pool_line_buffer_bytes: int | None  # average pooling, likewise: more packs and is wrong
    max_average_input_bytes: int | None  # a whole map that averages are taken of
    max_odd_kernel_input_bytes: int | None  # a whole map under a kernel with an odd side


@dataclass(frozen=True)
class TransposePackerLimits:
    """Limits of the operators that move data."""

    max_rotation_bytes: int | None = None  # bytes that a transpose of `rotations` takes
    rotations: tuple[tuple[int, ...], ...] = ((0, 2, 1), (0, 2, 3, 1))
    wrong_between_convolutions: tuple[tuple[int, ...], ...] = ()  # wrong there
    crashing_perms: tuple[
        tuple[int, ...], ...
    ] = ()  # crash unless input and output lie in external memory ...
    max_crashing_perm_bytes: int = 65536  # ... and are no larger than this


class Int4Support(Enum):
    """What becomes of a node that says its weights have 4 bits.

    Of an operator without an entry nobody reads it.
    """

    PACKED = "two weights in a byte"
    WRONG = "packs and is wrong"
    REFUSED = "does not pack"


#: What arcs and venusA make of operators with 4-bit weights. A Conv1dInt of several groups is wrong at any width.
_ARCS_VENUSA_INT4_SUPPORT: Mapping[str, Int4Support] = MappingProxyType(
    {
        "Conv2dInt": Int4Support.PACKED,
        "LinearInt": Int4Support.PACKED,
        "Gather": Int4Support.PACKED,
        "LayerNormInt": Int4Support.PACKED,
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

    weight_bytes: int
    threshold_lowers_limit: bool  # --threshold1 lowers `weight_bytes`; else it raises it
    outputs: int
    row_mode_bytes: int  # a larger map is computed row by row: one row of the output counts
    width_align: int
    linear_weight_bytes: int
    linear_output_align: int


@dataclass(frozen=True)
class PackerProfile:
    """One chip as the packer sees it.

    name : for its argument -p. attribute : what nodes say in their attribute `platform`, None where
    they have none. rounding_attribute : the attribute that integer layers must have. softmax_axis :
    the attribute that SoftmaxInt must have.
    """

    name: str
    platform_attribute: str | None
    rounding_attribute: str
    softmax_axis_attribute: str
    conv: ConvPackerLimits
    pool: PoolPackerLimits
    transpose: TransposePackerLimits
    layer_split: LayerSplitLimits
    work_area_table: str  # whose work areas (`packer.areas`)
    operators: tuple[str, ...] = _OPERATORS
    conv_output_bits: tuple[int, ...] = (8, 16, 32)  # o_bits of a Conv2dInt that packs
    linear_output_bits: tuple[int, ...] = (8, 32)  # o_bits of a LinearInt that is right
    layer_norm_weight_bytes: int = 1  # bytes of a LayerNormInt's weight
    min_layer_norm_length: int = 1  # elements of a line of a LayerNormInt that comes out right
    layer_norm_writes_past_bias: bool = (
        True  # whether it writes lines behind a bias that lies in shared memory
    )
    supports_2d_layer_norm: bool = (
        False  # whether a LayerNormInt of two axes does, which always computes two lines
    )
    lstm_batch_first: bool = False  # how LSTMInt is right
    needs_even_lstm_units: bool = False  # whether an LSTMInt is right with an even hidden size only
    conv_transpose_needs_shared_io: bool = (
        False  # whether input and output of a ConvTranspose2dInt must lie in shared memory
    )
    conv_transpose_needs_shared_weight: bool = False  # and its weight
    reserves_workspace_name: bool = True  # whether 'workspace' in a tensor's name does harm
    has_32bit_lstm_state: bool = (
        False  # whether LSTMInt writes its last state in 32 bits, planned in 8
    )
    multirow_linear_needs_psram: bool = (
        False  # whether LinearInt of several rows is right with its output in PSRAM only
    )
    needs_input_scale: bool = (
        True  # whether an integer graph input is right only where its first reader tells its scale
    )
    supports_batch: bool = False  # whether convolutions compute more than the first sample
    unverified_operators: tuple[
        str, ...
    ] = ()  # operators that pack and whose results could not be measured
    lut_input_bits: Mapping[str, int] = field(
        default_factory=dict
    )  # what a curve reads; others are not right
    correct_softmax_axes: tuple[int, ...] | None = (
        None  # what its attribute may say where SoftmaxInt comes out right
    )
    layer_norm_scratch_bytes: tuple[int, int] = (
        27,
        8,
    )  # bytes that LayerNormInt writes: for each element of a line, and more
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
    platform_attribute=None,
    rounding_attribute="platform_quant",
    softmax_axis_attribute="dim",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=5,
        strides=(1, 2, 4),
        max_pad=4,
        dilations=(1,),
        channel_align=2,
        line_buffer_bytes=65536,
        depthwise_line_buffer_bytes=32768,
        second_line_buffer_bytes=65536,
        second_width_align=8,
        weight_slice_outputs=2,
        weight_slice_bytes=32768,
        max_weight_slices=None,
        max_depthwise_weight_bytes=None,
        supports_depthwise_multiplier=False,
        max_kernel_1d=5,
        supports_groups_1d=True,
        hoists_padding=True,
        max_input_bytes=262144,
        max_input_output_bytes=507904,
        max_depthwise_input_output_bytes=512 * 1024 - 1,
        depthwise_output_align=16,
        depthwise_kernel_row_align=1,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_with_platform=5,
        max_pad_with_platform=4,
        channel_align=2,
        line_buffer_bytes=65536,
        unchecked_side=7,
        is_unchecked_correct=True,
        max_pool_line_buffer_bytes=65536,
        average_pool_line_buffer_bytes=65536,
        max_average_input_bytes=None,
        max_odd_kernel_input_bytes=None,
        max_average_area=127,
        max_global_area_per_channel=None,
    ),
    transpose=TransposePackerLimits(
        max_rotation_bytes=65536, wrong_between_convolutions=((0, 1, 3, 2),)
    ),
    layer_split=LayerSplitLimits(
        weight_bytes=32768,
        threshold_lowers_limit=True,
        outputs=65536,
        row_mode_bytes=65536,
        width_align=8,
        linear_weight_bytes=0,
        linear_output_align=4,
    ),
    work_area_table="venus",
    layer_norm_weight_bytes=2,
    min_layer_norm_length=4,
    layer_norm_writes_past_bias=False,
    supports_2d_layer_norm=True,
    lstm_batch_first=True,
    needs_even_lstm_units=True,
    conv_transpose_needs_shared_io=True,
    conv_transpose_needs_shared_weight=True,
    reserves_workspace_name=False,
    linear_output_bits=(8, 16, 32),
    operators=(*_OPERATORS, "Resize"),
    needs_input_scale=False,
    supports_batch=True,
    layer_norm_scratch_bytes=(8, 0),
    unverified_operators=("SoftmaxInt",),
    lut_input_bits=MappingProxyType({"iqSigmoid": 16, "iqTanh": 16}),
    narrow=MappingProxyType(
        {
            **dict.fromkeys(("Conv2dInt", "Conv1dInt"), Int4Support.REFUSED),
            **dict.fromkeys(("ConvTranspose2dInt", "Gather", "LayerNormInt"), Int4Support.WRONG),
        }
    ),
)

ARCS = PackerProfile(
    name="arcs",
    platform_attribute="arcs",
    rounding_attribute="quant_mode",
    softmax_axis_attribute="axis",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=12,
        strides=(1, 2, 4),
        max_pad=11,
        dilations=(1, 2, 4, 8),
        channel_align=2,
        line_buffer_bytes=16384,
        depthwise_line_buffer_bytes=16384,
        second_line_buffer_bytes=16384,
        second_width_align=4,
        weight_slice_outputs=2,
        weight_slice_bytes=8192,
        max_weight_slices=43,
        max_depthwise_weight_bytes=8192,
        supports_depthwise_multiplier=True,
        max_kernel_1d=12,
        supports_groups_1d=False,
        hoists_padding=False,
        max_input_bytes=None,
        max_input_output_bytes=None,
        max_depthwise_input_output_bytes=384 * 1024,
        depthwise_output_align=8,
        depthwise_kernel_row_align=1,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_with_platform=12,
        max_pad_with_platform=11,
        channel_align=2,
        line_buffer_bytes=16384,
        unchecked_side=5,
        is_unchecked_correct=False,
        max_pool_line_buffer_bytes=None,
        average_pool_line_buffer_bytes=None,
        max_average_input_bytes=None,
        max_odd_kernel_input_bytes=65536,
        max_average_area=600,
        max_global_area_per_channel=4,
    ),
    transpose=TransposePackerLimits(),
    layer_split=LayerSplitLimits(
        weight_bytes=8192,
        threshold_lowers_limit=False,
        outputs=32768,
        row_mode_bytes=16384,
        width_align=4,
        linear_weight_bytes=16384,
        linear_output_align=4,
    ),
    work_area_table="arcs",
    conv_transpose_needs_shared_io=True,
    conv_output_bits=(8, 32),
    lut_input_bits=MappingProxyType({"iqSigmoid": 8}),
    correct_softmax_axes=(-1, 1),
)

VENUSA = PackerProfile(
    name="venusa",
    platform_attribute="venusA",
    rounding_attribute="quant_mode",
    softmax_axis_attribute="axis",
    conv=ConvPackerLimits(
        max_kernel=5,
        max_kernel_dilated=12,
        strides=(1, 2, 4),
        max_pad=11,
        dilations=(1, 2, 4, 8),
        channel_align=4,
        line_buffer_bytes=65536,
        depthwise_line_buffer_bytes=32768,
        second_line_buffer_bytes=65536,
        second_width_align=8,
        weight_slice_outputs=4,
        weight_slice_bytes=32768,
        max_weight_slices=None,
        max_depthwise_weight_bytes=None,
        supports_depthwise_multiplier=True,
        max_kernel_1d=12,
        supports_groups_1d=True,
        hoists_padding=False,
        max_input_bytes=None,
        max_input_output_bytes=None,
        max_depthwise_input_output_bytes=384 * 1024,
        depthwise_output_align=8,
        depthwise_kernel_row_align=2,
    ),
    pool=PoolPackerLimits(
        max_kernel=5,
        max_pad=4,
        max_kernel_with_platform=None,
        max_pad_with_platform=None,
        channel_align=4,
        line_buffer_bytes=65536,
        unchecked_side=7,
        is_unchecked_correct=True,
        max_pool_line_buffer_bytes=None,
        average_pool_line_buffer_bytes=None,
        max_average_input_bytes=65536,
        max_odd_kernel_input_bytes=None,
        max_average_area=600,
        max_global_area_per_channel=4,
    ),
    transpose=TransposePackerLimits(crashing_perms=((0, 2, 1, 3), (0, 3, 2, 1))),
    layer_split=LayerSplitLimits(
        weight_bytes=32768,
        threshold_lowers_limit=False,
        outputs=65536,
        row_mode_bytes=65536,
        width_align=8,
        linear_weight_bytes=65536,
        linear_output_align=8,
    ),
    work_area_table="venusA",
    multirow_linear_needs_psram=True,
    has_32bit_lstm_state=True,
    unverified_operators=("iqSigmoid",),
    narrow=MappingProxyType({**_ARCS_VENUSA_INT4_SUPPORT, "LinearInt": Int4Support.WRONG}),
)
