"""Split a convolution that exceeds a limit, by outputs or groups (exact) or by inputs (a sum).

Too many weights require fewer outputs per part. The input rows under the kernel grow with the input
channels, so that the limit of the line buffer requires a sum of parts, each of which is rounded.
Maps that are too large for the memory are not split by channels: `backend_passes.tiling` tiles
them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.detached_nodes import make_detached_node, make_detached_value
from ....operators.conv.lowering import CONV2D
from ....operators.conv_geometry import ConvGeometry
from ....targets import Target
from .._base import (
    RewriteBuilder,
    add_partial_sums,
    format_rounding_cost,
    get_constant_bias,
    get_sizes,
    match_conv,
    split_range,
)

__all__ = ["split_channels"]

_MAX_PARTS = 16


def split_channels(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Split a 2-D convolution by groups, outputs or inputs into as few parts as meet all limits.

    One with several groups is split by groups; others by outputs, or by inputs if no split by
    outputs meets the limits. Does not test whether `node` itself needs a split. Returns the
    description and the cost of the change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or len(conv[0].kernel) != 2 or target.conv_limits is None:
        return None
    geometry, weight = conv
    if geometry.group > 1:
        return _split_groups(model, node, geometry, weight, target)
    by_outputs = _split_outputs(model, node, geometry, weight, target)
    return by_outputs or _split_inputs(model, node, geometry, weight, target)


def _is_part_supported(
    target: Target, geometry: ConvGeometry, inputs: int, outputs: int, group: int
) -> bool:
    """Whether a part of a convolution with so many channels meets all limits of `target`.

    `inputs` and `outputs` are its channels, `group` its number of groups.
    """
    in_size, out_size = get_sizes(geometry.input_shape[2:]), get_sizes(geometry.result[2:])
    source = make_detached_value([1, inputs, *in_size], computed=True)
    weight = make_detached_value([outputs, inputs // group, *geometry.kernel])
    attributes = {**_make_conv_attributes(geometry), "group": group}
    part = make_detached_node("Conv", [source, weight], [1, outputs, *out_size], attributes)
    return not CONV2D.find_violations(part, target)


def _make_conv_attributes(geometry: ConvGeometry) -> dict[str, AttributeValue]:
    """Return kernel_shape, strides, pads and dilations of `geometry` as attributes of a Conv."""
    return {
        "kernel_shape": list(geometry.kernel),
        "strides": list(geometry.strides),
        "pads": list(geometry.pads),
        "dilations": list(geometry.dilations),
    }


def _find_coarsest_split(
    total: int, align: int, is_supported: Callable[[int], bool]
) -> list[tuple[int, int]] | None:
    """Split 0 to `total` - 1 into as few ranges (start, end) as possible, all of supported sizes.

    `is_supported` tells whether a size is. Splits have 2 to `_MAX_PARTS` parts, whose sizes but the
    last are multiples of `align`; None if no such split is supported.
    """
    for parts in range(2, min(total, _MAX_PARTS) + 1):
        ranges = split_range(total, parts, align)
        if not 1 < len(ranges) <= _MAX_PARTS:
            continue
        if all(is_supported(end - start) for start, end in ranges):
            return ranges
    return None


def _split_outputs(
    model: ir.Model, node: ir.Node, geometry: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    """Split a convolution with one group by output channels, joined by a Concat.

    Returns the description and the cost of the change; None, without a change, if no split meets
    all limits.
    """
    assert target.conv_limits is not None
    ranges = _find_coarsest_split(
        geometry.outputs,
        target.conv_limits.channel_align,
        lambda size: _is_part_supported(target, geometry, geometry.inputs, size, 1),
    )
    if ranges is None:
        return None
    builder = RewriteBuilder(model, node)
    source = ir.require_input(node)
    parts = []
    for index, (start, end) in enumerate(ranges):
        bias = _slice_bias(builder, index, start, end)
        parts.append(_emit_part(builder, source, weight[start:end], index, bias, geometry, 1))
    _emit_concat(builder, parts)
    return f"{geometry.outputs} output channels split into {len(ranges)} parts", "exact"


def _split_inputs(
    model: ir.Model, node: ir.Node, geometry: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    """Split a convolution with one group into a sum over input channels.

    The first part has the bias. Returns the description and the cost of the change; None, without a
    change, if no split meets all limits.
    """
    assert target.conv_limits is not None
    ranges = _find_coarsest_split(
        geometry.inputs,
        target.conv_limits.channel_align,
        lambda size: _is_part_supported(target, geometry, size, geometry.outputs, 1),
    )
    if ranges is None:
        return None
    builder = RewriteBuilder(model, node)
    parts = []
    for index, (start, end) in enumerate(ranges):
        source = builder.slice_axis(ir.require_input(node), 1, start, end, "channels")
        bias = node.inputs[2:3] if index == 0 else ()
        part_weight = weight[:, start:end]
        parts.append(_emit_part(builder, source, part_weight, index, bias, geometry, 1))
    add_partial_sums(builder, parts)
    builder.replace_node()
    return (
        f"{geometry.inputs} input channels split into {len(ranges)} parts that are added",
        format_rounding_cost(len(ranges)),
    )


def _split_groups(
    model: ir.Model, node: ir.Node, geometry: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    """Split a grouped convolution into parts with fewer groups and a Concat.

    Returns the description and the cost of the change; None, without a change, if no split meets
    all limits.
    """
    group_inputs = geometry.inputs // geometry.group
    group_outputs = geometry.outputs // geometry.group

    def is_supported(groups: int) -> bool:
        """Whether a part of `groups` groups of the convolution meets all limits."""
        inputs, outputs = groups * group_inputs, groups * group_outputs
        return _is_part_supported(target, geometry, inputs, outputs, groups)

    ranges = _find_coarsest_split(geometry.group, 1, is_supported)
    if ranges is None:
        return None
    builder = RewriteBuilder(model, node)
    parts = []
    for index, (first_group, end_group) in enumerate(ranges):
        source = builder.slice_axis(
            ir.require_input(node),
            1,
            first_group * group_inputs,
            end_group * group_inputs,
            "channels",
        )
        start, end = first_group * group_outputs, end_group * group_outputs
        bias = _slice_bias(builder, index, start, end)
        groups = end_group - first_group
        parts.append(_emit_part(builder, source, weight[start:end], index, bias, geometry, groups))
    _emit_concat(builder, parts)
    return f"{geometry.group} groups split into {len(ranges)} parts", "exact"


def _slice_bias(
    builder: RewriteBuilder, index: int, start: int, end: int
) -> Sequence[ir.Value | None]:
    """Return [the constant bias of output channels `start` to `end` - 1] for a part, or ().

    It becomes a new constant, named by the `index` of the part. Empty without a constant bias.
    """
    bias = get_constant_bias(builder.node)
    if bias is None:
        return ()
    return (builder.constant(np.ascontiguousarray(bias[start:end]), f"part{index}_bias"),)


def _emit_part(
    builder: RewriteBuilder,
    source: ir.Value,
    weight: np.ndarray,
    index: int,
    bias: Sequence[ir.Value | None],
    geometry: ConvGeometry,
    group: int,
) -> ir.Value:
    """Append the convolution of part `index` of the split layer, and return its output.

    `source` are its input channels, `weight` and `bias` (empty: none) its parameters; the window is
    that of `geometry`, with `group` groups.
    """
    initializer = builder.constant(np.ascontiguousarray(weight), f"part{index}_weight")
    shape = list(builder.result.shape or ())
    shape[1] = len(weight)
    return builder(
        "Conv",
        [source, initializer, *bias],
        shape,
        f"part{index}",
        {**_make_conv_attributes(geometry), "group": group},
    )


def _emit_concat(builder: RewriteBuilder, parts: Sequence[ir.Value]) -> None:
    """Append the concatenation of `parts` by channels, and replace the convolution by all."""
    builder.concat_parts(parts, 1, list(builder.result.shape or ()))
    builder.replace_node()
