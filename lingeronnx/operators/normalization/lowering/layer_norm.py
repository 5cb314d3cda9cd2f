"""Layer normalization: LayerNormInt; a limit returns None if kept, else the offending value.

It normalizes over the last axis or axes.

``y = sat(rescale(n * gamma + beta))``, where n is the normalized row with 10 fractional bits; gamma
is int8 (int16 on some chips), beta int32 at 2^10 * scale_w. The result depends on the input's scale
only through epsilon.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.plan import Affine
from ....targets import Target
from ....targets.arithmetic import LayerNormArithmetic
from ... import integer_ops
from ..._lowering import ExponentLookup, Op, Scaling, share_no_scales
from ...lowering_context import LoweringContext
from ..integer_op import (
    DEFAULT_EPSILON,
    NORMALIZED_FRACTION_BITS,
    get_normalized_fraction_bits,
)

__all__ = ["LayerNorm", "has_short_rows", "needs_rank3_rows"]


def check_row_length(node: ir.Node, target: Target) -> str | None:
    """a normalised row has at most {target.layer_norm_limits.max_length} elements, more overflow 32
    bits | normalise
    shorter
    rows.
    """
    if target.layer_norm_limits is None:
        return None
    count = math.prod(int(dim or 1) for dim in ir.get_shape(node.inputs[1]) or ())
    return f"{count} elements" if count > target.layer_norm_limits.max_length else None


def check_epsilon(node: ir.Node, target: Target) -> str | None:
    """epsilon is {target.layer_norm_limits.epsilon} or less (less shows only in rows that deviate
    by less than 0.01) |
    export the
    model with that eps.
    """
    if target.layer_norm_limits is None:
        return None
    epsilon = ir.get_attr(node, "epsilon", DEFAULT_EPSILON)
    return f"{epsilon:g}" if epsilon > 2 * target.layer_norm_limits.epsilon else None


def check_axis_count(node: ir.Node, target: Target) -> str | None:
    """a normalised row is the last axis or the last two | flatten the axes before."""
    if target.layer_norm_limits is None:
        return None
    count = len(ir.get_shape(node.inputs[1]) or ())
    return f"{count} axes" if count > target.layer_norm_limits.max_axes else None


def _max_output_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output: 10 + that of the weight.

    `exponent` gives that of a tensor by name. The normalized values have at least 10 fractional
    bits, and their product with the weight is only shifted right.
    """
    return NORMALIZED_FRACTION_BITS + exponent(ir.input_name(node, 1))


class LayerNorm(Op):
    """Layer normalization with factor and offset: LayerNormInt."""

    integer_op = integer_ops.LAYER_NORM
    floats = (("", "LayerNormalization"), (ir.FUNCTION_DOMAIN, "LayerNormalization"))
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=_max_output_exponent,
    )
    constraints = (check_row_length, check_epsilon, check_axis_count)
    may_emit_reshape = True  # to rows of one sample

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [1], the index of the input of `node` that is its scale (gamma)."""
        return [1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the layer normalization `node` has no integer form, or None if it has one.

        Reasons: scale or bias computed at run time or without one value per element of a row, a
        mean or deviation output that is used, unknown dimensions, and rows that include the batch
        axis.
        """
        gamma = ir.const_value(node.inputs[1])
        beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
        shape = ir.get_shape(node.inputs[0])
        if gamma is None or (beta is None and len(node.inputs) > 2 and node.inputs[2] is not None):
            return "its scale or bias is computed at run time"
        if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
            return "its mean or deviation is used as well"
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        axis = ir.get_attr(node, "axis", -1) % len(shape)
        if axis == 0:
            return "it mixes samples"
        if any(array is not None and array.shape != shape[axis:] for array in (gamma, beta)):
            return "its scale does not have one value per element"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit LayerNormInt into `context`, with a bias (default 0), on rows as the target needs.

        Rows that are too short are repeated side by side, with their parameters; rows are reshaped
        to rank 3 if the target miscounts others. Weights are int16 if the target multiplies 16-bit
        factors. `epsilon` is an attribute only on targets without layer-norm limits.
        """
        w = context.input_qparams(node, 1)
        attrs = integer_ops.LAYER_NORM.make_qparams_attributes(
            context.input_qparams(node, 0), w, context.output_qparams(node)
        )
        if context.target.layer_norm_limits is None:
            attrs["epsilon"] = float(ir.get_attr(node, "epsilon", DEFAULT_EPSILON))
        gamma = ir.require_const_value(node.inputs[1])
        copies = _row_repeats(gamma.size, context.target)

        def repeat(array: np.ndarray) -> np.ndarray:
            """Return `array`, flattened and repeated as often as the rows.

            Unchanged if that is once.
            """
            return array if copies == 1 else np.tile(array.reshape(-1), copies)

        weight = context.weight(node, 1, repeat)
        arithmetic = context.target.get_arithmetic(self.name, LayerNormArithmetic)
        if arithmetic is not None and arithmetic.factor_bits == 16:
            weight = context.widen_to_int16(weight)
            attrs["parameter_bits"] = 16
        fraction_bits = get_normalized_fraction_bits(arithmetic)
        bias = context.bias(node, 2, 2.0**fraction_bits * w.scale, repeat)
        if not bias:
            zeros, name = np.zeros(repeat(gamma).shape), f"{node.outputs[0].name}_bias"
            bias = [context.add_accumulator_constant(name, zeros, 1.0)]
        if needs_rank3_rows(node, context.target):
            self._lower_as_rows(node, context, [weight, *bias], attrs, gamma.size)
        else:
            inputs = [context.get_integer_input(node, 0), weight, *bias]
            context.emit(integer_ops.LAYER_NORM, node, inputs, attrs)

    def _lower_as_rows(
        self,
        node: ir.Node,
        low: LoweringContext,
        constants: list[ir.Value],
        attrs: dict[str, AttributeValue],
        size: int,
    ) -> None:
        """Emit LayerNormInt on [1, rows, elements] into `low`, short rows repeated side by side.

        `constants` are weight and bias for such rows, `size` the elements of a row before, `attrs`
        those of LayerNormInt. Reshapes surround it if the input's shape is another, and a Slice
        takes one copy of repeated rows, whose mean and variance are the same. The rows are repeated
        by a LinearInt, exactly.
        """
        x, o, base = low.input_qparams(node, 0), low.output_qparams(node), ir.output_name(node)
        shape = [1, *(int(dim or 1) for dim in ir.require_shape(node.inputs[0])[1:])]
        row_shape, copies = [1, math.prod(shape) // size, size], _row_repeats(size, low.target)
        norm_shape, value = [*row_shape[:2], copies * size], low.get_integer_input(node, 0)

        def add_shape(suffix: str, dims: list[int]) -> ir.Value:
            """Return a new int64 constant `dims`, the target of a Reshape, named by `suffix`."""
            return low.array(f"{base}_{suffix}_shape", np.array(dims, np.int64))

        if shape != row_shape:
            target = add_shape("lines", row_shape)
            value = low.emit_intermediate(
                integer_ops.RESHAPE, node, "lines", [value, target], {}, row_shape, x
            )
        if copies > 1:
            value = self._repeat_rows(node, low, value, size, norm_shape)
        value = low.emit_intermediate(
            integer_ops.LAYER_NORM, node, "norm", [value, *constants], attrs, norm_shape, o
        )
        if copies > 1:
            bounds = (("start", 0), ("end", size), ("axis", 2), ("step", 1))
            inputs = [value]
            for key, number in bounds:
                inputs.append(low.array(f"{base}_{key}", np.array([number], np.int64)))
            if shape == row_shape:
                low.emit(integer_ops.SLICE, node, inputs, {})
                return
            value = low.emit_intermediate(integer_ops.SLICE, node, "once", inputs, {}, row_shape, o)
        low.emit(integer_ops.RESHAPE, node, [value, add_shape("norm", shape)], {})

    @staticmethod
    def _repeat_rows(
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        size: int,
        repeated_shape: list[int],
    ) -> ir.Value:
        """Repeat the rows of `value`, of `size` elements, side by side by a LinearInt.

        Return the result. Its weights are tiled identities, so that the result is exact and has the
        input's scale. Its shape is `repeated_shape`, whose last axis is a multiple of `size`. It is
        emitted into `low`.
        """
        x, base = low.input_qparams(node, 0), ir.output_name(node)
        weight_qparams = Affine(64.0)
        identity = np.eye(size) * weight_qparams.scale
        weight = np.tile(identity, (repeated_shape[-1] // size, 1)).astype(np.int8)
        parameters = [
            low.array(f"{base}_repeated_weight", weight),
            low.array(f"{base}_repeated_bias", np.zeros(repeated_shape[-1], np.int32)),
        ]
        attrs = integer_ops.LINEAR.make_qparams_attributes(x, weight_qparams, x)
        return low.emit_intermediate(
            integer_ops.LINEAR, node, "repeated", [value, *parameters], attrs, repeated_shape, x
        )


def _row_repeats(size: int, target: Target) -> int:
    """Count the repetitions of rows of `size` elements that reach the least length of `target`.

    It is 1 for a row that is long enough, and on a target without such a limit.
    """
    if target.layer_norm_limits is None:
        return 1
    return -(-target.layer_norm_limits.min_length // size)


def has_short_rows(node: ir.Node, target: Target) -> bool:
    """Whether `target` needs the normalized rows of `node`, being short, repeated side by side.

    False if the shape of its scale (input 1) is unknown.
    """
    gamma = ir.get_shape(node.inputs[1])
    if gamma is None:
        return False
    return _row_repeats(math.prod(int(dim or 1) for dim in gamma), target) > 1


def needs_rank3_rows(node: ir.Node, target: Target) -> bool:
    """Whether the LayerNormalization `node` must be computed on [1, rows, elements] on `target`.

    That is so for rows shorter than its minimum, and, where it miscounts the rows of other ranks,
    for any rank but 3.
    """
    if has_short_rows(node, target):
        return True
    limits, rank = target.layer_norm_limits, len(ir.get_shape(node.inputs[0]) or ())
    return limits is not None and limits.lines and rank != 3
