"""Instance normalization: InstanceNormInt.

``y = sat(rescale(n * gamma + beta))``, where n is the normalized channel with 15 fractional bits,
gamma is int8 or int16, and beta has the scale 2^15 * scale_w.
"""

from __future__ import annotations

import math

import numpy as np

from ....common.errors import ConstraintError
from ....ir import ir
from ..._lowering import ExponentLookup, Op, Scaling, share_no_scales
from ...lowering_context import LoweringContext
from ..integer_op import DEFAULT_EPSILON, INSTANCE_NORM, INSTANCE_NORM_SCALE

__all__ = ["InstanceNorm"]

#: Largest bias in multiples of the largest scale: at 2^15 times the weight's scale it fits int32.
_MAX_OFFSET = 256


def _max_output_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of the output: 15 + that of the weight."""
    return int(math.log2(INSTANCE_NORM_SCALE)) + exponent(ir.input_name(node, 1))


class InstanceNorm(Op):
    """Instance normalization with factor and offset per channel: InstanceNormInt."""

    integer_op = INSTANCE_NORM
    floats = (("", "InstanceNormalization"),)
    scale_constraints = Scaling(
        factor_behavior="fixed",
        shared_scales=share_no_scales,
        max_output_exponent=_max_output_exponent,
    )

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [1], the index of the input of `node` that is its scale (gamma)."""
        return [1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the instance normalization `node` has no integer form, or None if it has one.

        Reasons: scale or bias computed at run time, unknown dimensions, and a bias that is too
        large against the scale for 32 bits.
        """
        gamma, beta = (ir.const_value(value) for value in node.inputs[1:3])
        if gamma is None or beta is None:
            return "its scale or bias is computed at run time"
        shape = ir.get_shape(node.inputs[0])
        if not shape or any(dim is None for dim in shape[1:]):
            return "its shape is not known before the run"
        if np.abs(beta).max() > _MAX_OFFSET * np.abs(gamma).max():
            return f"its bias exceeds {_MAX_OFFSET} times its scale"
        return None

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit InstanceNormInt into `context`, with constants for scale (1) and bias (2).

        Raises ConstraintError if the channels are too large for the bits of the input.
        """
        from simulator.kernels.layer_norm import InstanceNorm as Kernel

        x, w = context.input_qparams(node, 0), context.input_qparams(node, 1)
        count = math.prod(int(dim or 1) for dim in ir.require_shape(node.inputs[0])[2:])
        limit = Kernel.get_max_elements(x.dtype)
        if count > limit:
            raise ConstraintError(
                f"{ir.display_op_type(node)} {node.name} -> {ir.output_name(node)}: a channel has "
                f"{count} elements of {x.bits} bits, but the limit is {limit}; use fewer bits for "
                f"{ir.input_name(node, 0)}, or keep the node in float"
            )
        attrs = INSTANCE_NORM.make_qparams_attributes(x, w, context.output_qparams(node))
        attrs["epsilon"] = float(ir.get_attr(node, "epsilon", DEFAULT_EPSILON))
        inputs = [
            context.get_integer_input(node, 0),
            context.weight(node, 1),
            *context.bias(node, 2, INSTANCE_NORM_SCALE * w.scale),
        ]
        context.emit(INSTANCE_NORM, node, inputs, attrs)
