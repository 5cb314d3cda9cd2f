"""What an attempt costs: bytes of constants, multiply-accumulates by width.

On a chip flash and cycles of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..flow import Candidate
from ..graph import ir
from ..ops.macs import count_macs

__all__ = ["AttemptCost", "measure_cost"]

_FLOAT_BITS = 32
_PACKED_BITS = 4


@dataclass(frozen=True)
class AttemptCost:
    """bytes : of all constants of the graph. macs : {"8x8", "16x16", ...

    Or "float": those of one sample}.
    Weights of 4 bits count as two in a byte. A width is bits of data by bits of weights. `work` is
    the sum of the products of both widths over all multiply-accumulates, as a multiple of that with
    8x8 bits; float counts as 32x32. cycles : of a call on the chip; None where nobody knows them.
    flash : bytes of the constants as the packages store them; without a packer `bytes`; None where
    they are not known.
    """

    bytes: int
    macs: Mapping[str, int]
    cycles: float | None = None
    flash: int | None = None

    @property
    def work(self) -> float:
        """The product of the widths, on average over the multiply-accumulates; 1 for 8x8 bits."""
        total = sum(self.macs.values())
        return (
            sum(count * _bit_product(width) for width, count in self.macs.items()) / (64 * total)
            if total
            else 1.0
        )


def _bit_product(width: str) -> int:
    if width == "float":
        return _FLOAT_BITS * _FLOAT_BITS
    data, _, weights = width.partition("x")
    return int(data) * int(weights)


def measure_cost(attempt: Candidate) -> AttemptCost:
    """Return the cost of an attempt."""
    parts, tensors = attempt.planned.partition, attempt.planned.plan.tensors
    costs: dict[str, int] = {}
    for node in parts.graph.graph:
        count = count_macs(node)
        if not count:
            continue
        op = parts.ops.get(str(node.name))
        width = "float"
        if op is not None:
            data = max(tensors[ir.input_name(node, index)].bits for index in op.data(node))
            weights = [tensors[ir.input_name(node, index)].bits for index in op.weight_inputs(node)]
            width = f"{data}x{max(weights, default=data)}"
        costs[width] = costs.get(width, 0) + count
    constants = attempt.lowered.graph.graph.initializers.values()
    size = sum(value.const_value.nbytes for value in constants if value.const_value is not None)
    size -= _int4_savings_bytes(attempt.lowered.graph)
    report = attempt.result.report
    time = report.time.latency
    return AttemptCost(
        size, costs, None if time is None else time.total, report.flash if report.is_chip else size
    )


def _int4_savings_bytes(graph: ir.Model) -> int:
    """Return the bytes that the 4-bit weights of an integer graph, which it holds as int8, do not take."""
    held = {
        str(value.name): value
        for node in graph.graph
        if ir.get_attr(node, "parameter_bits") == _PACKED_BITS
        for value in node.inputs
        if value is not None
        and value.const_value is not None
        and value.const_value.dtype.name == "INT8"
    }
    return sum(
        value.const_value.nbytes // 2 for value in held.values() if value.const_value is not None
    )
