"""The limits of single nodes, by integer operator.

Each constraint takes a node, float or integer, and a platform row, and returns the value that breaks the limit, or
None. Its docstring is the rule that users read, ``rule | remedy``, filled in from the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .....formats import ADD, AVG_POOL2D, BMM, CONCAT, CONV1D, CONV2D, CONV_TRANSPOSE2D, LINEAR, MUL, SOFTMAX
from ...._target import Limit, Target, rule_text
from ...packing import Packing, packing
from . import conv, pool
from . import moves as move

__all__ = ["AVOIDED", "MENDED", "REFUSED", "TILED", "WRONG", "applies", "of_layers"]

_WEIGHTS = (conv.kernel_side, conv.kernel_dilated, conv.stride_values, conv.stride_within_kernel, conv.pad_side)

#: What the packer does not take.
REFUSED: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        CONV2D.name: (
            *_WEIGHTS, conv.dilation_values, conv.group_outputs, conv.conv_line_buffer, conv.conv_line_buffer_inner,
            conv.weight_share, conv.depthwise_weights, conv.input_below_kernel,
        ),
        CONV1D.name: (conv.kernel_line, conv.line_group, conv.stride_values, conv.stride_within_kernel, conv.pad_side),
        CONV_TRANSPOSE2D.name: (*_WEIGHTS, conv.one_group),
        AVG_POOL2D.name: (pool.window_axes, pool.pool_strides, pool.pool_pads, pool.pool_line_buffer),
        "MaxPool": (
            pool.window_axes, pool.pool_strides, pool.pool_pads, pool.pool_sides, pool.pool_line_buffer,
            pool.pool_line_buffer_max,
        ),
        BMM.name: (move.bmm_rank,),
        ADD.name: (move.broadcast_add,),
        CONCAT.name: (move.cat_inputs,),
        SOFTMAX.name: (move.softmax_row,),
    }
)  # fmt: skip

#: What packs, and is not computed or computed wrong, whatever the arguments.
WRONG: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        CONV2D.name: (conv.depthwise_multiplier, conv.conv_line_buffer_swapped, conv.conv_map, conv.weight_shares),
        CONV1D.name: (conv.line_dilation, conv.depthwise_multiplier),
        CONV_TRANSPOSE2D.name: (conv.undilated,),
        AVG_POOL2D.name: (
            pool.pool_line_buffer_free, pool.pool_line_buffer_swapped, pool.pool_line_buffer_average,
            pool.pool_map_average, pool.pool_map_odd, pool.pool_ceil, pool.whole_map_area,
        ),
        "MaxPool": (pool.pool_line_buffer_free, pool.pool_line_buffer_swapped, pool.pool_map_odd, pool.pool_ceil),
        LINEAR.name: (move.linear_rank,),
        MUL.name: (move.broadcast_mul,),
        SOFTMAX.name: (move.softmax_axis,),
        "Transpose": (move.transpose_rotated,),
        "Slice": (move.one_axis, move.unit_step),
    }
)  # fmt: skip

#: What a network had better not have: right on the chip, but coarse or too large for most plans.
AVOIDED: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        CONV_TRANSPOSE2D.name: (conv.input_with_output,),
        AVG_POOL2D.name: (pool.average_area,),
        "Transpose": (move.transpose_broken,),
    }
)


#: Limits that fewer rows at a time meet: no reason to keep a layer in float, as tiles of rows are exact.
TILED: tuple[Limit, ...] = (conv.conv_map,)


#: Integer operators whose limits keep a float layer from being lowered to them, or call for a rewrite; what other
#: operators take is told by columns.
_LAYERS = (CONV2D.name, CONV1D.name, CONV_TRANSPOSE2D.name, AVG_POOL2D.name, "MaxPool", LINEAR.name)


@functools.cache
def of_layers(operator: str) -> tuple[Limit, ...]:
    """Return the limits of an integer operator that no tiling meets: constraints of the float one lowered to it."""
    if operator not in _LAYERS:
        return ()
    limits = (limit for table in (REFUSED, WRONG, AVOIDED) for limit in table.get(operator, ()))
    more = (conv.groups_padded_ahead,) if operator == CONV2D.name else ()
    return tuple(limit for limit in (*limits, *more) if limit not in TILED and limit is not pool.whole_map_area)


#: Rewrite of `fit` -> the limits that it is for.
MENDED: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        "expand-dilation": (conv.dilation_values, conv.dilated_line),
        "split-depthwise": (conv.depthwise_multiplier,),
        "enlarge-kernel": (conv.stride_within_kernel,),
        "explicit-pad": (conv.pad_side,),
        "pad-ahead": (conv.input_below_kernel,),
        "split-kernel": (conv.kernel_side, conv.kernel_dilated),
        "split-average": (pool.average_area,),
        "split-max-pool": (pool.pool_sides,),
    }
)

#: Limits that a chip may do without although their text can be filled in.
_FREE: Mapping[Limit, Callable[[Packing], bool]] = MappingProxyType(
    {
        conv.depthwise_multiplier: lambda kind: kind.conv.depthwise_multiplier,
        conv.line_group: lambda kind: kind.conv.groups_1d,
        conv.groups_padded_ahead: lambda kind: not kind.conv.pre_pad,
        pool.pool_line_buffer_free: lambda kind: kind.pool.free_right,
    }
)


def applies(limit: Limit, target: Target) -> bool:
    """Whether the chip has such a limit: its column is not left open."""
    free = _FREE.get(limit)
    return "None" not in rule_text(limit, target)[0] and (free is None or not free(packing(target)))
