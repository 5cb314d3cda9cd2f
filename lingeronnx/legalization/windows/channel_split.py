"""A convolution too large for the chip in parts.

By outputs or groups (exact), or by input channels (a sum).
Too many weights ask for fewer outputs. The rows under the kernel grow with the input channels, so
that the limit of the line buffer asks for a sum of parts, each of which is rounded. Maps that are
too large for the memory are no matter of channels: `row_tiles` cuts them, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph import ir
from ...graph.attributes import AttributeValue
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...ops.layers.conv import CONV2D, ConvGeometry
from ...targets import Target
from .._base import RewriteBuilder, add_partial_sums, format_rounding_cost, match_conv, split_range

__all__ = ["split_channels"]

_MOST_PARTS = 16


def split_channels(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Split by groups, by outputs or by inputs into as few parts as are within the limits."""
    conv = match_conv(node, target)
    if conv is None or len(conv[0].kernel) != 2 or target.conv_limits is None:
        return None
    g, weight = conv
    if g.group > 1:
        return _split_groups(model, node, g, weight, target)
    return _split_outputs(model, node, g, weight, target) or _split_inputs(
        model, node, g, weight, target
    )


def _part_fits_limits(
    target: Target, g: ConvGeometry, inputs: int, outputs: int, group: int
) -> bool:
    """Whether a part of so many channels is within all limits."""
    space, result = [int(d or 0) for d in g.input_shape[2:]], [int(d or 0) for d in g.result[2:]]
    attributes = {**_make_conv_attributes(g), "group": group}
    source = make_detached_value([1, inputs, *space], computed=True)
    weight = make_detached_value([outputs, inputs // group, *g.kernel])
    return not CONV2D.find_violations(
        make_detached_node("Conv", [source, weight], [1, outputs, *result], attributes), target
    )


def _make_conv_attributes(g: ConvGeometry) -> dict[str, AttributeValue]:
    return {
        "kernel_shape": list(g.kernel),
        "strides": list(g.strides),
        "pads": list(g.pads),
        "dilations": list(g.dilations),
    }


def _find_coarsest_split(
    total: int, align: int, fits: Callable[[int], bool]
) -> list[tuple[int, int]] | None:
    """Return the ranges of the coarsest cut whose parts all fit."""
    for parts in range(2, min(total, _MOST_PARTS) + 1):
        ranges = split_range(total, parts, align)
        if 1 < len(ranges) <= _MOST_PARTS and all(fits(end - start) for start, end in ranges):
            return ranges
    return None


def _split_outputs(
    model: ir.Model, node: ir.Node, g: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    assert target.conv_limits is not None
    ranges = _find_coarsest_split(
        g.outputs,
        target.conv_limits.channel_align,
        lambda size: _part_fits_limits(target, g, g.inputs, size, 1),
    )
    if ranges is None:
        return None
    make = RewriteBuilder(model, node)
    source = ir.require_input(node)
    parts = [
        _emit_part(
            make, source, weight[start:end], number, _slice_bias(make, number, start, end), g, 1
        )
        for number, (start, end) in enumerate(ranges)
    ]
    _emit_concat(make, parts)
    return f"{g.outputs} output channels in {len(ranges)} parts side by side", "exact"


def _split_inputs(
    model: ir.Model, node: ir.Node, g: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    assert target.conv_limits is not None
    ranges = _find_coarsest_split(
        g.inputs,
        target.conv_limits.channel_align,
        lambda size: _part_fits_limits(target, g, size, g.outputs, 1),
    )
    if ranges is None:
        return None
    make = RewriteBuilder(model, node)
    parts = []
    for number, (start, end) in enumerate(ranges):
        source = make.slice_axis(ir.require_input(node), 1, start, end, "channels")
        parts.append(
            _emit_part(
                make,
                source,
                weight[:, start:end],
                number,
                node.inputs[2:3] if number == 0 else (),
                g,
                1,
            )
        )
    add_partial_sums(make, parts)
    make.replace_node()
    return f"{g.inputs} input channels in {len(ranges)} parts that are added", format_rounding_cost(
        len(ranges)
    )


def _split_groups(
    model: ir.Model, node: ir.Node, g: ConvGeometry, weight: np.ndarray, target: Target
) -> tuple[str, str] | None:
    deep, each = g.inputs // g.group, g.outputs // g.group
    ranges = _find_coarsest_split(
        g.group, 1, lambda size: _part_fits_limits(target, g, size * deep, size * each, size)
    )
    if ranges is None:
        return None
    make = RewriteBuilder(model, node)
    parts = []
    for number, (start, end) in enumerate(ranges):
        source = make.slice_axis(ir.require_input(node), 1, start * deep, end * deep, "channels")
        a, b = start * each, end * each
        parts.append(
            _emit_part(
                make, source, weight[a:b], number, _slice_bias(make, number, a, b), g, end - start
            )
        )
    _emit_concat(make, parts)
    return f"{g.group} groups in {len(ranges)} parts side by side", "exact"


def _slice_bias(
    make: RewriteBuilder, number: int, start: int, end: int
) -> Sequence[ir.Value | None]:
    bias = ir.const_value(make.node.inputs[2]) if len(make.node.inputs) > 2 else None
    return (
        ()
        if bias is None
        else (make.constant(np.ascontiguousarray(bias[start:end]), f"part{number}_bias"),)
    )


def _emit_part(
    make: RewriteBuilder,
    source: ir.Value,
    weight: np.ndarray,
    number: int,
    bias: Sequence[ir.Value | None],
    g: ConvGeometry,
    group: int,
) -> ir.Value:
    initializer = make.constant(np.ascontiguousarray(weight), f"part{number}_weight")
    shape = list(make.result.shape or ())
    shape[1] = len(weight)
    return make(
        "Conv",
        [source, initializer, *bias],
        shape,
        f"part{number}",
        {**_make_conv_attributes(g), "group": group},
    )


def _emit_concat(make: RewriteBuilder, parts: Sequence[ir.Value]) -> None:
    make.concat_parts(parts, 1, list(make.result.shape or ()))
    make.replace_node()
