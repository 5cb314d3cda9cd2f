"""Run all backend passes on an integer graph.

Results are cached, because the parts of a program are requested many times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import ir
from ...targets import Target
from ...targets._target import AppliedRewrite
from ..result_cache import ResultCache
from .cost_rewrites import apply_cost_rewrites
from .fault_workarounds import apply_fault_workarounds
from .packer_view import PackerGraphView
from .portable_forms import write_portable_forms
from .tiling import tile_large_layers

__all__ = ["run_backend_passes"]

_CACHE: ResultCache[tuple[ir.Model, Sequence[AppliedRewrite]]] = ResultCache()


def run_backend_passes(
    graph: ir.Model, target: Target
) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
    """Make an integer graph packable and correct, tile its large layers, and reduce its cost.

    The integers of its results stay the same. Results are cached by the graph's content.

    Parameters
    ----------
    graph : ir.Model
        Integer graph; may be modified.
    target : Target
        The chip.

    Returns
    -------
    graph : ir.Model
        The rewritten graph, which shares nothing with the cache.
    rewrites : sequence of AppliedRewrite
        Descriptions of the changes.
    """
    key_bytes = ir.to_proto(graph).SerializeToString(deterministic=True)
    rewritten, rewrites = _CACHE.get_or_compute(
        key_bytes, target, lambda: _run_passes(graph, target)
    )
    return rewritten.clone(), rewrites


def _run_passes(graph: ir.Model, target: Target) -> tuple[ir.Model, Sequence[AppliedRewrite]]:
    """Work around faults, tile large layers and rewrite for cost, without the cache.

    Returns the graph and descriptions of all changes; `graph` is modified. The fastest packer
    arguments are written to the metadata of the result if they are known.
    """
    workarounds = apply_fault_workarounds(graph, target)
    forms = write_portable_forms(graph, target)
    view, tilings = tile_large_layers(PackerGraphView(graph, target))
    rewritten, cost_rewrites, arguments = apply_cost_rewrites(view)
    if arguments is not None:
        arguments.write_metadata(rewritten.metadata_props)
    return rewritten, (*workarounds, *forms, *tilings, *cost_rewrites)
