"""Repairs of a graph's skeleton: names given twice, nodes out of order, Identity nodes left over.

A tensor written twice is repaired where both nodes are the same; otherwise, and where nodes depend
on themselves, there is no telling what was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from onnx import GraphProto, NodeProto, ValueInfoProto

from ..formats import DEQUANT
from .graph_view import (
    GraphView,
    NodeView,
    Scope,
    TensorRead,
    TensorView,
    fresh_name,
    node_label,
    remove_node,
    sort_nodes,
    sort_topologically,
)
from .node_semantics import is_dequant
from .report import Edit, RepairFinding, RepairStep
from .tensor_kinds import KindAnalysis

__all__ = ["DUPLICATE_REPAIR", "IDENTITY_REPAIR", "ORDER_REPAIR"]


# ---- names given twice ---------------------------------------------------------------------------------------------


def _find_duplicates(view: GraphView) -> list[RepairFinding]:
    findings = []
    for scope in view.scopes:
        graph = scope.graph
        for node, first in _iter_duplicate_writers(graph):
            shared = [name for name in node.output if name and name in first.output]
            text, edits = f"'{shared[0]}' is written by {node_label(first)} too", []
            if same := _is_equivalent(first, node):
                edits.append(
                    Edit(
                        "duplicates",
                        "remove",
                        f"{node_label(node)}, its second copy",
                        node_label(node),
                        apply=partial(remove_node, graph, node),
                    )
                )
            text += ", which does the same" if same else "; it is not clear which of them is meant"
            findings.append(
                RepairFinding(
                    "duplicates",
                    text,
                    node_label(node),
                    shared[0],
                    level="wrong" if same else "fatal",
                    edits=edits,
                )
            )
        for name in _written_inputs(graph):
            text = (
                f"'{name}' is written by a node and is a graph input or initializer; it is not "
                "clear which is meant"
            )
            findings.append(RepairFinding("duplicates", text, tensor=name, level="fatal"))
        findings += [
            _describe_duplicate_entry(graph, kind, entries)
            for kind, entries in _find_duplicate_entries(graph)
        ]
    return findings + _find_name_clashes(view)


def _describe_duplicate_entry(
    graph: GraphProto, kind: str, entries: list[ValueInfoProto]
) -> RepairFinding:
    """Return what is wrong with `entries` of one name in a list of `graph`."""
    name, twice = entries[0].name, f"{kind} '{entries[0].name}' is listed {len(entries)} times"
    if any(e.SerializeToString() != entries[0].SerializeToString() for e in entries[1:]):
        text = f"{twice}, and not the same each time; it is not clear which is meant"
        return RepairFinding("duplicates", text, tensor=name, level="fatal")
    edit = Edit(
        "duplicates",
        "drop",
        f"{kind} '{name}': listed once",
        tensor=name,
        apply=partial(_drop_duplicate_entries, graph, kind, name),
    )
    return RepairFinding("duplicates", twice, tensor=name, edits=(edit,))


def _drop_duplicate_entries(graph: GraphProto, kind: str, name: str) -> None:
    field = {
        "graph input": graph.input,
        "graph output": graph.output,
        "initializer": graph.initializer,
    }[kind]
    places = [index for index, value in enumerate(field) if value.name == name]
    for index in reversed(places[1:]):
        del field[index]


def _find_name_clashes(view: GraphView) -> list[RepairFinding]:
    gone = [
        node
        for scope in view.scopes
        for node, first in _iter_duplicate_writers(scope.graph)
        if _is_equivalent(first, node)
    ]
    taken = {node.proto.name for node in view.nodes if not any(node.proto is copy for copy in gone)}
    findings, count = [], Counter[str]()
    for proto, name in _find_duplicate_names(view):
        count[name] += 1
        new = fresh_name(name, taken, count[name])
        taken.add(new)
        edit = Edit(
            "duplicates",
            "rename",
            f"node '{name}', the second of that name, is called '{new}'",
            name,
            apply=partial(_rename_node, proto, new),
        )
        findings.append(
            RepairFinding(
                "duplicates",
                f"another node is called '{name}' too",
                node_label(proto),
                edits=(edit,),
            )
        )
    return findings


def _rename_node(proto: NodeProto, name: str) -> None:
    proto.name = name


def _iter_duplicate_writers(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Yield (node, the node before it that writes the same tensor)."""
    writers: dict[str, NodeProto] = {}
    for node in graph.node:
        first = next((writers[name] for name in node.output if name in writers), None)
        if first is not None:
            yield node, first
        own: set[str] = set()
        for name in node.output:
            if name and name in own:
                yield node, node
            own.add(name)
            if name:
                writers.setdefault(name, node)


def _is_equivalent(first: NodeProto, second: NodeProto) -> bool:
    """Whether two nodes do the same.

    Of two Dequants of one tensor the scale does not matter, it follows from that.
    """
    if first is second:
        return False
    parts = []
    for node in (first, second):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        if copy.op_type == DEQUANT.name:
            copy.ClearField("attribute")
        parts.append(copy.SerializeToString(deterministic=True))
    return parts[0] == parts[1]


def _written_inputs(graph: GraphProto) -> list[str]:
    sources = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return sorted({name for node in graph.node for name in node.output if name and name in sources})


def _find_duplicate_entries(graph: GraphProto) -> list[tuple[str, list[ValueInfoProto]]]:
    twice = []
    lists = {
        "graph input": graph.input,
        "graph output": graph.output,
        "initializer": graph.initializer,
    }
    for kind, values in lists.items():
        groups: dict[str, list[ValueInfoProto]] = {}
        for value in values:
            groups.setdefault(value.name, []).append(value)
        twice += [(kind, entries) for entries in groups.values() if len(entries) > 1]
    return twice


def _find_duplicate_names(view: GraphView) -> list[tuple[NodeProto, str]]:
    """Return the nodes of the main graph whose name an earlier one has.

    Copies that are removed do not count.
    """
    gone = [
        node
        for node, first in _iter_duplicate_writers(view.main.graph)
        if _is_equivalent(first, node)
    ]
    names: set[str] = set()
    namesakes = []
    for node in view.main.graph.node:
        if not node.name or any(node is copy for copy in gone):
            continue
        if node.name in names:
            namesakes.append((node, node.name))
        names.add(node.name)
    return namesakes


# ---- order ---------------------------------------------------------------------------------------------------------


def _find_order(view: GraphView) -> list[RepairFinding]:
    if view.cycle is not None:
        text = "it depends on its own output; it is not clear where to cut the cycle"
        return [RepairFinding("order", text, view.cycle.label, level="fatal")]
    findings = []
    for number, scope in enumerate(view.scopes):
        early = _find_misordered_reads(scope.nodes)
        if early:
            node, tensor = early[0]
            more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
            text = f"stands before the node that writes its input '{tensor.name}'{more}"
            where = (
                ""
                if scope is view.main
                else f" in a subgraph of {scope.owner.label if scope.owner else ''}"
            )
            edit = Edit(
                "order",
                "sort",
                f"nodes put behind those whose results they read{where}",
                apply=partial(_sort, scope),
                rank=-number,
            )  # inner ones first: an outer graph holds copies then
            findings.append(RepairFinding("order", text, node.label, tensor.name, edits=(edit,)))
    return findings


def _sort(scope: Scope) -> None:
    sort_nodes(scope.graph, sort_topologically(scope)[0])


def _find_misordered_reads(nodes: Sequence[NodeView]) -> list[tuple[NodeView, TensorView]]:
    place = {node: index for index, node in enumerate(nodes)}
    return [
        (node, tensor)
        for node in nodes
        for tensor in node.inputs
        if tensor is not None
        and tensor.writer is not None
        and place.get(tensor.writer, -1) > place[node]
    ]


# ---- Identity ------------------------------------------------------------------------------------------------------


def _find_identities(view: GraphView) -> list[RepairFinding]:
    """Find the Identity nodes that can go.

    Those inside, and those that give a graph output its name.
    """
    going = _removable_identities(view)
    inside = [node for node in going if not view.is_output(_identity_output(node))]
    gone = {_identity_output(node): node for node in inside}
    readers: dict[
        TensorView, list[TensorRead]
    ] = {}  # of what stands at the beginning of each chain, once the chain is gone
    findings: dict[NodeView, RepairFinding] = {}
    for node in inside:
        end = _resolve_identity_chain(_identity_output(node), gone)
        readers.setdefault(end, []).extend(_identity_output(node).reads)
        text = f"{node.label}; its readers read '{end.name}'"
        findings[node] = _make_identity_finding(
            node, text, partial(_bypass_identity, node, end), rank=0
        )
    named: set[TensorView] = set()
    for node in going:
        end, result = _resolve_identity_chain(_identity_input(node), gone), _identity_output(node)
        if result in gone or end in named or not _can_take_output_name(view, end):
            continue
        named.add(end)
        reads = [*end.reads, *readers.get(end, ()), *result.reads]
        text = f"{node.label}; '{end.name}' takes the name '{result.name}'"
        findings[node] = _make_identity_finding(
            node, text, partial(_transfer_output_name, view, node, end, reads), rank=1
        )
    return [findings[node] for node in going if node in findings]


def _make_identity_finding(
    node: NodeView, text: str, apply: Callable[[], None], rank: int
) -> RepairFinding:
    edit = Edit(
        "identities",
        "remove",
        text,
        node.label,
        _identity_output(node).name,
        apply=apply,
        rank=rank,
    )
    return RepairFinding(
        "identities",
        f"hands '{_identity_input(node).name}' on unchanged, left over from the export",
        node.label,
        _identity_input(node).name,
        edits=(edit,),
    )


def _bypass_identity(node: NodeView, end: TensorView) -> None:
    """Let the readers of an Identity read `end`, and take it out."""
    for read in _identity_output(node).reads:
        if read.node is not None:
            read.node.proto.input[read.index] = end.name
    remove_node(node.scope.graph, node.proto)


def _transfer_output_name(
    view: GraphView, node: NodeView, end: TensorView, reads: Sequence[TensorRead]
) -> None:
    """Take out an Identity whose result is a graph output.

    `end`, which `reads` read, takes its name.
    """
    name = _identity_output(node).name
    view.rename(end, name)
    for read in reads:
        if read.node is not None:
            read.node.proto.input[read.index] = name
    remove_node(node.scope.graph, node.proto)


def _removable_identities(view: GraphView) -> list[NodeView]:
    """Return the Identity nodes of the main graph that can go.

    One that hands integers to a graph output stays until a Dequant takes its place, and one that
    must give a name to a graph input, an initializer or another output stays for good.
    """
    kinds = KindAnalysis.for_view(view).kinds
    identities = []
    for node in view.main.nodes:
        source = node.inputs[0] if len(node.inputs) == 1 else None
        result = node.outputs[0] if len(node.outputs) == 1 else None
        if (
            node.proto.op_type != "Identity"
            or not node.standard
            or source is None
            or result is None
        ):
            continue
        if result.writer is not node:
            continue
        if view.is_output(result):
            kind = kinds.kind_of.get(result)
            if not _can_take_output_name(view, source) or (
                kind is not None and kind.is_integer and not is_dequant(source.writer)
            ):
                continue
        identities.append(node)
    return identities


def _can_take_output_name(view: GraphView, tensor: TensorView) -> bool:
    """Whether a tensor can take the name of a graph output."""
    return tensor.writer is not None and tensor.scope is view.main and not view.is_output(tensor)


def _identity_input(node: NodeView) -> TensorView:
    source = node.inputs[0]
    assert source is not None
    return source


def _identity_output(node: NodeView) -> TensorView:
    result = node.outputs[0]
    assert result is not None
    return result


def _resolve_identity_chain(tensor: TensorView, gone: dict[TensorView, NodeView]) -> TensorView:
    """Return where a chain of Identity nodes begins."""
    while tensor in gone:
        tensor = _identity_input(gone[tensor])
    return tensor


DUPLICATE_REPAIR = RepairStep("duplicates", _find_duplicates)
ORDER_REPAIR = RepairStep("order", _find_order)
IDENTITY_REPAIR = RepairStep("identities", _find_identities)
