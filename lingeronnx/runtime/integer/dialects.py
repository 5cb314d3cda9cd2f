"""Dialects of integer graphs, and the choice between the executor's and the training arithmetic.

    v1    domain `thinker`, operators Conv2dInt, iqAdd ...    default: the executor's arithmetic
    v3    domain `linger`, operators QConv2d, QAdd ...        default: the training arithmetic

Names are the formats'; must not know the arithmetic itself.
"""

from __future__ import annotations

from typing import NamedTuple

from ...common.errors import ConfigError, ModelError
from ...ir import ir
from ...operators.integer_ops import INTEGER_OPS, Format
from ...targets import Target
from ...targets.arithmetic import Arithmetic

__all__ = ["ARITHMETICS", "ArithmeticSide", "detect_dialect"]

ARITHMETICS = ("executor", "training")

#: Names of dialect v1 that dialect v3 does not have.
_V1_NAMES = {op.name for op in INTEGER_OPS if op.v3_name not in (None, op.name)}


def detect_dialect(model: ir.Model) -> int:
    """Return the dialect of an integer graph: 3 or 1.

    It is 3 if nodes of domain `linger` exist and none of them has a name that only dialect v1 has.
    """
    nodes = [node for node in model.graph if node.domain == "linger"]
    return 3 if nodes and not any(node.op_type in _V1_NAMES for node in nodes) else 1


class ArithmeticSide(NamedTuple):
    """The arithmetic of a graph's operators: the executor's or that of the training software.

    target : the platform. dialect : of the graph, for the training arithmetic; 0 for the
    executor's.
    """

    target: Target
    dialect: int = 0

    @classmethod
    def resolve(cls, model: ir.Model, target: Target, name: str | None) -> ArithmeticSide:
        """Return the arithmetic called `name`, or the default of the graph's dialect if it is None.

        The default is the arithmetic of the training library for dialect 3 (operators of domain
        `linger` with version 3 names), else that of the chips' executor. A result for the executor
        has dialect 0.

        Raises
        ------
        ConfigError
            If the name is neither None nor in `ARITHMETICS`.
        """
        if name not in (None, *ARITHMETICS):
            choices = " or ".join(repr(arithmetic) for arithmetic in ARITHMETICS)
            raise ConfigError(f"arithmetic '{name}'; expected {choices}")
        dialect = detect_dialect(model)
        is_training = name == "training" or (name is None and dialect == 3)
        return cls(target, dialect if is_training else 0)

    def arithmetic(self, op_format: Format, node: ir.Node) -> Arithmetic:
        """Return the arithmetic with which this side computes operator `op_format` on the target.

        Raises
        ------
        ModelError
            If the target does not have the operator on this side; `node` is named in the message.
        """
        training = self.target.training.get(self.dialect or 3, {}).get(op_format.name)
        if self.dialect:
            if training is not None:
                return training
            raise ModelError(
                f"{node.op_type} {node.name}: its training arithmetic on {self.target.name}, in a "
                f"graph of generation {self.dialect}, is not known; use arithmetic='executor'"
            )
        arithmetic = self.target.find_arithmetic(op_format.name)
        if arithmetic is not None:
            return arithmetic
        hint = "; it exists only in arithmetic='training'" if training is not None else ""
        raise ModelError(
            f"{node.op_type} {node.name}: {self.target.name} has no such operator{hint}"
        )
