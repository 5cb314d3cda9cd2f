"""Latency of an integer graph on a chip, over all its parts for the chip: `latency`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..common.errors import ConfigError, LingerOnnxError, split_words
from ..ir import ir
from ..runtime.integer.runner import detect_target
from ..runtime.program_parts import split_into_parts
from ..runtime.session import is_integer_graph
from ..targets import Target, get_target
from ..targets.latency import Latency, concatenate_latencies
from ..targets.verdict import require_latency

__all__ = ["cycles_of_nodes", "latency"]


def latency(
    graph: ir.ModelLike,
    platform: str | Target | None = None,
    packer_args: str | Sequence[str] | None = None,
) -> Latency:
    """Estimate the cycles of one run of an integer graph, per layer and in total.

    Only the parts for the chip count. The figures come from the estimator published by the chip's
    vendor, with constants fitted to measured calls, called as the chip's executor calls it. Work
    without a known cost is listed in `unpriced`.

    Parameters
    ----------
    graph
        Result of `quantize`: the complete graph or one of its parts for the packer.
    platform
        The chip; default the one that the graph was quantized for.
    packer_args
        Arguments of the packer for each part, as one line or a list; default those that `quantize`
        prints.

    Raises
    ------
    ConfigError
        If the model is a float model, no latency model is known for the platform, or the graph does
        not pack.
    """
    model = ir.as_model(graph)
    target = detect_target(model) if platform is None else get_target(platform)
    argv = split_words(packer_args) if isinstance(packer_args, str) else packer_args
    names = target.vendor.names(model)
    parts = split_into_parts(target.with_safe_names(model, names), target).chip
    if not parts:
        raise ConfigError(
            f"no part of the model runs on {target.name}: it has no integer operator; quantize it "
            "first"
        )
    if unknown := target.vendor.explain_missing_timing(target):
        raise ConfigError(unknown)
    latencies = [require_latency(part.choice_for_arguments(argv).verdict) for part in parts]
    original_names = {safe_name: name for name, safe_name in names.nodes.items()}
    return concatenate_latencies(latencies).with_node_names(original_names)


def cycles_of_nodes(graph: ir.Model | None, nodes: Collection[str]) -> dict[str, float]:
    """Return {node name: cycles per call} of the `nodes` of an integer graph, by the latency model.

    Layers outside of `nodes` count towards the next layer whose node is in `nodes`; those after the
    last one are dropped. Nodes that are no layer are left out. Empty if `graph` is None or no
    integer graph, if no latency model is known for its platform, or if it does not pack.
    """
    if graph is None or not is_integer_graph(graph):
        return {}
    target = detect_target(graph)
    if target.vendor.explain_missing_timing(target):
        return {}
    try:
        layers = latency(graph).layers
    except LingerOnnxError:  # it does not pack, which `check` reports
        return {}
    cycles: dict[str, float] = {}
    pending_cycles = 0.0
    for layer in layers:
        pending_cycles += layer.total_cycles
        if layer.node in nodes:
            cycles[layer.node] = cycles.get(layer.node, 0.0) + pending_cycles
            pending_cycles = 0.0
    return cycles
