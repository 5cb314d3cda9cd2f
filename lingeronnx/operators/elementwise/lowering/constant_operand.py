"""Sum or product of an activation and a constant tensor: iqAdd and iqMul with a constant operand.

On chips, BatchNorm2dInt computes it: each element of a sample becomes a channel, with factor 1 and
the constant as offset, or with the constant as factor. A pass folds constants into layers where
possible; a scalar constant is lowered to a table.

A sum with 0 or a large negative value is the mask of a Softmax (`attention_masks`). Masked elements
become the lowest integer, the others keep scale and integer; the scale is small enough that the
lowest integer gets no weight in any row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from ....ir import ir
from ....ir.plan import Affine
from ....targets import Target
from ....targets.limits import BinaryOperandLimits
from ... import integer_ops
from ..._binary_lowering import BinaryOp
from ..._binary_op import BinaryIntegerOp
from ..._lowering import ExponentLookup, ScalePair, Scaling
from ...attention_masks import RUN_TIME_MASK_REASON, is_masked_at_run_time, masked_row_length
from ...lowering_context import LoweringContext

__all__ = ["AddConstant", "MulConstant"]

_UNIT_EXPONENT = 6  # a factor of 1 is stored as 2^6


def _computed_inputs(node: ir.Node) -> list[int]:
    """Return [index of the first input of `node` that is not constant]; [] without one."""
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is None][:1]


def _constant_inputs(node: ir.Node) -> list[int]:
    """Return the indices of the constant inputs of `node`."""
    return [i for i, value in enumerate(node.inputs) if ir.const_value(value) is not None]


def _lowers_to_batch_norm(form: BinaryIntegerOp, target: Target) -> bool:
    """Whether `target` accepts no constant operand of `form`, so that BatchNorm2dInt is used."""
    return target.get_limits(form.name, BinaryOperandLimits) is not None


def _share_unmasked_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that a sum with a mask has the scale of its unmasked input.

    One pair (computed input, output), by the statistics of the input, for a sum that adds a
    constant mask before a Softmax; otherwise an empty list.
    """
    if masked_row_length(node) is None:
        return []
    x, y = ir.input_name(node, _computed_inputs(node)[0]), ir.output_name(node)
    return [ScalePair(x, y, statistics_of=x)]


def _mask_headroom(node: ir.Node) -> float | None:
    """Return log(256 n), the headroom below the smallest score of a masked row of n elements.

    The masked elements of a row then get at most 1/256 of the weight of its smallest score. None if
    `node` does not add a constant mask before a Softmax.
    """
    row_length = masked_row_length(node)
    return None if row_length is None else math.log(256.0 * row_length)


def _sum_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output of a sum with a constant.

    It is that of the computed operand plus 6: a product with a factor of 1, stored as 2^6, is only
    shifted right.
    """
    return exponent(ir.input_name(node, _computed_inputs(node)[0])) + _UNIT_EXPONENT


def _product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output of a product with a constant.

    It is the sum of the exponents of both operands, since the product is only shifted right.
    """
    return exponent(ir.input_name(node, _constant_inputs(node)[0])) + exponent(
        ir.input_name(node, _computed_inputs(node)[0])
    )


def _supports_zero_points(form: BinaryIntegerOp, node: ir.Node, target: Target) -> bool:
    """Whether sum or product with a constant may have zero points on `target`.

    It may if `form` takes a constant operand there, and if `node` adds no mask before a Softmax.
    """
    return not _lowers_to_batch_norm(form, target) and masked_row_length(node) is None


class AddConstant(BinaryOp):
    """Sum of an activation and a constant tensor."""

    integer_op: BinaryIntegerOp = integer_ops.ADD
    composition_name = "iqAdd (constant)"
    floats = (("", "Add"),)
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=_share_unmasked_scale,
        headroom_below=_mask_headroom,
        max_output_exponent=_sum_max_exponent,
        supports_zero_points=partial(_supports_zero_points, integer_ops.ADD),
    )
    constant_is_factor = False
    may_emit_reshape = True  # to channels, where a chip takes one sample

    def data(self, node: ir.Node) -> list[int]:
        """Return [index of the computed operand of `node`], which carries activations."""
        return _computed_inputs(node)

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [index of the constant operand of `node`], which is quantized as a weight."""
        return _constant_inputs(node)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why a sum (product) with a constant has no integer form, or None if it has one.

        It needs exactly one constant operand, of several float values, that does not broadcast the
        activation. Rejected are also a mask computed at run time, a constant that differs between
        samples, and a scalar (which is lowered to a table).
        """
        if is_masked_at_run_time(node.outputs[0]):
            return RUN_TIME_MASK_REASON
        constants = [array for value in node.inputs if (array := ir.const_value(value)) is not None]
        if not constants:
            return "neither operand is a constant"
        if len(constants) == len(node.inputs):
            return "both operands are constants"
        array, output_shape = constants[0], ir.get_shape(node.outputs[0])
        if ir.get_shape(node.inputs[self.data(node)[0]]) != output_shape:
            return f"its constant of shape {list(array.shape)} broadcasts the other operand"
        if array.ndim == len(output_shape or ()) and array.shape[:1] != (1,):
            return f"its constant of shape {list(array.shape)} differs between samples"
        if array.size < 2 or array.dtype.kind != "f":
            return f"{node.op_type} with a scalar constant is lowered to a table"
        return None

    def is_available(self, target: Target) -> bool:
        """Whether `target` has the integer operator, or BatchNorm2dInt where that replaces it.

        It does on targets that accept no constant operand.
        """
        if _lowers_to_batch_norm(self.integer_op, target):
            return target.can_run(integer_ops.BATCH_NORM2D.name)
        return target.can_run(self.integer_op.name)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer operator with the constant as second operand, or a BatchNorm2dInt.

        The BatchNorm2dInt, with the constant as its factor or offset, is emitted if the target has
        the operator only for computed operands.
        """
        index, constant_index = self.data(node)[0], self.weight_inputs(node)[0]
        array = ir.require_const_value(node.inputs[constant_index])
        shape = ir.require_shape(node.outputs[0])
        x = context.input_qparams(node, index)
        y = context.input_qparams(node, constant_index)
        o = context.output_qparams(node)
        value = context.get_integer_input(node, index)
        if _lowers_to_batch_norm(self.integer_op, context.target):
            self._emit_as_batch_norm(node, context, value, (1, *(int(d or 1) for d in shape[1:])))
            return
        full = (1,) * (len(shape) - array.ndim) + array.shape
        constant = context.add_quantized_constant(
            node, constant_index, y, lambda a: a.reshape(full)
        )
        attrs = self.integer_op.make_qparams_attributes(x, y, o)
        context.emit(self.integer_op, node, [value, constant], attrs)

    def _emit_as_batch_norm(
        self, node: ir.Node, low: LoweringContext, value: ir.Value, shape: tuple[int, ...]
    ) -> None:
        """Emit Reshape, BatchNorm2dInt and Reshape; channels are the elements of a sample.

        The constant operand of `node`, broadcast to `shape` (of a sample), is the factor (offset 0)
        if `constant_is_factor`, otherwise the offset (factor 1). `value` is the computed operand.
        """
        (constant_index,) = self.weight_inputs(node)
        x = low.input_qparams(node, self.data(node)[0])
        o, base = low.output_qparams(node), ir.output_name(node)
        count = math.prod(shape)

        def flatten(array: np.ndarray) -> np.ndarray:
            """Broadcast `array` to the shape of a sample, and flatten it."""
            return np.broadcast_to(array, shape).reshape(-1)

        if self.constant_is_factor:
            w = low.input_qparams(node, constant_index)
            parameters = [
                low.add_quantized_constant(node, constant_index, w, flatten, f"{base}_factor"),
                low.array(f"{base}_offset", np.zeros(count, np.int32)),
            ]
        else:
            w = Affine(2.0**_UNIT_EXPONENT)
            parameters = [
                low.array(f"{base}_factor", np.full(count, w.scale).astype(np.int8)),
                *low.bias(node, constant_index, x.scale * w.scale, flatten, f"{base}_offset"),
            ]
        column = [1, count, 1, 1]
        target = low.array(f"{base}_column_shape", np.array(column, np.int64))
        value = low.emit_intermediate(
            integer_ops.RESHAPE, node, "column", [value, target], {}, column, x
        )
        attrs = integer_ops.BATCH_NORM2D.make_qparams_attributes(x, w, o)
        value = low.emit_intermediate(
            integer_ops.BATCH_NORM2D, node, "affine", [value, *parameters], attrs, column, o
        )
        back = low.array(f"{base}_shape", np.array(shape, np.int64))
        low.emit(integer_ops.RESHAPE, node, [value, back], {})


class MulConstant(AddConstant):
    """Product of an activation and a constant tensor."""

    integer_op = integer_ops.MUL
    composition_name = "iqMul (constant)"
    floats = (("", "Mul"),)
    scale_constraints = replace(
        AddConstant.scale_constraints,
        max_output_exponent=_product_max_exponent,
        supports_zero_points=partial(_supports_zero_points, integer_ops.MUL),
    )
    constant_is_factor = True
