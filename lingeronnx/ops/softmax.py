"""Softmax and log-softmax over rows: SoftmaxInt, LogSoftmaxInt.

The input is brought to Q25, the result of the integer algorithm has 15 fractional bits and is rounded once to the
output's scale. A float Softmax along another axis than the last is put between two transposes. To the executor a row
has all axes from `axis` on, to the training side that axis alone.
"""

from __future__ import annotations

from typing import Any

from ..emit import Lowering
from ..errors import ModelError
from ..graph import ir
from ..platforms import Platform
from ..platforms.arithmetic import Row, Rows
from ..platforms.faults import Fault
from ._base import Attr, Bound, Op, Tie
from .masks import MASKED_AT_RUN_TIME, masked_at_run_time

__all__ = ["LogSoftmax", "Softmax"]


def row_length(node: ir.Node, row: Platform) -> Any:
    """rows have at most {row.softmax.max_length} elements | split the row."""
    shape, limits = ir.shape(node.inputs[0]) or (1,), row.softmax
    axis = ir.attr(node, "axis", -1) % len(shape)
    return f"{shape[axis]} elements" if limits is not None and (shape[axis] or 0) > limits.max_length else None


class Softmax(Op):
    """Exponentials over their sum."""

    name = "SoftmaxInt"
    kind = Rows
    floats: tuple[tuple[str, str], ...] = (("", "Softmax"),)
    aliases: tuple[str, ...] = ("QSoftmax",)
    factor = "fixed"
    attributes = (Attr("axis", "i", None), Attr("dim", "i", None), Attr("data_bits", "i", 8), Attr("o_bits", "i", 8),
                  Attr("scale_x", "f"), Attr("scale_o", "f"))  # fmt: skip
    constraints = (row_length,)
    head = True
    bound: float | None = 1.0
    fault = Fault.SOFTMAX

    def reject(self, node: ir.Node) -> str | None:
        """Rows within a sample, all sizes known."""
        shape = ir.shape(node.inputs[0])
        if not shape or any(d is None for d in shape[1:]):
            return "its shape is not known before the run"
        if masked_at_run_time(node.inputs[0]):
            return MASKED_AT_RUN_TIME
        return "it mixes samples" if ir.attr(node, "axis", -1) % len(shape) == 0 else None

    def available(self, row: Platform) -> bool:
        """Where the arithmetic is known to be the executor's."""
        return row.right(self.name)

    def absence(self, node: ir.Node, row: Platform) -> str:
        """The fault, where there is one."""
        return row.fault(self.fault) or super().absence(node, row)

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None."""
        return []

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit, between two transposes where the axis is not the last."""
        x, o = low.read(node, 0), low.written(node)
        shape = list(ir.shape(node.inputs[0]) or ())
        attrs = {"axis": -1, "dim": -1, "data_bits": x.bits, "o_bits": o.bits, "scale_x": x.scale, "scale_o": o.scale}
        axis, last, value = ir.attr(node, "axis", -1) % len(shape), len(shape) - 1, low.integer(node, 0)
        if axis == last:
            low.emit(self, node, [value], attrs)
            return
        from .shape import Transpose

        turn = [*range(axis), last, *range(axis + 1, last), axis]
        turned = [shape[i] for i in turn]
        move = Transpose()
        value = low.insert(move.name, node, "rows", [value], {"perm": turn}, turned, x, domain="")
        value = low.insert(self.name, node, "turned", [value], attrs, turned, o)
        low.emit(move, node, [value], {"perm": turn}, domain="")

    def bind(self, bound: Bound) -> Any:
        """Return the row kernel."""
        from simulator.kernels import Softmax as Kernel

        return self.kernel(bound, Kernel)

    def kernel(self, bound: Bound, kind: Any) -> Any:
        """Return a kernel of class `kind` for the node."""
        from simulator.kernels import softmax_entry

        a, how = bound.attrs, bound.how(Rows)
        axis = a["axis"] if a["axis"] is not None else a["dim"] if a["dim"] is not None else -1
        rank = len(bound.source_shapes[0])
        if not -rank <= axis < rank:
            raise ModelError(f"{bound.where}: axis = {axis}; its input has {rank} axes")
        if how.row is Row.FROM_FIRST and axis > 0:
            axis = 1  # the executor reads no other
        scale = float(a["scale_x"])
        if how.requantize.shifts:
            bound.exponent("scale_x", scale)
        entry = softmax_entry(2.0**25 / scale, 8 if int(a["data_bits"]) <= 8 else 16)  # as it is stored
        return kind(entry, bound.rescale(bound.ratio(2.0**15)), axis=axis, way=how.shares.value,
                    alone=how.row is Row.AXIS)  # fmt: skip


class LogSoftmax(Softmax):
    """The logarithm of a softmax."""

    name = "LogSoftmaxInt"
    floats = (("", "LogSoftmax"),)
    aliases = ()
    bound = None
    fault = Fault.LOG_SOFTMAX

    def bind(self, bound: Bound) -> Any:
        """Return the row kernel."""
        from simulator.kernels import LogSoftmax as Kernel

        return self.kernel(bound, Kernel)
