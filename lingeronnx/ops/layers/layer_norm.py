"""Layer normalisation over the last axis or axes: LayerNormInt.

``y = sat(rescale(n * gamma + beta))``, n the normalised row with 10 fractional bits; gamma int8
(int16 on some chips), beta int32 at 2^10 * scale_w. The result does not depend on the input's scale
but for epsilon.
"""

from __future__ import annotations

import math

import numpy as np

from ... import formats
from ...formats.normalization import DEFAULT_EPSILON, NORMALIZED_FRACTION_BITS
from ...graph import ir
from ...graph.attributes import AttributeValue
from ...lowering import LoweringContext
from ...plan import Affine
from ...targets import Target
from ...targets.arithmetic import LayerNormArithmetic
from .._base import Op
from ..scale_constraints import ExponentLookup, Scaling, share_no_scales

__all__ = ["LayerNorm", "has_short_rows", "needs_rank3_rows"]


def check_row_length(node: ir.Node, target: Target) -> object:
    """a normalised row has at most {target.layer_norm_limits.max_length} elements, more overflow 32
    bits | normalise
    shorter
    rows.
    """
    count = math.prod(int(d or 1) for d in ir.get_shape(node.inputs[1]) or ())
    return (
        f"{count} elements"
        if target.layer_norm_limits is not None and count > target.layer_norm_limits.max_length
        else None
    )


def check_epsilon(node: ir.Node, target: Target) -> object:
    """epsilon is {target.layer_norm_limits.epsilon} or less (less shows only in rows that deviate
    by less than 0.01) |
    export the
    model with that eps.
    """
    epsilon = ir.get_attr(node, "epsilon", DEFAULT_EPSILON)
    return (
        f"{epsilon:g}"
        if target.layer_norm_limits is not None and epsilon > 2 * target.layer_norm_limits.epsilon
        else None
    )


def check_axis_count(node: ir.Node, target: Target) -> object:
    """a normalised row is the last axis or the last two | flatten the axes before."""
    count = len(ir.get_shape(node.inputs[1]) or ())
    return (
        f"{count} axes"
        if target.layer_norm_limits is not None and count > target.layer_norm_limits.max_axes
        else None
    )


def _max_output_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """The shift to the output is to the right: q_o <= 10 + q_w."""
    return NORMALIZED_FRACTION_BITS + exponent(ir.input_name(node, 1))


class LayerNorm(Op):
    """Layer normalisation with factor and summand."""

    integer_op = formats.LAYER_NORM
    floats = (("", "LayerNormalization"), (ir.FUNCTION_DOMAIN, "LayerNormalization"))
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=_max_output_exponent,
    )
    constraints = (check_row_length, check_epsilon, check_axis_count)
    may_emit_reshape = True  # to lines of one sample

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return the factor, input 1."""
        return [1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Constant factor and summand, one per element of a row within a sample."""
        gamma = ir.const_value(node.inputs[1])
        beta = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
        shape = ir.get_shape(node.inputs[0])
        if gamma is None or (beta is None and len(node.inputs) > 2 and node.inputs[2] is not None):
            return "its factor or summand is computed at run time"
        if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
            return "its mean or deviation is used as well"
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        axis = ir.get_attr(node, "axis", -1) % len(shape)
        if axis == 0:
            return "it mixes samples"
        fits = all(v is None or v.shape == shape[axis:] for v in (gamma, beta))
        return None if fits else "its factor does not have one value per element"

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with integer factor and summand; the chips demand a summand, and lines that they
        count right.
        """
        x, w, o = (
            context.input_qparams(node, 0),
            context.input_qparams(node, 1),
            context.output_qparams(node),
        )
        attrs = formats.LAYER_NORM.scales(x, w, o)
        if context.target.layer_norm_limits is None:
            attrs["epsilon"] = float(ir.get_attr(node, "epsilon", DEFAULT_EPSILON))
        gamma = ir.require_const_value(node.inputs[1])
        copies = _row_repeats(gamma.size, context.target)

        def view(array: np.ndarray) -> np.ndarray:
            return array if copies == 1 else np.tile(array.reshape(-1), copies)

        weight = context.weight(node, 1, view)
        how = context.target.get_arithmetic(self.name, LayerNormArithmetic)
        if how is not None and how.factor_bits == 16:
            weight = context.widen_to_int16(weight)
        bias = context.bias(node, 2, 2.0**NORMALIZED_FRACTION_BITS * w.scale, view) or [
            context.add_accumulator_constant(
                f"{node.outputs[0].name}_bias", np.zeros(view(gamma).shape), 1.0
            )
        ]
        if needs_rank3_rows(node, context.target):
            self._lower_as_rows(node, context, [weight, *bias], attrs, gamma.size)
        else:
            context.emit(
                formats.LAYER_NORM, node, [context.get_integer_input(node, 0), weight, *bias], attrs
            )

    def _lower_as_rows(
        self,
        node: ir.Node,
        low: LoweringContext,
        constants: list[ir.Value],
        attrs: dict[str, AttributeValue],
        size: int,
    ) -> None:
        """Emit on [1, rows, size], short lines several times side by side: those have the same mean
        and variance.

        A linear layer repeats them exactly, and its area is large enough for what LayerNormInt
        writes.
        """
        x, o, base = low.input_qparams(node, 0), low.output_qparams(node), ir.output_name(node)
        shape = [1, *(int(d or 1) for d in ir.require_shape(node.inputs[0])[1:])]
        line, copies = [1, math.prod(shape) // size, size], _row_repeats(size, low.target)
        wide, value = [*line[:2], copies * size], low.get_integer_input(node, 0)

        def reshaped(what: str, target: list[int]) -> ir.Value:
            return low.array(f"{base}_{what}_shape", np.array(target, np.int64))

        if shape != line:
            value = low.emit_intermediate(
                formats.RESHAPE, node, "lines", [value, reshaped("lines", line)], {}, line, x
            )
        if copies > 1:
            one = Affine(64.0)
            parameters = [
                low.array(
                    f"{base}_repeated_weight",
                    np.tile(np.eye(size) * one.scale, (copies, 1)).astype(np.int8),
                ),
                low.array(f"{base}_repeated_bias", np.zeros(copies * size, np.int32)),
            ]
            scales = formats.LINEAR.scales(x, one, x)
            value = low.emit_intermediate(
                formats.LINEAR, node, "repeated", [value, *parameters], scales, wide, x
            )
        value = low.emit_intermediate(
            formats.LAYER_NORM, node, "norm", [value, *constants], attrs, wide, o
        )
        if copies > 1:
            bounds = (("start", 0), ("end", size), ("axis", 2), ("step", 1))
            cut = [
                value,
                *(low.array(f"{base}_{key}", np.array([v], np.int64)) for key, v in bounds),
            ]
            if shape == line:
                low.emit(formats.SLICE, node, cut, {})
                return
            value = low.emit_intermediate(formats.SLICE, node, "once", cut, {}, line, o)
        low.emit(formats.RESHAPE, node, [value, reshaped("norm", shape)], {})


def _row_repeats(size: int, target: Target) -> int:
    """Return how often a line of `size` elements is written side by side."""
    return (
        1 if target.layer_norm_limits is None else -(-target.layer_norm_limits.min_length // size)
    )


def has_short_rows(node: ir.Node, target: Target) -> bool:
    """Whether `target` would mix up the lines that `node` normalizes."""
    gamma = ir.get_shape(node.inputs[1])
    return gamma is not None and _row_repeats(math.prod(int(d or 1) for d in gamma), target) > 1


def needs_rank3_rows(node: ir.Node, target: Target) -> bool:
    """Whether `node` is computed on [1, rows, elements]: of other ranks `target` counts the rows
    wrong.
    """
    rank = len(ir.get_shape(node.inputs[0]) or ())
    return has_short_rows(node, target) or (
        target.layer_norm_limits is not None and target.layer_norm_limits.lines and rank != 3
    )
