"""The page of a comparison, profiler.html, and the same content as a section of other pages.

The charts are plain SVG drawn by small scripts, where an inlined plotly has more than 4 MB. The
network as a graph is a section of its own, with the details of the selected layer. This module
provides the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.resources import files

import numpy as np

from ...common.pages import PageSection, render_page
from ..stats.distribution import Distribution
from ..stats.pair_measures import TABLE_METRICS, PairMeasures
from .advice import find_parent_rows
from .comparison import Comparison
from .join import ComparedTensor
from .network import LayerCosts, make_network, name_layers

__all__ = ["render_comparison_page", "render_comparison_section", "render_network_section"]

_BINS = 64  # bins of a tensor's histogram


def render_comparison_section(comparison: Comparison, has_summary: bool = True) -> PageSection:
    """Render a comparison as a page section, with all its rows as JSON data for the page's script.

    With `has_summary` the outputs, the worst layers and the findings come first. A row has the
    indices of its parents: the nearest compared tensors upstream. Infinite numbers and NaN become
    words, because JSON lacks them.
    """
    index = {row.name: i for i, row in enumerate(comparison.rows)}
    parents = find_parent_rows(comparison.join)
    places = name_layers(comparison)
    rows = []
    for i, row in enumerate(comparison.rows):
        rows.append(
            {
                **_row_to_json(row),
                "i": i,
                "place": places[row.name],
                "cycles": _to_json_number(comparison.cycles.get(row.nodes[1])),
                "wbits": comparison.weight_bits.get(row.nodes[1]),
                "why": comparison.finding_kind_of(row),
                "parents": [index[parent] for parent in parents[row.name]],
            }
        )
    body = {
        "names": list(comparison.names),
        "samples": comparison.join.samples,
        "accuracy": None if comparison.accuracy is None else list(comparison.accuracy),
        "outputs": {name: _to_json_number(value) for name, value in comparison.outputs.items()},
        "warnings": list(comparison.warnings),
        "worst": [index[row.name] for row in comparison.worst],
        "findings": [finding.to_dict() for finding in comparison.findings],
        "options": comparison.options,
        "rows": rows,
    }
    return PageSection(
        "compare",
        "Float against integer, tensor by tensor",
        (_read_asset("summary.html") if has_summary else "") + _read_asset("page.html"),
        body,
        _read_asset("page.css"),
        _read_asset("page.js"),
        ("depth", "histogram", "ranges", "samples"),
    )


def render_network_section(
    comparison: Comparison, costs: Mapping[str, LayerCosts] | None = None
) -> PageSection:
    """Render the network as a graph, with the details of the selected layer, as a page section.

    The page must also have the section of the same comparison, whose script shows the details.
    `costs` are those of `network.sum_layer_costs`.
    """
    return PageSection(
        "network",
        "The network",
        _read_asset("network.html"),
        make_network(comparison, costs),
        script=_read_asset("network.js"),
        charts=("network", "heatmap"),
    )


def render_comparison_page(comparison: Comparison) -> str:
    """Render the HTML page of a single comparison."""
    base, other = comparison.names
    counts = f"{comparison.join.samples} samples, {len(comparison.rows)} tensors"
    about = "; ".join([counts, *comparison.format_fixed_inputs()])
    sections = [render_comparison_section(comparison), render_network_section(comparison)]
    return render_page(f"{other} against {base}", about, sections)


def _read_asset(name: str) -> str:
    """Return the text of the file `name` in this package, such as page.css."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def _row_to_json(row: ComparedTensor) -> dict[str, object]:
    """Make the data of a row for the page's script, with short keys.

    "m" and "o" are the measures as they arrive and of the layer itself, "own" is the latter's SQNR,
    "hx" and "hy" are histograms of both models over "lo" to "hi", "by_sample" the range of the
    baseline in each of the first samples. "low" and "high" are the range of
    the integers, "below" the fraction of values nearer to 0 than half a step.
    """
    pair, form = row.arrived, row.stored_form
    limits: tuple[float | None, float | None] = (None, None)
    if form is not None:
        lowest, highest = form.representable_range(max(len(row.shape), 2))
        limits = float(lowest.min()), float(highest.max())
    low, high = min(pair.x.low, pair.y.low), max(pair.x.high, pair.y.high)
    bins = [counts.tolist() for counts in pair.histograms(_BINS)]
    return {
        "name": row.name,
        "kinds": list(row.kinds),
        "shape": list(row.total_shape),
        "dtype": "float32" if form is None else f"int{form.q.bits}",
        "scale": None if form is None else _to_json_number(form.q.scale),
        "m": _metrics(pair),
        "o": _metrics(row.effective),
        "own": _to_json_number(row.effective.sqnr),
        "local": row.local is not None,
        "x": _distribution_to_json(pair.x),
        "y": _distribution_to_json(pair.y),
        "lo": _to_json_number(low),
        "hi": _to_json_number(high),
        "sat": _to_json_number(pair.saturation),
        "clip": _to_json_number(pair.clipped_fraction),
        "used": _to_json_number(pair.used_fraction),
        "below": _to_json_number(_fraction_below_half_step(row)),
        "low": _to_json_number(limits[0]),
        "high": _to_json_number(limits[1]),
        "by_sample": [[_round_short(low), _round_short(high)] for low, high in row.sample_ranges],
        "hx": bins[0],
        "hy": bins[1],
    }


def _fraction_below_half_step(row: ComparedTensor) -> float | None:
    """Return the fraction of the baseline's values that round to 0 and are not 0.

    None for float tensors, without values, and for factors per channel.
    """
    form, histogram = row.stored_form, row.arrived.x.histogram
    if form is None or len(form.factor) > 1 or not row.arrived.count:
        return None
    values, counts = histogram.values()
    is_small = (np.abs(values) < 0.5 / (form.q.scale * form.factor[0])) & (values != 0)
    return float(counts[is_small].sum() / row.arrived.count)


def _metrics(pair: PairMeasures) -> dict[str, object]:
    """Return {name in tables: value} of Cosine, MSE, L1, KL, SQNR, Atol and Rtol, for JSON.

    Infinite numbers and NaN become words.
    """
    return {name: _to_json_number(getattr(pair, key)) for name, key in TABLE_METRICS.items()}


def _distribution_to_json(distribution: Distribution) -> list[float | str | None]:
    """Return [lowest, highest, mean, variance] of a distribution for JSON.

    Numbers have six significant digits; infinite ones and NaN become words.
    """
    values = (distribution.low, distribution.high, distribution.mean, distribution.variance)
    return [_to_json_number(value) for value in values]


def _to_json_number(value: float | None) -> float | str | None:
    """Return a number with six significant digits for JSON; infinities and NaN as words.

    None stays None.
    """
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def _round_short(value: float) -> float | str:
    """Return a number with three significant digits for JSON; infinities and NaN as words."""
    return float(f"{value:.3g}") if math.isfinite(value) else str(float(value))
