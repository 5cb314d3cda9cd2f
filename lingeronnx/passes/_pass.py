"""What a pass is, what it needs, what it answers, and the runner that holds it to that.

Knows no pass by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InternalError, LingerOnnxError
from ..graph import ir

__all__ = [
    "FUNCTIONS_INLINED",
    "CONSTANTS_LIFTED",
    "SHAPES_KNOWN",
    "NO_SUBGRAPHS",
    "INPUTS_TYPED",
    "NO_DEAD_NODES",
    "PassResult",
    "Condition",
    "Pass",
    "PassError",
    "SkipReason",
    "PassRun",
    "PassObserver",
    "format_skipped_pass",
    "match_op_types",
    "run_passes",
    "is_strict_mode",
]


class PassError(InternalError):
    """The pass called `step` failed, or did not find what it requires."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


@dataclass(frozen=True, eq=False)
class SkipReason:
    """Why a pass left a node as it is that it was made for.

    node : the node; a graph input, or None for the whole model, where no node is to be named. kind,
    name : what users read of it, as it was then: a later pass may change both.
    """

    node: ir.Node | ir.Value | None
    explanation: str
    kind: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        node = self.node
        kind, name = (
            (node.op_type, node.name)
            if isinstance(node, ir.Node)
            else ("input", node.name)
            if node
            else ("the", "model")
        )
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", str(name))

    def __str__(self) -> str:
        return f"{self.kind} {self.name} stays: {self.explanation}"


@dataclass(frozen=True)
class PassResult:
    """What a pass did: the number of changes, and why it did not act where it might have."""

    changes: int
    skip_reasons: Sequence[SkipReason] = ()


def is_strict_mode() -> bool:
    """Whether a rewrite that fails, or changes what a model computes, is an error.

    Not for users, but in our tests.
    """
    return os.environ.get("LINGERONNX_STRICT", "") not in ("", "0")


def format_skipped_pass(step: str, why: str) -> str:
    """Return what the report says of a rewrite without which the graph is used."""
    return (
        f"the rewrite {step} is left out, which may cost accuracy: {why}; this is a bug in "
        "lingeronnx, please report "
        "it with the model"
    )


class Condition(NamedTuple):
    """What must hold of a graph before a pass sees it, or behind it.

    `find_violation` returns where it does not, or None.
    """

    name: str
    find_violation: Callable[[ir.Model], str | None]


class Pass(NamedTuple):
    """A named step of the normalisation.

    run : changes the graph in place and returns how many changes it made, or a `PassResult`.
    requires : what must hold before. note : what the report says when it changed something. ensures
    : what holds behind it. left : whether a node, as it is then, is one that the pass was made for:
    each such node has a reason. complete : no node is ever
    left alone: what it cannot change is an error of the user's, or means that there is nothing to
    do; so it has no reasons.
    """

    name: str
    run: Callable[[ir.Model], int | PassResult]
    requires: Sequence[Condition] = ()
    note: str = ""
    ensures: Sequence[Condition] = ()
    is_candidate: Callable[[ir.Node], bool] | None = None
    handles_all: bool = False

    def find_violation(self, model: ir.Model, answer: PassResult) -> str | None:
        """Return what does not hold of `model` behind the pass, which gave `answer`.

        None where all does.
        """
        for condition in self.ensures:
            if (where := condition.find_violation(model)) is not None:
                return f"{condition.name}: {where}"
        if self.handles_all and answer.skip_reasons:
            return f"no node to be left: {answer.skip_reasons[0]}"
        if self.is_candidate is not None:
            explained = {id(reason.node) for reason in answer.skip_reasons}
            node = next(
                (n for n in model.graph if id(n) not in explained and self.is_candidate(n)), None
            )
            return (
                None
                if node is None
                else f"a reason for each node it leaves: {node.op_type} {node.name} has none"
            )
        return None


@dataclass(frozen=True)
class PassRun:
    """A pass that has run: what it changed, and why it did not act where it might have."""

    name: str
    changes: int
    skip_reasons: Sequence[SkipReason] = ()

    def lines(self) -> Iterator[str]:
        """Yield what it did as text, and one line per reason."""
        yield f"{self.name}: {self.changes} change{'' if self.changes == 1 else 's'}"
        for reason in self.skip_reasons:
            yield f"  {reason}"


#: Called after every pass with what it did and the graph as it is then.
PassObserver = Callable[[PassRun, ir.Model], None]


def run_passes(
    steps: Sequence[Pass],
    model: ir.Model,
    observer: PassObserver | None = None,
    skipped_passes: Collection[str] = (),
) -> dict[str, int]:
    """Run `steps` on `model` in place, give every node a name; return {pass: number of changes}.

    skipped_passes : names of passes to leave out. Raises PassError, which names the pass and those
    before it, where a requirement does not hold, a pass fails or does not ensure what it says;
    errors that are the user's go through.
    """
    changes: dict[str, int] = {}
    for step in steps:
        if step.name in skipped_passes:
            continue
        done = ", ".join(changes) or "none"
        for need in step.requires:
            if (where := need.find_violation(model)) is not None:
                raise PassError(
                    step.name,
                    f"pass {step.name} requires {need.name}, after passes {done}: {where}",
                )
        try:
            answer = step.run(model)
        except LingerOnnxError:
            raise
        except Exception as error:
            raise PassError(
                step.name, f"pass {step.name} failed after passes {done}: {error}"
            ) from error
        if isinstance(answer, int):
            answer = PassResult(answer)
        if (where := step.find_violation(model, answer)) is not None:
            raise PassError(
                step.name, f"pass {step.name} does not ensure {where}; after passes {done}"
            )
        changes[step.name] = changes.get(step.name, 0) + answer.changes
        if observer is not None:
            observer(PassRun(step.name, answer.changes, answer.skip_reasons), model)
    ir.assign_node_names(model)
    return changes


# ---- conditions ----------------------------------------------------------------------------------------------------


def _find_foreign_function(model: ir.Model) -> str | None:
    return next(
        (
            f"function {f.name} is not inlined"
            for f in model.functions.values()
            if f.domain != ir.FUNCTION_DOMAIN
        ),
        None,
    )


#: What a Constant node may hold that no initializer can: texts and sparse tensors.
_NON_TENSOR_CONSTANT_ATTRIBUTES = frozenset(("sparse_value", "value_string", "value_strings"))


def _must_stay_node(node: ir.Node) -> bool:
    """Whether a Constant node cannot become an initializer.

    For what it holds, or as it is a graph output.
    """
    return bool(_NON_TENSOR_CONSTANT_ATTRIBUTES.intersection(node.attributes)) or any(
        v.is_graph_output() for v in node.outputs
    )


def _find_unlifted_constant(model: ir.Model) -> str | None:
    entry = next((v for v in model.graph.inputs if v.const_value is not None), None)
    if entry is not None:
        return f"initializer '{entry.name}' is a graph input"
    left = (
        n
        for n in model.graph
        if n.op_type == "Constant" and not n.domain and not _must_stay_node(n)
    )
    node = next(left, None)
    return None if node is None else f"{node.name} is a Constant node"


def _find_subgraph_node(model: ir.Model) -> str | None:
    return next((f"{n.op_type} {n.name} has one" for n in model.graph if ir.has_subgraphs(n)), None)


def _find_unshaped_value(model: ir.Model) -> str | None:
    return next((f"'{v.name}' has none" for v in ir.iter_values(model) if v.shape is None), None)


FUNCTIONS_INLINED = Condition("no functions of others", _find_foreign_function)
CONSTANTS_LIFTED = Condition("constants as initializers", _find_unlifted_constant)
NO_SUBGRAPHS = Condition("no subgraphs", _find_subgraph_node)
SHAPES_KNOWN = Condition("a shape for every tensor", _find_unshaped_value)


def _find_untyped_input(model: ir.Model) -> str | None:
    return next((f"input '{v.name}' has none" for v in model.graph.inputs if v.dtype is None), None)


def _find_dead_node(model: ir.Model) -> str | None:
    left = (n for n in model.graph if not any(v.uses() or v.is_graph_output() for v in n.outputs))
    node = next(left, None)
    return None if node is None else f"nobody reads {node.op_type} {node.name}"


INPUTS_TYPED = Condition("an element type for every input", _find_untyped_input)
NO_DEAD_NODES = Condition("no node that nobody reads", _find_dead_node)


def match_op_types(*kinds: str) -> Callable[[ir.Node], bool]:
    """Return whether a node is of one of these standard operators.

    What a pass leaves none of without a reason.
    """
    return lambda node: node.op_type in kinds and not node.domain
