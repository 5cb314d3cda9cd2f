"""The network of a comparison as data of the chart `network`: nodes, edges and what colors them.

The nodes are those of the analysed model, or the compared tensors if it has no graph (a dump). A
node has the measures of the tensor that it makes, and, if they are known, the cost and the cycles
of its layer. This module knows comparisons and costs, but no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir import ir
from ...operators.chip_part import find_chip_nodes
from ...targets import GraphCost
from ...targets.latency import Latency
from .advice import find_copies, find_parent_rows
from .comparison import Comparison
from .join import TensorJoin
from .sources import IntegerSource

__all__ = [
    "LayerCosts",
    "compute_error_shares",
    "describe_weights",
    "name_layers",
    "make_network",
    "sum_layer_costs",
]

_MAX_CELLS = 24  # rows and columns of the picture of weights
_MAX_OUTLIERS = 3
_OUTLIER_RATIO = 4.0  # of a channel's largest weight to the median of all
_PLACES = ("input", "output", "integer", "host")
#: (key, title, unit, whether values are added up in a collapsed scope, explanation)
_COST_MEASURES = (
    ("cycles", "cycles", "cycles", True, "per call"),
    ("bytes", "memory", "bytes", True, "activations read and written"),
    ("macs", "MACs", "MACs", True, "multiply-accumulates of one sample"),
)


@dataclass
class LayerCosts:
    """Cost of one node: cycles per call, bytes of activations read and written, and MACs."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, key: str, value: float) -> None:
        """Add `value` to the total of `key`."""
        self.values[key] = self.values.get(key, 0.0) + value


def sum_layer_costs(
    costs: Iterable[GraphCost | None], latency: Latency | None
) -> dict[str, LayerCosts]:
    """Return {node of the user's graph: its costs}; a node may become several layers on the chip.

    costs : those of the parts that the chip runs. Empty if nothing is known.
    """
    totals: dict[str, LayerCosts] = {}
    for cost in costs:
        for layer in () if cost is None else cost.layers:
            entry = totals.setdefault(layer.node, LayerCosts())
            entry.add("bytes", layer.activations)
            entry.add("macs", layer.macs)
    for timed in () if latency is None else latency.layers:
        totals.setdefault(timed.node or timed.name, LayerCosts()).add("cycles", timed.total_cycles)
    return totals


def compute_error_shares(tensor_join: TensorJoin) -> dict[str, float]:
    """Return {tensor: share of the error in percent}.

    This is the own noise-to-signal ratio of its layer by the sum over all layers; 0 where it is not
    finite, and for copies of another tensor, whose error it is.
    """
    noise = {name: 10 ** (-row.effective.sqnr / 10) for name, row in tensor_join.rows.items()}
    noise = {name: value if math.isfinite(value) else 0.0 for name, value in noise.items()}
    noise |= dict.fromkeys(find_copies(tensor_join), 0.0)
    total = sum(noise.values()) or 1.0
    return {name: 100 * value / total for name, value in noise.items()}


def name_layers(comparison: Comparison) -> dict[str, str]:
    """Return {tensor: operator and node of its layer in the analysed model}.

    The text ends with the operator of the baseline if another node makes the tensor there:
    "Conv2dInt conv1, with BatchNormalization bn1 folded in", or "Mul gelu_2, for Gelu gelu".
    """
    graph = comparison.join.base.graph
    baseline_nodes = set() if graph is None else {str(node.name) for node in graph.graph}
    names = {}
    for row in comparison.rows:
        (kind, other_kind), (node, other_node) = row.kinds, row.nodes
        name = f"{other_kind or kind} {other_node or node or row.name}"
        if kind and node and other_node and other_node != node:
            is_folded = other_node in baseline_nodes
            name += f", with {kind} {node} folded in" if is_folded else f", for {kind} {node}"
        names[row.name] = name
    return names


def make_network(
    comparison: Comparison, costs: Mapping[str, LayerCosts] | None = None
) -> dict[str, Any]:
    """Make the data of the chart `network` for the analysed model of a comparison.

    Parameters
    ----------
    comparison
        The comparison, whose rows have the measures of tensors.
    costs
        Costs by node, see `sum_layer_costs`.

    Returns
    -------
    dict
        "nodes": name, op, tensor, scope, indices of the inputs, place, whether there is a finding,
        detail text and values by measure. "measures": what the nodes can be colored by.
    """
    graph = comparison.join.other.graph
    nodes = _list_rows(comparison) if graph is None else _list_nodes(comparison, graph)
    _add_values(nodes, comparison, costs or {})
    return {"nodes": nodes, "measures": _list_measures(nodes)}


def _list_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one node per compared tensor, with its nearest compared tensors upstream as inputs."""
    index = {row.name: i for i, row in enumerate(comparison.rows)}
    parents = find_parent_rows(comparison.join)
    return [
        _make_node(
            name=row.nodes[0] or row.name,
            op=row.kinds[1] or row.kinds[0],
            tensor=row.name,
            inputs=[index[parent] for parent in parents[row.name]],
            place="integer" if row.stored_form is not None else "host",
        )
        for row in comparison.rows
    ]


def _list_nodes(comparison: Comparison, graph: ir.Model) -> list[dict[str, Any]]:
    """Return the graph's inputs, nodes and outputs as nodes of the chart, in graph order."""
    source = comparison.join.other
    user_names = source.user_names if isinstance(source, IntegerSource) else {}
    producers: dict[str, int] = {}
    nodes: list[dict[str, Any]] = []
    integer_nodes = find_chip_nodes(graph)

    def add(outputs: Iterable[str], **fields: Any) -> None:
        producers.update(dict.fromkeys(outputs, len(nodes)))
        nodes.append(_make_node(**fields))

    for value in graph.graph.inputs:
        name = str(value.name)
        if value.const_value is None:
            add([name], name=name, op="Input", tensor=name, inputs=[], place="input")
    for node in graph.graph:
        names = [str(value.name) for value in node.outputs if value.name]
        inputs = [producers[v.name] for v in node.inputs if v is not None and v.name in producers]
        add(
            names,
            name=str(node.name),
            op=ir.display_op_type(node),
            tensor=user_names.get(names[0], names[0]) if names else "",
            inputs=list(dict.fromkeys(inputs)),
            place="integer" if id(node) in integer_nodes else "host",
        )
        nodes[-1]["weights"] = describe_weights(node)
    for value in graph.graph.outputs:
        name = str(value.name)
        inputs = [producers[name]] if name in producers else []
        add([], name=name, op="Output", tensor=name, inputs=inputs, place="output")
    return nodes


def describe_weights(node: ir.Node) -> dict[str, Any] | None:
    """Return the largest weight for each output and input channel, as data of the chart `heatmap`.

    At most 24 x 24 cells, each with the maximum of its channels: log2(1 + |w|) as a fraction of
    that of the largest integer, times 255, as two hexadecimal digits. "outliers" are output
    channels whose largest weight is 4 times the median of all. None without integer weights of two
    axes or more.
    """
    constants = [ir.const_value(value) for value in node.inputs]
    weights = next((w for w in constants if w is not None and w.ndim > 1), None)
    if weights is None or weights.dtype.kind != "i" or not weights.size:
        return None
    axes = tuple(range(2, weights.ndim))
    sizes = np.abs(weights.astype(np.int64)).max(axis=axes)
    cells = _shrink_by_max(_shrink_by_max(sizes, 0), 1)
    limit = math.log2(1 + np.iinfo(weights.dtype).max)
    levels = np.rint(255 * np.minimum(np.log2(1 + cells) / limit, 1)).astype(np.uint8)
    by_channel = sizes.max(axis=1)
    median = max(float(np.median(by_channel)), 1.0)
    order = np.argsort(-by_channel)[:_MAX_OUTLIERS]
    outliers = [
        {"channel": int(channel), "ratio": round(float(by_channel[channel]) / median, 1)}
        for channel in order
        if by_channel[channel] >= _OUTLIER_RATIO * median
    ]
    return {
        "rows": cells.shape[0],
        "columns": cells.shape[1],
        "cells": levels.tobytes().hex(),
        "outputs": weights.shape[0],
        "inputs": weights.shape[1],
        "outliers": outliers,
    }


def _shrink_by_max(array: np.ndarray, axis: int) -> np.ndarray:
    """Shrink an axis to at most `_MAX_CELLS` entries, each the maximum of neighboring ones."""
    count = array.shape[axis]
    if count <= _MAX_CELLS:
        return array
    starts = np.arange(_MAX_CELLS) * count // _MAX_CELLS
    return np.maximum.reduceat(array, starts, axis=axis)


def _make_node(
    *, name: str, op: str, tensor: str, inputs: Sequence[int], place: str
) -> dict[str, Any]:
    """Return a node of the chart without values. Its scope is the path in front of its name."""
    scope = "/".join(part for part in name.split("/")[:-1] if part)
    return {
        "name": name,
        "op": op,
        "tensor": tensor,
        "scope": scope,
        "inputs": list(inputs),
        "place": place,
        "alert": False,
        "detail": "",
        "weights": None,
        "values": {"place": place},
    }


def _add_values(
    nodes: Sequence[dict[str, Any]], comparison: Comparison, costs: Mapping[str, LayerCosts]
) -> None:
    """Add measures of the tensor, costs and the text of the tooltip to each node, in place."""
    rows = {row.name: row for row in comparison.rows}
    shares = compute_error_shares(comparison.join)
    seen: set[str] = set()
    for node in nodes:
        values = node["values"]
        entry = costs.get(node["name"])
        if entry is not None:
            values.update({key: _round_significant(value) for key, value in entry.values.items()})
        row = rows.get(node["tensor"])
        if row is None or row.name in seen:
            continue
        seen.add(row.name)
        form = row.stored_form
        values["share"] = _round_significant(shares[row.name])
        values["own"] = _round_significant(row.effective.sqnr)
        values["arrived"] = _round_significant(row.arrived.sqnr)
        bits = "float" if form is None else f"{form.q.bits} bits"
        weight_bits = comparison.weight_bits.get(row.nodes[1])
        values["bits"] = f"{bits}, weights {weight_bits}" if weight_bits else bits
        finding = comparison.finding_kind_of(row)
        node["alert"] = bool(finding)
        node["detail"] = f"own SQNR {row.effective.sqnr:.3g} dB, arrived {row.arrived.sqnr:.3g} dB"
        if finding:
            node["detail"] += f"\n{finding}"


def _round_significant(value: float) -> float | str:
    """Return a number with five significant digits; infinities and NaN as words, for JSON."""
    return float(f"{value:.5g}") if math.isfinite(value) else str(float(value))


def _list_measures(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the nodes can be colored by: the measures that at least one of them has.

    "order" says whether low or high values deserve attention; "categories" lists words.
    """
    measures: list[dict[str, Any]] = [
        _make_measure(
            "share",
            "share of the error",
            "%",
            "high",
            note="the layer's own noise by the sum over all layers",
        ),
        _make_measure("own", "own error", "dB", "low", note="SQNR of the layer alone"),
        _make_measure("arrived", "error so far", "dB", "low", note="SQNR with all layers upstream"),
    ]
    for key, title, unit, is_sum, note in _COST_MEASURES:
        measures.append({**_make_measure(key, title, unit, "high", note=note), "sum": is_sum})
        measures[-1]["log"] = True
    words = sorted({node["values"]["bits"] for node in nodes if "bits" in node["values"]})
    measures.append({**_make_measure("bits", "bits", "", "high"), "categories": words})
    places = {**_make_measure("place", "where it runs", "", "high"), "categories": list(_PLACES)}
    measures.append(places)
    known = {key for node in nodes for key in node["values"]}
    return [measure for measure in measures if measure["key"] in known]


def _make_measure(key: str, title: str, unit: str, order: str, note: str = "") -> dict[str, Any]:
    """Return a measure as JSON-ready values; `note` explains it in the legend."""
    return {"key": key, "title": title, "unit": unit, "order": order, "note": note}
