"""Outputs that join parts: where the parts lie, and how far each is from the float model.

A detector's boxes (up to the size of a picture) and scores (up to 1) often leave as one tensor. One
scale for both keeps the boxes and rounds every score to zero, which the figure of the whole tensor
does not show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import ir
from ...ops.macs import count_macs
from ...run.metrics import Agreement

__all__ = ["OutputPart", "PartAgreement", "find_part_boundaries"]

_MAX_BOUNDARIES = 64  # parts along one axis: more are channels, which no two branches made

_AxisPlacement = tuple[
    int, int, int
]  # the output's axis, the offset on it, and its steps for one step of the tensor
_AxisPlacements = Mapping[int, _AxisPlacement]  # axis of a tensor -> where it lies in the output


@dataclass(frozen=True)
class OutputPart:
    """A part of an output, elements `first` to `last` of `axis`, and how far it is from the float model's."""

    output: str
    axis: int
    first: int
    last: int
    cosine: float
    sqnr: float

    def __str__(self) -> str:
        which = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"{which} of axis {self.axis}"


def find_part_boundaries(model: ir.Model) -> dict[str, dict[int, list[int]]]:
    """Return {output: {axis.

    Where parts end}} of the outputs of `model` that are put together from several tensors.
    Such are Concat, stacks, a sum of padded tensors, and ScatterND at constant places, seen through
    all that keeps the elements apart.
    """
    by_output = {}
    for output in model.graph.outputs:
        cuts = _trace_part_boundaries(output)
        if cuts:
            by_output[str(output.name)] = cuts
    return by_output


def _trace_part_boundaries(output: ir.Value) -> dict[int, list[int]]:
    sizes = _static_shape(output)
    cuts: dict[int, set[int]] = {}
    start: _AxisPlacements = {axis: (axis, 0, 1) for axis in range(len(sizes))}
    left: list[tuple[ir.Value, _AxisPlacements]] = [(output, start)]
    visited = set()
    while left:
        value, places = left.pop()
        key = id(value), tuple(sorted(places.items()))
        node = ir.producer(value)
        if (
            key in visited
            or node is None
            or node.domain not in ("", ir.FUNCTION_DOMAIN)
            or count_macs(node)
        ):
            continue
        visited.add(key)
        for other, where, ends in _trace_producer(node, value, places):
            left.append((other, where))
            for axis, position in ends:
                cuts.setdefault(axis, set()).add(position)
    inner = {
        axis: sorted(p for p in cut_places if 0 < p < sizes[axis])
        for axis, cut_places in cuts.items()
    }
    return {axis: ends for axis, ends in sorted(inner.items()) if 0 < len(ends) < _MAX_BOUNDARIES}


def _static_shape(value: ir.Value | None) -> list[int]:
    """Return the shape of one sample, with 1 for what is not known."""
    return [1 if d is None else int(d) for d in ir.get_shape(value) or ()]


_TracedInputs = list[tuple[ir.Value, _AxisPlacements, list[tuple[int, int]]]]


def _trace_producer(node: ir.Node, value: ir.Value, places: _AxisPlacements) -> _TracedInputs:
    """Return what `value`, which `node` writes, is made of, where that lies, and the positions where parts end."""
    data = [v for v in node.inputs if v is not None and ir.const_value(v) is None]
    if node.op_type == "Concat":
        return _trace_concat(node, data, places)
    if not data:
        return []
    first = data[0]
    if node.op_type == "Transpose":
        perm = ir.get_attr(node, "perm") or list(range(len(_static_shape(value))))[::-1]
        return [(first, {int(perm[axis]): place for axis, place in places.items()}, [])]
    if node.op_type == "Pad":
        return _trace_pad(node, first, value, places)
    if node.op_type == "ScatterND":
        return [(first, places, _scatter_boundaries(node, value, places))]
    same = [v for v in data if _static_shape(v) == _static_shape(value)]
    if same:
        return [(v, places, []) for v in same]
    if len(data) > 1:
        return []
    before, after = _static_shape(first), _static_shape(value)
    if math.prod(before) == math.prod(after):
        return [(first, _map_axes_through_reshape(after, before, places), [])]
    kept = {
        axis: place
        for axis, place in places.items()
        if len(before) == len(after) and before[axis] == after[axis]
    }
    return [(first, kept, [])]  # a Slice or a reduction leaves the other axes as they are


def _trace_concat(
    node: ir.Node, data: Sequence[ir.Value], places: _AxisPlacements
) -> _TracedInputs:
    axis = int(ir.get_attr(node, "axis")) % max(len(_static_shape(node.outputs[0])), 1)
    if axis not in places:
        return [(v, {k: p for k, p in places.items() if k != axis}, []) for v in data]
    where, offset, step = places[axis]
    before_each: _TracedInputs = []
    for v in node.inputs:
        if v is None or not _static_shape(v):
            continue
        end = offset + step * _static_shape(v)[axis]
        before_each.append(
            (v, {**places, axis: (where, offset, step)}, [(where, offset), (where, end)])
        )
        offset = end
    return before_each


def _trace_pad(
    node: ir.Node, data: ir.Value, value: ir.Value, places: _AxisPlacements
) -> _TracedInputs:
    """Return the tensor that is padded; nothing where it is not known how."""
    pads = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    before, rank = _static_shape(data), len(_static_shape(value))
    if pads is None or pads.size != 2 * rank:
        return []
    where, ends = {}, []
    for axis, (to, offset, step) in places.items():
        start = offset + step * int(pads.reshape(-1)[axis])
        where[axis] = (to, start, step)
        if pads.reshape(-1)[axis] or pads.reshape(-1)[rank + axis]:
            ends += [(to, start), (to, start + step * before[axis])]
    return [(data, where, ends)]


def _scatter_boundaries(
    node: ir.Node, value: ir.Value, places: _AxisPlacements
) -> list[tuple[int, int]]:
    """Return where the elements end that a ScatterND writes; nothing where data say which."""
    indices = ir.const_value(node.inputs[1])
    if indices is None:
        return []
    mask = np.zeros(_static_shape(value), bool)
    try:
        mask[tuple(np.moveaxis(indices, -1, 0))] = True
    except IndexError:  # a batch that is open in the file
        return []
    ends = []
    for axis, (to, offset, step) in places.items():
        changes = np.diff(mask.astype(np.int8), axis=axis) != 0
        at = np.flatnonzero(changes.any(axis=tuple(i for i in range(mask.ndim) if i != axis))) + 1
        ends += [(to, offset + step * int(position)) for position in at]
    return ends


def _map_axes_through_reshape(
    after: Sequence[int], before: Sequence[int], places: _AxisPlacements
) -> _AxisPlacements:
    """Return where the axes of a tensor lie that was of shape `before`, and lies at `places` in the shape `after`."""
    by_axis: dict[int, _AxisPlacement] = {}
    for axis, size in enumerate(before):
        inner = math.prod(before[axis + 1 :])
        for other, place in places.items():
            below = math.prod(after[other + 1 :])
            alike = (
                math.prod(before[:axis]) == math.prod(after[:other]) and inner % max(below, 1) == 0
            )
            if size > 1 and alike and size * (inner // below) == after[other]:
                to, offset, step = place
                by_axis[axis] = (to, offset, step * (inner // below))
    return by_axis


class PartAgreement:
    """Measures the parts of one output; `ends` as `find_part_boundaries` gives them."""

    def __init__(self, output: str, ends: Mapping[int, Sequence[int]]) -> None:
        self._output, self._ends = output, ends
        self._seen: dict[tuple[int, int, int], Agreement] = {}

    def add(self, want: np.ndarray, have: np.ndarray) -> None:
        """Take in one batch of the output; an axis that is too short for its parts is left out."""
        for axis, ends in self._ends.items():
            size = want.shape[axis] if axis < want.ndim else 0
            if size <= ends[-1]:
                continue
            for first, last in itertools.pairwise([0, *ends, size]):
                cut = (slice(None),) * axis + (slice(first, last),)
                self._seen.setdefault((axis, first, last), Agreement()).add(want[cut], have[cut])

    @property
    def parts(self) -> list[OutputPart]:
        """The parts, but those that are zero in the float model."""
        return [
            OutputPart(self._output, axis, first, last - 1, a.cosine, a.sqnr)
            for (axis, first, last), a in self._seen.items()
            if a.sums[2] > 0
        ]
