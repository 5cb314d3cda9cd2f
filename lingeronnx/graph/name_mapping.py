"""Names that a file needs and a graph has not: the way there, and the way back.

In memory a graph has the user's names. Where a target cannot take every name, `apply_file_names`
gives it others on the way to a file and keeps the user's in the file's metadata under `NAMES_KEY`;
`restore_user_names` takes them back. Which names a target takes is its own matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ModelError
from . import ir

__all__ = [
    "NAMES_KEY",
    "NameMapping",
    "apply_file_names",
    "collect_tensor_names",
    "restore_user_names",
]

#: Where a file keeps the user's names: JSON, {"tensors": {name in the file: the user's}, "nodes": the same}.
NAMES_KEY = "lingeronnx.names"


@dataclass(frozen=True)
class NameMapping:
    """The names that change: {the user's: that in the file}, of tensors and of nodes."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def apply_file_names(graph: ir.Model, names: NameMapping) -> ir.Model:
    """Return `graph` as it is written.

    With other names where `names` has some, the user's in its metadata.
    It is the same graph where nothing changes. names : perhaps those of a larger graph that `graph`
    is part of.
    """
    tensors = {
        name: names.tensors[name] for name in collect_tensor_names(graph) if name in names.tensors
    }
    nodes = {
        name: names.nodes[name] for node in graph.graph if (name := str(node.name)) in names.nodes
    }
    if not tensors and not nodes:
        return graph
    copy = ir.clone(graph)
    ir.rename(copy, tensors, nodes)
    back = {
        key: {other: name for name, other in sorted(pairs.items())}
        for key, pairs in (("tensors", tensors), ("nodes", nodes))
    }
    copy.metadata_props[NAMES_KEY] = json.dumps(back, ensure_ascii=False)
    return copy


def restore_user_names(graph: ir.Model) -> ir.Model:
    """Return `graph`, read from a file, with the user's names.

    The same graph where they never changed.
    A name that something else has by now is not given twice: there the file's stays. Raises
    ModelError where the metadata cannot be read.
    """
    if NAMES_KEY not in graph.metadata_props:
        return graph
    tensors, nodes = _parse_name_mapping(graph.metadata_props[NAMES_KEY])
    copy = ir.clone(graph)
    del copy.metadata_props[NAMES_KEY]
    taken, titles = (
        {*collect_tensor_names(graph), *ir.get_subgraph_tensor_names(graph)},
        {str(node.name) for node in graph.graph},
    )
    ir.rename(
        copy,
        {a: b for a, b in tensors.items() if a in taken and b not in taken},
        {a: b for a, b in nodes.items() if a in titles and b not in titles},
    )
    return copy


def collect_tensor_names(graph: ir.Model) -> set[str]:
    """Return the names of all tensors, graph inputs included."""
    return {*ir.get_tensor_names(graph), *(str(value.name) for value in graph.graph.inputs)}


def _parse_name_mapping(text: str) -> tuple[dict[str, str], dict[str, str]]:
    try:
        body = json.loads(text)
        parts = [{str(a): str(b) for a, b in body[key].items()} for key in ("tensors", "nodes")]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the model's metadata '{NAMES_KEY}' cannot be read; quantize the model again"
        ) from error
    return parts[0], parts[1]
