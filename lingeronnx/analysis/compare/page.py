"""profiler.html: the whole story of a comparison in one file that needs nothing else, no network either.

Plain SVG drawn by a little script of our own, in `page.html`: 25 KB, where plotly inlined is more than 4 MB, and a page
of 500 layers stays quick. This module puts the numbers in.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

from ..stats.pair_measures import METRICS, PairMeasures
from ..text import visible
from .advice import parents
from .comparison import Comparison
from .join import ComparedTensor

__all__ = ["page"]

_BINS = 64  # of a tensor's histogram


def page(comparison: Comparison) -> str:
    """Return the HTML text."""
    number = {row.name: i for i, row in enumerate(comparison.rows)}
    before = parents(comparison.join)
    body = {
        "names": list(comparison.names), "samples": comparison.join.samples,
        "accuracy": None if comparison.accuracy is None else list(comparison.accuracy),
        "outputs": {name: _plain(value) for name, value in comparison.outputs.items()},
        "worst": [number[row.name] for row in comparison.worst],
        "findings": [finding.to_dict() for finding in comparison.findings], "options": comparison.options,
        "rows": [{**_row(row), "i": i, "cycles": _plain(comparison.cycles.get(row.nodes[1])),
                  "wbits": comparison.weight_bits.get(row.nodes[1]),
                  "why": comparison.why(row), "parents": [number[p] for p in before[row.name]]}
                 for i, row in enumerate(comparison.rows)],
    }  # fmt: skip
    body = _seen(body)
    text = json.dumps(body, separators=(",", ":"), allow_nan=False, default=float).replace("<", "\\u003c")
    return (files(__package__) / "page.html").read_text(encoding="utf-8").replace("/*DATA*/", text)


def _seen(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value with all its texts so that they can be seen."""
    if isinstance(value, dict):
        return {key: _seen(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_seen(entry) for entry in value]
    return visible(value) if isinstance(value, str) else value


def _row(row: ComparedTensor) -> dict[str, object]:
    pair, form = row.pair, row.held
    low, high = min(pair.x.low, pair.y.low), max(pair.x.high, pair.y.high)
    bins = [counts.tolist() for counts in pair.histograms(_BINS)]
    return {
        "name": row.name,
        "kinds": list(row.kinds),
        "node": row.nodes[0],
        "shape": list(row.whole),
        "dtype": "float32" if form is None else f"int{form.q.bits}",
        "scale": None if form is None else _plain(form.q.scale),
        "m": _metrics(pair),
        "o": _metrics(row.judged),
        "own": _plain(row.judged.sqnr),
        "local": row.local is not None,
        "x": _spread(pair, "x"),
        "y": _spread(pair, "y"),
        "lo": _plain(low),
        "hi": _plain(high),
        "sat": _plain(pair.saturation),
        "clip": _plain(pair.clipped),
        "used": _plain(pair.used),
        "hx": bins[0],
        "hy": bins[1],
    }


def _metrics(pair: PairMeasures) -> dict[str, object]:
    return {name: _plain(getattr(pair, key)) for name, key in METRICS.items()}


def _spread(pair: PairMeasures, side: str) -> list[float | str | None]:
    spread = getattr(pair, side)
    return [_plain(v) for v in (spread.low, spread.high, spread.mean, spread.variance)]


def _plain(value: float | None) -> float | str | None:
    """Return a number that JSON has, to six digits; infinities and what is no number as words."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))
