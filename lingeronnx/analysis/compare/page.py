"""The page of a comparison, profiler.html, and the same content as a section of other pages.

The charts are plain SVG drawn by a script of 20 KB in `page.js`, where an inlined plotly has more
than 4 MB; a page of 500 layers stays fast. This module provides the numbers.
"""

from __future__ import annotations

import math
from importlib.resources import files

from ...common.pages import PageSection, render_page
from ..stats.distribution import Distribution
from ..stats.pair_measures import METRICS, PairMeasures
from .advice import find_parent_rows
from .comparison import Comparison
from .join import ComparedTensor

__all__ = ["render_comparison_page", "render_comparison_section"]

_BINS = 64  # bins of a tensor's histogram


def render_comparison_section(comparison: Comparison) -> PageSection:
    """Render a comparison as a page section, with all its rows as JSON data for the page's script.

    A row has the indices of its parents: the nearest compared tensors upstream. Infinite numbers
    and NaN become words, because JSON lacks them.
    """
    index = {row.name: i for i, row in enumerate(comparison.rows)}
    parents = find_parent_rows(comparison.join)
    rows = []
    for i, row in enumerate(comparison.rows):
        rows.append(
            {
                **_row_to_json(row),
                "i": i,
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
        _read_asset("html"),
        body,
        _read_asset("css"),
        _read_asset("js"),
    )


def render_comparison_page(comparison: Comparison) -> str:
    """Render the HTML page of a single comparison."""
    base, other = comparison.names
    about = f"{comparison.join.samples} samples, {len(comparison.rows)} tensors"
    return render_page(f"{other} against {base}", about, [render_comparison_section(comparison)])


def _read_asset(kind: str) -> str:
    """Return the text of page.<kind> in this package: html, css or js."""
    return (files(__package__) / f"page.{kind}").read_text(encoding="utf-8")


def _row_to_json(row: ComparedTensor) -> dict[str, object]:
    """Make the data of a row for the page's script, with short keys.

    "m" and "o" are the measures as they arrive and of the layer itself, "own" is the latter's SQNR,
    "hx" and "hy" are histograms of both models over "lo" to "hi".
    """
    pair, form = row.arrived, row.stored_form
    low, high = min(pair.x.low, pair.y.low), max(pair.x.high, pair.y.high)
    bins = [counts.tolist() for counts in pair.histograms(_BINS)]
    return {
        "name": row.name,
        "kinds": list(row.kinds),
        "node": row.nodes[0],
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
        "hx": bins[0],
        "hy": bins[1],
    }


def _metrics(pair: PairMeasures) -> dict[str, object]:
    """Return {name in tables: value} of Cosine, MSE, L1, KL, SQNR, Atol and Rtol, for JSON.

    Infinite numbers and NaN become words.
    """
    return {name: _to_json_number(getattr(pair, key)) for name, key in METRICS.items()}


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
