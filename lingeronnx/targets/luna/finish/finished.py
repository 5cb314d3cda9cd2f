"""All last rewrites of an integer graph, once for each graph: parts of a program are asked for many times."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph import ir
from ... import Target
from ..._target import Fitted
from ..remembered import Remembered
from .cheaper import cheaper
from .form import chip_form
from .read_graph import ReadGraph
from .row_tiles import row_tiles

__all__ = ["finished"]

_KNOWN: Remembered[tuple[ir.Graph, Sequence[Fitted]]] = Remembered()


def finished(graph: ir.Graph, target: Target) -> tuple[ir.Graph, Sequence[Fitted]]:
    """Return `graph` in the form that packs and is right, in tiles where they are needed, and in what is faster.

    The graph is changed, or left as it is. What is returned is nobody else's.
    """
    body = ir.to_proto(graph).SerializeToString(deterministic=True)
    made, done = _KNOWN.ask(body, target, lambda: _made(graph, target))
    return ir.clone(made), done


def _made(graph: ir.Graph, target: Target) -> tuple[ir.Graph, Sequence[Fitted]]:
    formed = chip_form(graph, target)
    read, tiled = row_tiles(ReadGraph(graph, target))
    made, faster, saved = cheaper(read)
    if saved is not None:
        saved.note(made.metadata_props)
    return made, (*formed, *tiled, *faster)
