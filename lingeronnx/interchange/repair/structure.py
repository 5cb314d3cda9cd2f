"""Repair of the structure of a graph: duplicate names, unsorted nodes, redundant Identity nodes.

A tensor with two producers is repaired only if both nodes are equivalent. Otherwise, and if nodes
form a cycle, the intended graph is ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from onnx import GraphProto, NodeProto, ValueInfoProto

from ...operators.integer_ops import DEQUANT
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


# ---- duplicates ---------------------------------------------------------------------------------


def _find_duplicates(view: GraphView) -> list[RepairFinding]:
    """Return the findings on names that occur twice in `view`, with edits where possible.

    These are tensors that several nodes compute, or a node and an input or initializer (fatal);
    graph inputs, outputs and initializers that are listed twice; and node names.
    """
    findings = []
    for scope in view.scopes:
        graph = scope.graph
        for node, first in _iter_duplicate_producers(graph):
            findings.append(_describe_duplicate_producer(graph, node, first))
        for name in _find_computed_inputs(graph):
            text = (
                f"'{name}' is computed by a node and is also a graph input or initializer; it is "
                "unclear which one is correct"
            )
            findings.append(RepairFinding("duplicates", text, tensor=name, level="fatal"))
        for kind, entries in _find_duplicate_entries(graph):
            findings.append(_describe_duplicate_entry(graph, kind, entries))
    return findings + _find_name_clashes(view)


def _describe_duplicate_producer(
    graph: GraphProto, node: NodeProto, first: NodeProto
) -> RepairFinding:
    """Return the finding on `node`, which computes a tensor that `first` computes too.

    With an edit that removes `node` if both are equivalent, else fatal.
    """
    label = node_label(node)
    tensor = next(name for name in node.output if name and name in first.output)
    if not _is_equivalent(first, node):
        text = f"'{tensor}' is also computed by {node_label(first)}; it is unclear which is correct"
        return RepairFinding("duplicates", text, label, tensor, level="fatal")
    remove = partial(remove_node, graph, node)
    edit = Edit("duplicates", "remove", f"{label}, a duplicate", label, apply=remove)
    text = f"'{tensor}' is also computed by the equivalent {node_label(first)}"
    return RepairFinding("duplicates", text, label, tensor, edits=[edit])


def _describe_duplicate_entry(
    graph: GraphProto, kind: str, entries: list[ValueInfoProto]
) -> RepairFinding:
    """Return the finding on several `entries` of one name in a list of `graph`.

    Equal entries get an edit that drops all but one; different ones are fatal.
    """
    name = entries[0].name
    text = f"{kind} '{name}' is listed {len(entries)} times"
    first = entries[0].SerializeToString()
    if any(entry.SerializeToString() != first for entry in entries[1:]):
        text = f"{text} with different contents; it is unclear which one is correct"
        return RepairFinding("duplicates", text, tensor=name, level="fatal")
    edit = Edit(
        "duplicates",
        "drop",
        f"duplicates of {kind} '{name}'",
        tensor=name,
        apply=partial(_drop_duplicate_entries, graph, kind, name),
    )
    return RepairFinding("duplicates", text, tensor=name, edits=(edit,))


def _drop_duplicate_entries(graph: GraphProto, kind: str, name: str) -> None:
    """Delete all entries `name` but the first from the list `kind` of `graph`, in place.

    `kind` is "graph input", "graph output" or "initializer".
    """
    entries = {
        "graph input": graph.input,
        "graph output": graph.output,
        "initializer": graph.initializer,
    }[kind]
    indices = [index for index, entry in enumerate(entries) if entry.name == name]
    for index in reversed(indices[1:]):
        del entries[index]


def _find_name_clashes(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each node of the main graph with the name of an earlier node.

    Its edit gives the node a new name; equivalent duplicates, which are removed, do not count as
    users of a name.
    """
    duplicates = []
    for scope in view.scopes:
        duplicates += _find_equivalent_duplicates(scope.graph)
    used_names = {
        node.proto.name
        for node in view.nodes
        if not any(node.proto is duplicate for duplicate in duplicates)
    }
    findings, counts = [], Counter[str]()
    for proto in _find_duplicate_names(view):
        name = proto.name
        counts[name] += 1
        new_name = fresh_name(name, used_names, counts[name])
        used_names.add(new_name)
        edit = Edit(
            "duplicates",
            "rename",
            f"the second node '{name}' to '{new_name}'",
            name,
            apply=partial(_rename_node, proto, new_name),
        )
        text = f"another node has the name '{name}' too"
        findings.append(RepairFinding("duplicates", text, node_label(proto), edits=(edit,)))
    return findings


def _rename_node(proto: NodeProto, name: str) -> None:
    """Set the name of the node `proto` to `name`, in place."""
    proto.name = name


def _iter_duplicate_producers(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Yield (node, first) for each node of `graph` that computes a tensor of `first` again.

    `first` is the node itself if it lists an output twice.
    """
    producers: dict[str, NodeProto] = {}
    for node in graph.node:
        first = next((producers[name] for name in node.output if name in producers), None)
        if first is not None:
            yield node, first
        outputs: set[str] = set()
        for name in node.output:
            if name and name in outputs:
                yield node, node
            outputs.add(name)
            if name:
                producers.setdefault(name, node)


def _find_equivalent_duplicates(graph: GraphProto) -> list[NodeProto]:
    """Return the nodes of `graph` that repeat an earlier node, apart from the name."""
    return [node for node, first in _iter_duplicate_producers(graph) if _is_equivalent(first, node)]


def _is_equivalent(first: NodeProto, second: NodeProto) -> bool:
    """Whether two different nodes compute the same, apart from name and doc string.

    Two Dequants of one tensor are equivalent whatever their scales, since the tensor determines the
    scale. False for one and the same node.
    """
    if first is second:
        return False
    contents = []
    for node in (first, second):
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.ClearField("name")
        copy.ClearField("doc_string")
        if copy.op_type == DEQUANT.name:
            copy.ClearField("attribute")
        contents.append(copy.SerializeToString(deterministic=True))
    return bool(contents[0] == contents[1])


def _find_computed_inputs(graph: GraphProto) -> list[str]:
    """Return the sorted names that are node outputs and also graph inputs or initializers."""
    sources = {value.name for value in graph.input}
    sources |= {tensor.name for tensor in graph.initializer}
    outputs: set[str] = set()
    for node in graph.node:
        outputs.update(node.output)
    return sorted(name for name in outputs & sources if name)


def _find_duplicate_entries(graph: GraphProto) -> list[tuple[str, list[ValueInfoProto]]]:
    """Return (kind, entries) for each name listed several times in one list of `graph`.

    `kind` is "graph input", "graph output" or "initializer"; entries are in list order.
    """
    duplicates = []
    lists = {
        "graph input": graph.input,
        "graph output": graph.output,
        "initializer": graph.initializer,
    }
    for kind, values in lists.items():
        groups: dict[str, list[ValueInfoProto]] = {}
        for value in values:
            groups.setdefault(value.name, []).append(value)
        duplicates += [(kind, entries) for entries in groups.values() if len(entries) > 1]
    return duplicates


def _find_duplicate_names(view: GraphView) -> list[NodeProto]:
    """Return the nodes of the main graph that have the name of an earlier one.

    Equivalent duplicates, which are removed, do not count.
    """
    duplicates = _find_equivalent_duplicates(view.main.graph)
    names: set[str] = set()
    namesakes = []
    for node in view.main.graph.node:
        if not node.name or any(node is duplicate for duplicate in duplicates):
            continue
        if node.name in names:
            namesakes.append(node)
        names.add(node.name)
    return namesakes


# ---- order --------------------------------------------------------------------------------------


def _find_order(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each graph of `view` with unsorted nodes, or one on a cycle (fatal).

    A finding names the first input whose producer comes later; its edit sorts the graph, subgraphs
    first.
    """
    if view.cycle is not None:
        text = "depends on its own output; it is unclear where to break the cycle"
        return [RepairFinding("order", text, view.cycle.label, level="fatal")]
    findings = []
    for scope_index, scope in enumerate(view.scopes):
        misordered = _find_misordered_reads(scope.nodes)
        if not misordered:
            continue
        node, tensor = misordered[0]
        others = f" (and {len(misordered) - 1} more)" if len(misordered) > 1 else ""
        text = f"precedes the producer of its input '{tensor.name}'{others}"
        location = ""
        if scope is not view.main:
            location = f" in a subgraph of {scope.owner.label if scope.owner else ''}"
        edit = Edit(
            "order",
            "sort",
            f"nodes topologically{location}",
            apply=partial(_sort, scope),
            rank=-scope_index,  # subgraphs first: sorting the outer graph replaces them by copies
        )
        findings.append(RepairFinding("order", text, node.label, tensor.name, edits=(edit,)))
    return findings


def _sort(scope: Scope) -> None:
    """Replace the nodes of `scope`, a graph without cycles, by copies in topological order.

    In place. Nodes of a cycle and those downstream of it would be dropped.
    """
    sort_nodes(scope.graph, sort_topologically(scope)[0])


def _find_misordered_reads(nodes: Sequence[NodeView]) -> list[tuple[NodeView, TensorView]]:
    """Return (node, input tensor) for each input whose producer comes later in `nodes`."""
    index_of = {node: index for index, node in enumerate(nodes)}
    misordered = []
    for node in nodes:
        for tensor in node.inputs:
            if tensor is None or tensor.producer is None:
                continue
            if index_of.get(tensor.producer, -1) > index_of[node]:
                misordered.append((node, tensor))
    return misordered


# ---- Identity -----------------------------------------------------------------------------------


def _find_identities(view: GraphView) -> list[RepairFinding]:
    """Return a finding for each redundant Identity of the main graph, with a removing edit.

    Consumers of an Identity read the first tensor of its chain of Identity nodes; if the result is
    a graph output, that tensor takes over the output's name. Identities that must stay have no
    finding.
    """
    identities = _removable_identities(view)
    inner = {
        _identity_output(node): node
        for node in identities
        if not view.is_output(_identity_output(node))
    }
    #: Reads of the start of each chain that result from removing the chain.
    new_reads: dict[TensorView, list[TensorRead]] = {}
    findings: dict[NodeView, RepairFinding] = {}
    for result, node in inner.items():
        source = _resolve_identity_chain(result, inner)
        new_reads.setdefault(source, []).extend(result.reads)
        text = f"{node.label}; its consumers read '{source.name}'"
        bypass = partial(_bypass_identity, node, source)
        findings[node] = _make_identity_finding(node, text, bypass, rank=0)
    renamed: set[TensorView] = set()
    for node in identities:
        result = _identity_output(node)
        source = _resolve_identity_chain(_identity_input(node), inner)
        if result in inner or source in renamed or not _can_take_output_name(view, source):
            continue
        renamed.add(source)
        reads = [*source.reads, *new_reads.get(source, ()), *result.reads]
        text = f"{node.label}; '{source.name}' is renamed to '{result.name}'"
        transfer = partial(_transfer_output_name, view, node, source, reads)
        findings[node] = _make_identity_finding(node, text, transfer, rank=1)
    return [findings[node] for node in identities if node in findings]


def _make_identity_finding(
    node: NodeView, text: str, apply: Callable[[], None], rank: int
) -> RepairFinding:
    """Return the finding that `node` is a redundant Identity, with the edit that removes it.

    `text`, `apply` and `rank` are the description, the function and the rank of the edit.
    """
    source_name = _identity_input(node).name
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
        f"passes '{source_name}' on unchanged",
        node.label,
        source_name,
        edits=(edit,),
    )


def _bypass_identity(node: NodeView, source: TensorView) -> None:
    """Remove `node`, an Identity of `source`, in place; nodes that read its output read `source`.

    Other Identities may lie between both. Graph outputs are not changed.
    """
    for read in _identity_output(node).reads:
        if read.node is not None:
            read.node.proto.input[read.index] = source.name
    remove_node(node.scope.graph, node.proto)


def _transfer_output_name(
    view: GraphView, node: NodeView, source: TensorView, reads: Sequence[TensorRead]
) -> None:
    """Remove `node`, an Identity of `source` that computes a graph output.

    Other Identities may lie between both. `source` takes over the output's name, which the node
    inputs in `reads` read afterwards. In place.
    """
    name = _identity_output(node).name
    view.rename(source, name)
    for read in reads:
        if read.node is not None:
            read.node.proto.input[read.index] = name
    remove_node(node.scope.graph, node.proto)


def _removable_identities(view: GraphView) -> list[NodeView]:
    """Return the Identity nodes of the main graph of `view` that can be removed.

    One that returns integers as a graph output is kept until a Dequant replaces it. One that gives
    the name of an output to a graph input, an initializer or another output is kept for good.
    """
    kinds = KindAnalysis.for_view(view).kinds
    identities = []
    for node in view.main.nodes:
        if not _is_plain_identity(node):
            continue
        source, result = _identity_input(node), _identity_output(node)
        if view.is_output(result):
            kind = kinds.kind_of.get(result)
            if not _can_take_output_name(view, source):
                continue
            if kind is not None and kind.is_integer and not is_dequant(source.producer):
                continue
        identities.append(node)
    return identities


def _is_plain_identity(node: NodeView) -> bool:
    """Whether `node` is a standard Identity of one input and the first producer of its output."""
    if node.proto.op_type != "Identity" or not node.is_standard:
        return False
    if len(node.inputs) != 1 or len(node.outputs) != 1 or node.inputs[0] is None:
        return False
    result = node.outputs[0]
    return result is not None and result.producer is node


def _can_take_output_name(view: GraphView, tensor: TensorView) -> bool:
    """Whether `tensor` can be renamed to the name of a graph output.

    It must be the output of a node of the main graph, and no graph output itself.
    """
    return tensor.producer is not None and tensor.scope is view.main and not view.is_output(tensor)


def _identity_input(node: NodeView) -> TensorView:
    """Return the input of `node`, an Identity, which must have one."""
    source = node.inputs[0]
    assert source is not None
    return source


def _identity_output(node: NodeView) -> TensorView:
    """Return the output of `node`, an Identity, which must have one."""
    result = node.outputs[0]
    assert result is not None
    return result


def _resolve_identity_chain(
    tensor: TensorView, identities: dict[TensorView, NodeView]
) -> TensorView:
    """Return the tensor at the start of the chain of Identity nodes that ends in `tensor`.

    `identities` has the Identity nodes by their output; `tensor` itself is returned if it is not a
    key.
    """
    while tensor in identities:
        tensor = _identity_input(identities[tensor])
    return tensor


DUPLICATE_REPAIR = RepairStep("duplicates", _find_duplicates)
ORDER_REPAIR = RepairStep("order", _find_order)
IDENTITY_REPAIR = RepairStep("identities", _find_identities)
