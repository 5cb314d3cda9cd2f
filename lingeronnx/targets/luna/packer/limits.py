"""The limits of single nodes, by integer operator.

Each constraint takes a node, float or integer, and a platform row, and returns the value that breaks the limit, or
None. Its docstring is the rule that users read, ``rule | remedy``, filled in from the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ....formats import ADD, AVG_POOL2D, BMM, CONCAT, CONV1D, CONV2D, CONV_TRANSPOSE2D, LINEAR, MUL, SOFTMAX
from ....graph import ir
from ... import Platform
from . import conv_limits as conv
from . import move_limits as move
from . import pool_limits as pool

__all__ = ["AVOIDED", "REFUSED", "TILED", "WRONG", "Limit", "limits", "rule_text"]

Limit = Callable[[ir.Node, Platform], Any]

_WEIGHTS = (conv.kernel_side, conv.kernel_dilated, conv.stride_values, conv.stride_within_kernel, conv.pad_side)

#: What the packer does not take.
REFUSED: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        CONV2D.name: (
            *_WEIGHTS, conv.dilation_values, conv.group_outputs, conv.conv_slab, conv.conv_slab_inner,
            conv.weight_share, conv.depthwise_weights, conv.input_below_kernel,
        ),
        CONV1D.name: (conv.kernel_line, conv.line_group, conv.stride_values, conv.stride_within_kernel, conv.pad_side),
        CONV_TRANSPOSE2D.name: (*_WEIGHTS, conv.one_group),
        AVG_POOL2D.name: (pool.pool_strides, pool.pool_pads, pool.pool_slab),
        "MaxPool": (pool.pool_strides, pool.pool_pads, pool.pool_sides, pool.pool_slab, pool.pool_slab_max),
        BMM.name: (move.bmm_rank,),
        ADD.name: (move.broadcast_add,),
        CONCAT.name: (move.cat_inputs,),
        SOFTMAX.name: (move.softmax_row,),
    }
)  # fmt: skip

#: What packs, and is not computed or computed wrong, whatever the arguments.
WRONG: Mapping[str, tuple[Limit, ...]] = MappingProxyType(
    {
        CONV2D.name: (conv.depthwise_multiplier, conv.conv_slab_swapped, conv.conv_map, conv.weight_shares),
        CONV1D.name: (conv.line_dilation, conv.depthwise_multiplier),
        CONV_TRANSPOSE2D.name: (conv.undilated,),
        AVG_POOL2D.name: (pool.pool_slab_free, pool.pool_slab_average, pool.pool_map_average, pool.pool_map_odd,
                         pool.pool_ceil, pool.whole_map_area),
        "MaxPool": (pool.pool_slab_free, pool.pool_map_odd, pool.pool_ceil),
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


def limits(operator: str) -> tuple[Limit, ...]:
    """Return the limits of an integer operator that no tiling meets: constraints of the float one lowered to it."""
    found = (limit for table in (REFUSED, WRONG, AVOIDED) for limit in table.get(operator, ()))
    return tuple(limit for limit in found if limit not in TILED)


def rule_text(limit: Limit, row: Platform) -> tuple[str, str]:
    """Return (rule, remedy) as users read them: the limit's docstring, filled in from the row, split at the bar."""
    text = " ".join((limit.__doc__ or "").split()).format(row=row)
    rule, _, remedy = text.partition(" | ")
    return rule.rstrip("."), remedy.rstrip(".") or "change the model or leave the node in float"
