"""Softmax and log-softmax over rows; a limit returns None if kept, else the offending value.

The operators are SoftmaxInt and LogSoftmaxInt.

The input is converted to Q25; the result of the integer algorithm has 15 fractional bits and is
rounded once to the output's scale. A Softmax along another axis than the last gets a Transpose
before and after. For the executor a row consists of all axes from `axis` on, for the training side
of that axis alone.
"""

from __future__ import annotations

from ....ir import ir
from ....targets import Target
from ... import integer_ops
from ..._lowering import Op, Scaling, share_no_scales
from ...attention_masks import RUN_TIME_MASK_REASON, is_masked_at_run_time
from ...lowering_context import LoweringContext

__all__ = ["MAX_LOGIT", "LogSoftmax", "Softmax"]

#: Magnitude at which logits saturate: they are converted to 32 bits with 25 fractional ones.
MAX_LOGIT = 64.0


def check_row_length(node: ir.Node, target: Target) -> str | None:
    """rows have at most {target.softmax_limits.max_length} elements | split the row."""
    if target.softmax_limits is None:
        return None
    shape = ir.get_shape(node.inputs[0]) or (1,)
    length = shape[ir.get_attr(node, "axis", -1) % len(shape)] or 0
    return f"{length} elements" if length > target.softmax_limits.max_length else None


class Softmax(Op):
    """Softmax along one axis: SoftmaxInt."""

    integer_op = integer_ops.SOFTMAX
    floats: tuple[tuple[str, str], ...] = (("", "Softmax"),)
    scale_constraints = Scaling(
        factor_behavior="fixed", shared_scales=share_no_scales, output_bound=1.0
    )
    constraints = (check_row_length,)
    runs_on_host_when_last = True

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the softmax `node` has no integer form, or None if it has one.

        Reasons: a dimension other than the batch is unknown, the input is masked at run time, or
        `axis` (default -1) is the batch axis.
        """
        shape = ir.get_shape(node.inputs[0])
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        if is_masked_at_run_time(node.inputs[0]):
            return RUN_TIME_MASK_REASON
        return "it mixes samples" if ir.get_attr(node, "axis", -1) % len(shape) == 0 else None

    def is_available(self, target: Target) -> bool:
        """Whether `target` runs this operator and computes it correctly."""
        return target.is_computed_correctly(self.name)

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason that `target` gives for lacking this operator, else a general one."""
        return target.why.get(self.name) or super().explain_unavailable(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the softmax on the last axis into `context`, transposed around if `axis` is another.

        The Transposes exchange that axis and the last one.
        """
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        shape = list(ir.require_shape(node.inputs[0]))
        attrs = {"axis": -1, "dim": -1, **self.integer_op.make_qparams_attributes(x, o)}
        axis, last = ir.get_attr(node, "axis", -1) % len(shape), len(shape) - 1
        value = context.get_integer_input(node, 0)
        if axis == last:
            context.emit(self.integer_op, node, [value], attrs)
            return
        perm = [*range(axis), last, *range(axis + 1, last), axis]
        transposed_shape = [shape[i] for i in perm]
        value = context.emit_intermediate(
            integer_ops.TRANSPOSE, node, "rows", [value], {"perm": perm}, transposed_shape, x
        )
        value = context.emit_intermediate(
            self.integer_op, node, "turned", [value], attrs, transposed_shape, o
        )
        context.emit(integer_ops.TRANSPOSE, node, [value], {"perm": perm})


class LogSoftmax(Softmax):
    """Log-softmax along one axis: LogSoftmaxInt."""

    integer_op = integer_ops.LOG_SOFTMAX
    floats = (("", "LogSoftmax"),)
    scale_constraints = Scaling(factor_behavior="fixed", shared_scales=share_no_scales)
