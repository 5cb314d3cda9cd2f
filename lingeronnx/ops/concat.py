"""Concatenation: iqCat, each input requantized to the output's scale."""

from __future__ import annotations

from .. import formats
from ..emit import Lowering
from ..graph import ir
from ..targets import Platform
from ..targets.arithmetic import Concat as Arithmetic
from ._base import Op, Tie

__all__ = ["Concat", "copied", "mark_parts"]

_PARTS = "lingeronnx.parts"


def mark_parts(node: ir.Node) -> None:
    """Note that the inputs of the Concat `node` are parts of one tensor: they share its scale."""
    node.metadata_props[_PARTS] = "1"


def copied(value: ir.Value | None) -> bool:
    """Whether `value` is one tensor several times side by side, perhaps reshaped: it has that tensor's scale."""
    node = ir.producer(value)
    while node is not None and node.op_type == "Reshape":
        node = ir.producer(node.inputs[0])
    return node is not None and _PARTS in node.metadata_props and len(set(node.inputs)) == 1


class Concat(Op):
    """Concatenation along an axis other than the batch."""

    format = formats.CONCAT
    floats = (("", "Concat"),)

    def data(self, node: ir.Node) -> list[int]:
        """Return all inputs: each is an activation."""
        return list(range(len(node.inputs)))

    def reject(self, node: ir.Node) -> str | None:
        """Not along the batch axis, not with constants."""
        if any(ir.const(v) is not None for v in node.inputs):
            return "one input is a constant"
        rank = len(ir.shape(node.outputs[0]) or ())
        return "it concatenates along the batch axis" if rank and ir.attr(node, "axis") % rank == 0 else None

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """None where every input is requantized; on chips that cannot shift right here, what nobody else reads.

        Nor do the parts of one tensor have scales of their own.
        """
        how = row.computes(self.name, Arithmetic)
        if (how is None or not how.raises_only) and _PARTS not in node.metadata_props:
            return []
        alone = [v for v in node.inputs if v is not None and not v.is_graph_output()]
        names = dict.fromkeys(str(v.name) for v in alone if {use.node for use in v.uses()} == {node})
        return [Tie(name, ir.written_name(node)) for name in names]

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with one scale per input; a Requant does what the chip cannot."""
        rank, o = len(ir.shape(node.outputs[0]) or ()), low.written(node)
        how = low.row.computes(self.name, Arithmetic)
        held, inputs = [], []
        for index in range(len(node.inputs)):
            x = low.read(node, index)
            if how is not None and how.raises_only and x.scale > o.scale:
                x = o
            held.append(x)
            inputs.append(low.integer_as(node, index, x))
        axis = ir.attr(node, "axis") % rank if rank else ir.attr(node, "axis")
        low.emit(formats.CONCAT, node, inputs, {"dim": axis, **formats.CONCAT.scales(held, o)})
