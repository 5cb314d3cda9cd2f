"""Simulate the cells of LSTM layers in float, and find those that the target clips.

The cell is not a tensor of the graph, so it has no statistics. A platform with states of 16 bits
keeps larger cells with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...operators.recurrent.lowering import LSTM, optional_input_indices
from ...runtime.runners import FloatRunner
from ...targets import Target
from ..partition import Partition

__all__ = ["ClippedCells", "find_clipped_cells", "simulate_retained_cells"]


class ClippedCells(NamedTuple):
    """An integer LSTM whose cells exceed what the target keeps with a state of 8 bits.

    Attributes
    ----------
    node
        The layer.
    max_abs
        Largest product of forget gate and cell on the calibration data.
    limit
        Largest product that the target keeps.
    clipped_fraction
        Fraction of the values above the limit.
    """

    node: ir.Node
    max_abs: float
    limit: float
    clipped_fraction: float

    @property
    def output(self) -> str:
        """The name of the layer's output, whose state it has."""
        return ir.output_name(self.node)

    def describe(self, target_name: str, state_bits: int) -> str:
        """Describe the cells for the report, with the width that the state of the layer has."""
        values = (
            f"LSTM {self.node.name}: retained cell values reach {self.max_abs:.1f} on the "
            "calibration data; "
        )
        clipping = f"clips them at {self.limit:g} ({self.clipped_fraction:.1%} of values)"
        if state_bits > 8:
            return (
                f"{values}its state has {state_bits} bits, because {target_name} {clipping} with 8"
            )
        return f"{values}{target_name} {clipping}"


def find_clipped_cells(
    partition: Partition, target: Target, feed: Mapping[str, np.ndarray], wide: Collection[str] = ()
) -> list[ClippedCells]:
    """Return the integer LSTMs whose forget gate times cell exceeds the target's limit.

    Empty if the target has no limit, or no LSTM exceeds it.

    Parameters
    ----------
    partition
        Partition of the float graph.
    target
        The target.
    feed
        Calibration samples by graph input.
    wide
        Tensors of more than 8 bits. A platform that has these does not clip the cells of a layer
        whose state is among them.
    """
    layers = []
    for node, op in partition.integer_nodes:
        if op is LSTM and (target.is_int8_only or ir.output_name(node) not in wide):
            layers.append(node)
    limit = LSTM.max_cell_magnitude(target) if layers else None
    if limit is None:
        return []
    clipped = []
    for node, cells in _simulate_layers(layers, partition, feed):
        max_abs = float(cells.max(initial=0.0))
        if max_abs > limit:
            clipped.append(ClippedCells(node, max_abs, limit, float((cells > limit).mean())))
    return clipped


def _simulate_layers(
    layers: Sequence[ir.Node], partition: Partition, feed: Mapping[str, np.ndarray]
) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """Yield each LSTM layer with the magnitudes |forget gate * previous cell|, [N, T, H].

    The layers' inputs are computed in float from `feed`; optional inputs may be constants.
    """
    names: set[str] = set()
    for node in layers:
        indices = (0, *optional_input_indices(node).values())
        names.update(ir.input_name(node, index) for index in indices)
    tensors = {name: array for name, array, _ in FloatRunner(partition.graph, names).run(feed)}
    for node in layers:
        optional = {}
        for key, index in optional_input_indices(node).items():
            constant = ir.const_value(node.inputs[index])
            optional[key] = tensors.get(ir.input_name(node, index), constant)
        yield node, np.abs(simulate_retained_cells(node, tensors[ir.input_name(node)], **optional))


def simulate_retained_cells(
    node: ir.Node,
    x: np.ndarray,
    *,
    lengths: np.ndarray | None = None,
    h: np.ndarray | None = None,
    c: np.ndarray | None = None,
) -> np.ndarray:
    """Return the forget gate times the previous cell of a ``lingeronnx.LSTM``, at every step.

    It is computed in float, since the cell is no tensor of the graph.

    Parameters
    ----------
    node
        The layer, with constant weights.
    x
        Inputs [N, T, I].
    lengths
        Number of valid steps of each sample, [N]; None: all.
    h, c
        Initial state and cell, [N, 1, H] or [1, 1, H]; None: zeros.

    Returns
    -------
    numpy.ndarray
        float64 [N, T, H] in the order of computation (from the last valid step for a reverse
        layer); 0 beyond a sample's length.
    """
    w, r, b = (np.asarray(ir.const_value(v), np.float64) for v in node.inputs[1:4])
    units = r.shape[1]
    count = np.full(len(x), x.shape[1]) if lengths is None else np.broadcast_to(lengths, len(x))
    times = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
    if ir.get_attr(node, "direction") == "reverse":
        times = np.clip(count[:, None] - 1 - times, 0, None)
    ordered = np.take_along_axis(x, times[..., None], axis=1)
    input_sums = ordered @ w.T + b.reshape(2, -1).sum(axis=0)
    state, cell = (
        np.zeros((len(x), units)) + (0 if initial is None else initial.reshape(-1, units))
        for initial in (h, c)
    )
    retained = np.zeros((*x.shape[:2], units))
    for t in range(x.shape[1]):
        is_valid = (t < count)[:, None]
        i, o, f, g = np.split(input_sums[:, t] + state @ r.T, 4, axis=1)
        retained[:, t] = is_valid * _sigmoid(f) * cell
        cell = np.where(is_valid, retained[:, t] + _sigmoid(i) * np.tanh(g), cell)
        state = np.where(is_valid, _sigmoid(o) * np.tanh(cell), state)
    return retained


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the sigmoid of each element of `x`, by tanh, which does not overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))
