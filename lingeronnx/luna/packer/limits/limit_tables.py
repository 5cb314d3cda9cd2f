"""Tables of the limits of single nodes, by integer operator.

Each limit takes a node, float or integer, and a target, and returns the value that breaks the
limit, or None. Its docstring is the rule that users read, ``rule | remedy``, with placeholders that
are filled in from the target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ....operators.integer_ops import (
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
from ....targets._target import LimitCheck, Target, format_limit_rule
from ...packer_profile import PackerProfile, get_packer_profile
from . import conv, pool, shape_operators

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

#: Limits whose violations the packer refuses.
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
            conv.depthwise_1d,
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
        BMM.name: (shape_operators.bmm_rank,),
        ADD.name: (shape_operators.broadcast_add,),
        CONCAT.name: (shape_operators.concat_input_count,),
        SOFTMAX.name: (shape_operators.softmax_row,),
    }
)

#: Limits whose violations pack but are computed wrong or not at all, whatever the arguments.
CORRECTNESS_LIMITS: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        CONV2D.name: (
            conv.depthwise_multiplier,
            conv.conv_line_buffer_swapped,
            conv.conv_input_bytes,
            conv.weight_slice_count,
            conv.left_over_rows,
            conv.left_over_rows_depthwise,
        ),
        CONV1D.name: (conv.dilation_1d, conv.depthwise_multiplier),
        CONV_TRANSPOSE2D.name: (conv.transposed_dilation,),
        AVG_POOL2D.name: (
            pool.pool_line_buffer_unchecked,
            pool.pool_line_buffer_swapped,
            pool.pool_line_buffer_average,
            pool.average_pool_input_bytes,
            pool.odd_kernel_input_bytes,
            pool.uneven_average_input_bytes,
            pool.pool_ceil_mode,
            pool.global_average_area,
            pool.average_channel_split,
            pool.average_executor_line_buffer,
        ),
        "MaxPool": (
            pool.pool_line_buffer_unchecked,
            pool.pool_line_buffer_swapped,
            pool.odd_kernel_input_bytes,
            pool.overlapping_max_input_bytes,
            pool.pool_ceil_mode,
        ),
        LINEAR.name: (shape_operators.linear_rank,),
        MUL.name: (shape_operators.broadcast_mul,),
        SOFTMAX.name: (shape_operators.softmax_axis,),
        "Transpose": (shape_operators.transpose_rotation_bytes,),
        "Slice": (shape_operators.slice_axis_count, shape_operators.slice_step),
    }
)

#: Limits whose violations are correct on the chip, but inaccurate or too large for most plans.
DISCOURAGED: Mapping[str, tuple[LimitCheck, ...]] = MappingProxyType(
    {
        CONV_TRANSPOSE2D.name: (conv.input_output_bytes,),
        AVG_POOL2D.name: (pool.average_area,),
        "Transpose": (shape_operators.transpose_crashing_perm,),
    }
)


#: Limits that row tiles satisfy. They do not keep a layer in float, because tiling is exact.
TILING_LIMITS: tuple[LimitCheck, ...] = (conv.conv_input_bytes,)


#: Limits that a backend pass satisfies by an exact rewrite, which do not keep a layer in float
#: either.
REWRITTEN_LIMITS: tuple[LimitCheck, ...] = (
    conv.left_over_rows,
    conv.left_over_rows_depthwise,
    pool.average_channel_split,
    pool.average_executor_line_buffer,
)


#: Integer operators whose limits keep a float layer from being lowered to them, or require a
#: rewrite. The limits of other operators are columns of the target.
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
    """Return the limits of integer operator `operator` that keep a float layer from becoming one.

    Empty except for convolutions, pools and LinearInt. Limits that tiling or another exact rewrite
    satisfies and that of global average pools are left out; a Conv2dInt also has the limit on
    grouped convolutions with hoisted padding.
    """
    if operator not in _WINDOW_AND_LINEAR_OPERATORS:
        return ()
    limits: list[LimitCheck] = []
    for table in (PACKER_LIMITS, CORRECTNESS_LIMITS, DISCOURAGED):
        limits += table.get(operator, ())
    if operator == CONV2D.name:
        limits.append(conv.grouped_hoisted_padding)
    return tuple(
        limit
        for limit in limits
        if limit not in (*TILING_LIMITS, *REWRITTEN_LIMITS, pool.global_average_area)
    )


#: Legalization rewrite -> the limits that it satisfies.
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

#: Limits whose placeholders can be filled in -> whether a chip does not have them.
_LIFTED_BY: Mapping[LimitCheck, Callable[[PackerProfile], bool]] = MappingProxyType(
    {
        conv.depthwise_multiplier: lambda profile: profile.conv.supports_depthwise_multiplier,
        conv.group_count_1d: lambda profile: profile.conv.supports_groups_1d,
        conv.depthwise_1d: lambda profile: profile.conv.supports_depthwise_1d,
        conv.left_over_rows_depthwise: lambda profile: profile.conv.row_tile_bytes is None,
        conv.grouped_hoisted_padding: lambda profile: not profile.conv.hoists_padding,
        pool.pool_line_buffer_unchecked: lambda profile: profile.pool.is_unchecked_correct,
    }
)


def has_limit(limit: LimitCheck, target: Target) -> bool:
    """Whether `limit` applies to the chip.

    It does not if a feature of the chip's profile lifts it, or if a number in its rule is None.
    """
    is_lifted = _LIFTED_BY.get(limit)
    if is_lifted is not None and is_lifted(get_packer_profile(target)):
        return False
    return "None" not in format_limit_rule(limit, target)[0]
