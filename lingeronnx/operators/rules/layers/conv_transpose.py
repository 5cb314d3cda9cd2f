"""Transposed convolution: ConvTranspose2dInt, weight [I, O/group, k...], with a required bias."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....ir import ir
from ... import formats
from ...formats.layers import accumulator_scale
from ...lowering import LoweringContext
from .conv import Conv2d, ConvGeometry, WeightLayer

__all__ = ["ConvTranspose2d"]


class ConvTranspose2d(WeightLayer):
    """Two-dimensional transposed convolution."""

    integer_op = formats.CONV_TRANSPOSE2D
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
