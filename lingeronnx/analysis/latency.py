"""How long an integer graph takes on a chip: `latency`, of all its parts for the chip."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import ConfigError, LingerOnnxError, words_of
from ..graph import ir
from ..run.integer.runner import target_of
from ..run.parts import parts_of
from ..run.session import is_integer_graph
from ..targets import Target, by_name
from ..targets.latency import Latency, joined
from ..targets.verdict import time_of

__all__ = ["cycles_of_nodes", "latency"]


def latency(
    graph: ir.ModelLike,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
) -> Latency:
    """Return how many cycles one run of an integer graph takes, per layer and in all, its parts for the chip alone.

    graph : of `quantize`, whole or a part for the packer. platform : the chip; default the one that the graph was
    made for. packer_args : one line or words, for each part; default those that `quantize` prints.
    Figures are of the estimator that the chip's vendor publishes, whose constants are fitted to measured calls, called
    as the chip's executor calls them. What has no price is in `unpriced`.
    Raises ConfigError for a platform of which nothing is known and for a graph that does not pack.
    """
    model = ir.opened(graph)
    target = target_of(model) if platform is None else platform if isinstance(platform, Target) else by_name(platform)
    words = words_of(packer_args) if isinstance(packer_args, str) else packer_args
    if unknown := target.vendor.untimed(target):
        raise ConfigError(unknown)
    names = target.vendor.names(model)
    parts = parts_of(target.named(model, names), target).chip
    if not parts:
        raise ConfigError(f"nothing of the model is for {target.name}: it has no integer operator; quantize it first")
    whole = joined([time_of(part.under(words).verdict) for part in parts])
    return whole.renamed({other: name for name, other in names.nodes.items()})


def cycles_of_nodes(graph: ir.Graph | None, nodes: Collection[str]) -> dict[str, float]:
    """Return {node of `nodes`: cycles of a call} of an integer graph, each with what runs between the last and it.

    Nothing where nobody knows the cycles, or the graph does not pack.
    """
    if graph is None or not is_integer_graph(graph) or target_of(graph).vendor.untimed(target_of(graph)):
        return {}
    try:
        layers = latency(graph).layers
    except LingerOnnxError:  # it does not pack: that is check's to tell
        return {}
    cycles: dict[str, float] = {}
    waiting = 0.0
    for layer in layers:
        waiting += layer.total
        if layer.node in nodes:
            cycles[layer.node] = cycles.get(layer.node, 0.0) + waiting
            waiting = 0.0
    return cycles
