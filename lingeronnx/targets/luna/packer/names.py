"""Names that the vendor's packer takes: what is unsafe in a name, how a safe one is made, and the way back.

The packer cuts a name at an "@", takes a tensor whose name begins with "Scale" for something else, and one that speaks
of a "workspace" or of its prefetch buffers for its own. A name with ":" or "," cannot be written behind its `-m`. The
executor dumps an integer tensor into a file called after the first characters of its name, "/" written as "_".

In memory a graph has the user's names. `written` gives it safe ones on the way to a file for a chip, and keeps the
user's in the file's metadata under `KEY`; `restored` takes them back. Knows no operator and no platform.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ....errors import ModelError
from ....graph import ir

__all__ = ["KEY", "Names", "is_safe", "restored", "safe_names", "written"]

#: Where a file keeps the user's names: JSON, {"tensors": {name in the file: the user's}, "nodes": the same}.
KEY = "lingeronnx.names"

_CHARACTERS = "@:,"
_START = "Scale"
#: Words of the packer's own, and what stands for them.
_WORDS = {"workspace": "work_space", "dma_buffer1": "dma_buf1", "dma_buffer2": "dma_buf2"}
#: Characters of a name that the executor's dumps are sure to show.
_SHOWN = 64


@dataclass(frozen=True)
class Names:
    """The names that change: {the user's: that in the file}, of tensors and of nodes."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def is_safe(name: str) -> bool:
    """Whether the packer takes `name` as it is."""
    return name == _cleaned(name)


def _cleaned(name: str) -> str:
    text = "".join("_" if char in _CHARACTERS or not char.isprintable() else char for char in name)
    for word, other in _WORDS.items():
        text = text.replace(word, other)
    return text[0].lower() + text[1:] if text.startswith(_START) else text


def _dumped(name: str) -> str:
    """Return what tells a tensor's dump from the others."""
    return name.replace("/", "_")[:_SHOWN]


def safe_names(graph: ir.Graph) -> Names:
    """Return the names of `graph` that the packer does not take as they are, and unique ones for them.

    Safe names stay, those of inputs and outputs first, but for a tensor whose dump another one would overwrite.
    """
    ends = [str(value.name) for value in (*graph.graph.inputs, *graph.graph.outputs)]
    computed = list(dict.fromkeys([*ends, *(str(value.name) for value in ir.values(graph))]))
    dumped = {str(v.name) for v in ir.values(graph) if ir.producer(v) and (v.dtype is None or v.dtype.name != "FLOAT")}
    constants = [str(name) for name in graph.graph.initializers if name not in set(computed)]
    known = {*computed, *constants, *ir.inner_names(graph)}
    dumps: set[str] = set()
    found: dict[str, str] = {}
    for name in sorted(computed, key=lambda name: not is_safe(name)):
        found[name] = _free(name, known, dumps if name in dumped else set())
        dumps |= {_dumped(found[name])} if name in dumped else set()
        known.add(found[name])
    for name in constants:
        found[name] = _free(name, known, set())
        known.add(found[name])
    titles = [str(node.name) for node in graph.graph]
    nodes = {name: name for name in titles if is_safe(name)}
    for name in titles:
        if name not in nodes:
            nodes[name] = ir.free_name(_cleaned(name), {*titles, *nodes.values()})
    return Names(_changed(found.items()), _changed(nodes.items()))


def _free(name: str, known: set[str], dumps: set[str]) -> str:
    """Return `name`, or a safe one that is not in `known` and whose dump is not in `dumps`."""
    wanted = base = _cleaned(name)
    number = 1
    while (wanted in known and wanted != name) or _dumped(wanted) in dumps:
        number += 1
        tail = f"_{number}"
        wanted = f"{base[: _SHOWN - len(tail)]}{tail}"
    return wanted


def _changed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: other for name, other in pairs if name != other}


def written(graph: ir.Graph, names: Names | None = None) -> ir.Graph:
    """Return `graph` as it is written for a chip: with safe names, the user's in its metadata.

    It is the same graph where all its names are safe. names : those of a larger graph that `graph` is part of.
    """
    names = safe_names(graph) if names is None else names
    tensors = {name: names.tensors[name] for name in _all(graph) if name in names.tensors}
    nodes = {name: names.nodes[name] for node in graph.graph if (name := str(node.name)) in names.nodes}
    if not tensors and not nodes:
        return graph
    copy = ir.clone(graph)
    ir.rename(copy, tensors, nodes)
    back = {
        key: {other: name for name, other in sorted(pairs.items())}
        for key, pairs in (("tensors", tensors), ("nodes", nodes))
    }
    copy.metadata_props[KEY] = json.dumps(back, ensure_ascii=False)
    return copy


def restored(graph: ir.Graph) -> ir.Graph:
    """Return `graph`, read from a file, with the user's names; the same graph where they never changed.

    A name that something else has by now is not given twice: there the file's stays. Raises ModelError where the
    metadata cannot be read.
    """
    if KEY not in graph.metadata_props:
        return graph
    tensors, nodes = _read(graph.metadata_props[KEY])
    copy = ir.clone(graph)
    del copy.metadata_props[KEY]
    taken, titles = {*_all(graph), *ir.inner_names(graph)}, {str(node.name) for node in graph.graph}
    ir.rename(
        copy,
        {a: b for a, b in tensors.items() if a in taken and b not in taken},
        {a: b for a, b in nodes.items() if a in titles and b not in titles},
    )
    return copy


def _all(graph: ir.Graph) -> set[str]:
    return {*ir.names(graph), *(str(value.name) for value in graph.graph.inputs)}


def _read(text: str) -> tuple[dict[str, str], dict[str, str]]:
    try:
        body = json.loads(text)
        parts = [{str(a): str(b) for a, b in body[key].items()} for key in ("tensors", "nodes")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the model's metadata '{KEY}' cannot be read; quantize the model again") from error
    return parts[0], parts[1]
