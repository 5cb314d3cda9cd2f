"""Concatenation: iqCat, each input requantized to the output's scale."""

from __future__ import annotations

from ... import formats
from ...graph import ir
from ...lowering import LoweringContext
from ...targets import Target
from ...targets.arithmetic import ConcatArithmetic as Arithmetic
from ...targets.limits import BinaryOperandLimits
from .._base import Op
from ..scale_constraints import ScalePair, Scaling

__all__ = ["Concat", "is_repeated_tensor", "mark_shared_scale_parts"]

_PARTS_KEY = "lingeronnx.parts"


def mark_shared_scale_parts(node: ir.Node) -> None:
    """Note that the inputs of the Concat `node` are parts of one tensor: they share its scale."""
    node.metadata_props[_PARTS_KEY] = "1"


def is_repeated_tensor(value: ir.Value | None) -> bool:
    """Whether `value` is one tensor several times side by side, perhaps reshaped: it has that
    tensor's scale.
    """
    node = ir.producer(value)
    while node is not None and node.op_type == "Reshape":
        node = ir.producer(node.inputs[0])
    return node is not None and _PARTS_KEY in node.metadata_props and len(set(node.inputs)) == 1


def check_computed_inputs(node: ir.Node, target: Target) -> object:
    """every input is computed | let the host concatenate, or feed the constant as an input."""
    if node.op_type != "Concat" or target.get_limits(formats.ADD.name, BinaryOperandLimits) is None:
        return None
    return "a constant" if any(ir.const_value(value) is not None for value in node.inputs) else None


def _computed_input_indices(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is None]


def _shared_concat_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """None where every input is requantized; on chips that cannot shift right here, what nobody
    else reads.

    Nor do the parts of one tensor have scales of their own.
    """
    how = target.get_arithmetic(formats.CONCAT.name, Arithmetic)
    if (how is None or not how.raises_only) and _PARTS_KEY not in node.metadata_props:
        return []
    alone = [
        v
        for i in _computed_input_indices(node)
        if (v := node.inputs[i]) is not None and not v.is_graph_output()
    ]
    names = dict.fromkeys(str(v.name) for v in alone if {use.node for use in v.uses()} == {node})
    return [ScalePair(name, ir.output_name(node)) for name in names]


class Concat(Op):
    """Concatenation along an axis other than the batch; a constant, such as a class token, has the
    output's scale.
    """

    integer_op = formats.CONCAT
    scale_constraints = Scaling(shared_scales=_shared_concat_scales)
    floats = (("", "Concat"),)
    constraints = (check_computed_inputs,)

    def data(self, node: ir.Node) -> list[int]:
        """Return the inputs that are computed."""
        return _computed_input_indices(node)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Not along the batch axis, and of real numbers."""
        arrays = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
        if len(arrays) == len(node.inputs) or any(array.dtype.kind != "f" for array in arrays):
            return "its inputs are constants" if arrays else "it has no inputs"
        rank = len(ir.get_shape(node.outputs[0]) or ())
        return (
            "it concatenates along the batch axis"
            if rank and ir.get_attr(node, "axis") % rank == 0
            else None
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with one scale per input; a Requant does what the chip cannot."""
        rank, o = len(ir.require_shape(node.outputs[0])), context.output_qparams(node)
        how = context.target.get_arithmetic(self.name, Arithmetic)
        scales, inputs = [], []
        for index, value in enumerate(node.inputs):
            if ir.const_value(value) is not None:
                scales.append(o)
                inputs.append(context.add_quantized_constant(node, index, o))
                continue
            x = context.input_qparams(node, index)
            if how is not None and how.raises_only and x.scale > o.scale:
                x = o
            scales.append(x)
            inputs.append(context.get_requantized_input(node, index, x))
        axis = ir.get_attr(node, "axis") % rank if rank else ir.get_attr(node, "axis")
        context.emit(
            formats.CONCAT, node, inputs, {"dim": axis, **formats.CONCAT.scales(scales, o)}
        )
