"""Convolutions: Conv2dInt, Conv1dInt and ConvTranspose2dInt.

``y = sat(rescale(sum x*w + b))``: int8 by int8 products in a wide accumulator, int32 bias at
scale_x*scale_w, one rounding. Weights [O, I/group, k...]; zero padding in ONNX order. Relu stays a
separate node, which packer and simulator fuse. ConvTranspose2dInt has a weight [I, O/group, k...],
and its bias is required.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...ir import ir
from ...ir.attributes import AttributeValue
from ...targets import Target
from .. import integer_ops
from .._lowering import Violation, WeightLayer
from .._weighted_op import WeightedIntegerOp, accumulator_scale
from ..conv_geometry import ConvGeometry
from ..lowering_context import LoweringContext

__all__ = ["CONV2D", "Conv1d", "Conv2d", "ConvTranspose2d"]


class Conv2d(WeightLayer):
    """Two-dimensional convolution, including grouped and depthwise ones."""

    integer_op: WeightedIntegerOp = integer_ops.CONV2D
    floats = (("", "Conv"),)
    rank = 2

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the convolution `node` has no integer form, or None if it has one.

        Reasons: weight or bias computed at run time, a weight that has not `rank` + 2 axes, or an
        `auto_pad` other than NOTSET.
        """
        reason = super().explain_rejection(node)
        if reason is None and len(ir.get_shape(node.inputs[1]) or ()) != self.rank + 2:
            reason = f"its kernel is not {self.rank}-dimensional"
        if reason is None and ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
            reason = "its padding depends on an input size that is not known"
        return reason

    def make_shape_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return kernel shape, strides, pads, dilations and group of the convolution `node`."""
        return self.make_geometry_attributes(ConvGeometry(node))

    @staticmethod
    def make_geometry_attributes(geometry: ConvGeometry) -> dict[str, AttributeValue]:
        """Return the attributes kernel_shape, strides, pads, dilations and group of `geometry`."""
        return {
            "kernel_shape": list(geometry.kernel),
            "strides": list(geometry.strides),
            "pads": list(geometry.pads),
            "dilations": list(geometry.dilations),
            "group": geometry.group,
        }

    def macs(self, node: ir.Node) -> int:
        """Return the output elements of a sample times the elements of a filter (weight axes 1 on).

        An unknown output dimension counts as 1.
        """
        g = ConvGeometry(node)
        return math.prod(int(d or 1) for d in g.result[1:]) * math.prod(g.weight[1:])


class Conv1d(Conv2d):
    """One-dimensional convolution; without Conv1dInt, a Conv2dInt of height 1 between reshapes."""

    integer_op = integer_ops.CONV1D
    rank = 1

    def is_available(self, target: Target) -> bool:
        """Whether `target` runs Conv1dInt, or Conv2dInt, by which it can be replaced."""
        return target.can_run(self.name) or target.can_run(CONV2D.name)

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return the limits of `target` that the 1-D convolution `node` violates.

        Empty if it can run. It can run if it keeps the limits of Conv2dInt (as an image of height
        1), or those of Conv1dInt on a target that has it. Otherwise those of Conv1dInt are returned
        if the target has it, else those of Conv2dInt.
        """
        violations_2d = CONV2D.find_violations(node, target)
        if violations_2d and target.can_run(self.name):
            return super().find_violations(node, target)
        return violations_2d

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit Conv1dInt, or Unsqueeze, Conv2dInt of height 1 and Squeeze, into `context`.

        Conv1dInt is emitted if the target runs it and the node keeps its limits.
        """
        if context.target.can_run(self.name) and not super().find_violations(node, context.target):
            super().lower(node, context)
            return
        g, q = ConvGeometry.from_node_as_2d(node), context.input_qparams(node, 0)
        attrs = {
            **CONV2D.make_geometry_attributes(g),
            **self.make_integer_attributes(node, context),
        }
        line = context.get_integer_input(node, 0)
        x = context.emit_intermediate(
            integer_ops.UNSQUEEZE, node, "image", [line], {"axes": [2]}, g.input_shape, q
        )
        weight = context.weight(node, 1, lambda w: w[:, :, None])
        bias = context.bias(node, 2, accumulator_scale(attrs))
        y = context.emit_intermediate(
            integer_ops.CONV2D,
            node,
            "rows",
            [x, weight, *bias],
            attrs,
            g.result,
            context.output_qparams(node),
        )
        context.emit(integer_ops.SQUEEZE, node, [y], {"axes": [2]})


CONV2D = Conv2d()


class ConvTranspose2d(WeightLayer):
    """Two-dimensional transposed convolution."""

    integer_op = integer_ops.CONV_TRANSPOSE2D
    floats = (("", "ConvTranspose"),)
    # The weight has the output channels on axis 1, unlike other layers.
    scale_constraints = replace(WeightLayer.scale_constraints, factor_behavior="fixed")

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the transposed convolution `node` has no integer form, or None if it has one.

        Reasons: weight or bias computed at run time, a weight without 4 axes, an `auto_pad` other
        than NOTSET, or an attribute `output_shape`.
        """
        reason = super().explain_rejection(node)
        if reason is None and len(ir.get_shape(node.inputs[1]) or ()) != 4:
            reason = "its kernel is not 2-dimensional"
        if reason is None and (
            ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes
        ):
            reason = "its padding depends on a requested output size"
        return reason

    def macs(self, node: ir.Node) -> int:
        """Return the input elements of a sample times the elements of a filter (weight axes 1 on).

        Unknown dimensions count as 1.
        """
        source, weight = ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.inputs[1]) or ()
        return math.prod(int(d or 1) for d in (*source[1:], *weight[1:]))

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit ConvTranspose2dInt into `context`.

        Without a bias it gets zeros, one per output channel.
        """
        g = ConvGeometry(node)
        attrs = {
            **Conv2d.make_geometry_attributes(g),
            **self.make_integer_attributes(node, context),
            "output_padding": list(ir.get_attr(node, "output_padding") or [0, 0]),
        }
        bias = context.bias(node, 2, accumulator_scale(attrs, g.group))
        if not bias:
            zeros, name = np.zeros(g.weight[1] * g.group), f"{node.outputs[0].name}_bias"
            bias = [context.add_accumulator_constant(name, zeros, 1.0)]
        inputs = [context.get_integer_input(node, 0), context.weight(node, 1), *bias]
        context.emit(self.integer_op, node, inputs, attrs)
