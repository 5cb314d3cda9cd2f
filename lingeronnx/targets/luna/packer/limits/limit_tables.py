"""The limits of single nodes, by integer operator.

Each constraint takes a node, float or integer, and a platform row, and returns the value that
breaks the limit, or None. Its docstring is the rule that users read, ``rule | remedy``, filled in
from the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from .....formats import (
    ADD,
    AVG_POOL2D,
    BMM,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    LINEAR,
    MUL,
    SOFTMAX,
)
from ...._target import LimitCheck, Target, format_limit_rule
from ...packer_profile import PackerProfile, get_packer_profile
from . import conv, pool
from . import shape_operators as move

__all__ = [
    "CORRECTNESS_LIMITS",
    "DISCOURAGED",
    "FIXED_BY_REWRITE",
    "PACKER_LIMITS",
    "TILING_LIMITS",
    "get_layer_limits",
    "has_limit",
]

_KERNEL_LIMITS = (
    conv.kernel_side,
    conv.kernel_dilated,
    conv.stride_values,
    conv.stride_within_kernel,
    conv.pad_side,
)

#: What the packer does not take.
PACKER_LIMITS: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        CONV2D.name: (
            *_KERNEL_LIMITS,
            conv.dilation_values,
            conv.group_outputs,
            conv.conv_line_buffer,
            conv.conv_line_buffer_inner,
            conv.weight_slice_bytes,
            conv.depthwise_weights,
            conv.input_smaller_than_kernel,
        ),
        CONV1D.name: (
            conv.kernel_length_1d,
            conv.group_count_1d,
            conv.stride_values,
            conv.stride_within_kernel,
            conv.pad_side,
        ),
        CONV_TRANSPOSE2D.name: (*_KERNEL_LIMITS, conv.transposed_group_count),
        AVG_POOL2D.name: (
            pool.window_axes,
            pool.pool_strides,
            pool.pool_pads,
            pool.pool_line_buffer,
        ),
        "MaxPool": (
            pool.window_axes,
            pool.pool_strides,
            pool.pool_pads,
            pool.max_pool_side,
            pool.pool_line_buffer,
            pool.pool_line_buffer_max,
        ),
        BMM.name: (move.bmm_rank,),
        ADD.name: (move.broadcast_add,),
        CONCAT.name: (move.concat_input_count,),
        SOFTMAX.name: (move.softmax_row,),
    }
)

#: What packs, and is not computed or computed wrong, whatever the arguments.
CORRECTNESS_LIMITS: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        CONV2D.name: (
            conv.depthwise_multiplier,
            conv.conv_line_buffer_swapped,
            conv.conv_input_bytes,
            conv.weight_slice_count,
        ),
        CONV1D.name: (conv.dilation_1d, conv.depthwise_multiplier),
        CONV_TRANSPOSE2D.name: (conv.transposed_dilation,),
        AVG_POOL2D.name: (
            pool.pool_line_buffer_unchecked,
            pool.pool_line_buffer_swapped,
            pool.pool_line_buffer_average,
            pool.average_pool_input_bytes,
            pool.odd_kernel_input_bytes,
            pool.pool_ceil_mode,
            pool.global_average_area,
        ),
        "MaxPool": (
            pool.pool_line_buffer_unchecked,
            pool.pool_line_buffer_swapped,
            pool.odd_kernel_input_bytes,
            pool.pool_ceil_mode,
        ),
        LINEAR.name: (move.linear_rank,),
        MUL.name: (move.broadcast_mul,),
        SOFTMAX.name: (move.softmax_axis,),
        "Transpose": (move.transpose_rotation_bytes,),
        "Slice": (move.slice_axis_count, move.slice_step),
    }
)

#: What a network had better not have: right on the chip, but coarse or too large for most plans.
DISCOURAGED: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        CONV_TRANSPOSE2D.name: (conv.input_output_bytes,),
        AVG_POOL2D.name: (pool.average_area,),
        "Transpose": (move.transpose_crashing_perm,),
    }
)


#: Limits that fewer rows at a time meet: no reason to keep a layer in float, as tiles of rows are exact.
TILING_LIMITS: tuple[LimitCheck, ...] = (conv.conv_input_bytes,)


#: Integer operators whose limits keep a float layer from being lowered to them, or call for a rewrite; what other
#: operators take is told by columns.
_WINDOW_AND_LINEAR_OPERATORS = (
    CONV2D.name,
    CONV1D.name,
    CONV_TRANSPOSE2D.name,
    AVG_POOL2D.name,
    "MaxPool",
    LINEAR.name,
)


@functools.cache
def get_layer_limits(operator: str) -> tuple[LimitCheck, ...]:
    """Return the limits of an integer operator that no tiling meets: constraints of the float one
    lowered to it.
    """
    if operator not in _WINDOW_AND_LINEAR_OPERATORS:
        return ()
    limits = (
        limit
        for table in (PACKER_LIMITS, CORRECTNESS_LIMITS, DISCOURAGED)
        for limit in table.get(operator, ())
    )
    more = (conv.grouped_hoisted_padding,) if operator == CONV2D.name else ()
    return tuple(
        limit
        for limit in (*limits, *more)
        if limit not in TILING_LIMITS and limit is not pool.global_average_area
    )


#: Rewrite of `fit` -> the limits that it is for.
FIXED_BY_REWRITE: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        "expand-dilation": (conv.dilation_values, conv.conv1d_dilation),
        "split-depthwise": (conv.depthwise_multiplier,),
        "enlarge-kernel": (conv.stride_within_kernel,),
        "explicit-pad": (conv.pad_side,),
        "pad-ahead": (conv.input_smaller_than_kernel,),
        "split-kernel": (conv.kernel_side, conv.kernel_dilated),
        "split-average": (pool.average_area,),
        "split-max-pool": (pool.max_pool_side,),
    }
)

#: Limits that a chip may do without although their text can be filled in.
_LIFTED_BY: Mapping[LimitCheck, Callable[[PackerProfile], bool]] = MappingProxyType(
    {
        conv.depthwise_multiplier: lambda kind: kind.conv.supports_depthwise_multiplier,
        conv.group_count_1d: lambda kind: kind.conv.supports_groups_1d,
        conv.grouped_hoisted_padding: lambda kind: not kind.conv.hoists_padding,
        pool.pool_line_buffer_unchecked: lambda kind: kind.pool.is_unchecked_correct,
    }
)


def has_limit(limit: LimitCheck, target: Target) -> bool:
    """Whether the chip has such a limit: its column is not left open."""
    free = _LIFTED_BY.get(limit)
    return "None" not in format_limit_rule(limit, target)[0] and (
        free is None or not free(get_packer_profile(target))
    )
