"""The dialects of integer graphs: which one a graph is of, and whose arithmetic its numbers mean.

    dialect v1    domain `thinker`, operators called Conv2dInt, iqAdd, ...      by default the
    executor's arithmetic dialect v3    domain `linger`, operators called QConv2d, QAdd, ...
    by default the training side's

Owns the choice between the two arithmetics. Names are the formats'; must not know what either
computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError, ModelError
from ...formats import INTEGER_OPS, Format
from ...graph import ir
from ...targets import Target
from ...targets.arithmetic import Arithmetic

__all__ = ["ARITHMETICS", "ArithmeticSide", "detect_dialect"]

ARITHMETICS = ("executor", "training")

#: Names of dialect v1 that dialect v3 does not have.
_V1_NAMES = {form.name for form in INTEGER_OPS if form.v3_name not in (None, form.name)}


def detect_dialect(model: ir.Model) -> int:
    """Return 3 for a graph with nodes of domain `linger` none of which has a name of dialect v1, else 1."""
    nodes = [node for node in model.graph if node.domain == "linger"]
    return 3 if nodes and not any(node.op_type in _V1_NAMES for node in nodes) else 1


@dataclass(frozen=True)
class ArithmeticSide:
    """Whose arithmetic a graph's operators have: the executor's or the training side's.

    target : the platform. dialect : of the graph, where the training side's arithmetic is meant; 0:
    the executor's.
    """

    target: Target
    dialect: int = 0

    @classmethod
    def resolve(cls, model: ir.Model, target: Target, name: str | None) -> ArithmeticSide:
        """Return the side called `name`, None for the graph's default.

        ConfigError for an unknown name.
        """
        if name not in (None, *ARITHMETICS):
            raise ConfigError(
                f"arithmetic '{name}'; it is {' or '.join(repr(a) for a in ARITHMETICS)}"
            )
        number = detect_dialect(model)
        trains = name == "training" or (name is None and number == 3)
        return cls(target, number if trains else 0)

    def arithmetic(self, op_format: Format, node: ir.Node) -> Arithmetic:
        """Return how `op_format` is computed; ModelError where that is not known."""
        trained = self.target.training.get(self.dialect or 3, {}).get(op_format.name)
        found = trained if self.dialect else self.target.find_arithmetic(op_format.name)
        if found is not None:
            return found
        if self.dialect:
            raise ModelError(
                f"{node.op_type} {node.name}: what the training side computes for it on "
                f"{self.target.name}, in a graph "
                f"of generation {self.dialect}, is not known; use arithmetic='executor'"
            )
        more = "; it exists in arithmetic='training' only" if trained is not None else ""
        raise ModelError(
            f"{node.op_type} {node.name}: {self.target.name} has no such operator{more}"
        )
