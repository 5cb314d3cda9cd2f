"""Names that the vendor's packer takes: what is unsafe in a name, and how a safe one is made.

The packer cuts a name at an "@", takes a tensor whose name begins with "Scale" for something else, and one that speaks
of a "workspace" or of its prefetch buffers for its own. A name with ":" or "," cannot be written behind its `-m`. The
executor dumps an integer tensor into a file called after the first characters of its name, "/" written as "_".

Knows no operator and no platform.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....graph import ir
from ....graph.names import Names

__all__ = ["is_safe", "safe_names"]

_CHARACTERS = "@:,"
_START = "Scale"
#: Words of the packer's own, and what stands for them.
_WORDS = {"workspace": "work_space", "dma_buffer1": "dma_buf1", "dma_buffer2": "dma_buf2"}
#: Characters of a name that the executor's dumps are sure to show.
_SHOWN = 64


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
    known = set(computed)
    constants = [str(name) for name in graph.graph.initializers if name not in known]
    known |= {*constants, *ir.inner_names(graph)}
    dumps: set[str] = set()
    safe: dict[str, str] = {}
    for name in sorted(computed, key=lambda name: not is_safe(name)):
        safe[name] = _free(name, known, dumps if name in dumped else set())
        dumps |= {_dumped(safe[name])} if name in dumped else set()
        known.add(safe[name])
    for name in constants:
        safe[name] = _free(name, known, set())
        known.add(safe[name])
    titles = [str(node.name) for node in graph.graph]
    nodes = {name: name for name in titles if is_safe(name)}
    for name in titles:
        if name not in nodes:
            nodes[name] = ir.free_name(_cleaned(name), {*titles, *nodes.values()})
    return Names(_changed(safe.items()), _changed(nodes.items()))


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
