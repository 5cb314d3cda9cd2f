"""Softmax and log-softmax over rows: SoftmaxInt, LogSoftmaxInt.

The input is brought to Q25, the result of the integer algorithm has 15 fractional bits and is
rounded once to the output's scale. A float Softmax along another axis than the last is put between
two transposes. To the executor a row has all axes from `axis` on, to the training side that axis
alone.
"""

from __future__ import annotations

from ... import formats
from ...graph import ir
from ...lowering import LoweringContext
from ...targets import Target
from .._base import Op
from ..functions.attention_masks import RUN_TIME_MASK_REASON, is_masked_at_run_time
from ..scale_constraints import Scaling, share_no_scales

__all__ = ["LogSoftmax", "Softmax"]


def check_row_length(node: ir.Node, target: Target) -> object:
    """rows have at most {target.softmax_limits.max_length} elements | split the row."""
    shape, limits = ir.get_shape(node.inputs[0]) or (1,), target.softmax_limits
    axis = ir.get_attr(node, "axis", -1) % len(shape)
    return (
        f"{shape[axis]} elements"
        if limits is not None and (shape[axis] or 0) > limits.max_length
        else None
    )


class Softmax(Op):
    """Exponentials over their sum, along one axis, become SoftmaxInt."""

    integer_op = formats.SOFTMAX
    floats: tuple[tuple[str, str], ...] = (("", "Softmax"),)
    scale_constraints = Scaling(
        factor_behavior="fixed", shared_scales=share_no_scales, output_bound=1.0
    )
    constraints = (check_row_length,)
    runs_on_host_when_last = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Rows within a sample, all sizes known."""
        shape = ir.get_shape(node.inputs[0])
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        if is_masked_at_run_time(node.inputs[0]):
            return RUN_TIME_MASK_REASON
        return "it mixes samples" if ir.get_attr(node, "axis", -1) % len(shape) == 0 else None

    def is_available(self, target: Target) -> bool:
        """Where the arithmetic is known to be the executor's."""
        return target.is_computed_correctly(self.name)

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """The reason that the target gives, where it gives one."""
        return target.why.get(self.name) or super().explain_unavailable(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit, between two transposes where the axis is not the last."""
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        shape = list(ir.require_shape(node.inputs[0]))
        attrs = {"axis": -1, "dim": -1, **self.integer_op.scales(x, o)}
        axis, last, value = (
            ir.get_attr(node, "axis", -1) % len(shape),
            len(shape) - 1,
            context.get_integer_input(node, 0),
        )
        if axis == last:
            context.emit(self.integer_op, node, [value], attrs)
            return
        turn = [*range(axis), last, *range(axis + 1, last), axis]
        turned = [shape[i] for i in turn]
        value = context.emit_intermediate(
            formats.TRANSPOSE, node, "rows", [value], {"perm": turn}, turned, x
        )
        value = context.emit_intermediate(
            self.integer_op, node, "turned", [value], attrs, turned, o
        )
        context.emit(formats.TRANSPOSE, node, [value], {"perm": turn})


class LogSoftmax(Softmax):
    """The logarithm of a softmax."""

    integer_op = formats.LOG_SOFTMAX
    floats = (("", "LogSoftmax"),)
    scale_constraints = Scaling(factor_behavior="fixed", shared_scales=share_no_scales)
