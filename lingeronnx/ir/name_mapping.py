"""Map user names to the names of a file and back, and find the module that a node comes from.

A graph in memory has the user's names. If a target does not accept all of them, `apply_file_names`
renames tensors and nodes before the graph is written and stores the user's names in the metadata
under `NAMES_KEY`; `restore_user_names` restores them. The target decides which names it accepts.

torch's newer exporter stores the module names in the metadata of a node ("layer1.conv1"), the older
one in its name ("/layer1/conv1/Conv"). In other files the module is the name of the node.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from ..common.errors import ModelError
from . import ir

__all__ = [
    "NAMES_KEY",
    "NameMapping",
    "apply_file_names",
    "apply_file_names_to_proto",
    "collect_tensor_names",
    "format_node_label",
    "get_module_name",
    "restore_user_names",
]

#: Metadata key of the user's names: JSON, {"tensors": {file name: user name}, "nodes": the same}.
NAMES_KEY = "lingeronnx.names"

_NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class NameMapping:
    """Names that change in a file: {user name: file name} of tensors and of nodes."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def apply_file_names(graph: ir.Model, names: NameMapping) -> ir.Model:
    """Return a copy of `graph` with file names, and the user's names in its metadata (`NAMES_KEY`).

    Returns `graph` itself if no tensor or node of it is in `names`, which may contain names of a
    larger graph.
    """
    if not names.tensors and not names.nodes:
        return graph
    tensors = {
        name: names.tensors[name] for name in collect_tensor_names(graph) if name in names.tensors
    }
    node_names = [str(node.name) for node in graph.graph]
    nodes = {name: names.nodes[name] for name in node_names if name in names.nodes}
    if not tensors and not nodes:
        return graph
    copy = graph.clone()
    ir.rename(copy, tensors, nodes)
    copy.metadata_props[NAMES_KEY] = _format_user_names(tensors, nodes)
    return copy


def apply_file_names_to_proto(proto: onnx.ModelProto, names: NameMapping) -> None:
    """Rename tensors and nodes of a model without subgraphs, as `apply_file_names` does, in place.

    Takes a fraction of the time that a copy of the graph takes.
    """
    if not names.tensors and not names.nodes:
        return
    graph = proto.graph
    tensors: dict[str, str] = {}
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        if value.name in names.tensors:
            file_name = names.tensors[value.name]
            tensors[value.name] = file_name
            value.name = file_name
    nodes: dict[str, str] = {}
    for node in graph.node:
        if node.name in names.nodes:
            file_name = names.nodes[node.name]
            nodes[node.name] = file_name
            node.name = file_name
        for operands in (node.input, node.output):
            for index, name in enumerate(operands):
                if name in names.tensors:
                    tensors[name] = operands[index] = names.tensors[name]
    if tensors or nodes:
        proto.metadata_props.add(key=NAMES_KEY, value=_format_user_names(tensors, nodes))
        proto.metadata_props.sort(key=lambda entry: entry.key)  # as in a serialized graph


def _format_user_names(tensors: Mapping[str, str], nodes: Mapping[str, str]) -> str:
    """Format {user name: file name} of tensors and nodes as the metadata `NAMES_KEY`."""
    user_names = {"tensors": _invert(tensors), "nodes": _invert(nodes)}
    return json.dumps(user_names, ensure_ascii=False)


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    """Return {file name: user name} for {user name: file name}, sorted by user name."""
    return {file_name: name for name, file_name in sorted(names.items())}


def restore_user_names(graph: ir.Model) -> ir.Model:
    """Return a copy of `graph`, read from a file, with the user's names and without `NAMES_KEY`.

    The user's names are in that entry of the metadata. Returns `graph` itself if it stores none. If
    a user name is in use by now, also in a subgraph, the file name stays. Raises ModelError if the
    metadata cannot be read.
    """
    if NAMES_KEY not in graph.metadata_props:
        return graph
    tensors, nodes = _parse_name_mapping(graph.metadata_props[NAMES_KEY])
    copy = graph.clone()
    del copy.metadata_props[NAMES_KEY]
    tensor_names = {*collect_tensor_names(graph), *ir.get_subgraph_tensor_names(graph)}
    node_names = {str(node.name) for node in graph.graph}
    ir.rename(
        copy,
        _select_applicable_names(tensors, tensor_names),
        _select_applicable_names(nodes, node_names),
    )
    return copy


def _select_applicable_names(
    user_names: Mapping[str, str], current_names: set[str]
) -> dict[str, str]:
    """Return the entries of `user_names` ({file name: user name}) that can be applied.

    The file name must be in `current_names`, and the user name must not be.
    """
    return {
        file_name: user_name
        for file_name, user_name in user_names.items()
        if file_name in current_names and user_name not in current_names
    }


def collect_tensor_names(graph: ir.Model) -> set[str]:
    """Return the names of all tensors of the main graph: constants, inputs and node outputs."""
    return {*ir.get_tensor_names(graph), *(str(value.name) for value in graph.graph.inputs)}


def _parse_name_mapping(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Parse the JSON `text` of the metadata `NAMES_KEY`; return names of tensors and of nodes.

    Both are {file name: user name}.

    Raises
    ------
    ModelError
        If the text is malformed.
    """
    try:
        content = json.loads(text)
        tensors = {str(file): str(user) for file, user in content["tensors"].items()}
        nodes = {str(file): str(user) for file, user in content["nodes"].items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"metadata '{NAMES_KEY}' cannot be read; quantize the model again"
        ) from error
    return tensors, nodes


def get_module_name(node: ir.Node) -> str:
    """Return the dotted name of the torch module that `node` was exported from.

    This is the innermost scope in the metadata; else for a name "/a/b/Op" its middle, "a.b"; else
    the name of the node itself.
    """
    if scopes := _parse_name_scopes(node.metadata_props.get(_NAME_SCOPES_KEY, "")):
        return scopes[-1]
    name = str(node.name or "")
    parts = name.split("/")
    return ".".join(parts[1:-1]) if name.startswith("/") and len(parts) > 2 else name


def format_node_label(node: str, module: str) -> str:
    """Return "node (module)", or only `node` if `module` is empty or contained in the node's name.

    For the comparison, "/" counts as ".".
    """
    is_known = module.replace("/", ".") in node.replace("/", ".")
    return node if is_known else f"{node} ({module})"


def _parse_name_scopes(text: str) -> Sequence[str]:
    """Return the torch modules around a node, outermost first, from the exporter's list in `text`.

    `text` is a Python list as text. Its last entry, the node itself, and empty entries are removed.
    [] if it is empty or not a list.
    """
    try:
        scopes = ast.literal_eval(text) if text else []
    except (SyntaxError, ValueError):
        return []
    return [str(scope) for scope in scopes[:-1] if scope] if isinstance(scopes, list) else []
