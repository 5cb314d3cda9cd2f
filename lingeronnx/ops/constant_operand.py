"""Sums and products with a constant tensor, such as a position embedding: iqAdd and iqMul with one constant operand.

Where a layer can take the constant up, a pass has put it there; a constant of one value is a table's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ir
from ..platforms import Platform
from .elementwise import ADD, Binary, Mul

if TYPE_CHECKING:
    from ..lower import Lowering

__all__ = ["AddConstant", "MulConstant"]


def constant_operand(node: ir.Node, row: Platform) -> Any:
    """one operand is a constant that no layer could take up | leave the node in float."""
    return f"{ir.written_name(node)}" if row.chip else None


class AddConstant(Binary):
    """Sum of an activation and a constant tensor."""

    name = "iqAdd (constant)"
    floats = (("", "Add"),)
    aliases = ()
    constraints = (constant_operand,)
    factor = "fixed"
    emitted: Binary = ADD

    def data(self, node: ir.Node) -> list[int]:
        """The one that is computed."""
        return [i for i, value in enumerate(node.inputs) if ir.const(value) is None][:1]

    def parameters(self, node: ir.Node) -> list[int]:
        """The other one."""
        return [i for i, value in enumerate(node.inputs) if ir.const(value) is not None]

    def reject(self, node: ir.Node) -> str | None:
        """One constant of several values that does not widen the result."""
        arrays = [ir.const(value) for value in node.inputs]
        array = next((a for a in arrays if a is not None), None)
        if array is None or all(a is not None for a in arrays):
            return "neither operand is a constant" if array is None else "both operands are constants"
        widens = ir.shape(node.inputs[self.data(node)[0]]) != ir.shape(node.outputs[0])
        batch = array.ndim == len(ir.shape(node.outputs[0]) or ()) and array.shape[0] != 1
        if array.size < 2 or widens or batch or array.dtype.kind != "f":
            return "one operand is a constant that no layer could take up"
        return None

    def available(self, row: Platform) -> bool:
        """Where the operator is."""
        return row.runs(self.emitted.name)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the constant as second operand."""
        index, other = self.data(node)[0], self.parameters(node)[0]
        array = ir.const(node.inputs[other])
        assert array is not None
        x, y, o = low.read(node, index), low.read(node, other), low.written(node)
        full = np.asarray(array).reshape((1,) * (len(ir.shape(node.outputs[0]) or ()) - array.ndim) + array.shape)
        attrs = {"scale_x": x.scale, "scale_y": y.scale, "scale_o": o.scale}
        low.emit(self.emitted, node, [low.integer(node, index), low.constant(node, other, full, y)], attrs)


class MulConstant(AddConstant):
    """Product of an activation and a constant tensor."""

    name = "iqMul (constant)"
    floats = (("", "Mul"),)
    emitted = Mul()
