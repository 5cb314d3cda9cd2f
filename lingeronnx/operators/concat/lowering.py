"""Concatenation: iqCat; a limit returns None if kept, else the offending value.

Each input is requantized to the output's scale.
"""

from __future__ import annotations

from ...ir import ir
from ...targets import Target
from ...targets.arithmetic import ConcatArithmetic as Arithmetic
from ...targets.limits import BinaryOperandLimits
from .. import integer_ops
from .._lowering import Op, ScalePair, Scaling
from ..lowering_context import LoweringContext

__all__ = ["Concat", "is_repeated_tensor", "mark_shared_scale_parts"]

_PARTS_KEY = "lingeronnx.parts"


def mark_shared_scale_parts(node: ir.Node) -> None:
    """Mark the inputs of the Concat `node` as parts of one tensor, which share its scale."""
    node.metadata_props[_PARTS_KEY] = "1"


def is_repeated_tensor(value: ir.Value | None) -> bool:
    """Whether `value` is a Concat of one tensor with itself, possibly reshaped afterwards.

    Only Concats that a rewrite has marked as parts of one tensor count; they keep the tensor's
    scale.
    """
    node = ir.producer(value)
    while node is not None and node.op_type == "Reshape":
        node = ir.producer(node.inputs[0])
    return node is not None and _PARTS_KEY in node.metadata_props and len(set(node.inputs)) == 1


def check_computed_inputs(node: ir.Node, target: Target) -> str | None:
    """every input is computed | let the host concatenate, or feed the constant as an input."""
    if (
        node.op_type != "Concat"
        or target.get_limits(integer_ops.ADD.name, BinaryOperandLimits) is None
    ):
        return None
    return "a constant" if any(ir.const_value(value) is not None for value in node.inputs) else None


def _computed_input_indices(node: ir.Node) -> list[int]:
    """Return the indices of the inputs of `node` that are not constant."""
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is None]


def _shared_concat_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraints that inputs read only by the Concat `node` share the output's scale.

    They apply to parts of one tensor, as marked by a rewrite, and on chips that cannot shift inputs
    right; otherwise every input is requantized and the list is empty. Graph outputs are left out.
    """
    arithmetic = target.get_arithmetic(integer_ops.CONCAT.name, Arithmetic)
    shifts_right = arithmetic is None or not arithmetic.zeroes_larger_scales
    if shifts_right and _PARTS_KEY not in node.metadata_props:
        return []
    names: dict[str, None] = {}
    for index in _computed_input_indices(node):
        value = node.inputs[index]
        if value is None or value.is_graph_output():
            continue
        if all(use.node is node for use in value.uses()):
            names[str(value.name)] = None
    return [ScalePair(name, ir.output_name(node)) for name in names]


class Concat(Op):
    """Concatenation along an axis other than the batch; constants have the output's scale."""

    integer_op = integer_ops.CONCAT
    scale_constraints = Scaling(shared_scales=_shared_concat_scales)
    floats = (("", "Concat"),)
    constraints = (check_computed_inputs,)

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs of `node` that carry activations (are not constant)."""
        return _computed_input_indices(node)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the concatenation has no integer form, or None if it has one.

        Reasons: no inputs, all inputs constant, a constant input that is not floating-point, or an
        `axis` that is the batch axis (0). Float constants beside activations are accepted.
        """
        arrays = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
        if len(arrays) == len(node.inputs) or any(array.dtype.kind != "f" for array in arrays):
            return "its inputs are constants" if arrays else "it has no inputs"
        rank = len(ir.get_shape(node.outputs[0]) or ())
        if rank and ir.get_attr(node, "axis") % rank == 0:
            return "it concatenates along the batch axis"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqCat with one scale per input into `context`, after a Requant where one is needed.

        A Requant to the output's scale precedes an input whose scale is larger than the output's if
        the chip zeroes such inputs; constants are quantized in the output's format.
        """
        rank, o = len(ir.require_shape(node.outputs[0])), context.output_qparams(node)
        arithmetic = context.target.get_arithmetic(self.name, Arithmetic)
        cannot_shift_right = arithmetic is not None and arithmetic.zeroes_larger_scales
        input_qparams, inputs = [], []
        for index, value in enumerate(node.inputs):
            if ir.const_value(value) is not None:
                input_qparams.append(o)
                inputs.append(context.add_quantized_constant(node, index, o))
                continue
            x = context.input_qparams(node, index)
            if cannot_shift_right and x.scale > o.scale:
                x = o
            input_qparams.append(x)
            inputs.append(context.get_integer_input(node, index, x))
        axis = ir.get_attr(node, "axis") % rank if rank else ir.get_attr(node, "axis")
        attrs = {"dim": axis, **integer_ops.CONCAT.make_qparams_attributes(input_qparams, o)}
        context.emit(integer_ops.CONCAT, node, inputs, attrs)
