"""HardSigmoid and HardSwish without lookup tables, composed of operators that every chip has.

    HardSigmoid  min(max(alpha x + beta, 0), 1)     BatchNorm2dInt and Relu; saturation clips at 1
    HardSwish    x * HardSigmoid(x)                 followed by iqMul

The gate has 7 fractional bits like that of a sigmoid, so its maximum is 127/128.
"""

from __future__ import annotations

from ....ir import ir
from ....ir.plan import Affine
from ....ir.plan.power_of_two import floor_exponent, floor_power_of_two
from ....targets import Target
from ... import integer_ops
from ..._lowering import Op, Scaling, make_fixed_max_exponent, share_no_scales
from ..._nchw import emit_channel_affine, emit_from_nchw, emit_reshape_to_nchw, nchw_shape
from ...lowering_context import LoweringContext
from ..integer_op import Q7
from .gated_activations import gated_product_max_exponent
from .lookup_table import TABLE

__all__ = ["HardSigmoid", "HardSwish"]


def _gate_coefficients(node: ir.Node) -> tuple[float, float]:
    """Return (alpha, beta) of the gate alpha x + beta: (1/6, 0.5) of a HardSwish, else attributes.

    The defaults of a HardSigmoid's attributes are 0.2 and 0.5.
    """
    if ir.base_op_type(node) == "HardSwish":
        return 1 / 6, 0.5
    return float(ir.get_attr(node, "alpha", 0.2)), float(ir.get_attr(node, "beta", 0.5))


class HardSigmoid(Op):
    """HardSigmoid without a lookup table."""

    integer_op: integer_ops.Format = integer_ops.RELU
    composition_name = "HardSigmoid (composed)"
    floats: tuple[tuple[str, str], ...] = (("", "HardSigmoid"),)
    may_emit_reshape = True
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        output_bound=1.0,
        max_output_exponent=make_fixed_max_exponent(7),
    )

    def is_available(self, target: Target) -> bool:
        """Whether `target` has Relu, iqMul and BatchNorm2dInt, but no iqTable.

        A table would round only once, and is preferred.
        """
        parts = (integer_ops.RELU, integer_ops.MUL, integer_ops.BATCH_NORM2D)
        return all(target.can_run(form.name) for form in parts) and not target.can_run(TABLE.name)

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why a HardSigmoid or HardSwish has no integer form, or None if it has one.

        Reasons: unknown dimensions or too many axes, or coefficients of `alpha * x + beta` outside
        0 < |alpha| < 64 and -1 <= beta <= 2 (beyond, the rounding of alpha moves the bends).
        """
        if nchw_shape(node) is None:
            return "its shape is not known before the run"
        alpha, beta = _gate_coefficients(node)
        if 0 < abs(alpha) < 64 and -1 <= beta <= 2:
            return None
        return "its line alpha x + beta is flat, very steep or far from 0"

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the line alpha x + beta and a Relu in Q7, and a Requant if the output is not in Q7.

        They work on [N, C, H, W]; a Reshape to the output shape follows if it is another.
        """
        o, line = context.output_qparams(node), self._emit_gate_line(node, context)
        if o == Q7:
            emit_from_nchw(context, node, integer_ops.RELU, [line], {})
            return
        gate = context.emit_intermediate(
            integer_ops.RELU, node, "gate", [line], {}, nchw_shape(node) or (), Q7
        )
        attrs = integer_ops.REQUANT.make_qparams_attributes(Q7, o)
        emit_from_nchw(context, node, integer_ops.REQUANT, [gate], attrs)

    def _emit_gate_line(self, node: ir.Node, low: LoweringContext) -> ir.Value:
        """Emit alpha x + beta in Q7, saturated, as [N, C, H, W] by a BatchNorm2dInt; return it.

        A Requant precedes it if the product would have fewer fractional bits than Q7.
        """
        (alpha, beta), x = _gate_coefficients(node), low.input_qparams(node, 0)
        value = emit_reshape_to_nchw(low, node, low.get_integer_input(node, 0), x)
        w = Affine(2.0 ** min(floor_exponent(127 / abs(alpha)), low.target.exponents[1]))
        if x.scale * w.scale < Q7.scale:
            # Avoid a left shift: requantize to a finer scale. Clipped values are where the gate is
            # constant.
            furthest_bend = max(abs(beta), abs(1 - beta)) / abs(alpha)
            fine = Affine(floor_power_of_two(127 / furthest_bend))
            attrs, shape = (
                integer_ops.REQUANT.make_qparams_attributes(x, fine),
                nchw_shape(node) or (),
            )
            value = low.emit_intermediate(
                integer_ops.REQUANT, node, "near", [value], attrs, shape, fine
            )
            x = fine
        return emit_channel_affine(
            low,
            node,
            "line",
            value,
            input_qparams=x,
            output_qparams=Q7,
            weight_qparams=w,
            factors=alpha,
            offset=beta,
        )


class HardSwish(HardSigmoid):
    """HardSwish without a lookup table: x times a HardSigmoid."""

    integer_op = integer_ops.MUL
    composition_name = "HardSwish (composed)"
    floats = (("", "HardSwish"), (ir.FUNCTION_DOMAIN, "HardSwish"))
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=gated_product_max_exponent,
    )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit input * gate as iqMul on tensors [N, C, H, W], and reshape the result back.

        The gate is the line alpha x + beta followed by Relu, int8 with 7 fractional bits (Q7).
        """
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        shape = nchw_shape(node) or ()
        gate = context.emit_intermediate(
            integer_ops.RELU, node, "gate", [self._emit_gate_line(node, context)], {}, shape, Q7
        )
        value = emit_reshape_to_nchw(context, node, context.get_integer_input(node, 0), x)
        attrs = integer_ops.MUL.make_qparams_attributes(x, Q7, o)
        emit_from_nchw(context, node, integer_ops.MUL, [value, gate], attrs)
