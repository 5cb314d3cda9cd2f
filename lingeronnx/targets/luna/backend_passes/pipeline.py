"""All last rewrites of an integer graph, once for each graph.

Parts of a program are asked for many times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph import ir
from ... import Target
from ..._target import AppliedRewrite
from ..result_cache import ResultCache
from .cost_rewrites import apply_cost_rewrites
from .fault_workarounds import apply_fault_workarounds
from .packer_view import PackerGraphView
from .tiling import tile_large_layers

__all__ = ["run_backend_passes"]

_CACHE: ResultCache[tuple[ir.Model, Sequence[AppliedRewrite]]] = ResultCache()


def run_backend_passes(
    graph: ir.Model, target: Target
) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
    """Return `graph` in the form that packs and is right, in tiles where they are needed, and in what is faster.

    The graph is changed, or left as it is. What is returned is nobody else's.
    """
    body = ir.to_proto(graph).SerializeToString(deterministic=True)
    made, done = _CACHE.get_or_compute(body, target, lambda: _run_passes(graph, target))
    return ir.clone(made), done


def _run_passes(graph: ir.Model, target: Target) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
    formed = apply_fault_workarounds(graph, target)
    read, tiled = tile_large_layers(PackerGraphView(graph, target))
    made, faster, saved = apply_cost_rewrites(read)
    if saved is not None:
        saved.write_metadata(made.metadata_props)
    return made, (*formed, *tiled, *faster)
