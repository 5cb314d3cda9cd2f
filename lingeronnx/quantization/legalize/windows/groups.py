"""Split convolutions by group or by filter, or merge their groups, exactly.

Group k of a grouped transposed convolution reads its part of the input channels and has its part of
the weight, [I/G, O/G, k...], which has the inputs on axis 0.

A depthwise convolution with several filters per channel becomes one per filter. ONNX numbers the
outputs ``channel * multiplier + filter``. The concatenated parts have the order (filter, channel),
so Reshape, Transpose and Reshape interleave them.

Groups of several channels with one output each become one convolution of all channels, whose weight
has zeros outside the blocks on its diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....operators.lowerings import find_lowering_rule
from ....targets import Target
from .._base import RewriteBuilder, get_constant_bias, get_sizes, match_conv

__all__ = ["merge_groups", "split_conv_transpose_groups", "split_depthwise"]

_MAX_GROUPS = 16


def split_conv_transpose_groups(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a grouped ConvTranspose by one per group and a Concat, if these meet all limits.

    Weights and bias must be constants, and the groups 2 to `_MAX_GROUPS`. Returns the description
    and the cost of the change, or None without a change.
    """
    group_count = int(ir.get_attr(node, "group", 1))
    if node.op_type != "ConvTranspose" or node.domain or not 1 < group_count <= _MAX_GROUPS:
        return None
    weight, bias = (ir.const_value(value) for value in (*node.inputs[1:], None)[:2])
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if weight is None or (has_bias and bias is None):
        return None
    if len(node.outputs[0].shape or ()) != weight.ndim:
        return None
    builder = RewriteBuilder(model, node)
    parts = [_emit_group(builder, weight, bias, group_count, group) for group in range(group_count)]
    if not all(_is_supported(part, target) for part in builder.nodes):
        builder.discard()
        return None
    builder.concat_parts(parts, 1, list(builder.result.shape or ()))
    builder.replace_node()
    return f"transposed convolution split into its {group_count} groups", "exact"


def _emit_group(
    builder: RewriteBuilder,
    weight: np.ndarray,
    bias: np.ndarray | None,
    group_count: int,
    group: int,
) -> ir.Value:
    """Append the transposed convolution of group number `group`; return its output.

    `weight` and `bias` (None: none) are those of all `group_count` groups.
    """
    node, suffix = builder.node, f"part{group}"
    inputs, outputs = weight.shape[0] // group_count, weight.shape[1]
    start, end = group * inputs, (group + 1) * inputs
    source = builder.slice_axis(ir.require_input(node), 1, start, end, f"{suffix}_channels")
    group_weight = np.ascontiguousarray(weight[start:end])
    operands = [source, builder.constant(group_weight, f"{suffix}_weight")]
    if bias is not None:
        group_bias = np.ascontiguousarray(bias[group * outputs : (group + 1) * outputs])
        operands.append(builder.constant(group_bias, f"{suffix}_bias"))
    attributes: dict[str, AttributeValue] = {
        key: ir.get_attr(node, key) for key in node.attributes if key != "group"
    }
    shape = list(builder.result.shape or ())
    shape[1] = outputs
    return builder("ConvTranspose", operands, shape, suffix, attributes)


def _is_supported(node: ir.Node, target: Target) -> bool:
    """Whether `node` has a lowering rule, and exceeds no limit of `target`."""
    op, _ = find_lowering_rule(node, target)
    return op is not None and not op.find_violations(node, target)


_MAX_MULTIPLIER = 16


def split_depthwise(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a depthwise convolution with several filters per channel by one for each filter.

    The results are interleaved again. Only if the target says that this fixes a limit that the node
    breaks, with up to `_MAX_MULTIPLIER` filters. Returns the description and the cost of the
    change, or None without a change.
    """
    conv = match_conv(node, target)
    if conv is None or not target.needs_rewrite(node, "split-depthwise"):
        return None
    geometry, weight = conv
    multiplier, channels = geometry.outputs // geometry.inputs, geometry.inputs
    if multiplier > _MAX_MULTIPLIER:
        return None
    builder = RewriteBuilder(model, node)
    bias = get_constant_bias(node)
    batch: Any = (builder.result.shape or ["N"])[0]
    sizes = get_sizes(geometry.result[2:])
    attributes = {
        "kernel_shape": list(geometry.kernel),
        "strides": list(geometry.strides),
        "pads": list(geometry.pads),
        "dilations": list(geometry.dilations),
        "group": channels,
    }
    parts = []
    for index in range(multiplier):
        filters = np.ascontiguousarray(weight[index::multiplier])
        inputs = [ir.require_input(node), builder.constant(filters, f"filter{index}")]
        if bias is not None:
            filter_bias = np.ascontiguousarray(bias[index::multiplier])
            inputs.append(builder.constant(filter_bias, f"bias{index}"))
        shape = [batch, channels, *sizes]
        parts.append(builder("Conv", inputs, shape, f"part{index}", attributes))
    _emit_interleaving(builder, parts, channels, sizes)
    builder.replace_node()
    description = (
        f"{channels} channels with {multiplier} filters each split into {multiplier} depthwise "
        "convolutions, interleaved"
    )
    return description, "exact"


def _emit_interleaving(
    builder: RewriteBuilder, parts: Sequence[ir.Value], channels: int, sizes: Sequence[int]
) -> None:
    """Append the concatenation of `parts` [N, channels, *sizes] with their channels interleaved.

    Channel c of part p becomes channel c * parts + p of the result, the output of the last node.
    """
    batch: Any = (builder.result.shape or ["N"])[0]
    count, area = len(parts), math.prod(sizes)
    shape = [batch, count * channels, *sizes]
    joined = builder("Concat", parts, shape, "joined", {"axis": 1})
    by_filter = builder.reshape(joined, [count, channels, area], "by_filter")
    shape = [batch, channels, count, area]
    interleaved = builder("Transpose", [by_filter], shape, "woven", {"perm": [0, 2, 1, 3]})
    builder.reshape(interleaved, [count * channels, *sizes], "restored")


_MAX_MERGED_GROUPS = 64  # weights and multiply-accumulates grow by this factor


def merge_groups(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a convolution with one output and several inputs per group by one without groups.

    Its additional weights are zeros. It has up to `_MAX_MERGED_GROUPS` groups. Returns the
    description and the cost of the change, or None without a change if the convolution is another
    one or the new one exceeds a limit.
    """
    conv = match_conv(node, target)
    if conv is None:
        return None
    geometry, weight = conv
    outputs, channels = weight.shape[:2]
    if not 1 < geometry.group <= _MAX_MERGED_GROUPS or geometry.group != outputs or channels == 1:
        return None
    merged = np.zeros((outputs, outputs * channels, *weight.shape[2:]), weight.dtype)
    for group in range(outputs):
        merged[group, group * channels : (group + 1) * channels] = weight[group]
    builder = RewriteBuilder(model, node)
    operands = [ir.require_input(node), builder.constant(merged, "all_channels"), *node.inputs[2:]]
    attributes: dict[str, AttributeValue] = {
        key: ir.get_attr(node, key) for key in node.attributes if key != "group"
    }
    builder("Conv", operands, list(builder.result.shape or ()), "merged", attributes)
    if not builder.replace_node_if_supported(target):
        return None
    description = f"{outputs} groups of {channels} channels merged, with zeros between them"
    return description, "exact"
