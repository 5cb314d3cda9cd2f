"""Names that the vendor's packer takes: what is unsafe in a name, and how a safe one is made.

The packer cuts a name at an "@", takes a tensor whose name begins with "Scale" for something else,
and one that speaks of a "workspace" or of its prefetch buffers for its own. A name with ":" or ","
cannot be written behind its `-m`. The executor dumps an integer tensor into a file called after the
first characters of its name, "/" written as "_".

Knows no operator and no platform.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....graph import ir
from ....graph.name_mapping import NameMapping

__all__ = ["build_safe_names", "is_safe"]

_UNSAFE_CHARACTERS = "@:,"
_RESERVED_PREFIX = "Scale"
#: Words of the packer's own, and what stands for them.
_RESERVED_WORDS = {"workspace": "work_space", "dma_buffer1": "dma_buf1", "dma_buffer2": "dma_buf2"}
#: Characters of a name that the executor's dumps are sure to show.
_DUMP_NAME_LENGTH = 64


def is_safe(name: str) -> bool:
    """Whether the packer takes `name` as it is."""
    return name == _sanitize_name(name)


def _sanitize_name(name: str) -> str:
    text = "".join(
        "_" if char in _UNSAFE_CHARACTERS or not char.isprintable() else char for char in name
    )
    for word, other in _RESERVED_WORDS.items():
        text = text.replace(word, other)
    return text[0].lower() + text[1:] if text.startswith(_RESERVED_PREFIX) else text


def _get_dump_stem(name: str) -> str:
    """Return what tells a tensor's dump from the others."""
    return name.replace("/", "_")[:_DUMP_NAME_LENGTH]


def build_safe_names(graph: ir.Model) -> NameMapping:
    """Return the names of `graph` that the packer does not take as they are, and unique ones for them.

    Safe names stay, those of inputs and outputs first, but for a tensor whose dump another one
    would overwrite.
    """
    ends = [str(value.name) for value in (*graph.graph.inputs, *graph.graph.outputs)]
    computed = list(dict.fromkeys([*ends, *(str(value.name) for value in ir.iter_values(graph))]))
    dumped = {
        str(v.name)
        for v in ir.iter_values(graph)
        if ir.producer(v) and (v.dtype is None or v.dtype.name != "FLOAT")
    }
    known = set(computed)
    constants = [str(name) for name in graph.graph.initializers if name not in known]
    known |= {*constants, *ir.get_subgraph_tensor_names(graph)}
    dumps: set[str] = set()
    safe: dict[str, str] = {}
    for name in sorted(computed, key=lambda name: not is_safe(name)):
        safe[name] = _make_unique_name(name, known, dumps if name in dumped else set())
        dumps |= {_get_dump_stem(safe[name])} if name in dumped else set()
        known.add(safe[name])
    for name in constants:
        safe[name] = _make_unique_name(name, known, set())
        known.add(safe[name])
    titles = [str(node.name) for node in graph.graph]
    nodes = {name: name for name in titles if is_safe(name)}
    for name in titles:
        if name not in nodes:
            nodes[name] = ir.unique_name(_sanitize_name(name), {*titles, *nodes.values()})
    return NameMapping(_drop_unchanged(safe.items()), _drop_unchanged(nodes.items()))


def _make_unique_name(name: str, known: set[str], dumps: set[str]) -> str:
    """Return `name`, or a safe one that is not in `known` and whose dump is not in `dumps`."""
    wanted = base = _sanitize_name(name)
    number = 1
    while (wanted in known and wanted != name) or _get_dump_stem(wanted) in dumps:
        number += 1
        tail = f"_{number}"
        wanted = f"{base[: _DUMP_NAME_LENGTH - len(tail)]}{tail}"
    return wanted


def _drop_unchanged(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: other for name, other in pairs if name != other}
