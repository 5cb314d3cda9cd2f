"""Base of the lowering rules for layers with a constant weight and a bias."""

from __future__ import annotations

from ..ir import ir
from ..ir.attributes import AttributeValue
from ._lowering import Op
from ._weighted_op import WeightedIntegerOp, accumulator_scale
from .lowering_context import LoweringContext
from .scale_constraints import Scaling, product_max_exponent, share_no_scales

__all__ = ["WeightLayer"]


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
