"""Cost of an attempt: constant bytes, multiply-accumulates, and on a chip flash and cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir import ir
from ..operators.macs import count_macs
from ..quantization import Candidate

__all__ = ["AttemptCost", "measure_cost"]

_FLOAT_BITS = 32
_PACKED_BITS = 4


@dataclass(frozen=True)
class AttemptCost:
    """Size and computation of a quantized model.

    Parameters
    ----------
    bytes
        Bytes of all constants of the graph; 4-bit weights count as two per byte.
    macs
        Multiply-accumulates of one sample by width: "8x8", "16x16" (bits of data x bits of weights)
        or "float".
    cycles
        Cycles of a call on the chip, or None if unknown.
    flash
        Bytes of the constants as the packages store them, or None if unknown. Without a packer it
        equals `bytes`.
    """

    bytes: int
    macs: Mapping[str, int]
    cycles: float | None = None
    flash: int | None = None

    @property
    def work(self) -> float:
        """Mean product of data and weight bits over the multiply-accumulates, relative to 8x8 bits.

        Float counts as 32x32 bits. The result is 1 for a model that computes only in 8x8 bits.
        """
        total = sum(self.macs.values())
        if not total:
            return 1.0
        bit_products = sum(count * _bit_product(width) for width, count in self.macs.items())
        return bit_products / (64 * total)


def _bit_product(width: str) -> int:
    """Return data bits times weight bits of a width such as "8x4"; "float" counts as 32x32."""
    if width == "float":
        return _FLOAT_BITS * _FLOAT_BITS
    data, _, weights = width.partition("x")
    return int(data) * int(weights)


def measure_cost(attempt: Candidate) -> AttemptCost:
    """Compute the cost of a quantized candidate: bytes, multiply-accumulates, cycles and flash.

    MACs are summed by width, such as "8x4" (data bits x weight bits) or "float". The bytes are
    those of the constants, with 4-bit weights packed; cycles are None if the latency is unknown,
    and the flash is the bytes if the platform is not a chip.
    """
    partition, tensors = attempt.planned.partition, attempt.planned.plan.tensors
    macs: dict[str, int] = {}
    for node in partition.graph.graph:
        count = count_macs(node)
        if not count:
            continue
        op = partition.ops.get(str(node.name))
        width = "float"
        if op is not None:
            data_bits = max(tensors[ir.input_name(node, index)].bits for index in op.data(node))
            weight_bits = [
                tensors[ir.input_name(node, index)].bits for index in op.weight_inputs(node)
            ]
            width = f"{data_bits}x{max(weight_bits, default=data_bits)}"
        macs[width] = macs.get(width, 0) + count
    constants = attempt.lowered.graph.graph.initializers.values()
    size = sum(value.const_value.nbytes for value in constants if value.const_value is not None)
    size -= _int4_savings_bytes(attempt.lowered.graph)
    report = attempt.report
    latency = report.time.latency
    cycles = None if latency is None else latency.total
    return AttemptCost(size, macs, cycles, report.flash if report.is_chip else size)


def _int4_savings_bytes(graph: ir.Model) -> int:
    """Return the bytes saved by storing 4-bit weights two per byte instead of one.

    Counts each int8 constant of nodes with attribute `parameter_bits` = 4 once, half of it rounded
    down.
    """
    int4_sizes: dict[str, int] = {}
    for node in graph.graph:
        if ir.get_attr(node, "parameter_bits") != _PACKED_BITS:
            continue
        for value in node.inputs:
            if value is None or value.const_value is None:
                continue
            if value.const_value.dtype.name == "INT8":
                int4_sizes[str(value.name)] = value.const_value.nbytes
    return sum(size // 2 for size in int4_sizes.values())
