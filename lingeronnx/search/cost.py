"""What an attempt costs: bytes of constants, multiply-accumulates by width; on a chip flash and cycles of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..flow import Compared
from ..graph import ir
from ..ops.macs import macs

__all__ = ["AttemptCost", "cost_of"]

_FLOAT = 32
_FEW = 4


@dataclass(frozen=True)
class AttemptCost:
    """bytes : of all constants of the graph. macs : {"8x8", "16x16", ... or "float": those of one sample}.

    Weights of 4 bits count as two in a byte. A width is bits of data by bits of weights. `work` is the sum of the
    products of both widths over all multiply-accumulates, as a multiple of that with 8x8 bits; float counts as 32x32.
    cycles : of a call on the chip; None where nobody knows them. flash : bytes of the constants as the packages store
    them; without a packer `bytes`; None where they are not known.
    """

    bytes: int
    macs: Mapping[str, int]
    cycles: float | None = None
    flash: int | None = None

    @property
    def work(self) -> float:
        """The product of the widths, on average over the multiply-accumulates; 1 for 8x8 bits."""
        total = sum(self.macs.values())
        return sum(count * _product(width) for width, count in self.macs.items()) / (64 * total) if total else 1.0


def _product(width: str) -> int:
    if width == "float":
        return _FLOAT * _FLOAT
    data, _, weights = width.partition("x")
    return int(data) * int(weights)


def cost_of(attempt: Compared) -> AttemptCost:
    """Return the cost of an attempt."""
    parts, tensors = attempt.planned.parts, attempt.planned.plan.tensors
    costs: dict[str, int] = {}
    for node in parts.graph.graph:
        count = macs(node)
        if not count:
            continue
        op = parts.ops.get(str(node.name))
        width = "float"
        if op is not None:
            data = max(tensors[ir.read_name(node, index)].bits for index in op.data(node))
            weights = [tensors[ir.read_name(node, index)].bits for index in op.parameters(node)]
            width = f"{data}x{max(weights, default=data)}"
        costs[width] = costs.get(width, 0) + count
    constants = attempt.lowered.graph.graph.initializers.values()
    size = sum(value.const_value.nbytes for value in constants if value.const_value is not None)
    size -= _halves(attempt.lowered.graph)
    report = attempt.result.report
    time = report.time.latency
    return AttemptCost(size, costs, None if time is None else time.total, report.flash if report.is_chip else size)


def _halves(graph: ir.Graph) -> int:
    """Return the bytes that the 4-bit weights of an integer graph, which it holds as int8, do not take."""
    held = {
        str(value.name): value
        for node in graph.graph
        if ir.attr(node, "parameter_bits") == _FEW
        for value in node.inputs
        if value is not None and value.const_value is not None and value.const_value.dtype.name == "INT8"
    }
    return sum(value.const_value.nbytes // 2 for value in held.values() if value.const_value is not None)
