"""Pad: iqPad, or depthwise convolutions; a limit returns None if kept, else the offending value.

The convolutions have a single tap and pad zeros.

A convolution with one tap of 1 among zeros, padded by ``k - 1`` zeros on both sides, shifts the
tensor and keeps its integers:

    y[t] = x[t - (k - 1) + j]       t = 0 .. n + k - 2

This adds ``k - 1 - j`` zeros before and ``j`` zeros after the values. An axis that needs more zeros
than the largest kernel provides takes several convolutions; a kernel is not larger than its input.
Tensors are padded as images: the last two of four axes together, else one axis at a time, with all
axes before it as channels and all axes after it as columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.detached_nodes import make_detached_node, make_detached_value
from ....ir.plan import Affine
from ....targets import Target
from ....targets.limits import PadLimits
from ... import integer_ops
from ..._lowering import Scaling
from ...conv.lowering import CONV2D
from ...integer_ops import Format
from ...lowering_context import LoweringContext
from .repeat_resize import SameRankRule

__all__ = ["Pad", "check_pad_form", "get_pads"]

_TAP_VALUE = 64  # integer of the tap, and the scale of the weight


_IntegerNodeSpec = tuple[Format, list[ir.Value], dict[str, AttributeValue]]


class _PadStep(Protocol):
    """A node that pads an image; `source` and `result` are shapes [channels, height, width]."""

    @property
    def source(self) -> list[int]:
        """The shape [channels, height, width] before padding."""

    @property
    def result(self) -> list[int]:
        """The shape [channels, height, width] after padding."""

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        """Return the integer operator that pads, its inputs after the first, and its attributes.

        Constants are added to `low`; `number` is part of their names, `node` is the float Pad.
        """


class _PaddedImage(NamedTuple):
    """Constant padding of an image by an iqPad; `pads` are (top, left, bottom, right)."""

    source: list[int]
    pads: tuple[int, int, int, int]

    @property
    def result(self) -> list[int]:
        """The shape [channels, height, width] after padding."""
        channels, height, width = self.source
        top, left, bottom, right = self.pads
        return [channels, height + top + bottom, width + left + right]

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        """Return (iqPad, its inputs after the first, attributes) for this image and its pads.

        Constants are added to `low`; `number` is part of their names, `node` is the float Pad.
        """
        top, left, bottom, right = self.pads
        inputs = _add_pad_inputs(node, low, f"pads{number}", [0, 0, top, left, 0, 0, bottom, right])
        return integer_ops.PAD, inputs, _make_pad_attributes(node, low)

    def split_into_tap_convs(self, max_kernel: int) -> Iterator[_TapConv]:
        """Yield depthwise convolutions, of kernels up to `max_kernel`, that add the pads as zeros.

        Each takes the result of the one before; a kernel is also limited by the size of its input.
        """
        source, begins, ends = self.source, list(self.pads[:2]), list(self.pads[2:])
        while any(begins) or any(ends):
            kernel, tap_position = [], []
            for axis, size in enumerate(source[1:]):
                max_zeros = max(1, min(max_kernel, size) - 1)
                begin = min(begins[axis], max_zeros)
                end = min(ends[axis], max_zeros - begin)
                kernel.append(1 + begin + end)
                tap_position.append(end)
                begins[axis] -= begin
                ends[axis] -= end
            step = _TapConv(source, kernel, tap_position)
            yield step
            source = step.result


class _TapConv(NamedTuple):
    """A depthwise convolution that pads: its kernel has a single tap, at `tap_position`."""

    source: list[int]
    kernel: list[int]
    tap_position: list[int]

    @property
    def result(self) -> list[int]:
        """The output's shape [channels, height, width]: each axis grows by the kernel size - 1."""
        size = [n + k - 1 for n, k in zip(self.source[1:], self.kernel, strict=True)]
        return [self.source[0], *size]

    @property
    def _attributes(self) -> dict[str, AttributeValue]:
        """Attributes of the convolution: stride and dilation 1, a group per channel, full pads."""
        pads = [k - 1 for k in self.kernel] * 2
        return {
            "kernel_shape": self.kernel,
            "strides": [1, 1],
            "pads": pads,
            "dilations": [1, 1],
            "group": self.source[0],
        }

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        """Return (Conv2dInt, [weights], attributes) for this convolution.

        The weights, added to `low`, are zero but for one tap per channel, which is 1 in their
        format; input and output have the output's format. `number` is part of the names, `node` is
        the float Pad.
        """
        taps = np.zeros((self.source[0], 1, *self.kernel), np.int8)
        taps[:, 0, self.tap_position[0], self.tap_position[1]] = _TAP_VALUE
        weight, q = low.array(f"{node.outputs[0].name}_tap{number}", taps), low.output_qparams(node)
        attrs = integer_ops.CONV2D.make_qparams_attributes(q, Affine(float(_TAP_VALUE)), q)
        return integer_ops.CONV2D, [weight], {**self._attributes, **attrs}

    def fits_limits(self, target: Target) -> bool:
        """Whether a Conv2dInt of these shapes, for one sample, violates no limit of `target`."""
        inputs = [
            make_detached_value([1, *self.source]),
            make_detached_value([self.source[0], 1, *self.kernel]),
        ]
        node = make_detached_node(
            CONV2D.name,
            inputs,
            [1, *self.result],
            self._attributes,
            domain=CONV2D.integer_op.domain,
        )
        return not CONV2D.find_violations(node, target)


def check_pad_form(node: ir.Node, target: Target) -> str | None:
    """padding is by a constant with an iqPad, else by zeros and on no axis too large for a
    convolution of one tap | pad
    in the layer behind.
    """
    if _lowers_to_iqpad(node, target) or _plan_pad_steps(node, target) is not None:
        return None
    rank = len(ir.get_shape(node.inputs[0]) or ())
    return f"{ir.get_attr(node, 'mode', 'constant')}, {rank} axes"


def _lowers_to_iqpad(node: ir.Node, target: Target) -> bool:
    """Whether `node` becomes a single iqPad: `target` has it, for the mode and rank of `node`."""
    return target.can_run(integer_ops.PAD.name) and _iqpad_supports(
        node, len(ir.get_shape(node.inputs[0]) or ()), target
    )


def _iqpad_supports(node: ir.Node, rank: int, target: Target) -> bool:
    """Whether iqPad of `target` supports the mode of `node`, and tensors with `rank` axes.

    True if the target states no limits.
    """
    limits = target.get_limits(integer_ops.PAD.name, PadLimits)
    return limits is None or (
        ir.get_attr(node, "mode", "constant") in limits.modes and rank == limits.rank
    )


def _plan_pad_steps(node: ir.Node, target: Target) -> list[_PadStep] | None:
    """Plan the iqPads or convolutions that pad the tensor of `node` as images; None if impossible.

    Only float Pads of mode "constant" with constant pads and known sizes are planned. A target with
    iqPad uses iqPads, and None is returned if its iqPad does not support rank 4. Any other target
    needs Conv2dInt and a pad value of 0; depthwise convolutions pad, and None is returned if one
    exceeds a limit. An empty list: nothing is padded.
    """
    pads, shape = get_pads(node), ir.get_shape(node.inputs[0]) or ()
    if pads is None or None in shape[1:] or node.domain:
        return None
    if ir.get_attr(node, "mode", "constant") != "constant":
        return None
    images = list(_iter_padded_images([int(dim or 0) for dim in shape[1:]], pads))
    if target.can_run(integer_ops.PAD.name):
        return list(images) if _iqpad_supports(node, 4, target) else None
    if target.conv_limits is None or not target.can_run(CONV2D.name) or _get_pad_value(node) != 0:
        return None
    steps: list[_PadStep] = []
    for image in images:
        for step in image.split_into_tap_convs(target.conv_limits.max_kernel):
            if not step.fits_limits(target):
                return None
            steps.append(step)
    return steps


def _iter_padded_images(sizes: Sequence[int], pads: Sequence[int]) -> Iterator[_PaddedImage]:
    """Yield the images as which a tensor [batch, *sizes] is padded, one after the other.

    `pads` are ONNX's: the begins of all axes with the batch, then the ends. Three sizes whose first
    is not padded are one image; otherwise each padded axis is padded as the height of an image
    [axes before, axis, axes after].
    """
    begins, ends = pads[1 : 1 + len(sizes)], pads[len(sizes) + 2 :]
    if len(sizes) == 3 and not begins[0] and not ends[0]:
        yield _PaddedImage(list(sizes), (begins[1], begins[2], ends[1], ends[2]))
        return
    current = list(sizes)
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin or end:
            source = [math.prod(current[:axis]), current[axis], math.prod(current[axis + 1 :])]
            yield _PaddedImage(source, (begin, 0, end, 0))
            current[axis] += begin + end


class Pad(SameRankRule):
    """Padding by a constant, the edge values or their reflection."""

    scale_constraints = Scaling(factor_behavior="fixed")
    integer_op = integer_ops.PAD
    floats = (("", "Pad"),)
    constraints = (check_pad_form,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the padding has no integer form, or None if it has one.

        Reasons: pads or pad value computed at run time, a pad value that is not finite, a negative
        pad, mode wrap, an unknown shape, and an output with another batch axis.
        """
        pads, value = get_pads(node), _get_pad_value(node)
        if pads is None or value is None or not math.isfinite(value):
            return "its pads or its value are computed at run time, or not finite"
        if min(pads) < 0:
            return "its pads are negative"
        if ir.get_attr(node, "mode", "constant") == "wrap":
            return "its mode has no integer form"
        return super().explain_rejection(node)

    def is_available(self, target: Target) -> bool:
        """Whether `target` has iqPad or Conv2dInt, one of which pads."""
        return target.can_run(self.name) or target.can_run(CONV2D.name)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit one iqPad if the target runs it as is, otherwise steps that pad one image each.

        The steps are iqPads or depthwise Conv2dInts on images, with Reshapes between them; if no
        steps can be planned, one iqPad is emitted as well.
        """
        pads, steps = get_pads(node), _plan_pad_steps(node, context.target)
        assert pads is not None
        if steps is None or _lowers_to_iqpad(node, context.target):
            value = context.get_integer_input(node, 0)
            inputs = [value, *_add_pad_inputs(node, context, "pads", pads)]
            context.emit(integer_ops.PAD, node, inputs, _make_pad_attributes(node, context))
            return
        self._emit_steps(node, context, steps)

    @staticmethod
    def _emit_steps(node: ir.Node, context: LoweringContext, steps: Sequence[_PadStep]) -> None:
        """Emit the planned `steps` into `context`, with a Reshape where consecutive shapes differ.

        All tensors have the output's format; the batch axis keeps its size.
        """
        q, value = context.output_qparams(node), context.get_integer_input(node, 0)
        shape = [int(dim or 1) for dim in ir.require_shape(node.inputs[0])[1:]]
        result = [int(dim or 1) for dim in ir.require_shape(node.outputs[0])[1:]]
        for number, step in enumerate(steps):
            if step.source != shape:
                suffix = f"image{number}"
                target = _add_reshape_target(node, context, suffix, step.source)
                value = context.emit_intermediate(
                    integer_ops.RESHAPE, node, suffix, [value, target], {}, [None, *step.source], q
                )
            shape = step.result
            form, constants, attrs = step.make_node_spec(node, context, number)
            if number == len(steps) - 1 and shape == result:
                context.emit(form, node, [value, *constants], attrs)
                return
            value = context.emit_intermediate(
                form, node, f"padded{number}", [value, *constants], attrs, [None, *shape], q
            )
        target = _add_reshape_target(node, context, "shape", result)
        context.emit(integer_ops.RESHAPE, node, [value, target], {})


def _add_reshape_target(
    node: ir.Node, low: LoweringContext, suffix: str, shape: Sequence[int]
) -> ir.Value:
    """Add the constant target [1, *shape] of a Reshape to `low`; return it.

    Its name is made of the output of `node` and `suffix`.
    """
    return low.array(f"{node.outputs[0].name}_{suffix}_sizes", np.array([1, *shape], np.int64))


def _add_pad_inputs(
    node: ir.Node, low: LoweringContext, suffix: str, pads: Sequence[int]
) -> list[ir.Value]:
    """Add the inputs of an iqPad after the first to `low`: `pads` and the pad value; return both.

    The value of `node` is quantized in the output's format; `suffix` is part of the constants'
    names.
    """
    value, name = _get_pad_value(node), node.outputs[0].name
    assert value is not None
    integer = int(low.output_qparams(node).integers(np.array(value)))
    return [
        low.array(f"{name}_{suffix}", np.array(pads, np.int64)),
        low.array(f"{name}_{suffix}_value", np.array([integer], np.int64)),
    ]


def _make_pad_attributes(node: ir.Node, low: LoweringContext) -> dict[str, AttributeValue]:
    """Return the attributes of an iqPad: the `mode` of `node`, and the output's scale twice."""
    return {
        "mode": ir.get_attr(node, "mode", "constant"),
        **integer_ops.PAD.make_qparams_attributes(low.output_qparams(node)),
    }


def get_pads(node: ir.Node) -> list[int] | None:
    """Return the pads of `node`, a float Pad of any opset, or None if they are not constant.

    They are in ONNX's order, the begins of all axes and then the ends, also if the node has `axes`.
    """
    pads: list[int] | None = ir.get_attr(node, "pads")
    if pads is None:
        array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
        pads = None if array is None else [int(p) for p in array.reshape(-1)]
    if pads is None or len(node.inputs) < 4 or node.inputs[3] is None:
        return pads
    axes, rank = ir.const_value(node.inputs[3]), len(ir.get_shape(node.inputs[0]) or ())
    if axes is None:
        return None
    full = [0] * 2 * rank
    for index, axis in enumerate(axes.reshape(-1).tolist()):
        full[axis % rank] = pads[index]
        full[axis % rank + rank] = pads[index + len(pads) // 2]
    return full


def _get_pad_value(node: ir.Node) -> float | None:
    """Return the pad value of `node`: constant input 2, or else the attribute `value` (default 0).

    None if input 2 is computed at run time.
    """
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return float(ir.get_attr(node, "value", 0.0))
    array = ir.const_value(value)
    return None if array is None else float(array.reshape(-1)[0])
