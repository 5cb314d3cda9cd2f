"""Per-channel factor and offset: BatchNorm2dInt, ``y = sat(rescale(x*w[c] + b[c]))``.

The weight is int8, the bias int32. The operator works on images [N, C, H, W]; tensors of another
rank are reshaped before and after.
"""

from __future__ import annotations

import numpy as np

from ...ir import ir
from ...ir.attributes import get_number
from .. import integer_ops
from .._lowering import WeightLayer
from .._nchw import emit_from_nchw, emit_reshape_to_nchw, nchw_shape
from ..lowering_context import LoweringContext

__all__ = [
    "BatchNorm2d",
    "fold_batch_norm_parameters",
]


def fold_batch_norm_parameters(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return float64 arrays (a, c) of ``y = a*x + c`` per channel, for a BatchNormalization `node`.

    None is returned if a parameter (inputs 1 to 4) is not constant.
    """
    arrays = [ir.const_value(value) for value in node.inputs[1:5]]
    if any(array is None for array in arrays):
        return None
    gamma, beta, mean, var = (np.asarray(array, np.float64) for array in arrays)
    with np.errstate(all="ignore"):  # what is not finite is told where scales are chosen
        a = gamma / np.sqrt(var + ir.get_attr(node, "epsilon", 1e-5))
        return a, beta - mean * a


class BatchNorm2d(WeightLayer):
    """Batch normalization that could not be folded into a layer.

    The integer weight is ``gamma / sqrt(var + eps)``; the plan stores its scale as that of gamma.
    """

    integer_op = integer_ops.BATCH_NORM2D
    floats = (("", "BatchNormalization"),)
    may_emit_reshape = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why the normalization `node` has no integer form, or None if it has one.

        Reasons: a parameter that is not constant, or an output shape of which more than the batch
        is unknown.
        """
        if fold_batch_norm_parameters(node) is None:
            return "its parameters are computed at run time"
        return None if nchw_shape(node) is not None else "its shape is not known before the run"

    def macs(self, node: ir.Node) -> int:
        """Return 0, for any `node`: elementwise multiplications are not counted."""
        return 0

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit BatchNorm2dInt into `context`, between two Reshapes unless the rank is 4.

        Its weight is the folded factor per channel, and its bias the folded offset at the scale of
        the accumulator (that of input times weight).
        """
        folded = fold_batch_norm_parameters(node)
        assert folded is not None
        factor, offset = folded
        attrs = self.make_integer_attributes(node, context)
        w = context.input_qparams(node, 1)
        weight = context.array(ir.input_name(node, 1), w.integers(factor), keeps_name=True)
        bias = context.add_accumulator_constant(
            f"{node.outputs[0].name}_bias",
            offset,
            get_number(attrs, "scale_x") * get_number(attrs, "scale_w"),
            context.has_wide_operands(node),
        )
        value = emit_reshape_to_nchw(
            context, node, context.get_integer_input(node, 0), context.input_qparams(node, 0)
        )
        emit_from_nchw(context, node, integer_ops.BATCH_NORM2D, [value, weight, bias], attrs)
