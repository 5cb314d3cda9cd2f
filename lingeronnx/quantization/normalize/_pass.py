"""The interface of a pass, its conditions and results, the runner that checks them, and its log.

The log may be written to a folder while the passes run:

passes.txt          every pass with its number of changes and its skip reasons
NN_<pass>.onnx      the graph after each pass that changed something
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...common.errors import InternalError, LingerOnnxError
from ...common.escaping import join_lines
from ...common.files import created_folder, write_text
from ...ir import ir
from ...targets import Target

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
    "PassLog",
]


class PassError(InternalError):
    """The pass named `step` failed, or a condition that it requires or ensures does not hold."""

    def __init__(self, step: str, message: str) -> None:
        """Store the message, and the name of the pass as `step`."""
        super().__init__(message)
        self.step = step


@dataclass(frozen=True, eq=False)
class SkipReason:
    """Why a pass left a node unchanged that it is made for.

    Attributes
    ----------
    node
        The node, or a graph input, or None for the complete model.
    explanation
        The reason, as part of a sentence.
    kind, name
        Operator and name of the node at that time: a later pass may change both.
    """

    node: ir.Node | ir.Value | None
    explanation: str
    kind: str = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Set `kind` and `name` from `node`: operator and name, or "input" and name of a value.

        Without a node they are "the" and "model".
        """
        node = self.node
        kind, name = "the", "model"
        if isinstance(node, ir.Node):
            kind, name = node.op_type, str(node.name)
        elif node is not None:
            kind, name = "input", str(node.name)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        """Return "KIND NAME stays: EXPLANATION", by the node's operator and name of that time."""
        return f"{self.kind} {self.name} stays: {self.explanation}"


class PassResult(NamedTuple):
    """Number of changes of a pass, and why it left nodes unchanged."""

    changes: int
    skip_reasons: Sequence[SkipReason] = ()


def is_strict_mode() -> bool:
    """Whether the environment variable LINGERONNX_STRICT is set, to anything but "" and "0".

    Then a rewrite that fails or changes results is an error; otherwise it is left out with a note.
    The project's tests set it.
    """
    return os.environ.get("LINGERONNX_STRICT", "") not in ("", "0")


def format_skipped_pass(step: str, reason: str) -> str:
    """Format the note in the report that the pass `step` was left out."""
    return (
        f"the rewrite {step} is left out, which may cost accuracy: {reason}; this is a bug in "
        "lingeronnx, please report it with the model"
    )


class Condition(NamedTuple):
    """A condition on a graph, before or after a pass.

    `find_violation` returns a description of the first violation, or None.
    """

    name: str
    find_violation: Callable[[ir.Model], str | None]


class Pass(NamedTuple):
    """A named step of the normalization.

    Attributes
    ----------
    name
        Name in reports and options.
    run
        Changes the graph in place and returns the number of changes, or a `PassResult`.
    requires
        Conditions that must hold before.
    note
        Line of the report if the pass changed anything.
    ensures
        Conditions that hold afterwards.
    keeps
        Conditions that must hold before, and hold afterwards.
    is_candidate
        Whether the pass is made for a node. Each such node that remains needs a `SkipReason`.
    handles_all
        The pass skips no node: a node that it cannot change is an error of the user's model. It
        returns no skip reasons.
    operators
        Types of nodes (`ir.base_op_type`) without which the pass changes and explains nothing, so
        that it does not run and its conditions are not checked. Empty: it runs on every graph.
    suits
        Whether the pass helps a target; it is left out for others. None: it helps every target.
    """

    name: str
    run: Callable[[ir.Model], int | PassResult]
    requires: Sequence[Condition] = ()
    note: str = ""
    ensures: Sequence[Condition] = ()
    keeps: Sequence[Condition] = ()
    is_candidate: Callable[[ir.Node], bool] | None = None
    handles_all: bool = False
    operators: Collection[str] = ()
    suits: Callable[[Target], bool] | None = None

    def concerns(self, op_types: Set[str]) -> bool:
        """Whether the pass may change or explain a node of a graph with operators `op_types`."""
        return not self.operators or not op_types.isdisjoint(self.operators)

    def find_violation(self, model: ir.Model, result: PassResult) -> str | None:
        """Describe the first guarantee that `model` violates after the pass; None if it keeps all.

        Besides `keeps` and `ensures`: `result` must have no skip reason if the pass `handles_all`,
        and a reason for each node that `is_candidate` (if set) still accepts.
        """
        for condition in (*self.keeps, *self.ensures):
            violation = condition.find_violation(model)
            if violation is not None:
                return f"{condition.name}: {violation}"
        if self.handles_all and result.skip_reasons:
            return f"that no node is skipped: {result.skip_reasons[0]}"
        if self.is_candidate is None:
            return None
        explained = {id(reason.node) for reason in result.skip_reasons}
        for node in model.graph:
            if id(node) not in explained and self.is_candidate(node):
                return f"a reason for each skipped node: {node.op_type} {node.name} has none"
        return None


class PassRun(NamedTuple):
    """The result of a pass that has run."""

    name: str
    changes: int
    skip_reasons: Sequence[SkipReason] = ()

    def lines(self) -> Iterator[str]:
        """Yield the number of changes as text, then one line per skip reason."""
        yield f"{self.name}: {self.changes} change{'' if self.changes == 1 else 's'}"
        for reason in self.skip_reasons:
            yield f"  {reason}"


#: Called after every pass with its result and the current graph.
PassObserver = Callable[[PassRun, ir.Model], None]


def run_passes(
    steps: Sequence[Pass],
    model: ir.Model,
    observer: PassObserver | None = None,
    skipped_passes: Collection[str] = (),
) -> dict[str, int]:
    """Run `steps` on `model` in place, and give every node a unique name.

    A pass that concerns no node of the main graph is not run; it has no changes.

    Parameters
    ----------
    steps
        The passes, in order.
    model
        Changed in place.
    observer
        Called after every pass.
    skipped_passes
        Names of passes to leave out.

    Returns
    -------
    dict of str to int
        Name of the pass -> number of changes, of all its runs; 0 for one without a change.

    Raises
    ------
    PassError
        A pass failed, or one of its conditions does not hold. The message names the passes before.
        Errors of the user's model are passed on.
    """
    changes: dict[str, int] = {}
    op_types: set[str] | None = None  # of the main graph; None if a pass may have changed them
    for step in steps:
        if step.name in skipped_passes:
            continue
        if op_types is None:
            op_types = {ir.base_op_type(node) for node in model.graph}
        result = PassResult(0)
        if step.concerns(op_types):
            result = _run_pass(step, model, ", ".join(changes) or "none")
            op_types = None
        changes[step.name] = changes.get(step.name, 0) + result.changes
        if observer is not None:
            observer(PassRun(step.name, result.changes, result.skip_reasons), model)
    ir.assign_node_names(model)
    return changes


def _run_pass(step: Pass, model: ir.Model, completed: str) -> PassResult:
    """Run one pass and check its conditions; `completed` lists the passes before, for messages.

    Raises PassError for a violated condition or an unexpected exception; errors of this package
    pass through.
    """
    for condition in (*step.keeps, *step.requires):
        violation = condition.find_violation(model)
        if violation is not None:
            raise PassError(
                step.name,
                f"pass {step.name} requires {condition.name}, after passes {completed}: "
                f"{violation}",
            )
    try:
        result = step.run(model)
    except LingerOnnxError:
        raise
    except Exception as error:
        raise PassError(
            step.name, f"pass {step.name} failed after passes {completed}: {error}"
        ) from error
    if isinstance(result, int):
        result = PassResult(result)
    violation = step.find_violation(model, result)
    if violation is not None:
        raise PassError(
            step.name, f"pass {step.name} does not ensure {violation}; after passes {completed}"
        )
    return result


# ---- conditions ----------------------------------------------------------------------------------


def _find_foreign_function(model: ir.Model) -> str | None:
    """Describe a model-local function outside this package's domain; None if there is none."""
    for function in model.functions.values():
        if function.domain != ir.FUNCTION_DOMAIN:
            return f"function {function.name} is not inlined"
    return None


#: Attributes of a Constant node that cannot become an initializer: strings and sparse tensors.
_NON_TENSOR_CONSTANT_ATTRIBUTES = frozenset(("sparse_value", "value_string", "value_strings"))


def _must_stay_node(node: ir.Node) -> bool:
    """Whether a Constant node cannot become an initializer.

    True if it holds strings or a sparse tensor, or if one of its outputs is a graph output.
    """
    if _NON_TENSOR_CONSTANT_ATTRIBUTES.intersection(node.attributes):
        return True
    return any(value.is_graph_output() for value in node.outputs)


def _find_unlifted_constant(model: ir.Model) -> str | None:
    """Describe the first initializer that is also a graph input, else the first Constant node.

    None if there is neither. Constant nodes that cannot be initializers (strings, sparse tensors,
    graph outputs) do not count.
    """
    for value in model.graph.inputs:
        if value.const_value is not None:
            return f"initializer '{value.name}' is a graph input"
    for node in model.graph:
        if node.op_type == "Constant" and not node.domain and not _must_stay_node(node):
            return f"{node.name} is a Constant node"
    return None


def _find_subgraph_node(model: ir.Model) -> str | None:
    """Describe the first node of the main graph that has a subgraph (If, Loop, Scan).

    None if none has.
    """
    for node in model.graph:
        if ir.has_subgraphs(node):
            return f"{node.op_type} {node.name} has one"
    return None


def _find_unshaped_value(model: ir.Model) -> str | None:
    """Describe a value without a shape; None if all have one."""
    for value in ir.iter_values(model):
        if value.shape is None:
            return f"'{value.name}' has none"
    return None


FUNCTIONS_INLINED = Condition("no foreign functions", _find_foreign_function)
CONSTANTS_LIFTED = Condition("constants as initializers", _find_unlifted_constant)
NO_SUBGRAPHS = Condition("no subgraphs", _find_subgraph_node)
SHAPES_KNOWN = Condition("a shape for every tensor", _find_unshaped_value)


def _find_untyped_input(model: ir.Model) -> str | None:
    """Describe a graph input without an element type; None if all have one."""
    for value in model.graph.inputs:
        if value.dtype is None:
            return f"input '{value.name}' has none"
    return None


def _find_dead_node(model: ir.Model) -> str | None:
    """Describe a node none of whose outputs is read or a graph output; None if there is none."""
    for node in model.graph:
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            return f"the output of {node.op_type} {node.name} is not used"
    return None


INPUTS_TYPED = Condition("an element type for every input", _find_untyped_input)
NO_DEAD_NODES = Condition("no dead nodes", _find_dead_node)


def match_op_types(*op_types: str) -> Callable[[ir.Node], bool]:
    """Return a predicate: whether a node is one of the standard operators `op_types`."""
    return lambda node: node.op_type in op_types and not node.domain


class PassLog:
    """A `PassObserver` that collects every `PassRun`.

    Parameters
    ----------
    folder
        Where the log and the graphs are written; created at the first pass. None writes nothing.

    Raises
    ------
    ConfigError
        The folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Start an empty log; with `folder`, models and texts are written there."""
        self.steps: list[PassRun] = []
        #: The last run of each pass, whose skip reasons replace those of earlier runs.
        self.last_runs: dict[str, PassRun] = {}
        self._folder = None if folder is None else Path(folder)

    def __call__(self, step: PassRun, graph: ir.Model) -> None:
        """Append `step` to the log; with a folder, also write files there.

        ``passes.txt`` is rewritten after each pass; `graph` is saved as ``NN_NAME.onnx`` if the
        pass changed something.
        """
        self.steps.append(step)
        self.last_runs[step.name] = step
        if self._folder is None:
            return
        with created_folder(self._folder):
            if step.changes:
                ir.save(graph, self._folder / f"{len(self.steps) - 1:02}_{step.name}.onnx")
            write_text(self._folder / "passes.txt", join_lines(self._format_lines()) + "\n")

    def _format_lines(self) -> Iterator[str]:
        """Yield a numbered line per step, each followed by its indented reasons."""
        for index, step in enumerate(self.steps):
            summary, *reasons = step.lines()
            yield f"{index:02} {summary}"
            yield from (f"   {line}" for line in reasons)

    def format_skip_reasons(self) -> list[str]:
        """Return lines "PASS: OPERATOR NAME stays: reason" of each pass's last run only."""
        lines: list[str] = []
        for step in self.last_runs.values():
            lines += [f"{step.name}: {reason}" for reason in step.skip_reasons]
        return lines

    def get_skip_reasons(self) -> list[SkipReason]:
        """List the reasons why passes left nodes unchanged, of the last run of each pass."""
        return [reason for step in self.last_runs.values() for reason in step.skip_reasons]
