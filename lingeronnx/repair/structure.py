"""Repairs of a graph's skeleton: names given twice, nodes out of order, Identity nodes left over.

A tensor written twice is repaired where both nodes are the same; otherwise, and where nodes depend on themselves, there
is no telling what was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from onnx import GraphProto, NodeProto, ValueInfoProto

from .kinds import Kinship
from .nodes import is_dequant
from .report import Edit, Finding, Repair
from .view import Node, Tensor, View, fresh_name, label, sort_nodes, topological

__all__ = ["DUPLICATES", "IDENTITIES", "ORDER", "sort_all"]


# ---- names given twice ---------------------------------------------------------------------------------------------


def _find_duplicates(view: View) -> list[Finding]:
    found = []
    for scope in view.scopes:
        graph = scope.graph
        for node, first in _rewritten(graph):
            shared = [name for name in node.output if name and name in first.output]
            same = _same(first, node)
            found.append(Finding(
                "duplicates", f"'{shared[0]}' is written by {label(first)} too" + (
                    ", which does the same" if same else "; which of them is meant cannot be told"),
                label(node), shared[0], level="wrong" if same else "fatal"))  # fmt: skip
        for name in _written_and_given(graph):
            text = f"'{name}' is written by a node and is a graph input or initializer; which is meant cannot be told"
            found.append(Finding("duplicates", text, tensor=name, level="fatal"))
        for kind, entry in _listed_twice(graph):
            twice = f"{kind} '{entry[0].name}' is listed {len(entry)} times"
            same = all(e.SerializeToString() == entry[0].SerializeToString() for e in entry[1:])
            text = twice if same else f"{twice}, and not the same each time; which is meant cannot be told"
            found.append(Finding("duplicates", text, tensor=entry[0].name, level="wrong" if same else "fatal"))
    for proto, name in _namesakes(view):
        found.append(Finding("duplicates", f"another node is called '{name}' too", label(proto), level="wrong"))
    return found


def _fix_duplicates(view: View, findings: Sequence[Finding]) -> list[Edit]:
    edits = []
    for scope in view.scopes:
        graph = scope.graph
        doubles = [node for node, first in _rewritten(graph) if _same(first, node)]
        for index in reversed(range(len(graph.node))):
            if any(graph.node[index] is node for node in doubles):
                edits.append(Edit("duplicates", "remove", f"{label(graph.node[index])}, its second copy",
                                  label(graph.node[index])))  # fmt: skip
                del graph.node[index]
        for kind, entries in _listed_twice(graph):
            field = {"graph input": graph.input, "graph output": graph.output, "initializer": graph.initializer}[kind]
            places = [index for index, value in enumerate(field) if value.name == entries[0].name]
            for index in reversed(places[1:]):
                del field[index]
            edits.append(Edit("duplicates", "drop", f"{kind} '{entries[0].name}': listed once", tensor=entries[0].name))
    fresh = View(view.model)
    taken, count = {node.proto.name for node in fresh.nodes}, Counter[str]()
    for proto, name in _namesakes(fresh):
        count[name] += 1
        new = fresh_name(name, taken, count[name])
        taken.add(new)
        edits.append(Edit("duplicates", "rename", f"node '{name}', the second of that name, is called '{new}'", name))
        proto.name = new
    return edits


def _rewritten(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Yield (node, the node before it that writes the same tensor)."""
    seen: dict[str, NodeProto] = {}
    for node in graph.node:
        first = next((seen[name] for name in node.output if name in seen), None)
        if first is not None:
            yield node, first
        own: set[str] = set()
        for name in node.output:
            if name and name in own:
                yield node, node
            own.add(name)
            if name:
                seen.setdefault(name, node)


def _same(first: NodeProto, second: NodeProto) -> bool:
    """Whether two nodes do the same; of two Dequants of one tensor the scale does not matter, it follows from that."""
    if first is second:
        return False
    parts = []
    for node in (first, second):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        if copy.op_type == "Dequant":
            copy.ClearField("attribute")
        parts.append(copy.SerializeToString(deterministic=True))
    return parts[0] == parts[1]


def _written_and_given(graph: GraphProto) -> list[str]:
    given = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return sorted({name for node in graph.node for name in node.output if name and name in given})


def _listed_twice(graph: GraphProto) -> list[tuple[str, list[ValueInfoProto]]]:
    found = []
    lists = {"graph input": graph.input, "graph output": graph.output, "initializer": graph.initializer}
    for kind, values in lists.items():
        groups: dict[str, list[ValueInfoProto]] = {}
        for value in values:
            groups.setdefault(value.name, []).append(value)
        found += [(kind, entries) for entries in groups.values() if len(entries) > 1]
    return found


def _namesakes(view: View) -> list[tuple[NodeProto, str]]:
    """Return the nodes of the main graph whose name an earlier one has; copies that are removed do not count."""
    gone = [node for node, first in _rewritten(view.main.graph) if _same(first, node)]
    seen: set[str] = set()
    found = []
    for node in view.main.graph.node:
        if not node.name or any(node is copy for copy in gone):
            continue
        if node.name in seen:
            found.append((node, node.name))
        seen.add(node.name)
    return found


# ---- order ---------------------------------------------------------------------------------------------------------


def _find_order(view: View) -> list[Finding]:
    if view.cycle is not None:
        text = "it depends on its own output; where the cycle should be cut cannot be told"
        return [Finding("order", text, view.cycle.label, level="fatal")]
    found = []
    for scope in view.scopes:
        early = _too_early(scope.nodes)
        if early:
            node, tensor = early[0]
            more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
            text = f"stands before the node that writes its input '{tensor.name}'{more}"
            found.append(Finding("order", text, node.label, tensor.name))
    return found


def _too_early(nodes: Sequence[Node]) -> list[tuple[Node, Tensor]]:
    place = {node: index for index, node in enumerate(nodes)}
    return [
        (node, tensor) for node in nodes for tensor in node.inputs
        if tensor is not None and tensor.writer is not None and place.get(tensor.writer, -1) > place[node]
    ]  # fmt: skip


def _fix_order(view: View, findings: Sequence[Finding]) -> list[Edit]:
    sort_all(view)
    return [Edit("order", "sort", "nodes put behind those whose results they read")]


def sort_all(view: View) -> None:
    """Sort the nodes of every graph of the model, inner ones first: an outer graph holds copies afterwards."""
    for scope in reversed(view.scopes):
        order, _ = topological(scope)
        if order != scope.nodes:
            sort_nodes(scope.graph, order)


# ---- Identity ------------------------------------------------------------------------------------------------------


def _find_identities(view: View) -> list[Finding]:
    return [
        Finding("identities", f"hands '{node.proto.input[0]}' on unchanged, left over from the export", node.label,
                node.proto.input[0])
        for node in _identities(view)
    ]  # fmt: skip


def _identities(view: View) -> list[Node]:
    """Return the Identity nodes of the main graph that can go.

    One that hands integers to a graph output stays until a Dequant takes its place, and one that must give a name to a
    graph input, an initializer or another output stays for good.
    """
    kinds = Kinship.of(view).kinds
    found = []
    for node in view.main.nodes:
        source = node.inputs[0] if len(node.inputs) == 1 else None
        result = node.outputs[0] if len(node.outputs) == 1 else None
        if node.proto.op_type != "Identity" or not node.standard or source is None or result is None:
            continue
        if result.writer is not node:
            continue
        if view.is_output(result):
            kind = kinds.of.get(result)
            if not _renamable(view, source) or (kind is not None and kind.integer and not is_dequant(source.writer)):
                continue
        found.append(node)
    return found


def _renamable(view: View, tensor: Tensor) -> bool:
    """Whether a tensor can take the name of a graph output."""
    return tensor.writer is not None and tensor.scope is view.main and not view.is_output(tensor)


def _fix_identities(view: View, findings: Sequence[Finding]) -> list[Edit]:
    edits = []
    inner = [node for node in _identities(view) if not view.is_output(_result(node))]
    gone = {_result(node): node for node in inner}
    for node in view.nodes:
        for index, tensor in enumerate(node.inputs):
            if tensor in gone:
                node.proto.input[index] = _end(tensor, gone).name
    edits += [Edit("identities", "remove", f"{n.label}; its readers read '{_end(_result(n), gone).name}'", n.label,
                   _result(n).name) for n in inner]  # fmt: skip
    _delete(view.main.graph, inner)
    while leaving := _identities(again := View(view.model)):
        node = leaving[0]
        source, result = node.inputs[0], _result(node)
        assert source is not None
        edits.append(Edit("identities", "remove", f"{node.label}; '{source.name}' takes the name '{result.name}'",
                          node.label, result.name))  # fmt: skip
        for read in result.reads:
            if read.node is not None:
                read.node.proto.input[read.index] = result.name
        again.rename(source, result.name)
        _delete(again.main.graph, [node])
    return edits


def _result(node: Node) -> Tensor:
    result = node.outputs[0]
    assert result is not None
    return result


def _end(tensor: Tensor, gone: dict[Tensor, Node]) -> Tensor:
    """Return where a chain of Identity nodes begins."""
    while tensor in gone:
        source = gone[tensor].inputs[0]
        assert source is not None
        tensor = source
    return tensor


def _delete(graph: GraphProto, nodes: Iterable[Node]) -> None:
    protos = [node.proto for node in nodes]  # held, so that each is the same object when it is met again
    known = {id(proto) for proto in protos}
    for index in reversed(range(len(graph.node))):
        if id(graph.node[index]) in known:
            del graph.node[index]


DUPLICATES = Repair("duplicates", _find_duplicates, _fix_duplicates)
ORDER = Repair("order", _find_order, _fix_order)
IDENTITIES = Repair("identities", _find_identities, _fix_identities)
