"""What single nodes cost at most, by their shapes: before a form is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .....formats import CONCAT, SLICE, TRANSPOSE
from .....graph import ir
from ...kernel_costs import KernelCosts
from ...timing import estimate_max_cycles
from ...timing.kernel_calls import Operand, TimingNode

__all__ = ["NodeCostModel"]

_DTYPE_BITS = {"INT8": 8, "UINT8": 8, "INT16": 16, "INT32": 32}


class NodeCostModel:
    """Upper ends of nodes' cycles, at the prices of a chip."""

    def __init__(self, prices: KernelCosts) -> None:
        self._prices = prices

    def estimate_cycles(
        self, op: str, inputs: Sequence[Sequence[int]], output: Sequence[int], **attributes: Any
    ) -> float:
        """Return the cycles of a node over 8 bits, by its shapes."""
        return self._estimate_max_cycles(
            op, [Operand(tuple(shape)) for shape in inputs], [Operand(tuple(output))], attributes
        )

    def estimate_node_cycles(self, node: ir.Node) -> float:
        """Return the cycles of a node as it stands; infinite where a size is not known."""
        sides = [
            [_to_operand(v) for v in side if v is not None] for side in (node.inputs, node.outputs)
        ]
        if any(operand is None for side in sides for operand in side):
            return math.inf
        inputs, outputs = ([operand for operand in side if operand is not None] for side in sides)
        return self._estimate_max_cycles(
            node.op_type,
            inputs,
            outputs,
            {name: ir.get_attr(node, name) for name in node.attributes},
        )

    def estimate_transpose_cycles(self, rows: int, columns: int) -> float:
        """Return the cycles of a transpose of a matrix; nothing where that is a line."""
        return (
            0.0
            if 1 in (rows, columns)
            else self.estimate_cycles(TRANSPOSE.name, [(rows, columns)], (columns, rows))
        )

    def estimate_slice_cycles(self, source_bytes: int, slice_bytes: int) -> float:
        """Return the cycles of a Slice of `slice_bytes` of `source_bytes` bytes side by side."""
        return self.estimate_cycles(SLICE.name, [(source_bytes,)], (slice_bytes,))

    def estimate_concat_cycles(self, sizes: Sequence[int]) -> float:
        """Return the cycles of an iqCat, at one scale, of pieces of these sizes in bytes, end to end."""
        scales = {f"scale_x_{i}": 1.0 for i in range(len(sizes))}
        return self.estimate_cycles(
            CONCAT.name, [(size,) for size in sizes], (sum(sizes),), dim=0, scale_o=1.0, **scales
        )

    def _estimate_max_cycles(
        self,
        op: str,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        attributes: Mapping[str, Any],
    ) -> float:
        axis = None
        if op == SLICE.name:
            pairs = list(zip(inputs[0].shape, outputs[0].shape, strict=True))
            axis = max((i for i, (before, after) in enumerate(pairs) if before != after), default=0)
        return estimate_max_cycles(TimingNode(op, attributes, inputs, outputs, axis), self._prices)


def _to_operand(value: ir.Value) -> Operand | None:
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:] or value.dtype is None:
        return None
    return Operand(tuple(int(d or 1) for d in shape), _DTYPE_BITS.get(value.dtype.name, 8))
