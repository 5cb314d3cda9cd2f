"""Limits of the vendor's packer (3.0.4) and of correct execution, for each chip.

The constraint texts of `packer.limits` are filled in from these figures. Sizes are in elements,
memory is in bytes of int8. Every figure was measured with graphs on both sides of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ..common.errors import ConfigError
from ..targets._target import Target, Vendor
from ..targets.limits import ConvLimits, PoolLimits
from .kernel_costs import KernelCosts

__all__ = [
    "ARCS",
    "AverageRescale",
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

    The line buffer holds the input that one output row reads: channels, rounded up to
    `channel_align`, times the width, rounded up to 8 times the stride, times the kernel height.
    The packer tries both axes.
    """

    dilations: tuple[int, ...]
    line_buffer_bytes: int
    depthwise_line_buffer_bytes: int
    # The packer's second check: channels rounded up to 8, on the axis that the first check chose.
    second_line_buffer_bytes: int
    second_width_align: int  # the second check rounds the width up to this times the stride
    weight_slice_outputs: int  # weights are split into slices of a multiple of this many outputs
    weight_slice_bytes: int
    max_weight_slices: int | None  # largest number that ran; None: no number failed
    max_depthwise_weight_bytes: int | None  # kernel area times channels rounded up to 8
    supports_depthwise_multiplier: bool
    supports_groups_1d: bool  # whether a 1-D convolution with several groups packs
    supports_depthwise_1d: bool  # whether it packs with as many groups as outputs
    # Whether the check of a map against its kernel adds the padding of rows to the columns.
    adds_padding_to_other_axis: bool = True
    hoists_padding: bool  # whether maps smaller than the kernel are padded in a separate node
    # Largest correct input: channels rounded up to 8, width to 8 times the stride.
    max_input_bytes: int | None
    max_input_output_bytes: int | None  # input and output together
    # Maps above this are computed in tiles of rows, which must leave no row over (None: they may):
    # channels rounded up to 8, the width to `second_width_align` strides. `row_tile_windows`: what
    # counts are the rows that the windows of all outputs read, from the first one on.
    row_tile_bytes: int | None
    row_tile_windows: bool
    max_depthwise_input_output_bytes: int  # input and output together
    depthwise_output_align: int  # stored depthwise weights: outputs are rounded up to a multiple
    depthwise_kernel_row_align: int  # stored depthwise weights: so is the kernel height


class AverageRescale(Enum):
    """An average pool whose output has another scale than its input."""

    SHIFTED = "of a power of two elements"
    ENLARGED = "of another number of elements, with a larger scale"
    REDUCED = "of another number of elements, with a smaller scale"


@dataclass(frozen=True, kw_only=True)
class PoolPackerLimits(PoolLimits):
    """Limits of pooling.

    The line buffer is that of convolutions. `max_kernel` does not apply if a window side covers
    the whole map.
    """

    needs_same_scale: bool = True

    max_pad: int  # of max pooling
    # The limits of nodes with the attribute `platform`; None: unlimited.
    max_kernel_with_platform: int | None
    max_pad_with_platform: int | None
    channel_align: int
    line_buffer_bytes: int
    unchecked_side: int  # the packer accepts a window with a longer side without checking its lines
    is_unchecked_correct: bool  # whether such a window is computed correctly
    max_pool_line_buffer_bytes: int | None  # max pooling, channels rounded up to 8
    average_pool_line_buffer_bytes: int | None  # average pooling: more packs, but is wrong
    max_average_input_bytes: int | None  # complete input map of an average pool
    # Complete input map, unless windows are even, and their size a power of two (average) or
    # they do not overlap (max).
    max_odd_kernel_input_bytes: int | None
    # An average pool over more is computed in parts of channels; None: any parts are correct.
    channel_split_bytes: int | None
    # What the executor counts for the rows under an average pool's window; None: it does not.
    executor_line_buffer_bytes: int | None
    # Averages that are correct with another scale than the input's.
    correct_rescales: tuple[AverageRescale, ...] = ()


@dataclass(frozen=True)
class TransposePackerLimits:
    """Limits of transposes."""

    max_rotation_bytes: int | None = None  # largest tensor that one of `rotations` accepts
    rotations: tuple[tuple[int, ...], ...] = ((0, 2, 1), (0, 2, 3, 1))
    wrong_between_convolutions: tuple[tuple[int, ...], ...] = ()  # wrong between convolutions
    # These crash unless input and output are in external memory and at most this large.
    crashing_perms: tuple[tuple[int, ...], ...] = ()
    max_crashing_perm_bytes: int = 65536


class Int4Support(Enum):
    """How the packer treats a node that declares 4-bit weights.

    It ignores the declaration of operators without an entry.
    """

    PACKED = "two weights in a byte"
    WRONG = "packs and is wrong"
    REFUSED = "does not pack"


#: Support of 4-bit weights on arcs and venusA. A Conv1dInt of several groups is wrong at any width.
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


#: Values of the option -p, in all lower or all upper case.
PLATFORM_OPTIONS = ("venus", "arcs", "venusa", "mars")

#: The chip of a graph whose nodes declare no platform.
DEFAULT_PLATFORM_OPTION = "venus"

#: Operator and attribute names of dialect v3 that the packer accepts as those of v1.
V3_ALIASES: Mapping[str, str] = MappingProxyType(
    {"QConv2d": "Conv2dInt", "w_bits": "parameter_bits", "x_bits": "data_bits"}
)

#: Operators that the packer supports on every chip.
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
    """Sizes above which the packer splits a layer over its outputs, in bytes."""

    weight_bytes: int
    threshold_lowers_limit: bool  # --threshold1 lowers `weight_bytes`; else it raises it
    outputs: int
    row_mode_bytes: int  # larger maps are computed row by row, so that one output row counts
    width_align: int
    linear_weight_bytes: int
    linear_output_align: int


@dataclass(frozen=True)
class PackerProfile:
    """Limits and behavior of the packer for one chip.

    Attributes
    ----------
    name
        Value of the packer's option -p.
    platform_attribute
        Value of the nodes' attribute `platform`, or None if they have none.
    rounding_attribute
        Name of the attribute that integer layers must have.
    softmax_axis_attribute
        Name of the attribute that SoftmaxInt must have.
    """

    name: str
    platform_attribute: str | None
    rounding_attribute: str
    softmax_axis_attribute: str
    conv: ConvPackerLimits
    pool: PoolPackerLimits
    transpose: TransposePackerLimits
    layer_split: LayerSplitLimits
    work_area_table: str  # key of the chip's work area formulas in `packer.memory`
    operators: tuple[str, ...] = _OPERATORS
    conv_output_bits: tuple[int, ...] = (8, 16, 32)  # o_bits of a Conv2dInt that packs
    linear_output_bits: tuple[int, ...] = (8, 32)  # o_bits of a LinearInt that is correct
    layer_norm_weight_bytes: int = 1  # size of an element of a LayerNormInt's weight; 0: any
    min_layer_norm_length: int = 1  # shortest row of a LayerNormInt that is computed correctly
    # Whether LayerNormInt writes rows past the end of a bias in shared memory.
    layer_norm_writes_past_bias: bool = True
    # Whether a rank-2 LayerNormInt is correct; it always computes two rows.
    supports_2d_layer_norm: bool = False
    lstm_batch_first: bool = False  # value of batch_first for which LSTMInt is correct
    # Whether the input and output, or the weight, of a ConvTranspose2dInt must be in shared memory.
    conv_transpose_needs_shared_io: bool = False
    conv_transpose_needs_shared_weight: bool = False
    reserves_workspace_name: bool = True  # whether tensor names must not contain 'workspace'
    has_32bit_lstm_state: bool = False  # whether LSTMInt writes a 32-bit last state, planned as 8
    # Whether a LinearInt of several rows is correct only with its output in PSRAM.
    multirow_linear_needs_psram: bool = False
    # Whether the first consumer of an integer graph input must declare its scale.
    needs_input_scale: bool = True
    supports_batch: bool = False  # whether convolutions compute more than the first sample
    unverified_operators: tuple[str, ...] = ()  # operators that pack, but were not measured
    # Input width of each activation that is computed from a table, 0 for any; others are wrong.
    lut_input_bits: Mapping[str, int] = field(default_factory=dict)
    # Axis attributes for which SoftmaxInt is correct; None: all.
    correct_softmax_axes: tuple[int, ...] | None = None
    # Bytes that LayerNormInt writes for each element of a row, and in addition.
    layer_norm_scratch_bytes: tuple[int, int] = (27, 8)
    # Operator -> key in `packer.memory.work_areas.WORK_AREA_FORMS` that replaces the table's rule.
    work_areas: Mapping[str, str] = field(default_factory=dict)
    # Operator -> key in `packer.memory.overruns.OVERRUN_FORMS` that replaces the table's rule.
    overruns: Mapping[str, str] = field(default_factory=dict)
    left_shifted_sums: tuple[str, ...] = ()  # iqAdd, iqSub: correct with a larger scale_o
    # Recurrent operators with axes as batch_first says: [T, 1, I] for 0, [1, T, I] for 1.
    follow_batch_first: tuple[str, ...] = ()
    # (data_bits, parameter_bits, o_bits) of a LinearInt that are correct, besides int8 by int8.
    wide_linear: tuple[tuple[int, int, int], ...] = ()
    accepts_any_platform_case: bool = False  # whether -p may be spelled in any case
    # Attributes of an operator that need not be written, although earlier packers read them.
    optional_attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Largest log2 of scale_o / scale_x that an operator of `left_shifted_sums` shifts left.
    max_left_shift: int = 6
    # Whether other input widths than `lut_input_bits` do not pack.
    refuses_lut_widths: bool = False
    refused_quant_modes: tuple[str, ...] = ()  # values of quant_mode that do not pack
    # Operators whose planned bytes were not measured with the packer of this version.
    unmeasured_plans: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()  # further rules: keys of `packer.version_rules.REFUSALS`
    # Operators that the executor computes although the quantizer never writes them.
    unwritten_operators: tuple[str, ...] = ()
    # Support of 4-bit weights, by operator.
    narrow: Mapping[str, Int4Support] = field(default_factory=lambda: _ARCS_VENUSA_INT4_SUPPORT)


@dataclass(frozen=True)
class PackerVendor(Vendor):
    """A vendor whose chips have a packer.

    Attributes
    ----------
    packing
        Packer profile of the chip.
    prices
        Kernel costs of the chip, or None if they were neither published nor measured.
    """

    packing: PackerProfile
    prices: KernelCosts | None = None


def get_packer_profile(target: Target) -> PackerProfile:
    """Return the packer profile of `target`.

    Raises ConfigError for a target without a packer.
    """
    if not isinstance(target.vendor, PackerVendor):
        raise ConfigError(f"{target.name} has no packer; choose a chip")
    return target.vendor.packing


def get_kernel_costs(target: Target) -> KernelCosts | None:
    """Return the kernel costs of `target`; None if they are unknown or it has no packer."""
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
        supports_depthwise_1d=False,
        hoists_padding=True,
        max_input_bytes=262144,
        max_input_output_bytes=507904,
        row_tile_bytes=None,
        row_tile_windows=False,
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
        channel_split_bytes=65536,
        executor_line_buffer_bytes=None,
        max_average_area=127,
        max_global_area_per_channel=None,
        correct_rescales=(AverageRescale.ENLARGED,),
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
        supports_depthwise_1d=False,
        hoists_padding=False,
        max_input_bytes=None,
        max_input_output_bytes=None,
        row_tile_bytes=16384,
        row_tile_windows=False,
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
        channel_split_bytes=None,
        executor_line_buffer_bytes=16384,
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
        supports_depthwise_1d=True,
        hoists_padding=False,
        max_input_bytes=None,
        max_input_output_bytes=None,
        row_tile_bytes=65536,
        row_tile_windows=True,
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
        channel_split_bytes=None,
        executor_line_buffer_bytes=None,
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
