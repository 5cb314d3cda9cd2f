"""What the vendor's packer (3.0.4) takes and what its executor then computes right: numbers, one row per chip.

The one-line rules of `packer.limits` are filled in from here. Sizes in elements, memory in bytes of int8. Every number
was measured with graphs on both sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARCS", "VENUS", "VENUSA", "ConvPacking", "MovePacking", "Packing", "PoolPacking"]


@dataclass(frozen=True)
class ConvPacking:
    """Limits of convolutions.

    A slab is what one row of results reads: channels, rounded up to a multiple, times the width, rounded up to 8
    times the stride, times the kernel's height. The packer tries it along both axes.
    """

    max_kernel: int
    max_kernel_dilated: int  # per side, of a kernel that is dilated along that side
    strides: tuple[int, ...]
    max_pad: int
    dilations: tuple[int, ...]
    channel_align: int  # channels of a slab are rounded up to a multiple of it
    slab: int
    slab_depthwise: int
    inner_slab: int  # of the second check: channels rounded up to 8, the axes as chosen
    inner_width: int  # the width is rounded up to this times the stride there
    swapped_strides: bool  # whether a stride above 1 comes out right where only swapped axes fit
    share_outputs: int  # a convolution's weights are cut over its outputs, into shares of a multiple of it
    share_weights: int
    depthwise_weights: int | None  # kernel times channels rounded up to 8
    depthwise_multiplier: bool
    max_kernel_1d: int
    pre_pad: bool  # whether a map smaller than the kernel is padded in a node of its own
    max_map: int | None  # a whole map, channels rounded up to 8, width to 8 times the stride
    memory_depthwise: int  # input and output together


@dataclass(frozen=True)
class PoolPacking:
    """Limits of pooling; the slab is that of convolutions."""

    max_kernel: int  # max pooling, unless a side covers the map
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
    max_average_area: int  # elements of the window
    area_per_channel: int | None  # a whole-map average of no power of two has at most this times the channels elements


@dataclass(frozen=True)
class MovePacking:
    """Limits of the operators that move data."""

    max_rotated: int | None = None  # bytes that a transpose of `rotations` takes
    rotations: tuple[tuple[int, ...], ...] = ((0, 2, 1), (0, 2, 3, 1))
    between_convolutions: tuple[tuple[int, ...], ...] = ()  # wrong there
    broken: tuple[tuple[int, ...], ...] = ()  # crash unless input and output lie in external memory ...
    max_broken: int = 65536  # ... and are no larger than this


@dataclass(frozen=True)
class Packing:
    """One chip as the packer sees it.

    name : for its argument -p. attribute : what nodes say in their attribute `platform`, None where they have none.
    rounding : the attribute that integer layers must have. softmax_axis : the attribute that SoftmaxInt must have.
    """

    name: str
    attribute: str | None
    rounding: str
    softmax_axis: str
    conv: ConvPacking
    pool: PoolPacking
    move: MovePacking
    softmax_last: bool = False  # SoftmaxInt comes out right along the last axis only
    softmax_row: int = 2048


VENUS = Packing(
    name="venus",
    attribute=None,
    rounding="platform_quant",
    softmax_axis="dim",
    conv=ConvPacking(
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
        swapped_strides=True,
        share_outputs=2,
        share_weights=32768,
        depthwise_weights=None,
        depthwise_multiplier=False,
        max_kernel_1d=5,
        pre_pad=True,
        max_map=253952,
        memory_depthwise=512 * 1024 - 1,
    ),
    pool=PoolPacking(
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
    move=MovePacking(max_rotated=65536, between_convolutions=((0, 1, 3, 2),)),
)

ARCS = Packing(
    name="arcs",
    attribute="arcs",
    rounding="quant_mode",
    softmax_axis="axis",
    conv=ConvPacking(
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
        swapped_strides=False,
        share_outputs=2,
        share_weights=8192,
        depthwise_weights=8192,
        depthwise_multiplier=True,
        max_kernel_1d=12,
        pre_pad=False,
        max_map=None,
        memory_depthwise=384 * 1024,
    ),
    pool=PoolPacking(
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
    move=MovePacking(),
    softmax_last=True,
)

VENUSA = Packing(
    name="venusa",
    attribute="venusA",
    rounding="quant_mode",
    softmax_axis="axis",
    conv=ConvPacking(
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
        swapped_strides=True,
        share_outputs=4,
        share_weights=32768,
        depthwise_weights=None,
        depthwise_multiplier=True,
        max_kernel_1d=0,
        pre_pad=False,
        max_map=None,
        memory_depthwise=384 * 1024,
    ),
    pool=PoolPacking(
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
    move=MovePacking(broken=((0, 2, 1, 3), (0, 3, 2, 1))),
)
