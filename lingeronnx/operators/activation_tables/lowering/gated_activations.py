"""SiLU and GELU, by a lookup table or composed of a sigmoid gate and a product.

    SiLU  x * sigmoid(x)
    GELU  x * sigmoid(1.702 x)

The approximation of GELU is within 0.021, less than one integer step if the range is at least 4.
With a correct iqSigmoid, the composition is BatchNorm2dInt for the factor, iqSigmoid and iqMul.
With GluInt only, a LinearInt concatenates x and factor * x, and GluInt multiplies. The scale of the
gate input covers the range of the sigmoid.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.plan import Affine
from ....ir.plan.power_of_two import floor_power_of_two
from ....targets import Target
from ... import integer_ops
from ..._lowering import ExponentLookup, Op
from ...lowering_context import LoweringContext
from ..integer_op import Q7
from .lookup_table import TABLE, TABLE_SCALE_CONSTRAINTS
from .sigmoid_tanh import SIGMOID, check_glu_axis

__all__ = ["GatedActivation", "gated_product_max_exponent"]

#: From here on, sigmoid is within half an integer step of 1 in Q7.
_SIGMOID_INPUT_RANGE = 5.0
_WEIGHT_QPARAMS = Affine(2.0**6)


def _gate_factor(node: ir.Node) -> float:
    """Return the factor f in x * sigmoid(f x): 1.702 of a Gelu, `alpha` of a Swish, otherwise 1."""
    op_type = ir.base_op_type(node)
    if op_type == "Gelu":
        return 1.702
    return float(ir.get_attr(node, "alpha", 1.0)) if op_type == "Swish" else 1.0


def gated_product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of x times a gate: that of x plus 7.

    A product with a gate of 7 fractional bits is only shifted right.
    """
    return exponent(ir.input_name(node)) + 7


class GatedActivation(Op):
    """``x * sigmoid(factor * x)``, without a lookup table."""

    integer_op = integer_ops.MUL
    composition_name = "SiLU, GELU (composed)"
    floats = (
        ("", "Gelu"),
        ("", "Swish"),
        (ir.FUNCTION_DOMAIN, "Gelu"),
        (ir.FUNCTION_DOMAIN, "Silu"),
    )
    scale_constraints = replace(
        TABLE_SCALE_CONSTRAINTS, max_output_exponent=gated_product_max_exponent
    )
    constraints = (check_glu_axis,)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why a SiLU or GELU has no integer form, or None if it has one.

        Reasons: unknown dimensions or fewer than two axes, or a factor of x in the gate that is not
        strictly between 0 and 1.98, as a weight needs.
        """
        shape = ir.get_shape(node.inputs[0])
        if not shape or len(shape) < 2 or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        return None if 0 < _gate_factor(node) < 1.98 else "its factor is not between 0 and 1.98"

    def is_available(self, target: Target) -> bool:
        """Whether `target` has a sigmoid, of which the gate is made."""
        return SIGMOID.is_available(target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqTable if the target has it; otherwise a composition.

        It is x times an iqSigmoid if the target computes that exactly, otherwise LinearInt and
        GluInt.
        """
        if context.target.can_run(TABLE.name):
            TABLE.lower(node, context)
        elif SIGMOID.has_exact_table(context.target):
            self._emit_sigmoid_product(node, context)
        else:
            self._emit_glu(node, context)

    def _emit_sigmoid_product(self, node: ir.Node, low: LoweringContext) -> None:
        """Emit x * sigmoid(factor x): BatchNorm2dInt (unless the factor is 1), iqSigmoid and iqMul.

        The sigmoid is in Q7; the product has the output's format.
        """
        x, o, factor = low.input_qparams(node, 0), low.output_qparams(node), _gate_factor(node)
        shape = [int(dim or 1) for dim in ir.require_shape(node.outputs[0])]
        value = low.get_integer_input(node, 0)
        gate_input, q = value, x
        if factor != 1.0:
            q = _make_gate_qparams(x, factor)
            gate_input = _emit_scaled_input(node, low, value, shape, x, q, factor)
        gate = SIGMOID.emit_intermediate(node, low, gate_input, q, shape)
        low.emit(
            integer_ops.MUL, node, [value, gate], integer_ops.MUL.make_qparams_attributes(x, Q7, o)
        )

    def _emit_glu(self, node: ir.Node, low: LoweringContext) -> None:
        """Emit x * sigmoid(factor x) as a LinearInt that makes the pair (x, factor x), and GluInt.

        The pair lies on the last axis, which doubles; its format is that of the gate's input.
        """
        x, o, factor = low.input_qparams(node, 0), low.output_qparams(node), _gate_factor(node)
        shape = list(ir.require_shape(node.outputs[0]))
        count, q = int(shape[-1] or 1), _make_gate_qparams(x, factor)
        eye = np.eye(count)
        weight = _WEIGHT_QPARAMS.integers(np.concatenate([eye, eye * factor]))
        base = f"{ir.output_name(node)}_pair"
        parameters = [
            low.array(f"{base}_weight", weight),
            low.array(f"{base}_bias", np.zeros(2 * count, np.int32)),
        ]
        shape[-1] = 2 * count
        pair = low.emit_intermediate(
            integer_ops.LINEAR,
            node,
            "pair",
            [low.get_integer_input(node, 0), *parameters],
            integer_ops.LINEAR.make_qparams_attributes(x, _WEIGHT_QPARAMS, q),
            shape,
            q,
        )
        attrs: dict[str, AttributeValue] = {
            "dim": len(shape) - 1,  # with a negative axis, the packer plans too little memory
            "o_bits": o.bits,
            "scale_x": q.scale,
            "scale_o": o.scale,
        }
        low.emit(integer_ops.GLU, node, [pair], attrs)


def _make_gate_qparams(x: Affine, factor: float) -> Affine:
    """Return the qparams of a gate's input, `factor` times a tensor with qparams `x`.

    Its scale is a power of two, at most that of `x`, for inputs up to `_SIGMOID_INPUT_RANGE`.
    """
    max_input = min(_SIGMOID_INPUT_RANGE, factor * (x.high + 1) / x.scale)
    return Affine(min(x.scale, floor_power_of_two((x.high + 1) / max_input)))


def _emit_scaled_input(
    node: ir.Node,
    low: LoweringContext,
    value: ir.Value,
    shape: list[int],
    x: Affine,
    o: Affine,
    factor: float,
) -> ir.Value:
    """Emit `value` times `factor` by a BatchNorm2dInt on four axes; return the product.

    `shape` and `x` are the shape and format of `value`, `o` is the format of the product. Reshapes
    around it are emitted unless `shape` has rank 4.
    """
    base, image = ir.output_name(node), [*shape, 1, 1][:4]
    if len(shape) > 4:
        image = [*shape[:3], math.prod(shape[3:])]
    if image != shape:
        target = low.array(f"{base}_image_shape", _reshape_target(image, low))
        value = low.emit_intermediate(
            integer_ops.RESHAPE, node, "image", [value, target], {}, image, x
        )
    factors = _WEIGHT_QPARAMS.integers(np.full(image[1], factor))
    parameters = [
        low.array(f"{base}_factor", factors),
        low.array(f"{base}_offset", np.zeros(image[1], np.int32)),
    ]
    attrs = integer_ops.BATCH_NORM2D.make_qparams_attributes(x, _WEIGHT_QPARAMS, o)
    value = low.emit_intermediate(
        integer_ops.BATCH_NORM2D, node, "inner", [value, *parameters], attrs, image, o
    )
    if image != shape:
        value = low.emit_intermediate(
            integer_ops.RESHAPE,
            node,
            "inner_back",
            [value, low.array(f"{base}_inner_shape", _reshape_target(shape, low))],
            {},
            shape,
            o,
        )
    return value


def _reshape_target(shape: list[int], low: LoweringContext) -> np.ndarray:
    """Return the target of a Reshape to `shape`, with batch 1 on single-sample targets, else -1."""
    return np.array([1 if low.target.single_sample else -1, *shape[1:]], np.int64)
