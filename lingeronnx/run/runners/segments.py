"""A float graph in pieces, so that of a changed run only what lies behind the change is computed again.

A piece is one node, with those before it that nobody else reads, and has an onnxruntime session of
its own, of one thread: what it computes does not depend on the machine's load. Knows no plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...ops.macs import count_macs
from .float_fallbacks import extract_submodel, find_ancestors, iter_read_values
from .sessions import open_ort_session

if TYPE_CHECKING:
    from .sessions import OrtSession

__all__ = ["Segment", "Segments"]


@dataclass(frozen=True)
class Segment:
    """Nodes that are computed together.

    nodes : their names. inputs, outputs : the tensors it reads and gives. constants : what it
    holds, by name. macs : multiply-accumulates of one sample.
    """

    nodes: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    constants: Mapping[str, np.ndarray]
    macs: int


class Segments:
    """The pieces, in graph order, that the tensors `wanted` of `model` depend on.

    cuts : tensors that must be seen: no piece hides one. apart : nodes of which no piece holds two.
    """

    def __init__(
        self,
        model: ir.Model,
        cuts: Collection[str],
        wanted: Collection[str],
        apart: Collection[str],
    ) -> None:
        self._model = model
        shown = {*cuts, *wanted, *(str(v.name) for v in model.graph.outputs)}
        nodes = [node for node in find_ancestors(model.graph, wanted) if not _is_constant(node)]
        groups = _group_nodes(nodes, shown, apart)
        self._nodes = groups
        self.segments = [_make_segment(group, shown) for group in groups]
        self._sessions: dict[tuple[int, frozenset[tuple[str, int]]], OrtSession] = {}

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample of a whole run."""
        return sum(piece.macs for piece in self.segments)

    def run(
        self, index: int, tensors: Mapping[str, np.ndarray], changed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs of piece `index`, given its inputs.

        changed : other values of some of its constants; an array of other values is another object,
        and lives as
            long as this does.
        """
        piece = self.segments[index]
        key = index, frozenset((name, id(array)) for name, array in changed.items())
        if key not in self._sessions:
            self._sessions[key] = self._open(index, changed)
        try:
            arrays = self._sessions[key].run(
                list(piece.outputs), {name: tensors[name] for name in piece.inputs}
            )
        except Exception as error:
            raise ModelError(f"onnxruntime failed on node {piece.nodes[-1]}: {error}") from error
        return dict(zip(piece.outputs, arrays, strict=True))

    def _open(self, index: int, changed: Mapping[str, np.ndarray]) -> OrtSession:
        piece, nodes = self.segments[index], self._nodes[index]
        inputs = {
            str(v.name): v
            for node in nodes
            for v in iter_read_values(node)
            if v is not None and v.name in piece.inputs
        }
        proto = extract_submodel(
            self._model, nodes, inputs, piece.outputs, {**piece.constants, **changed}
        )
        return open_ort_session(proto, f"node {piece.nodes[-1]}", threads=1)


def _is_constant(node: ir.Node) -> bool:
    return ir.find_constant(node.outputs[0]) is not None


def _group_nodes(
    nodes: Sequence[ir.Node], shown: Collection[str], apart: Collection[str]
) -> list[list[ir.Node]]:
    """Join each node that only one other reads to that one's group."""
    readers: dict[str, dict[int, ir.Node]] = {}
    for node in nodes:
        for value in iter_read_values(node):
            if value is not None:
                readers.setdefault(str(value.name), {})[id(node)] = node
    group_of = {id(node): [node] for node in nodes}
    for node in nodes:
        names = [str(value.name) for value in node.outputs if value.name]
        users = {key: user for name in names for key, user in readers.get(name, {}).items()}
        if len(users) != 1 or any(name in shown for name in names):
            continue
        (user,) = users.values()
        own, other = group_of[id(node)], group_of[id(user)]
        if sum(str(member.name) in apart for member in (*own, *other)) < 2:
            other[:0] = own
            group_of.update({id(member): other for member in own})
    return [group for node in nodes if (group := group_of[id(node)])[-1] is node]


def _make_segment(nodes: Sequence[ir.Node], shown: Collection[str]) -> Segment:
    made = {str(value.name) for node in nodes for value in node.outputs}
    read = {
        str(v.name): v
        for node in nodes
        for v in iter_read_values(node)
        if v is not None and v.name not in made
    }
    held = {
        name: array
        for name, value in read.items()
        if (array := ir.find_constant(value)) is not None
    }
    outputs = [str(v.name) for v in nodes[-1].outputs if v.name and (v.uses() or v.name in shown)]
    return Segment(
        [str(node.name) for node in nodes],
        [name for name in read if name not in held],
        outputs,
        held,
        sum(count_macs(node) for node in nodes),
    )
