"""Pad: iqPad, or depthwise convolutions of a single tap where the platform has none, which write
zeros.

A convolution by one tap of 1 among zeros, with ``k - 1`` zeros on both sides, moves the tensor and
leaves its integers:

    y[t] = x[t - (k - 1) + j]       t = 0 .. n + k - 2

``j`` zeros of these stand behind it and ``k - 1 - j`` before it. An axis with more than the largest
kernel has room for takes several; a kernel is not larger than the map. What is padded is seen as an
image: the two last of four axes as they are, else one axis after the other, with all axes before it
as channels and all behind it as columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ... import formats
from ...formats import Format
from ...graph import ir
from ...graph.attributes import AttributeValue
from ...graph.detached_nodes import make_detached_node, make_detached_value
from ...lowering import LoweringContext
from ...plan import Affine
from ...targets import Target
from ...targets.limits import PadLimits
from ..layers.conv import CONV2D
from ..scale_constraints import Scaling
from .repeat_resize import SameRankRule

__all__ = ["Pad", "check_pad_form", "get_pads"]

_TAP_VALUE = 64  # the tap, and its scale


_IntegerNodeSpec = tuple[Format, list[ir.Value], dict[str, AttributeValue]]


class _PadStep(Protocol):
    """A node of the integer graph: sizes [channels, height, width] that it reads and writes."""

    @property
    def source(self) -> list[int]: ...
    @property
    def result(self) -> list[int]: ...

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        """Return the operator, its inputs behind the first, and its attributes."""


@dataclass(frozen=True)
class _PaddedImage:
    """An image with a constant around it (above, left, below, right): an iqPad of its own."""

    source: list[int]
    pads: tuple[int, int, int, int]

    @property
    def result(self) -> list[int]:
        above, left, below, right = self.pads
        return [self.source[0], self.source[1] + above + below, self.source[2] + left + right]

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        above, left, below, right = self.pads
        pads = [0, 0, above, left, 0, 0, below, right]
        return (
            formats.PAD,
            _add_pad_inputs(node, low, f"pads{number}", pads),
            _make_pad_attributes(node, low),
        )

    def split_into_tap_convs(self, largest: int) -> Iterator[_TapConv]:
        """Yield convolutions that do the same with zeros, whose kernels are at most `largest`, and
        within the map.
        """
        left, source = list(self.pads), self.source
        while any(left):
            room = [max(1, min(largest, n) - 1) for n in source[1:]]
            before = [min(n, most) for n, most in zip(left[:2], room, strict=True)]
            behind = [min(n, most - b) for n, most, b in zip(left[2:], room, before, strict=True)]
            step = _TapConv(
                source, [1 + b + e for b, e in zip(before, behind, strict=True)], behind
            )
            yield step
            source = step.result
            left = [n - taken for n, taken in zip(left, before + behind, strict=True)]


@dataclass(frozen=True)
class _TapConv:
    """A depthwise convolution of an image by the tap at `tap_position` of its kernel."""

    source: list[int]
    kernel: list[int]
    tap_position: list[int]

    @property
    def result(self) -> list[int]:
        return [
            self.source[0],
            *(n + k - 1 for n, k in zip(self.source[1:], self.kernel, strict=True)),
        ]

    @property
    def _attributes(self) -> dict[str, AttributeValue]:
        pads = [k - 1 for k in self.kernel] * 2
        return {
            "kernel_shape": self.kernel,
            "strides": [1, 1],
            "pads": pads,
            "dilations": [1, 1],
            "group": self.source[0],
        }

    def make_node_spec(self, node: ir.Node, low: LoweringContext, number: int) -> _IntegerNodeSpec:
        taps = np.zeros((self.source[0], 1, *self.kernel), np.int8)
        taps[:, 0, self.tap_position[0], self.tap_position[1]] = _TAP_VALUE
        weight, q = low.array(f"{node.outputs[0].name}_tap{number}", taps), low.output_qparams(node)
        return (
            formats.CONV2D,
            [weight],
            {**self._attributes, **formats.CONV2D.scales(q, Affine(float(_TAP_VALUE)), q)},
        )

    def fits_limits(self, target: Target) -> bool:
        """Whether the chip takes it."""
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


def check_pad_form(node: ir.Node, target: Target) -> object:
    """padding is by a constant with an iqPad, else by zeros and on no axis too large for a
    convolution of one tap | pad
    in the layer behind.
    """
    if _lowers_to_iqpad(node, target) or _plan_pad_steps(node, target) is not None:
        return None
    return (
        f"{ir.get_attr(node, 'mode', 'constant')}, {len(ir.get_shape(node.inputs[0]) or ())} axes"
    )


def _lowers_to_iqpad(node: ir.Node, target: Target) -> bool:
    """Whether it becomes an iqPad of the same axes."""
    return target.can_run(formats.PAD.name) and _iqpad_supports(
        node, len(ir.get_shape(node.inputs[0]) or ()), target
    )


def _iqpad_supports(node: ir.Node, rank: int, target: Target) -> bool:
    """Whether the platform's iqPad takes the mode of `node` and so many axes."""
    limits = target.get_limits(formats.PAD.name, PadLimits)
    return limits is None or (
        ir.get_attr(node, "mode", "constant") in limits.modes and rank == limits.rank
    )


def _plan_pad_steps(node: ir.Node, target: Target) -> list[_PadStep] | None:
    """Return what pads the tensor seen as images, one after the other: iqPads or convolutions; None
    for neither.
    """
    pads, shape = get_pads(node), ir.get_shape(node.inputs[0]) or ()
    if (
        pads is None
        or ir.get_attr(node, "mode", "constant") != "constant"
        or None in shape[1:]
        or node.domain
    ):
        return None
    images = list(_iter_padded_images([int(d or 0) for d in shape[1:]], pads))
    if target.can_run(formats.PAD.name):
        return list(images) if _iqpad_supports(node, 4, target) else None
    if target.conv_limits is None or not target.can_run(CONV2D.name) or _get_pad_value(node) != 0:
        return None
    steps = [
        step
        for image in images
        for step in image.split_into_tap_convs(target.conv_limits.max_kernel)
    ]
    return list(steps) if all(step.fits_limits(target) for step in steps) else None


def _iter_padded_images(sizes: Sequence[int], pads: Sequence[int]) -> Iterator[_PaddedImage]:
    """Yield the images as which a tensor of [batch, *sizes] is padded."""
    before, behind = pads[1 : 1 + len(sizes)], pads[len(sizes) + 2 :]
    if len(sizes) == 3 and not before[0] and not behind[0]:
        yield _PaddedImage(list(sizes), (before[1], before[2], behind[1], behind[2]))
        return
    now = list(sizes)
    for axis, (first, last) in enumerate(zip(before, behind, strict=True)):
        if first or last:
            yield _PaddedImage(
                [math.prod(now[:axis]), now[axis], math.prod(now[axis + 1 :])], (first, 0, last, 0)
            )
            now[axis] += first + last


class Pad(SameRankRule):
    """Surround with a constant, the edge, or the reflection."""

    scale_constraints = Scaling(factor_behavior="fixed")
    integer_op = formats.PAD
    floats = (("", "Pad"),)
    constraints = (check_pad_form,)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Constant pads that add, a finite value."""
        pads, value = get_pads(node), _get_pad_value(node)
        if pads is None or value is None or not math.isfinite(value):
            return "its pads or its value are computed at run time, or not finite"
        if min(pads) < 0:
            return "it cuts instead of padding"
        return (
            "its mode has no integer form"
            if ir.get_attr(node, "mode", "constant") == "wrap"
            else super().explain_rejection(node)
        )

    def is_available(self, target: Target) -> bool:
        """Whether the platform runs one of the two forms."""
        return target.can_run(self.name) or target.can_run(CONV2D.name)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit an iqPad with pads and the integer value as inputs; or several, or convolutions,
        between reshapes.
        """
        pads, steps = get_pads(node), _plan_pad_steps(node, context.target)
        assert pads is not None
        if steps is None or _lowers_to_iqpad(node, context.target):
            inputs = [
                context.get_integer_input(node, 0),
                *_add_pad_inputs(node, context, "pads", pads),
            ]
            context.emit(formats.PAD, node, inputs, _make_pad_attributes(node, context))
            return
        q, value = context.output_qparams(node), context.get_integer_input(node, 0)
        source, result = (
            [int(d or 1) for d in ir.require_shape(v)[1:]]
            for v in (node.inputs[0], node.outputs[0])
        )
        for number, step in enumerate(steps):
            if step.source != source:
                value = context.emit_intermediate(
                    formats.RESHAPE,
                    node,
                    f"image{number}",
                    [value, _add_reshape_target(node, context, f"image{number}", step.source)],
                    {},
                    [None, *step.source],
                    q,
                )
            source = step.result
            form, constants, attrs = step.make_node_spec(node, context, number)
            if number == len(steps) - 1 and source == result:
                context.emit(form, node, [value, *constants], attrs)
                return
            value = context.emit_intermediate(
                form, node, f"padded{number}", [value, *constants], attrs, [None, *source], q
            )
        context.emit(
            formats.RESHAPE, node, [value, _add_reshape_target(node, context, "shape", result)], {}
        )


def _add_reshape_target(
    node: ir.Node, low: LoweringContext, what: str, shape: Sequence[int]
) -> ir.Value:
    return low.array(f"{node.outputs[0].name}_{what}_sizes", np.array([1, *shape], np.int64))


def _add_pad_inputs(
    node: ir.Node, low: LoweringContext, what: str, pads: Sequence[int]
) -> list[ir.Value]:
    """Return the inputs of an iqPad behind the first: the pads, and the integer that stands for the
    value.
    """
    value, name = _get_pad_value(node), node.outputs[0].name
    assert value is not None
    integer = int(low.output_qparams(node).integers(np.array(value)))
    return [
        low.array(f"{name}_{what}", np.array(pads, np.int64)),
        low.array(f"{name}_{what}_value", np.array([integer], np.int64)),
    ]


def _make_pad_attributes(node: ir.Node, low: LoweringContext) -> dict[str, AttributeValue]:
    return {
        "mode": ir.get_attr(node, "mode", "constant"),
        **formats.PAD.scales(low.output_qparams(node)),
    }


def get_pads(node: ir.Node) -> list[int] | None:
    """Return the pads of a float Pad, two per axis, in any opset's form; None when computed."""
    pads = ir.get_attr(node, "pads")
    if pads is None:
        array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
        pads = None if array is None else [int(p) for p in array.reshape(-1)]
    if pads is None or len(node.inputs) < 4 or node.inputs[3] is None:
        return pads
    axes, rank = ir.const_value(node.inputs[3]), len(ir.get_shape(node.inputs[0]) or ())
    if axes is None:
        return None
    full = [0] * 2 * rank
    for place, axis in enumerate(axes.reshape(-1).tolist()):
        full[axis % rank], full[axis % rank + rank] = pads[place], pads[place + len(pads) // 2]
    return full


def _get_pad_value(node: ir.Node) -> float | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return float(ir.get_attr(node, "value", 0.0))
    array = ir.const_value(value)
    return None if array is None else float(array.reshape(-1)[0])
