"""What becomes of the cells of LSTM layers: a float recurrence over calibration samples, and notes where one is cut.

The cell is no tensor of the graph, so no statistics see it; and where it is cut the user can do something about it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .. import ir
from ..assign import integer_nodes
from ..ops.recurrent import Lstm
from ..platforms import Platform
from ..runners import FloatRunner

__all__ = ["cell_notes", "kept_cells"]


def cell_notes(model: ir.Graph, row: Platform, floats: Mapping[str, str], feed: Mapping[str, np.ndarray]) -> list[str]:
    """Return a note for every integer LSTM of the float `model` whose cells `row` cuts on the samples `feed`."""
    limit = Lstm().cell_limit(row)
    layers = [node for node, op in integer_nodes(model, floats) if isinstance(op, Lstm)]
    if limit is None or not layers:
        return []
    seen = {name: array for name, array, _ in FloatRunner(model, {ir.read_name(n) for n in layers}).run(feed)}
    notes = []
    for node in layers:
        kept = np.abs(kept_cells(node, seen[ir.read_name(node)]))
        if kept.max(initial=0.0) > limit:
            share = float((kept > limit).mean())
            notes.append(
                f"LSTM {node.name}: what is kept of its cells reaches {kept.max():.1f} on calibration data; {row.name} "
                f"cuts it at {limit:g} ({share:.1%} of the values)"
            )
    return notes


def kept_cells(node: ir.Node, x: np.ndarray) -> np.ndarray:
    """Return forget gate times old cell of ``lingeronnx.LSTM``, float64 [N, T, H] in the order of time."""
    w, r, b = (np.asarray(ir.const(v), np.float64) for v in node.inputs[1:4])
    units = r.shape[1]
    steps = x if ir.attr(node, "direction") != "reverse" else x[:, ::-1]
    sums = steps @ w.T + b.reshape(2, -1).sum(axis=0)
    h, c = np.zeros((2, len(x), units))
    kept = np.empty((*x.shape[:2], units))
    for t in range(x.shape[1]):
        i, o, f, g = np.split(sums[:, t] + h @ r.T, 4, axis=1)
        kept[:, t] = _sigmoid(f) * c
        c = kept[:, t] + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
    return kept


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))
