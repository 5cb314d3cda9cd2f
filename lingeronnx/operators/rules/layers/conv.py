"""Convolutions: Conv2dInt and Conv1dInt.

``y = sat(rescale(sum x*w + b))``: int8 by int8 products in a wide accumulator, int32 bias at
scale_x*scale_w, one rounding. Weights [O, I/group, k...]; zero padding in ONNX order. Relu stays a
separate node, which packer and simulator fuse.
"""

from __future__ import annotations

import math

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....targets import Target
from ... import formats
from ...formats.layers import WeightedIntegerOp, accumulator_scale
from ...lowering import LoweringContext
from .._base import Op, Violation
from ..scale_constraints import Scaling, product_max_exponent, share_no_scales

__all__ = ["Conv1d", "Conv2d", "ConvGeometry", "has_known_shapes"]


class ConvGeometry:
    """Shapes and window attributes of a float or integer convolution node."""

    def __init__(self, node: ir.Node) -> None:
        """Read shapes and window of a float or integer convolution `node`.

        Missing attributes get defaults. `weight`, `input_shape` and `result` are shapes, `inputs`
        and `outputs` numbers of channels (`outputs` is the first weight axis); `pads` are the
        begins, then the ends.
        """
        weight = ir.require_shape(node.inputs[1])
        self.weight = tuple(int(d or 0) for d in weight)
        self.kernel = tuple(ir.get_attr(node, "kernel_shape") or self.weight[2:])
        rank = len(self.kernel)
        self.strides = tuple(
            ir.get_attr(node, "strides") or ir.get_attr(node, "stride") or [1] * rank
        )
        self.pads = tuple(ir.get_attr(node, "pads") or [0] * 2 * rank)
        self.dilations = tuple(ir.get_attr(node, "dilations") or [1] * rank)
        self.group = int(ir.get_attr(node, "group") or 1)
        self.outputs = self.weight[0]
        self.inputs = self.weight[1] * self.group
        self.input_shape = ir.get_shape(node.inputs[0]) or ()
        self.result = ir.get_shape(node.outputs[0]) or ()

    @classmethod
    def from_node_as_2d(cls, node: ir.Node) -> ConvGeometry:
        """Return the geometry of `node`; a 1-D one gets a height axis of size 1 before the width.

        The inserted axis has kernel, stride and dilation 1 and no pads. A 2-D geometry is
        unchanged.
        """
        g = cls(node)
        if len(g.kernel) == 1:
            g.weight, g.kernel = (*g.weight[:2], 1, *g.weight[2:]), (1, *g.kernel)
            g.strides, g.dilations = (1, *g.strides), (1, *g.dilations)
            g.pads = (0, g.pads[0], 0, g.pads[1])
            g.input_shape = (*g.input_shape[:2], 1, *g.input_shape[2:])
            g.result = (*g.result[:2], 1, *g.result[2:])
        return g

    @property
    def is_depthwise(self) -> bool:
        """Whether there are as many groups as input channels, and more than one."""
        return self.group > 1 and self.group == self.inputs


def has_known_shapes(geometry: ConvGeometry) -> bool:
    """Whether input and output have rank kernel rank + 2 and known dimensions after the batch."""
    rank = len(geometry.kernel) + 2
    if len(geometry.input_shape) != rank or len(geometry.result) != rank:
        return False
    return None not in (*geometry.input_shape[1:], *geometry.result[1:])


class WeightLayer(Op):
    """Base of rules for layers with a weight at input 1 and a bias at input 2."""

    integer_op: WeightedIntegerOp
    scale_constraints = Scaling(
        factor_behavior="absorbed",
        shared_scales=share_no_scales,
        max_output_exponent=product_max_exponent,
    )

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [1], the index of the input of `node` that is its weight."""
        return [1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the layer `node` has no integer form, or None if it has one.

        Reasons: its weight (input 1) or its bias (input 2) is not constant. A missing bias is
        accepted.
        """
        if ir.const_value(node.inputs[1]) is None:
            return "its weight is computed at run time"
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and ir.const_value(bias) is None:
            return "its bias is computed at run time"
        return None

    def make_integer_attributes(
        self, node: ir.Node, low: LoweringContext
    ) -> dict[str, AttributeValue]:
        """Return the attributes with scales and bits of input 0, weight and output, as in `low`."""
        return self.integer_op.make_qparams_attributes(
            low.input_qparams(node, 0), low.input_qparams(node, 1), low.output_qparams(node)
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer layer into `context`, with constants for weight (1) and bias (2).

        The bias, left out if there is none, has the scale of the accumulator: that of input times
        weight.
        """
        attrs = {**self.make_shape_attributes(node), **self.make_integer_attributes(node, context)}
        inputs = [
            context.get_integer_input(node, 0),
            context.weight(node, 1),
            *context.bias(node, 2, accumulator_scale(attrs)),
        ]
        context.emit(self.integer_op, node, inputs, attrs)

    def make_shape_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes that describe shapes, for subclasses to override; here none."""
        return {}


class Conv2d(WeightLayer):
    """Two-dimensional convolution, including grouped and depthwise ones."""

    integer_op: WeightedIntegerOp = formats.CONV2D
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

    integer_op = formats.CONV1D
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
            formats.UNSQUEEZE, node, "image", [line], {"axes": [2]}, g.input_shape, q
        )
        weight = context.weight(node, 1, lambda w: w[:, :, None])
        bias = context.bias(node, 2, accumulator_scale(attrs))
        y = context.emit_intermediate(
            formats.CONV2D,
            node,
            "rows",
            [x, weight, *bias],
            attrs,
            g.result,
            context.output_qparams(node),
        )
        context.emit(formats.SQUEEZE, node, [y], {"axes": [2]})


CONV2D = Conv2d()
