"""Resolve the user's selectors on the original graph, and map the results to the normalized graph.

A selector is a node name, a tensor name, a glob over both, or ``type:Conv``. With two trailing
dots, ``NAME..``, it selects the nodes and everything computed from them; with two leading dots,
``..NAME``, everything that they are computed from. Independent of settings and platforms.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...common.errors import ConfigError, suggest_nearest
from ...ir import ir

__all__ = ["Selectors", "select_nodes", "select_tensors"]


class Selectors(NamedTuple):
    """Resolves selectors of the user's graph `original` to the normalized graph `graph`."""

    original: ir.Model
    graph: ir.Model

    def resolve_nodes(self, selector: str) -> list[ir.Node]:
        """Return the nodes of the normalized graph that `selector` selects, in graph order.

        These are nodes created for a selected one, or that write one of its outputs. Empty if the
        selected nodes were folded. Raises ConfigError if it selects nothing in the original.
        """
        names: set[str] = set()
        for node in select_nodes(self.original, selector):
            names.add(str(node.name))
            names.update(str(value.name) for value in node.outputs)
        resolved = []
        for node in self.graph.graph:
            outputs = {str(value.name) for value in node.outputs}
            if ir.origin_name(node) in names or not outputs.isdisjoint(names):
                resolved.append(node)
        return resolved

    def resolve_skips(self, selectors: Iterable[str]) -> dict[str, str]:
        """Return {node of the normalized graph: reason} for nodes that the user keeps in float.

        The reason is "skipped by 'SELECTOR'", with the last selector that selects it. Raises
        ConfigError for a selector that selects nothing in the original.
        """
        return {
            str(node.name): f"skipped by '{selector}'"
            for selector in selectors
            for node in self.resolve_nodes(selector)
        }

    def tensors(self, selector: str) -> list[str]:
        """Return the names of tensors of the normalized graph that `selector` selects.

        These are selected inputs and outputs that are left, and outputs of nodes with the name of a
        selected one. Each is listed once.

        Raises
        ------
        ConfigError
            If the selector selects nothing, or none of the tensors is left.
        """
        present = {str(value.name) for value in ir.iter_values(self.graph)}
        present.update(self.graph.graph.initializers)
        nodes_by_name = {str(node.name): node for node in self.graph.graph}
        names = [name for name in select_tensors(self.original, selector) if name in present]
        try:
            selected = select_nodes(self.original, selector)
        except ConfigError:
            selected = []  # a graph input
        for node in selected:
            normalized = nodes_by_name.get(str(node.name))
            if normalized is not None:
                names.append(ir.output_name(normalized))
        if not names:
            raise ConfigError(
                f"override '{selector}': the selected tensor was folded into its neighbors; select "
                "the tensor after them"
            )
        return list(dict.fromkeys(names))


def select_nodes(model: ir.Model, selector: str) -> list[ir.Node]:
    """Return the nodes of `model` that a selector selects.

    A selector is a name of a node or tensor, a glob of names, "type:OP", "SELECTOR.." (with all
    nodes computed from them) or "..SELECTOR" (all nodes that they are computed from, without them).
    Nodes of subgraphs count. The name of a graph input selects no node.

    Raises
    ------
    ConfigError
        If nothing matches.
    """
    # Nodes of branches and loops are included: they become part of the graph.
    nodes = list(model.graph.all_nodes())
    if selector.startswith("type:"):
        return _select_by_type(nodes, selector)
    if selector.endswith("..") and len(selector) > 2:
        return _with_descendants(model, select_nodes(model, selector[:-2]))
    if selector.startswith("..") and len(selector) > 2:
        return _ancestors_of(model, select_nodes(model, selector[2:]))
    return _select_by_name(nodes, selector)


def _select_by_type(nodes: Sequence[ir.Node], selector: str) -> list[ir.Node]:
    """Return those of `nodes` whose operator is OP, for a selector "type:OP".

    Raises ConfigError, with the operators of the model, if there are none.
    """
    op_type = selector.removeprefix("type:")
    selected = [node for node in nodes if node.op_type == op_type]
    if not selected:
        op_types = {node.op_type for node in nodes}
        raise ConfigError(
            f"selector '{selector}' matches no node{suggest_nearest(op_type, op_types)}; "
            f"this model has {', '.join(sorted(op_types))}"
        )
    return selected


def _select_by_name(nodes: Sequence[ir.Node], selector: str) -> list[ir.Node]:
    """Return the nodes with exactly that name or output, else those that match it as a glob.

    A glob matches names and outputs, in case. Raises ConfigError if there are none.
    """
    nodes_by_name = {str(node.name): node for node in nodes}
    exact = []
    for node in nodes:
        outputs = [str(value.name) for value in node.outputs]
        nodes_by_name.update(dict.fromkeys(outputs, node))
        if node.name == selector or selector in outputs:
            exact.append(node)
    if exact:
        return exact
    matching_ids = {
        id(node) for name, node in nodes_by_name.items() if fnmatch.fnmatchcase(name, selector)
    }
    if not matching_ids:
        raise ConfigError(
            f"selector '{selector}' matches no node or tensor"
            f"{suggest_nearest(selector, nodes_by_name)}; use a name, or a pattern such as "
            "'*conv1*'"
        )
    return [node for node in nodes if id(node) in matching_ids]


def _ancestors_of(model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return all nodes of `model` that `nodes` are computed from, without these.

    Inputs that their subgraphs read from outside count.
    """
    inputs = []
    for node in nodes:
        inputs += [str(value.name) for value in ir.iter_read_values(node) if value is not None]
    node_ids = {id(node) for node in nodes}
    return [node for node in ir.find_ancestors(model.graph, inputs) if id(node) not in node_ids]


def _with_descendants(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return `nodes` and all nodes computed from them, in the order of the main graph.

    Nodes inside of subgraphs are left out.
    """
    reached = {id(node) for node in nodes}
    for node in model.graph:
        producers = [ir.producer(value) for value in ir.iter_read_values(node)]
        if any(producer is not None and id(producer) in reached for producer in producers):
            reached.add(id(node))
    return [node for node in model.graph if id(node) in reached]


def select_tensors(model: ir.Model, selector: str) -> list[str]:
    """Return the names of tensors that `selector` selects: graph inputs, or the outputs of nodes.

    Inputs that it matches as a glob take precedence. Other selectors are a name of a node or
    tensor, a glob, "type:OP", "SELECTOR.." and "..SELECTOR". Raises ConfigError if it matches
    neither an input nor a node.
    """
    inputs = [str(value.name) for value in model.graph.inputs]
    selected_inputs = [name for name in inputs if fnmatch.fnmatchcase(name, selector)]
    if selected_inputs:
        return selected_inputs
    return [
        str(value.name)
        for node in select_nodes(model, selector)
        for value in node.outputs
        if value.name
    ]
