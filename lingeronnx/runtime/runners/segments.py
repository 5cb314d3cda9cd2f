"""Split a float graph into segments, to recompute only segments downstream of a change.

A segment is one node, with upstream nodes that no other node consumes. It has its own onnxruntime
session with one thread, so its results do not depend on the machine's load. Knows no plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from ...operators.macs import count_macs
from .float_fallbacks import collect_inputs, extract_submodel
from .sessions import open_ort_session

if TYPE_CHECKING:
    from .sessions import OrtSession

__all__ = ["Segment", "Segments"]


@dataclass(frozen=True)
class Segment:
    """Nodes that are computed together.

    nodes : names. inputs, outputs : tensors. constants : arrays by name. macs :
    multiply-accumulates of one sample.
    """

    nodes: Sequence[str]
    inputs: Sequence[str]
    outputs: Sequence[str]
    constants: Mapping[str, np.ndarray]
    macs: int


class Segments:
    """The segments, in graph order, that some tensors of a float model depend on.

    Parameters
    ----------
    model
        The float model.
    cuts
        Tensors that must be outputs of a segment.
    outputs
        Tensors to compute.
    separate
        Names of nodes of which a segment may contain only one.
    """

    def __init__(
        self,
        model: ir.Model,
        cuts: Collection[str],
        outputs: Collection[str],
        separate: Collection[str],
    ) -> None:
        """Group the nodes that `outputs` depend on into segments, without opening sessions.

        Nodes with constant outputs are left out. Tensors in `cuts` and `outputs` and the graph's
        outputs are visible between segments; a segment contains at most one node of `separate`
        (names).
        """
        self._model = model
        visible = {*cuts, *outputs, *(str(value.name) for value in model.graph.outputs)}
        ancestors = ir.find_ancestors(model.graph, outputs)
        self._nodes = _group_nodes(
            [node for node in ancestors if not _is_constant(node)], visible, separate
        )
        self.segments = [_make_segment(group, visible) for group in self._nodes]
        self._sessions: dict[tuple[int, frozenset[tuple[str, int]]], OrtSession] = {}

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample over all segments."""
        return sum(segment.macs for segment in self.segments)

    def run(
        self, index: int, tensors: Mapping[str, np.ndarray], changed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Compute the segment of this index; return its outputs by name.

        Parameters
        ----------
        index
            Index of the segment.
        tensors
            Arrays by name, with its inputs.
        changed
            Replacements of some of its constants. Sessions are cached by the identity of these
            arrays, so different values must be different objects that live as long as this one.

        Raises
        ------
        ModelError
            If onnxruntime fails on the segment.
        """
        segment = self.segments[index]
        key = index, frozenset((name, id(array)) for name, array in changed.items())
        if key not in self._sessions:
            self._sessions[key] = self._open(index, changed)
        feeds = {name: tensors[name] for name in segment.inputs}
        try:
            arrays = self._sessions[key].run(list(segment.outputs), feeds)
        except Exception as error:
            raise ModelError(f"onnxruntime failed on node {segment.nodes[-1]}: {error}") from error
        return dict(zip(segment.outputs, arrays, strict=True))

    def _open(self, index: int, changed: Mapping[str, np.ndarray]) -> OrtSession:
        """Open a session of one thread on the segment of this index.

        `changed` maps constants to arrays that replace them. Raises ModelError if onnxruntime does
        not support it.
        """
        segment, nodes = self.segments[index], self._nodes[index]
        inputs = {}
        for node in nodes:
            for value in ir.iter_read_values(node):
                if value is not None and value.name in segment.inputs:
                    inputs[str(value.name)] = value
        constants = {**segment.constants, **changed}
        proto = extract_submodel(self._model, nodes, inputs, segment.outputs, constants)
        return open_ort_session(proto, f"node {segment.nodes[-1]}", threads=1)


def _is_constant(node: ir.Node) -> bool:
    """Whether the first output of `node` is a constant."""
    return ir.find_constant(node.outputs[0]) is not None


def _group_nodes(
    nodes: Sequence[ir.Node], visible: Collection[str], separate: Collection[str]
) -> list[list[ir.Node]]:
    """Group nodes into segments; each ends with the only node whose outputs are used outside.

    A node with a single consumer joins the group of the consumer, unless an output is in `visible`
    or the group would have two nodes of `separate`. Groups are in the order of their last nodes.
    """
    consumers: dict[str, dict[int, ir.Node]] = {}
    for node in nodes:
        for value in ir.iter_read_values(node):
            if value is not None:
                consumers.setdefault(str(value.name), {})[id(node)] = node
    group_of = {id(node): [node] for node in nodes}
    for node in nodes:
        names = [str(value.name) for value in node.outputs if value.name]
        node_consumers: dict[int, ir.Node] = {}
        for name in names:
            node_consumers.update(consumers.get(name, {}))
        if len(node_consumers) != 1 or any(name in visible for name in names):
            continue
        (consumer,) = node_consumers.values()
        group, consumer_group = group_of[id(node)], group_of[id(consumer)]
        if sum(str(member.name) in separate for member in (*group, *consumer_group)) < 2:
            consumer_group[:0] = group
            group_of.update({id(member): consumer_group for member in group})
    return [group for node in nodes if (group := group_of[id(node)])[-1] is node]


def _make_segment(nodes: Sequence[ir.Node], visible: Collection[str]) -> Segment:
    """Make a segment of `nodes`; its outputs are those of the last node that are used.

    An output is used if a node reads it or it is in `visible`.
    """
    variables, constants = collect_inputs(nodes)
    last_outputs = [value for value in nodes[-1].outputs if value.name]
    return Segment(
        nodes=[str(node.name) for node in nodes],
        inputs=list(variables),
        outputs=[str(v.name) for v in last_outputs if v.uses() or v.name in visible],
        constants=constants,
        macs=sum(count_macs(node) for node in nodes),
    )
