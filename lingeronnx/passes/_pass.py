"""What a pass is, what it needs, what it answers, and the runner that holds it to that. Knows no pass by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InternalError, LingerOnnxError
from ..graph import ir

__all__ = [
    "INLINED",
    "PLAIN",
    "SHAPED",
    "STRAIGHT",
    "Answer",
    "Pass",
    "PassError",
    "Reason",
    "Requirement",
    "Step",
    "Watch",
    "left_out",
    "refused",
    "run_passes",
    "strict",
]


class PassError(InternalError):
    """The pass called `step` failed, or did not find what it requires."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


class Reason(NamedTuple):
    """Why a pass left a node as it is that it was made for."""

    node: str
    why: str


@dataclass(frozen=True)
class Answer:
    """What a pass did: the number of changes, and why it did not act where it might have."""

    changes: int
    reasons: Sequence[Reason] = ()


def refused(node: ir.Node, why: str) -> Reason:
    """Return the reason for which `node` stays."""
    return Reason(f"{node.op_type} {node.name}", why)


def strict() -> bool:
    """Whether a rewrite that fails, or changes what a model computes, is an error: not for users, but in our tests."""
    return os.environ.get("LINGERONNX_STRICT", "") not in ("", "0")


def left_out(step: str, why: str) -> str:
    """Return what the report says of a rewrite without which the graph is used."""
    return (
        f"the rewrite {step} is left out, which may cost accuracy: {why}; this is a bug in lingeronnx, please report "
        "it with the model"
    )


class Requirement(NamedTuple):
    """What must hold of a graph before a pass may see it; `broken` returns where it does not, or None."""

    name: str
    broken: Callable[[ir.Graph], str | None]


class Pass(NamedTuple):
    """A named step of the normalisation.

    run : changes the graph in place and returns how many changes it made, or an `Answer`. requires : what must hold
    before. note : what the report says when it changed something.
    """

    name: str
    run: Callable[[ir.Graph], int | Answer]
    requires: Sequence[Requirement] = ()
    note: str = ""


@dataclass(frozen=True)
class Step:
    """A pass that has run: what it changed, and why it did not act where it might have."""

    name: str
    changes: int
    reasons: Sequence[Reason] = ()

    def lines(self) -> Iterator[str]:
        """Yield what it did as text, and one line per reason."""
        yield f"{self.name}: {self.changes} change{'' if self.changes == 1 else 's'}"
        for reason in self.reasons:
            yield f"  {reason.node} stays: {reason.why}"


#: Called after every pass with what it did and the graph as it is then.
Watch = Callable[[Step, ir.Graph], None]


def run_passes(
    steps: Sequence[Pass], model: ir.Graph, watch: Watch | None = None, without: Collection[str] = ()
) -> dict[str, int]:
    """Run `steps` on `model` in place, give every node a name; return {pass: number of changes}.

    without : names of passes to leave out. Raises PassError, which names the pass and those before it, where a
    requirement does not hold or a pass fails; errors that are the user's go through.
    """
    changes: dict[str, int] = {}
    for step in steps:
        if step.name in without:
            continue
        done = ", ".join(changes) or "none"
        for need in step.requires:
            if (where := need.broken(model)) is not None:
                raise PassError(step.name, f"pass {step.name} requires {need.name}, after passes {done}: {where}")
        try:
            answer = step.run(model)
        except LingerOnnxError:
            raise
        except Exception as error:
            raise PassError(step.name, f"pass {step.name} failed after passes {done}: {error}") from error
        if isinstance(answer, int):
            answer = Answer(answer)
        changes[step.name] = changes.get(step.name, 0) + answer.changes
        if watch is not None:
            watch(Step(step.name, answer.changes, answer.reasons), model)
    ir.name_nodes(model)
    return changes


# ---- requirements --------------------------------------------------------------------------------------------------


def _function(model: ir.Graph) -> str | None:
    return next((f"function {f.name} is not inlined" for f in model.functions.values() if f.domain != ir.DOMAIN), None)


#: What a Constant node may hold that no initializer can: texts and sparse tensors.
_OTHERS = frozenset(("sparse_value", "value_string", "value_strings"))


def _stays(node: ir.Node) -> bool:
    """Whether a Constant node cannot become an initializer: for what it holds, or as it is a graph output."""
    return bool(_OTHERS.intersection(node.attributes)) or any(v.is_graph_output() for v in node.outputs)


def _constant(model: ir.Graph) -> str | None:
    entry = next((v for v in model.graph.inputs if v.const_value is not None), None)
    if entry is not None:
        return f"initializer '{entry.name}' is a graph input"
    left = (n for n in model.graph if n.op_type == "Constant" and not n.domain and not _stays(n))
    node = next(left, None)
    return None if node is None else f"{node.name} is a Constant node"


def _subgraph(model: ir.Graph) -> str | None:
    return next((f"{n.op_type} {n.name} has one" for n in model.graph if ir.holds_graphs(n)), None)


def _shapeless(model: ir.Graph) -> str | None:
    return next((f"'{v.name}' has none" for v in ir.values(model) if v.shape is None), None)


INLINED = Requirement("no functions of others", _function)
PLAIN = Requirement("constants as initializers", _constant)
STRAIGHT = Requirement("no subgraphs", _subgraph)
SHAPED = Requirement("a shape for every tensor", _shapeless)
