"""What becomes of the cells of LSTM layers.

A float recurrence over calibration samples, and notes where one is cut.
The cell is no tensor of the graph, so no statistics see it; and where it is cut the user can do
something about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ...graph import ir
from ...ops.layers.recurrent import LSTM, optional_input_indices
from ...run.runners import FloatRunner
from ...targets import Target
from ..partition import Partition

__all__ = ["format_cell_clipping", "simulate_retained_cells"]


def format_cell_clipping(
    partition: Partition, target: Target, feed: Mapping[str, np.ndarray], wide: Collection[str] = ()
) -> list[str]:
    """Return a note for every integer LSTM of `partition` whose cells `target` cuts on the samples `feed`.

    wide : tensors of more than 8 bits; a platform that has these does not cut the cells of a state
    among them.
    """
    limit = LSTM.max_cell_magnitude(target)
    layers = [
        node
        for node, op in partition.integer_nodes
        if op is LSTM and (target.is_int8_only or ir.output_name(node) not in wide)
    ]
    if limit is None or not layers:
        return []
    inputs = {ir.input_name(n, i) for n in layers for i in (0, *optional_input_indices(n).values())}
    tensors = {name: array for name, array, _ in FloatRunner(partition.graph, inputs).run(feed)}
    notes = []
    remedy = (
        "" if target.is_int8_only else " in 8 bits; 16 bits hold it: --override type:LSTM=bits:16"
    )
    for node in layers:
        more = {
            key: tensors.get(ir.input_name(node, i), ir.const_value(node.inputs[i]))
            for key, i in optional_input_indices(node).items()
        }
        kept = np.abs(simulate_retained_cells(node, tensors[ir.input_name(node)], **more))
        if kept.max(initial=0.0) > limit:
            share = float((kept > limit).mean())
            notes.append(
                f"LSTM {node.name}: what is kept of its cells reaches {kept.max():.1f} on "
                "calibration data; "
                f"{target.name} cuts it at {limit:g} ({share:.1%} of the values){remedy}"
            )
    return notes


def simulate_retained_cells(
    node: ir.Node,
    x: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    h: np.ndarray | None = None,
    c: np.ndarray | None = None,
) -> np.ndarray:
    """Return forget gate times old cell of ``lingeronnx.LSTM``, float64 [N, T, H] in the order of time.

    lengths [N], h and c [N, 1, H] (or [1, 1, H]) : what the layer is given; 0 beyond a sample's
    length.
    """
    w, r, b = (np.asarray(ir.const_value(v), np.float64) for v in node.inputs[1:4])
    units = r.shape[1]
    count = np.full(len(x), x.shape[1]) if lengths is None else np.broadcast_to(lengths, len(x))
    times = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
    if ir.get_attr(node, "direction") == "reverse":
        times = np.clip(count[:, None] - 1 - times, 0, None)
    sums = np.take_along_axis(x, times[..., None], axis=1) @ w.T + b.reshape(2, -1).sum(axis=0)
    state, cell = (
        np.zeros((len(x), units)) + (0 if a is None else a.reshape(-1, units)) for a in (h, c)
    )
    kept = np.zeros((*x.shape[:2], units))
    for t in range(x.shape[1]):
        on = (t < count)[:, None]
        i, o, f, g = np.split(sums[:, t] + state @ r.T, 4, axis=1)
        kept[:, t] = on * _sigmoid(f) * cell
        cell = np.where(on, kept[:, t] + _sigmoid(i) * np.tanh(g), cell)
        state = np.where(on, _sigmoid(o) * np.tanh(cell), state)
    return kept


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))
