"""What the user names: selectors on the user's own graph, and what they stand for in the normalised one.

A selector is a node name, a tensor name, a glob over both, or ``type:Conv``. With two dots behind,
``NAME..``, it names the nodes and all that is computed from them; with two dots before, ``..NAME``,
all that they are computed from. Knows no settings and no platform.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import ConfigError, suggest_nearest
from ...graph import ir
from ...run.runners import find_ancestors, iter_read_values

__all__ = ["Selectors", "select_nodes", "select_tensors"]


@dataclass(frozen=True)
class Selectors:
    """Resolves selectors: `original` is the user's graph, `graph` the normalised one."""

    original: ir.Model
    graph: ir.Model

    def resolve_nodes(self, selector: str) -> list[ir.Node]:
        """Return the nodes of the normalised graph that `selector` stands for.

        None where what it names is folded.
        """
        chosen = select_nodes(self.original, selector)
        names = {str(n.name) for n in chosen} | {str(v.name) for n in chosen for v in n.outputs}
        return [
            n
            for n in self.graph.graph
            if names & {ir.origin_name(n), *(str(v.name) for v in n.outputs)}
        ]

    def resolve_skips(self, selectors: Iterable[str]) -> dict[str, str]:
        """Return {node of the normalised graph: reason} for the nodes the user leaves in float."""
        return {
            str(node.name): f"skipped by '{selector}'"
            for selector in selectors
            for node in self.resolve_nodes(selector)
        }

    def tensors(self, selector: str) -> list[str]:
        """Return the tensors of the normalised graph that `selector` stands for.

        ConfigError where none is left.
        """
        present = {str(v.name) for v in ir.iter_values(self.graph)} | set(
            self.graph.graph.initializers
        )
        by_node = {str(node.name): node for node in self.graph.graph}
        names = [name for name in select_tensors(self.original, selector) if name in present]
        try:
            chosen = select_nodes(self.original, selector)
        except ConfigError:
            chosen = []  # a graph input
        names += [ir.output_name(by_node[str(n.name)]) for n in chosen if str(n.name) in by_node]
        if not names:
            raise ConfigError(
                f"override '{selector}': what it names is folded into its neighbours; name the "
                "tensor behind them"
            )
        return list(dict.fromkeys(names))


def select_nodes(model: ir.Model, selector: str) -> list[ir.Node]:
    """Return the nodes of `model` that a selector names.

    A graph input's name selects no node; see `select_tensors`. ConfigError when nothing matches.
    """
    nodes = list(
        ir.iter_nodes_recursive(model.graph)
    )  # branches and loops become part of the graph
    if selector.startswith("type:"):
        kind = selector[5:]
        selected = [node for node in nodes if node.op_type == kind]
        if not selected:
            kinds = {node.op_type for node in nodes}
            raise ConfigError(
                f"selector '{selector}' matches no node{suggest_nearest(kind, kinds)}; "
                f"this model has {', '.join(sorted(kinds))}"
            )
        return selected
    if selector.endswith("..") and len(selector) > 2:
        return _with_descendants(model, select_nodes(model, selector[:-2]))
    if selector.startswith("..") and len(selector) > 2:
        ends = select_nodes(model, selector[2:])
        read = [
            str(value.name)
            for node in ends
            for value in iter_read_values(node)
            if value is not None
        ]
        own = {id(node) for node in ends}
        return [node for node in find_ancestors(model.graph, read) if id(node) not in own]
    exact = [n for n in nodes if n.name == selector or any(o.name == selector for o in n.outputs)]
    if exact:
        return exact
    names = {str(n.name): n for n in nodes} | {str(o.name): n for n in nodes for o in n.outputs}
    hits = {id(node): node for name, node in names.items() if fnmatch.fnmatchcase(name, selector)}
    if not hits:
        raise ConfigError(
            f"selector '{selector}' matches no node or tensor{suggest_nearest(selector, names)}; "
            "write a name, or a pattern such as '*conv1*'"
        )
    return [node for node in nodes if id(node) in hits]


def _with_descendants(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return `nodes` and all that is computed from them."""
    reached = {id(node) for node in nodes}
    for node in model.graph:
        if any(
            id(ir.producer(value)) in reached
            for value in iter_read_values(node)
            if value is not None and ir.producer(value)
        ):
            reached.add(id(node))
    return [node for node in model.graph if id(node) in reached]


def select_tensors(model: ir.Model, selector: str) -> list[str]:
    """Return the names of the tensors a selector stands for.

    A graph input, or the outputs of `select_nodes`'s nodes.
    """
    inputs = [str(v.name) for v in model.graph.inputs if fnmatch.fnmatchcase(str(v.name), selector)]
    if inputs:
        return inputs
    return [
        str(value.name)
        for node in select_nodes(model, selector)
        for value in node.outputs
        if value.name
    ]
