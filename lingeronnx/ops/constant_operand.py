"""Sums and products with a constant tensor, such as a position embedding: iqAdd and iqMul with one
constant operand.

On chips every element of a sample is made a channel of its own and BatchNorm2dInt does it: with a
factor of 1 and the constant as summand, or the constant as factor. Where a layer can take the
constant up, a pass has put it there; a constant of one value is a table's business.

A sum with 0 or `FAR` is the mask of a Softmax (`masks`). What it hides becomes the lowest integer,
what it shows keeps scale and integer; the scale is low enough for the lowest integer to get no
share in any row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from .. import formats
from ..formats.binary import BinaryIntegerOp
from ..graph import ir
from ..lowering import LoweringContext
from ..plan import Affine
from ..targets import Target
from ..targets.limits import BinaryOperandLimits
from .elementwise import BinaryOp
from .functions.attention_masks import (
    RUN_TIME_MASK_REASON,
    is_masked_at_run_time,
    masked_row_length,
)
from .scale_constraints import ExponentLookup, ScalePair, Scaling

__all__ = ["AddConstant", "MulConstant"]

_UNIT_EXPONENT = 6  # a factor of 1 is held as 2^6


def _computed_inputs(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is None][:1]


def _constant_inputs(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is not None]


def _lowers_to_batch_norm(form: BinaryIntegerOp, target: Target) -> bool:
    """Whether no operand may be a constant, so that every element becomes a channel."""
    return target.get_limits(form.name, BinaryOperandLimits) is not None


def _share_unmasked_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """What a mask shows stays as it is."""
    x, y = ir.input_name(node, _computed_inputs(node)[0]), ir.output_name(node)
    return [] if masked_row_length(node) is None else [ScalePair(x, y, statistics_of=x)]


def _mask_headroom(node: ir.Node) -> float | None:
    """A row of n may have nothing but the least number to show, and n that are hidden, of 1/256
    together.
    """
    count = masked_row_length(node)
    return None if count is None else math.log(256.0 * count)


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The product with a factor of 1 is shifted right."""
    return exponent(ir.input_name(node, _computed_inputs(node)[0])) + _UNIT_EXPONENT


def _product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The product with the factor is shifted right."""
    return exponent(ir.input_name(node, _constant_inputs(node)[0])) + exponent(
        ir.input_name(node, _computed_inputs(node)[0])
    )


def _supports_zero_points(form: BinaryIntegerOp, node: ir.Node, target: Target) -> bool:
    """Whether the platform has the operator; a mask's range is one around 0."""
    return not _lowers_to_batch_norm(form, target) and masked_row_length(node) is None


class AddConstant(BinaryOp):
    """Sum of an activation and a constant tensor."""

    integer_op: BinaryIntegerOp = formats.ADD
    composition_name = "iqAdd (constant)"
    floats = (("", "Add"),)
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=_share_unmasked_scale,
        headroom_below=_mask_headroom,
        max_output_exponent=_sum_max_exponent,
        supports_zero_points=partial(_supports_zero_points, formats.ADD),
    )
    constant_is_factor = False
    may_emit_reshape = True  # to channels, where a chip takes one sample

    def data(self, node: ir.Node) -> list[int]:
        """The one that is computed."""
        return _computed_inputs(node)

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return the constant operand."""
        return _constant_inputs(node)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """One constant of several values that does not widen the result."""
        if is_masked_at_run_time(node.outputs[0]):
            return RUN_TIME_MASK_REASON
        arrays = [ir.const_value(value) for value in node.inputs]
        array = next((a for a in arrays if a is not None), None)
        if array is None or all(a is not None for a in arrays):
            return (
                "neither operand is a constant" if array is None else "both operands are constants"
            )
        widens = ir.get_shape(node.inputs[self.data(node)[0]]) != ir.get_shape(node.outputs[0])
        batch = array.ndim == len(ir.get_shape(node.outputs[0]) or ()) and array.shape[:1] != (1,)
        if widens:
            return (
                f"its constant of shape {list(array.shape)} makes the result larger than what "
                "is computed"
            )
        if batch:
            return f"its constant of shape {list(array.shape)} is not the same for every sample"
        one = array.size < 2 or array.dtype.kind != "f"
        return f"{node.op_type} with one constant is a table's work" if one else None

    def is_available(self, target: Target) -> bool:
        """Whether the platform has the operator it becomes."""
        return target.can_run(
            (
                formats.BATCH_NORM2D
                if _lowers_to_batch_norm(self.integer_op, target)
                else self.integer_op
            ).name
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the constant as second operand, or as factor or summand of a BatchNorm2dInt."""
        index, other = self.data(node)[0], self.weight_inputs(node)[0]
        array = ir.require_const_value(node.inputs[other])
        shape = ir.require_shape(node.outputs[0])
        x, y, o = (
            context.input_qparams(node, index),
            context.input_qparams(node, other),
            context.output_qparams(node),
        )
        value = context.get_integer_input(node, index)
        if _lowers_to_batch_norm(self.integer_op, context.target):
            self._emit_as_batch_norm(node, context, value, (1, *(int(d or 1) for d in shape[1:])))
            return
        full = (1,) * (len(shape) - array.ndim) + array.shape
        constant = context.add_quantized_constant(node, other, y, lambda a: a.reshape(full))
        context.emit(self.integer_op, node, [value, constant], self.integer_op.scales(x, y, o))

    def _emit_as_batch_norm(
        self, node: ir.Node, low: LoweringContext, value: ir.Value, shape: tuple[int, ...]
    ) -> None:
        (other,) = self.weight_inputs(node)
        x, o, base = (
            low.input_qparams(node, self.data(node)[0]),
            low.output_qparams(node),
            ir.output_name(node),
        )
        count = math.prod(shape)

        def spread(array: np.ndarray) -> np.ndarray:
            return np.broadcast_to(array, shape).reshape(-1)

        if self.constant_is_factor:
            w = low.input_qparams(node, other)
            parameters = [
                low.add_quantized_constant(node, other, w, spread, f"{base}_factor"),
                low.array(f"{base}_offset", np.zeros(count, np.int32)),
            ]
        else:
            w = Affine(2.0**_UNIT_EXPONENT)
            parameters = [
                low.array(f"{base}_factor", np.full(count, w.scale).astype(np.int8)),
                *low.bias(node, other, x.scale * w.scale, spread, f"{base}_offset"),
            ]
        column = [1, count, 1, 1]
        target = low.array(f"{base}_column_shape", np.array(column, np.int64))
        value = low.emit_intermediate(
            formats.RESHAPE, node, "column", [value, target], {}, column, x
        )
        attrs = formats.BATCH_NORM2D.scales(x, w, o)
        value = low.emit_intermediate(
            formats.BATCH_NORM2D, node, "affine", [value, *parameters], attrs, column, o
        )
        back = low.array(f"{base}_shape", np.array(shape, np.int64))
        low.emit(formats.RESHAPE, node, [value, back], {})


class MulConstant(AddConstant):
    """Product of an activation and a constant tensor."""

    integer_op = formats.MUL
    composition_name = "iqMul (constant)"
    floats = (("", "Mul"),)
    scale_constraints = replace(
        AddConstant.scale_constraints,
        max_output_exponent=_product_max_exponent,
        supports_zero_points=partial(_supports_zero_points, formats.MUL),
    )
    constant_is_factor = True
