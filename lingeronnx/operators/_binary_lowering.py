"""Base of the lowering rules for two activations with independent scales."""

from __future__ import annotations

from ..ir import ir
from ..ir.attributes import AttributeValue
from ._binary_op import BinaryIntegerOp
from ._lowering import Op, Scaling, share_no_scales
from .lowering_context import LoweringContext

__all__ = ["BinaryOp"]


class BinaryOp(Op):
    """Base of rules for two activations with independent scales."""

    integer_op: BinaryIntegerOp
    scale_constraints = Scaling(shared_scales=share_no_scales)

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs with activations: both operands, [0, 1]."""
        return [0, 1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why `node` has no integer form: an operand is constant; None if none is."""
        if any(ir.const_value(value) is not None for value in node.inputs):
            return (
                f"{node.op_type} with a constant that is neither a scalar nor one value per "
                "element of a sample"
            )
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer operator on inputs 0 and 1, with both scales and that of the output."""
        inputs = [context.get_integer_input(node, 0), context.get_integer_input(node, 1)]
        context.emit(self.integer_op, node, inputs, self.make_integer_attributes(node, context))

    def make_integer_attributes(
        self, node: ir.Node, low: LoweringContext
    ) -> dict[str, AttributeValue]:
        """Return the attributes with the scales planned in `low` of inputs 0, 1 and the output."""
        return self.integer_op.make_qparams_attributes(
            low.input_qparams(node, 0), low.input_qparams(node, 1), low.output_qparams(node)
        )
