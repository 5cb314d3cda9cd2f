"""Upper bounds of the cycles of single nodes, computed from shapes before a node is created."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ....ir import ir
from ....operators.integer_ops import CONCAT, SLICE, TRANSPOSE
from ...kernel_costs import KernelCosts
from ...timing import estimate_max_cycles
from ...timing.kernel_calls import Operand, TimingNode

__all__ = ["NodeCostModel"]

_DTYPE_BITS = {"INT8": 8, "UINT8": 8, "INT16": 16, "INT32": 32}


class NodeCostModel:
    """Upper bounds of the cycles of nodes, under the kernel costs of a chip."""

    def __init__(self, prices: KernelCosts) -> None:
        """Estimate with the kernel costs `prices`."""
        self._prices = prices

    def estimate_cycles(
        self, op: str, inputs: Sequence[Sequence[int]], output: Sequence[int], **attributes: Any
    ) -> float:
        """Estimate the upper bound of cycles of a node of operator `op` from shapes and attributes.

        All operands have 8 bits; no node is created.
        """
        return self._estimate_max_cycles(
            op, [Operand(tuple(shape)) for shape in inputs], [Operand(tuple(output))], attributes
        )

    def estimate_node_cycles(self, node: ir.Node) -> float:
        """Estimate the upper bound of cycles of `node`; infinity if a shape or type is unknown."""
        try:
            inputs = [_to_operand(value) for value in node.inputs if value is not None]
            outputs = [_to_operand(value) for value in node.outputs]
        except _UnsizedTensorError:
            return math.inf
        attributes = {name: ir.get_attr(node, name) for name in node.attributes}
        return self._estimate_max_cycles(node.op_type, inputs, outputs, attributes)

    def estimate_transpose_cycles(self, rows: int, columns: int) -> float:
        """Estimate the cycles of transposing a matrix [rows, columns] of 8 bits.

        0 for a single row or column, which needs no Transpose.
        """
        if 1 in (rows, columns):
            return 0.0
        return self.estimate_cycles(TRANSPOSE.name, [(rows, columns)], (columns, rows))

    def estimate_slice_cycles(self, source_bytes: int, slice_bytes: int) -> float:
        """Estimate the cycles of slicing `slice_bytes` contiguous bytes from `source_bytes`."""
        return self.estimate_cycles(SLICE.name, [(source_bytes,)], (slice_bytes,))

    def estimate_concat_cycles(self, sizes: Sequence[int]) -> float:
        """Estimate the cycles of an iqCat of 8-bit vectors of these sizes, all of one scale."""
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
        """Estimate the most cycles that a node with these operands may take.

        The axis of a Slice is the last one whose size changes, 0 if none does.
        """
        axis = None
        if op == SLICE.name:
            dims = enumerate(zip(inputs[0].shape, outputs[0].shape, strict=True))
            axis = max((axis for axis, (full, sliced) in dims if full != sliced), default=0)
        return estimate_max_cycles(TimingNode(op, attributes, inputs, outputs, axis), self._prices)


class _UnsizedTensorError(Exception):
    """The shape or type of a tensor is unknown."""


def _to_operand(value: ir.Value) -> Operand:
    """Return shape (batch 1 if unknown) and bits of `value`; unlisted types count as 8 bits.

    Raises _UnsizedTensorError if type, rank or another size is unknown.
    """
    shape = ir.get_shape(value)
    if shape is None or None in shape[1:] or value.dtype is None:
        raise _UnsizedTensorError
    return Operand(tuple(int(dim or 1) for dim in shape), _DTYPE_BITS.get(value.dtype.name, 8))
