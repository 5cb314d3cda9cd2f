"""How long an integer graph takes on a chip: `latency`, of all its parts for the chip."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..errors import ConfigError, LingerOnnxError, split_words
from ..graph import ir
from ..run.integer.runner import detect_target
from ..run.program_parts import split_into_parts
from ..run.session import is_integer_graph
from ..targets import Target, get_target
from ..targets.latency import Latency, concatenate_latencies
from ..targets.verdict import require_latency

__all__ = ["cycles_of_nodes", "latency"]


def latency(
    graph: ir.ModelLike,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
) -> Latency:
    """Return how many cycles one run of an integer graph takes, per layer and in all, its parts for the chip alone.

    graph : of `quantize`, whole or a part for the packer. platform : the chip; default the one that
    the graph was made for. packer_args : one line or words, for each part; default those that
    `quantize` prints. Figures are of the estimator that the chip's vendor publishes, whose
    constants are fitted to measured calls, called as the chip's executor calls them. What has no
    price is in `unpriced`. Raises ConfigError for a platform of which nothing is known and for a
    graph that does not pack.
    """
    model = ir.as_model(graph)
    target = (
        detect_target(model)
        if platform is None
        else platform
        if isinstance(platform, Target)
        else get_target(platform)
    )
    words = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    if unknown := target.vendor.explain_missing_timing(target):
        raise ConfigError(unknown)
    names = target.vendor.names(model)
    parts = split_into_parts(target.with_safe_names(model, names), target).chip
    if not parts:
        raise ConfigError(
            f"nothing of the model is for {target.name}: it has no integer operator; quantize it "
            "first"
        )
    whole = concatenate_latencies(
        [require_latency(part.choice_for_arguments(words).verdict) for part in parts]
    )
    return whole.with_node_names({other: name for name, other in names.nodes.items()})


def cycles_of_nodes(graph: ir.Model | None, nodes: Collection[str]) -> dict[str, float]:
    """Return {node of `nodes`.

    Cycles of a call} of an integer graph, each with what runs between the last and it.
    Nothing where nobody knows the cycles, or the graph does not pack.
    """
    if (
        graph is None
        or not is_integer_graph(graph)
        or detect_target(graph).vendor.explain_missing_timing(detect_target(graph))
    ):
        return {}
    try:
        layers = latency(graph).layers
    except LingerOnnxError:  # it does not pack: that is check's to tell
        return {}
    cycles: dict[str, float] = {}
    waiting = 0.0
    for layer in layers:
        waiting += layer.total_cycles
        if layer.node in nodes:
            cycles[layer.node] = cycles.get(layer.node, 0.0) + waiting
            waiting = 0.0
    return cycles
