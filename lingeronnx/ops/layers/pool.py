"""Pooling: MaxPool on integers and AvgPool2dInt.

Average pooling sums the window, padded zeros included, and divides by the whole area. Chips ignore
or mis-handle a scale change there, so input and output share one scale; `generic` requantizes in
one step. The training side does too, and honours how the padding counts.

The average of a whole map has a much smaller range than the map, so that a shared scale wastes
bits. On chips it is a LinearInt over [1, C, height * width] instead, whose weights stand for 1 /
(height * width): an output scale of its own, one rounding, and none of the executor's faults of
global averages.
"""

from __future__ import annotations

import math

import numpy as np

from ... import formats
from ...graph import ir
from ...graph.attributes import AttributeValue
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...lowering import LoweringContext
from ...plan import Affine
from ...plan.power_of_two import floor_exponent
from ...targets import Target
from .._base import Op, Violation
from ..scale_constraints import ExponentLookup, ScalePair, Scaling, share_input_output_scale
from .conv import CONV2D

__all__ = ["AvgPool2d", "MaxPool", "is_lowered_to_linear", "make_mean_weights"]

_MAX_WEIGHT_EXPONENT = 16  # the largest exponent that weights were measured at
_MAX_MEAN_ELEMENTS = 1 << 16  # elements: what a LinearInt of many rows was measured with


def check_global_average(node: ir.Node, target: Target) -> object:
    """a global average fits the executor's workspace, or falls into two steps that do | choose a
    map of other sides.
    """
    source = ir.get_shape(node.inputs[0]) or ()
    if node.op_type == formats.AVG_POOL2D.name:
        return _describe_inexact_average(node, source, target)
    if target.pool_limits is None or not _is_global(node, source):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    padded = any(ir.get_attr(node, "pads", [0]))
    steps = (
        None
        if padded and not _is_exact_global_average(height, width, int(source[1] or 0), target)
        else plan_global_average_steps(node, target)
    )
    return (
        f"{height}x{width} of {source[1]} channels{', padded' if padded else ''}"
        if steps is None
        else None
    )


def _is_global(node: ir.Node, source: tuple[int | None, ...]) -> bool:
    """Whether the window covers the whole padded map, so that there is one."""
    if len(source) != 4 or any(d is None for d in source[1:]):
        return False
    pads = ir.get_attr(node, "pads") or [0] * 4
    whole = [int(source[2 + i] or 0) + pads[i] + pads[2 + i] for i in (0, 1)]
    return list(ir.get_attr(node, "kernel_shape")) == whole


def _is_exact_global_average(height: int, width: int, channels: int, target: Target) -> bool:
    """Whether a global average over height x width comes out right."""
    per_channel = (
        target.pool_limits.max_global_area_per_channel if target.pool_limits is not None else None
    )
    area = height * width
    return per_channel is None or (area & (area - 1) != 0 and area <= per_channel * channels)


def _describe_inexact_average(
    node: ir.Node, source: tuple[int | None, ...], target: Target
) -> str | None:
    """Return the sizes of an integer average over a whole map that comes out wrong in one step."""
    per_channel = (
        target.pool_limits.max_global_area_per_channel if target.pool_limits is not None else None
    )
    if per_channel is None or not _is_global(node, source):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    area, most = height * width, per_channel * int(source[1] or 0)
    return (
        f"{height}x{width} of {source[1]} channels" if area & (area - 1) and area > most else None
    )


def _step_fits_limits(
    step: tuple[bool, int, int], size: tuple[int, int], channels: int, target: Target
) -> bool:
    """Whether a step over a map of `size` is within the limits."""
    by_ones, *sides = step
    inputs = [
        make_detached_value([1, channels, *size]),
        *([make_detached_value([channels, 1, *sides])] if by_ones else []),
    ]
    result = [1, channels, *(n // k for n, k in zip(size, sides, strict=True))]
    still = list(size) == sides
    attributes = {
        "kernel_shape": sides,
        "strides": [1, 1] if still else sides,
        "pads": [0] * 4,
        **({"group": channels} if by_ones else {}),
    }
    op: Op = CONV2D if by_ones else AVERAGE
    return not op.find_violations(
        make_detached_node(op.name, inputs, result, attributes, domain=op.integer_op.domain), target
    )


def plan_global_average_steps(node: ir.Node, target: Target) -> list[tuple[bool, int, int]] | None:
    """Return how to average a whole map: one step or two, each (as a convolution?, height, width);
    None for no way.

    A power-of-two area that fits a kernel is a depthwise convolution by ones, which shifts the same
    sum by the same amount. Otherwise a first step averages smaller windows, which is right for any
    area. Of all ways the one that rounds half up least often: the two areas as equal as can be.
    """
    height, width = ir.get_attr(node, "kernel_shape")
    channels = int((ir.get_shape(node.inputs[0]) or (1, 1))[1] or 1)

    def last(h: int, w: int) -> list[tuple[bool, int, int]] | None:
        if _is_exact_global_average(h, w, channels, target):
            return [(False, h, w)]
        by_ones = (
            h * w & (h * w - 1) == 0
            and target.conv_limits is not None
            and max(h, w) <= target.conv_limits.max_kernel
        )
        return [(True, h, w)] if by_ones else None

    step = last(height, width)
    if step is not None or target.pool_limits is None:
        return step
    ways = []
    for h in (d for d in range(1, height + 1) if height % d == 0):
        for w in (d for d in range(1, width + 1) if width % d == 0):
            rest = last(height // h, width // w) if 1 < h * w < height * width else None
            if rest is None or h * w > target.pool_limits.max_average_area:
                continue
            last_size = height // h, width // w
            if _step_fits_limits(
                (False, h, w), (height, width), channels, target
            ) and _step_fits_limits(rest[0], last_size, channels, target):
                ways.append((abs(h * w - height * width // (h * w)), [(False, h, w), *rest]))
    return min(ways)[1] if ways else None


def _mean_weight_exponent(area: int) -> int:
    """Return q at which the weights of a mean, 2^q / area, fill 7 bits, as far as scales of weights
    go.
    """
    return min(_MAX_WEIGHT_EXPONENT, floor_exponent(127 * area))


def make_mean_weights(area: int) -> tuple[np.ndarray, float]:
    """Return int8 weights [1, area] and their scale: each 2^q / area or one off, spread evenly,
    their sum is 2^q.
    """
    exponent = _mean_weight_exponent(area)
    steps = (np.arange(area + 1, dtype=np.int64) << exponent) // area
    return np.diff(steps).astype(np.int8)[None], 2.0**exponent


def is_lowered_to_linear(node: ir.Node, target: Target) -> bool:
    """Whether the average `node` of a whole map is written as a LinearInt, which has a scale of its
    own.
    """
    source = ir.get_shape(node.inputs[0]) or ()
    if node.domain or target.pool_limits is None or not target.pool_limits.needs_same_scale:
        return False
    if not _is_global(node, source) or any(ir.get_attr(node, "pads") or [0]):
        return False
    return (
        target.can_run(formats.LINEAR.name)
        and math.prod(int(d or 1) for d in source[1:]) <= _MAX_MEAN_ELEMENTS
    )


def _make_window_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """Return the attributes of a window; one that has no next does not move: a stride would count
    for the packer.
    """
    kernel, result = list(ir.get_attr(node, "kernel_shape")), ir.get_shape(node.outputs[0]) or ()
    rank = len(kernel)
    still = all(d == 1 for d in result[2:])
    return {
        "kernel_shape": kernel,
        "strides": [1] * rank if still else ir.get_attr(node, "strides") or [1] * rank,
        "pads": ir.get_attr(node, "pads") or [0] * 2 * rank,
        "ceil_mode": ir.get_attr(node, "ceil_mode", 0),
    }


def _explain_pool_rejection(node: ir.Node) -> str | None:
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return "its padding depends on an input size that is not known"
    if len(ir.get_attr(node, "kernel_shape")) != 2:
        return "its window is not two-dimensional"
    if any(d != 1 for d in ir.get_attr(node, "dilations", [1])):
        return "its window is dilated"
    return "ceil_mode adds windows past the edge" if ir.get_attr(node, "ceil_mode", 0) else None


class MaxPool(Op):
    """Largest of a window; padding never wins."""

    integer_op = formats.MAX_POOL
    floats = (("", "MaxPool"),)
    preserves_integers = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Two dimensions, one output, no dilation."""
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return "its indices are used"
        return _explain_pool_rejection(node)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the same operator on integers."""
        context.emit(formats.MAX_POOL, node, context.inputs(node), _make_window_attributes(node))


def _shared_average_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Input and output share a scale where a change of scale comes out wrong."""
    same = target.pool_limits is not None and target.pool_limits.needs_same_scale
    return (
        share_input_output_scale(node, target)
        if same and not is_lowered_to_linear(node, target)
        else []
    )


def _max_output_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """A mean by weights shifts to the right: q_o <= q_x + q_w."""
    return exponent(ir.input_name(node)) + _mean_weight_exponent(
        math.prod(ir.get_attr(node, "kernel_shape"))
    )


class AvgPool2d(Op):
    """The mean of each window becomes AvgPool2dInt."""

    integer_op = formats.AVG_POOL2D
    scale_constraints = Scaling(
        shared_scales=_shared_average_scale, max_output_exponent=_max_output_exponent
    )
    floats = (("", "AveragePool"),)
    constraints = (check_global_average,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Padding, if any, counts; two dimensions."""
        if any(ir.get_attr(node, "pads", [0])) and not ir.get_attr(node, "count_include_pad", 0):
            return (
                "its padding does not count (count_include_pad = 0); the NPU divides by the "
                "whole window"
            )
        return _explain_pool_rejection(node)

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """None where it does not become AvgPool2dInt."""
        return [] if is_lowered_to_linear(node, target) else super().find_violations(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with both scales; a global average as a LinearInt, or in the steps that the platform
        gets right.
        """
        if is_lowered_to_linear(node, context.target):
            _emit_mean_as_linear(node, context)
            return
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        scales = formats.AVG_POOL2D.scales(x, o)
        source = ir.require_shape(node.inputs[0])
        steps = (
            plan_global_average_steps(node, context.target) if _is_global(node, source) else None
        )
        if steps is None or steps == [(False, *ir.get_attr(node, "kernel_shape"))]:
            context.emit(
                formats.AVG_POOL2D,
                node,
                context.inputs(node),
                {**_make_window_attributes(node), **scales},
            )
            return
        value, channels = context.get_integer_input(node, 0), int(source[1] or 1)
        if len(steps) == 2:
            sides = list(steps[0][1:])
            shape = [
                *source[:2],
                *(int(d or 1) // s for d, s in zip(source[2:], sides, strict=True)),
            ]
            window = {"kernel_shape": sides, "strides": sides, "pads": [0] * 4, "ceil_mode": 0}
            value = context.emit_intermediate(
                formats.AVG_POOL2D, node, "tiles", [value], {**window, **scales}, shape, x
            )
        by_ones, *sides = steps[-1]
        if not by_ones:
            window = {"kernel_shape": sides, "strides": [1, 1], "pads": [0] * 4, "ceil_mode": 0}
            context.emit(formats.AVG_POOL2D, node, [value], {**window, **scales})
            return
        name = node.outputs[0].name
        ones = context.array(f"{name}_ones", np.ones((channels, 1, *sides), np.int8))
        attrs = {
            "kernel_shape": sides,
            "strides": [1, 1],
            "pads": [0] * 4,
            "dilations": [1, 1],
            "group": channels,
            "parameter_bits": 8,
            "scale_w": float(math.prod(sides)),
            **scales,
        }
        inputs = [value, ones]
        if len(steps) == 2:
            # Both steps round half up: what that adds on average is taken out of the sum, as far as
            # it is whole.
            excess = int(math.prod(sides) / (2 * math.prod(steps[0][1:])) + 0.5)
            inputs.append(context.array(f"{name}_excess", np.full(channels, -excess, np.int32)))
        context.emit(formats.CONV2D, node, inputs, attrs)


def _emit_mean_as_linear(node: ir.Node, low: LoweringContext) -> None:
    """Emit LinearInt between two Reshapes: the sum over space of x * w."""
    x, o, name = low.input_qparams(node, 0), low.output_qparams(node), ir.output_name(node)
    _, channels, height, width = (int(d or 1) for d in ir.require_shape(node.inputs[0]))
    values, scale = make_mean_weights(height * width)
    flat, result = [1, channels, height * width], [1, channels, 1, 1]
    target = low.array(f"{name}_flat_shape", np.array(flat, np.int64))
    value = low.emit_intermediate(
        formats.RESHAPE, node, "flat", [low.get_integer_input(node, 0), target], {}, flat, x
    )
    attrs = formats.LINEAR.scales(x, Affine(scale), o)
    weight = low.array(f"{name}_weights", values)
    value = low.emit_intermediate(
        formats.LINEAR, node, "mean", [value, weight], attrs, [*flat[:2], 1], o
    )
    low.emit(
        formats.RESHAPE, node, [value, low.array(f"{name}_shape", np.array(result, np.int64))], {}
    )


AVERAGE = AvgPool2d()
