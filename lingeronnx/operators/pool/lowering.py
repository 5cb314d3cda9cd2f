"""Pooling: MaxPool and AvgPool2dInt; a limit returns None if kept, else the offending value.

Average pooling sums a window, including padded zeros, and divides by its area. Chips ignore or
mishandle a change of scale, so input and output share one scale; `generic` requantizes in one step.
The training side does so too, and respects count_include_pad.

A global average has a much smaller range than its input, so a shared scale wastes bits. On chips it
is a LinearInt over [1, C, height * width] instead, with weights of 1 / (height * width): it has its
own output scale, one rounding, and avoids the executor's faults of global averages.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ...ir import ir
from ...ir.attributes import AttributeValue
from ...ir.detached_nodes import make_detached_node, make_detached_value
from ...ir.plan import Affine
from ...ir.plan.power_of_two import floor_exponent
from ...targets import Target
from .. import integer_ops
from .._lowering import ExponentLookup, Op, ScalePair, Scaling, Violation, share_input_output_scale
from ..conv.lowering import CONV2D
from ..lowering_context import LoweringContext

__all__ = ["AvgPool2d", "MaxPool", "is_lowered_to_linear", "make_mean_weights"]

_MAX_WEIGHT_EXPONENT = 16  # largest exponent at which weights were measured
_MAX_MEAN_ELEMENTS = 1 << 16  # elements; largest LinearInt of many rows that was measured


def check_global_average(node: ir.Node, target: Target) -> str | None:
    """a global average fits the executor's workspace, or falls into two steps that do | choose a
    map of other sides.
    """
    source = ir.get_shape(node.inputs[0]) or ()
    if node.op_type == integer_ops.AVG_POOL2D.name:
        return _describe_inexact_average(node, source, target)
    if target.pool_limits is None or not _is_global(node, source):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    if not any(ir.get_attr(node, "pads", [0])):
        steps = plan_global_average_steps(node, target)
        return f"{height}x{width} of {source[1]} channels" if steps is None else None
    if _is_exact_global_average(height, width, int(source[1] or 0), target):
        return None
    return f"{height}x{width} of {source[1]} channels, padded"


def _is_global(node: ir.Node, source: tuple[int | None, ...]) -> bool:
    """Whether one window of the pool `node` covers the padded input, of shape `source` (NCHW).

    False if the rank is not 4 or a dimension other than the batch is unknown.
    """
    if len(source) != 4 or any(d is None for d in source[1:]):
        return False
    pads = ir.get_attr(node, "pads") or [0] * 4
    padded_size = [int(source[2 + i] or 0) + pads[i] + pads[2 + i] for i in (0, 1)]
    return list(ir.get_attr(node, "kernel_shape")) == padded_size


def _is_exact_global_average(height: int, width: int, channels: int, target: Target) -> bool:
    """Whether the executor of `target` averages a map of `height` x `width` x `channels` correctly.

    It always does if the target has no limit of the area per channel. Otherwise the area must be no
    power of two and at most that limit times `channels`.
    """
    limits = target.pool_limits
    area_per_channel = None if limits is None else limits.max_global_area_per_channel
    if area_per_channel is None:
        return True
    area = height * width
    return not _is_power_of_two(area) and area <= area_per_channel * channels


def _is_power_of_two(number: int) -> bool:
    """Whether a positive `number` is a power of two."""
    return number & (number - 1) == 0


def _describe_inexact_average(
    node: ir.Node, source: tuple[int | None, ...], target: Target
) -> str | None:
    """Describe the integer average `node` if `target` computes it incorrectly, else return None.

    That concerns global averages, of an input of shape `source`: it errs if the area is no power of
    two and exceeds the target's area per channel times the channels. The text gives the sizes, such
    as "7x7 of 64 channels".
    """
    limits = target.pool_limits
    area_per_channel = None if limits is None else limits.max_global_area_per_channel
    if area_per_channel is None or not _is_global(node, source):
        return None
    height, width = ir.get_attr(node, "kernel_shape")
    area, max_area = height * width, area_per_channel * int(source[1] or 0)
    if _is_power_of_two(area) or area <= max_area:
        return None
    return f"{height}x{width} of {source[1]} channels"


def _step_fits_limits(
    step: tuple[bool, int, int], size: tuple[int, int], channels: int, target: Target
) -> bool:
    """Whether `step` (is convolution, height, width) of a global average keeps the target's limits.

    Its input has `channels` maps of `size` (height, width). The convolution is depthwise; the
    stride is the kernel size, or 1 if the kernel covers the input.
    """
    is_convolution, *kernel = step
    inputs = [make_detached_value([1, channels, *size])]
    attributes: dict[str, AttributeValue] = {
        "kernel_shape": kernel,
        "strides": [1, 1] if list(size) == kernel else kernel,
        "pads": [0] * 4,
    }
    op: Op = AVERAGE
    if is_convolution:
        op = CONV2D
        inputs.append(make_detached_value([channels, 1, *kernel]))
        attributes["group"] = channels
    output = [1, channels, *(n // k for n, k in zip(size, kernel, strict=True))]
    node = make_detached_node(op.name, inputs, output, attributes, domain=op.integer_op.domain)
    return not op.find_violations(node, target)


def plan_global_average_steps(node: ir.Node, target: Target) -> list[tuple[bool, int, int]] | None:
    """Split the global average `node` into one or two steps that `target` computes correctly.

    One step is preferred: an average pool, or, for a power-of-two area, a depthwise convolution
    with ones, which shifts the same sum by the same amount. Otherwise a first pool averages smaller
    windows, which is correct up to the largest area of the target. Of all such splits, the one
    whose two areas are closest is taken.

    Returns
    -------
    list of (bool, int, int) or None
        Steps as (is convolution, height, width), or None if no split is possible.
    """
    height, width = ir.get_attr(node, "kernel_shape")
    channels = int((ir.get_shape(node.inputs[0]) or (1, 1))[1] or 1)

    single_step = _plan_last_step(height, width, channels, target)
    if single_step is not None:
        return [single_step]
    if target.pool_limits is None:
        return None
    splits = []
    for h, w in itertools.product(_divisors(height), _divisors(width)):
        area = h * w
        if not 1 < area < height * width or area > target.pool_limits.max_average_area:
            continue
        last_size = height // h, width // w
        first_step, last_step = (False, h, w), _plan_last_step(*last_size, channels, target)
        if last_step is None:
            continue
        if not _step_fits_limits(first_step, (height, width), channels, target):
            continue
        if _step_fits_limits(last_step, last_size, channels, target):
            splits.append((abs(area - height * width // area), [first_step, last_step]))
    return min(splits)[1] if splits else None


def _divisors(number: int) -> list[int]:
    """Return the divisors of a positive `number` in ascending order, with 1 and itself."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _plan_last_step(
    height: int, width: int, channels: int, target: Target
) -> tuple[bool, int, int] | None:
    """Return a step (is convolution, height, width) that averages `height` x `width` x `channels`.

    It is an average pool if the executor of `target` computes that correctly, otherwise a
    convolution if the area is a power of two and the kernel within the target's limit; else None is
    returned.
    """
    if _is_exact_global_average(height, width, channels, target):
        return False, height, width
    limits = target.conv_limits
    fits_kernel = limits is not None and max(height, width) <= limits.max_kernel
    return (True, height, width) if fits_kernel and _is_power_of_two(height * width) else None


def _mean_weight_exponent(area: int) -> int:
    """Return the largest exponent q, up to 16, for which the weights 2^q / `area` fit in int8."""
    return min(_MAX_WEIGHT_EXPONENT, floor_exponent(127 * area))


def make_mean_weights(area: int) -> tuple[np.ndarray, float]:
    """Return int8 weights [1, `area`] of a mean of `area` values, and their scale 2^q.

    Each weight is 2^q / area rounded down or up; they are distributed evenly and sum to 2^q. The
    exponent q is the largest up to 16 for which they fit.
    """
    exponent = _mean_weight_exponent(area)
    steps = (np.arange(area + 1, dtype=np.int64) << exponent) // area
    return np.diff(steps).astype(np.int8)[None], 2.0**exponent


def is_lowered_to_linear(node: ir.Node, target: Target) -> bool:
    """Whether the float global average `node` becomes a LinearInt, with an own scale of its output.

    It does if `target` has LinearInt and its pools need the same scale at input and output, if
    there are no pads, and if a sample has at most 2^16 elements.
    """
    source = ir.get_shape(node.inputs[0]) or ()
    if node.domain or target.pool_limits is None or not target.pool_limits.needs_same_scale:
        return False
    if not _is_global(node, source) or any(ir.get_attr(node, "pads") or [0]):
        return False
    elements = math.prod(int(dim or 1) for dim in source[1:])
    return target.can_run(integer_ops.LINEAR.name) and elements <= _MAX_MEAN_ELEMENTS


def _make_window_attributes(node: ir.Node) -> dict[str, AttributeValue]:
    """Return kernel_shape, strides, pads and ceil_mode of the pool `node`, as ONNX defaults them.

    The strides become 1 if one window covers the whole padded map, as the packer checks them. A
    single window on a larger map keeps its strides: with 1 there would be further windows.
    """
    kernel = list(ir.get_attr(node, "kernel_shape"))
    rank = len(kernel)
    strides = ir.get_attr(node, "strides") or [1] * rank
    if _is_global(node, ir.get_shape(node.inputs[0]) or ()):
        strides = [1] * rank
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": ir.get_attr(node, "pads") or [0] * 2 * rank,
        "ceil_mode": ir.get_attr(node, "ceil_mode", 0),
    }


def _explain_pool_rejection(node: ir.Node) -> str | None:
    """Return the reason why the pool `node` has no integer form, or None if it has one.

    Reasons: `auto_pad` other than NOTSET, a window that is not 2-D, dilations other than 1, and
    `ceil_mode`.
    """
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return "its padding depends on an input size that is not known"
    if len(ir.get_attr(node, "kernel_shape")) != 2:
        return "its window is not two-dimensional"
    if any(d != 1 for d in ir.get_attr(node, "dilations", [1])):
        return "its window is dilated"
    return "ceil_mode adds windows past the edge" if ir.get_attr(node, "ceil_mode", 0) else None


class MaxPool(Op):
    """Maximum of each window, without padding."""

    integer_op = integer_ops.MAX_POOL
    passes_channel_factors = True
    floats = (("", "MaxPool"),)
    preserves_integers = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the MaxPool `node` has no integer form, or None if it has one.

        Reasons: the output of indices is used, `auto_pad` is not NOTSET, the window is not 2-D,
        dilations are not 1, or `ceil_mode` is set.
        """
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return "its indices are used"
        return _explain_pool_rejection(node)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit MaxPool on the integers into `context`, with the window of `node`.

        The scale is kept.
        """
        context.emit(
            integer_ops.MAX_POOL, node, context.inputs(node), _make_window_attributes(node)
        )


def _shared_average_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that input and output of the average `node` share a scale, or none.

    There is none if the pools of `target` do not need it, or if a global average becomes a
    LinearInt.
    """
    if target.pool_limits is None or not target.pool_limits.needs_same_scale:
        return []
    return [] if is_lowered_to_linear(node, target) else share_input_output_scale(node, target)


def _max_output_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of an average: that of input + weights.

    `exponent` gives that of a tensor by name. It holds where `node` becomes a product by weights of
    about 1 / area, which is only shifted right.
    """
    area = math.prod(ir.get_attr(node, "kernel_shape"))
    return exponent(ir.input_name(node)) + _mean_weight_exponent(area)


class AvgPool2d(Op):
    """Average of each window: AvgPool2dInt."""

    integer_op = integer_ops.AVG_POOL2D
    passes_channel_factors = True
    scale_constraints = Scaling(
        shared_scales=_shared_average_scale, max_output_exponent=_max_output_exponent
    )
    floats = (("", "AveragePool"),)
    constraints = (check_global_average,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the average `node` has no integer form, or None if it has one.

        Reasons: padding that is not counted (`count_include_pad` 0), `auto_pad` other than NOTSET,
        a window that is not 2-D, dilations other than 1, and `ceil_mode`.
        """
        if any(ir.get_attr(node, "pads", [0])) and not ir.get_attr(node, "count_include_pad", 0):
            return "count_include_pad is 0, but the NPU divides by the whole window"
        return _explain_pool_rejection(node)

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return the limits of `target` that `node` violates; none if it becomes a LinearInt."""
        return [] if is_lowered_to_linear(node, target) else super().find_violations(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the average into `context`: AvgPool2dInt, LinearInt, or one or two planned steps.

        A global average becomes a LinearInt if pools of the target need equal scales and it is
        small enough, and otherwise the steps that the target computes correctly: average pools, of
        which the last may be a depthwise Conv2dInt of ones. After a pool, that one gets a bias
        against the rounding of both.
        """
        if is_lowered_to_linear(node, context.target):
            _emit_mean_as_linear(node, context)
            return
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        qparams_attrs = integer_ops.AVG_POOL2D.make_qparams_attributes(x, o)
        source = ir.require_shape(node.inputs[0])
        steps = None
        if _is_global(node, source):
            steps = plan_global_average_steps(node, context.target)
        if steps is None or steps == [(False, *ir.get_attr(node, "kernel_shape"))]:
            context.emit(
                integer_ops.AVG_POOL2D,
                node,
                context.inputs(node),
                {**_make_window_attributes(node), **qparams_attrs},
            )
            return
        value, channels = context.get_integer_input(node, 0), int(source[1] or 1)
        if len(steps) == 2:
            kernel = list(steps[0][1:])
            size = [int(dim or 1) // k for dim, k in zip(source[2:], kernel, strict=True)]
            shape = [*source[:2], *size]
            window = {"kernel_shape": kernel, "strides": kernel, "pads": [0] * 4, "ceil_mode": 0}
            value = context.emit_intermediate(
                integer_ops.AVG_POOL2D,
                node,
                "tiles",
                [value],
                {**window, **qparams_attrs},
                shape,
                x,
            )
        is_convolution, *kernel = steps[-1]
        if not is_convolution:
            window = {"kernel_shape": kernel, "strides": [1, 1], "pads": [0] * 4, "ceil_mode": 0}
            context.emit(integer_ops.AVG_POOL2D, node, [value], {**window, **qparams_attrs})
            return
        name = node.outputs[0].name
        ones = context.array(f"{name}_ones", np.ones((channels, 1, *kernel), np.int8))
        attrs = {
            "kernel_shape": kernel,
            "strides": [1, 1],
            "pads": [0] * 4,
            "dilations": [1, 1],
            "group": channels,
            "parameter_bits": 8,
            "scale_w": float(math.prod(kernel)),
            **qparams_attrs,
        }
        inputs = [value, ones]
        if len(steps) == 2:
            # Both steps round half up; the bias subtracts the integer part of the mean excess.
            excess = int(math.prod(kernel) / (2 * math.prod(steps[0][1:])) + 0.5)
            inputs.append(context.array(f"{name}_excess", np.full(channels, -excess, np.int32)))
        context.emit(integer_ops.CONV2D, node, inputs, attrs)


def _emit_mean_as_linear(node: ir.Node, low: LoweringContext) -> None:
    """Emit the mean over height and width of input 0 of `node` into `low`, as LinearInt.

    Two Reshapes surround it: [1, C, H, W] -> [1, C, H * W] -> [1, C, 1] -> [1, C, 1, 1]; the weight
    has H * W almost equal entries.
    """
    x, o, name = low.input_qparams(node, 0), low.output_qparams(node), ir.output_name(node)
    _, channels, height, width = (int(d or 1) for d in ir.require_shape(node.inputs[0]))
    values, scale = make_mean_weights(height * width)
    flat, result = [1, channels, height * width], [1, channels, 1, 1]
    target = low.array(f"{name}_flat_shape", np.array(flat, np.int64))
    value = low.emit_intermediate(
        integer_ops.RESHAPE, node, "flat", [low.get_integer_input(node, 0), target], {}, flat, x
    )
    attrs = integer_ops.LINEAR.make_qparams_attributes(x, Affine(scale), o)
    weight = low.array(f"{name}_weights", values)
    value = low.emit_intermediate(
        integer_ops.LINEAR, node, "mean", [value, weight], attrs, [*flat[:2], 1], o
    )
    low.emit(
        integer_ops.RESHAPE,
        node,
        [value, low.array(f"{name}_shape", np.array(result, np.int64))],
        {},
    )


AVERAGE = AvgPool2d()
