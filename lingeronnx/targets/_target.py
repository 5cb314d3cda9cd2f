"""The form of a platform's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..errors import InternalError
from .arithmetic import Arithmetic
from .limits import CurveLimits, Limits, NormLimits, RowLimits, TransposeLimits
from .luna.faults import Fault
from .luna.packing import ConvPacking, Packing, PoolPacking

__all__ = ["OpRow", "Platform", "rows"]

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class OpRow:
    """One integer operator on a target.

    arithmetic : how it computes. limits : what it takes; None: whatever its definition takes.
    right : whether that is what the operator is meant to compute. False: a graph that has it is computed as the chip
    does, but the quantizer writes something else.
    """

    arithmetic: Arithmetic = Arithmetic()
    limits: Limits | None = None
    right: bool = True


def rows(arithmetic: Arithmetic, *operators: str, limits: Limits | None = None, right: bool = True) -> dict[str, OpRow]:
    """Return the same row for each of the operators."""
    return dict.fromkeys(operators, OpRow(arithmetic, limits, right))


@dataclass(frozen=True)
class Platform:
    """One target: a chip with its executor, or the generic one.

    ops : the integer operators the target is known to run. also : further ones that the quantizer never writes, and how
    a graph that has them is computed. training : generation of graphs -> operator -> how the software computes it that
    such graphs are trained with.
    """

    name: str
    executor: str
    title: str
    modes: tuple[str, ...]
    bits: tuple[int, ...]
    ops: Mapping[str, OpRow]
    also: Mapping[str, Arithmetic] = field(default_factory=dict)
    weight_scales: tuple[str, ...] = ("tensor",)  # "channel": one for each output channel of a layer
    zero_points: bool = False  # it takes activations whose real 0 is another integer than 0
    single_sample: bool = False  # graphs are written for one sample, with a batch of 1
    out_bits: tuple[int, ...] = (8,)  # of a fully connected layer whose output leaves the integers
    curve_bits: tuple[int, ...] = ()  # of one whose output a sigmoid or tanh alone reads, beside 8
    exponents: tuple[int, int] = (-126, 126)  # of activations' power-of-two scales
    shared_memory: int | None = None  # bytes
    external_memory: int | None = None
    packing: Packing | None = None  # what the packer takes; without one there is nothing to be chip-ready for
    opset: int = 12  # of the standard operators in what is written
    ir_version: int = 6  # of the file format, where it has no functions
    node_attributes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # "" = every integer node
    faults: tuple[Fault, ...] = ()
    training: Mapping[int, Mapping[str, Arithmetic]] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def power_of_two(self) -> bool:
        """Whether the target takes power-of-two scales only: it shifts."""
        return self.modes == ("q-value",)

    @property
    def bytes_only(self) -> bool:
        """Whether operands have 8 bits, and so biases 32."""
        return self.bits == (8,)

    def with_op(self, operator: str, **columns: Any) -> Platform:
        """Return a copy in which `operator` has other `columns`: arithmetic, limits, right."""
        return replace(self, ops={**self.ops, operator: replace(self.ops[operator], **columns)})

    def runs(self, operator: str) -> bool:
        """Whether the integer operator is in this row's list."""
        return operator in self.ops

    def right(self, operator: str) -> bool:
        """Whether the target runs the operator as it is meant: where another will do, the quantizer writes that."""
        return operator in self.ops and self.ops[operator].right

    def arithmetic(self, operator: str) -> Arithmetic | None:
        """Return how the operator is computed, also where the quantizer never writes it; None where it is not known."""
        row = self.ops.get(operator)
        return self.also.get(operator) if row is None else row.arithmetic

    def computes(self, operator: str, kind: type[_Kind]) -> _Kind | None:
        """Return the arithmetic of `operator`, which is of class `kind`, or None where the row does not run it."""
        return self._held(operator, self.ops[operator].arithmetic if operator in self.ops else None, kind)

    def limits(self, operator: str, kind: type[_Kind]) -> _Kind | None:
        """Return the limits of `operator`, which are of class `kind`, or None where it has none."""
        return self._held(operator, self.ops[operator].limits if operator in self.ops else None, kind)

    def _held(self, operator: str, found: object, kind: type[_Kind]) -> _Kind | None:
        if found is None or isinstance(found, kind):
            return found
        raise InternalError(f"platform {self.name}: {operator} has {type(found).__name__} where {kind.__name__} belong")

    def fault(self, *faults: Fault) -> str | None:
        """Return the text of the first of `faults` that the executor has."""
        return next((fault.text for fault in faults if fault in self.faults), None)

    # ---- limits that rules quote, or several operators ask for -----------------------------------------------------

    @property
    def conv(self) -> ConvPacking | None:
        """What the packer takes of convolutions; None where there is no packer."""
        return None if self.packing is None else self.packing.conv

    @property
    def pool(self) -> PoolPacking | None:
        """What the packer takes of pools, likewise."""
        return None if self.packing is None else self.packing.pool

    @property
    def broken_transposes(self) -> tuple[tuple[int, ...], ...]:
        """Permutations that are not written: each is made by two others."""
        return () if self.packing is None else self.packing.move.broken + self.packing.move.between_convolutions

    @property
    def transpose(self) -> TransposeLimits | None:
        """Return the limits of permutations; None where there are none."""
        return self.limits("Transpose", TransposeLimits)

    @property
    def softmax(self) -> RowLimits | None:
        """Limits of the rows of a softmax."""
        return self.limits("SoftmaxInt", RowLimits)

    @property
    def norm(self) -> NormLimits | None:
        """Limits of layer normalisation."""
        return self.limits("LayerNormInt", NormLimits)

    @property
    def curve(self) -> CurveLimits | None:
        """Limits of the sigmoid that GluInt stands in for."""
        return self.limits("iqSigmoid", CurveLimits)
