"""What to try next where a model is not chip-ready, or loses much: options of `quantize`, made to be pasted.

A float operator between integer ones is no obstacle when all behind it, or all before it, stays in float as well: of
both cuts the one is named that leaves more multiply-accumulates to the chip. Where an output is far from the float
model's, more effort comes first, then a search for what brings it near.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..errors import ConfigError
from ..graph import ir
from ..ops.macs import macs
from .planned import Planned
from .prepared import Prepared
from .report import FloatNode, float_nodes
from .selectors import select

__all__ = ["next_options"]

_WISH = "--min-sqnr 15"
_MOST = 4  # selectors of a cut: more are no line to read


def next_options(planned: Planned, between: Sequence[FloatNode], lossy: bool) -> list[list[str]]:
    """Return lists of options, the first to be tried first.

    between : float nodes that stand between integer ones. lossy : whether an output is far from the float model's.
    """
    prepared = planned.prepared
    found = []
    if between and prepared.row.packing is not None and (cut := _cut(prepared, {entry.node for entry in between})):
        found.append([f"--skip {shlex.quote(selector)}" for selector in cut])
    if lossy and planned.basis.choice is not None and prepared.read is None and not prepared.synthetic:
        found.append(["--effort normal" if prepared.conf.effort == "fast" else _WISH])
    return found


def _cut(prepared: Prepared, between: set[str]) -> list[str]:
    """Return the selectors that leave all behind the float nodes, or all before them, to the host; none if none do."""
    best: tuple[int, list[str]] = (0, [])
    for nodes, form in ((_ends(prepared.graph, between), "{}.."), (_ends(prepared.graph, between, True), "..{}")):
        selectors = [form.format(_called(node, prepared.original)) for node in nodes]
        if len(selectors) <= _MOST and (kept := _kept(prepared, selectors)) > best[0]:
            best = kept, selectors
    return best[1]


def _ends(graph: ir.Graph, between: set[str], last: bool = False) -> list[ir.Node]:
    """Return those of the nodes that are computed from no other of them; with `last`, from which no other is."""
    found, reached = [], set()
    for node in reversed(list(graph.graph)) if last else graph.graph:
        near = [use.node for v in node.outputs for use in v.uses()] if last else [ir.producer(v) for v in node.inputs]
        if any(id(other) in reached for other in near):
            reached.add(id(node))
        elif str(node.name) in between:
            reached.add(id(node))
            found.append(node)
    return found


def _called(node: ir.Node, original: ir.Graph) -> str:
    """Return by what the user's graph knows a node of the normalised one."""
    for name in (ir.origin(node), str(node.name), *(str(v.name) for v in node.outputs)):
        try:
            select(original, name)
        except ConfigError:
            continue
        return name
    return str(node.name)


def _kept(prepared: Prepared, selectors: Sequence[str]) -> int:
    """Return the multiply-accumulates that stay in integers with these skipped; 0 where floats would stand between."""
    try:
        skipped = prepared.selectors(prepared.graph).skipped(selectors)
    except ConfigError:  # a node that the user's graph does not know
        return 0
    parts = prepared.with_host(skipped).parts
    if float_nodes(parts.graph, parts.floats, parts.inside)[0]:
        return 0
    return sum(macs(node) for node, _ in parts.nodes)
