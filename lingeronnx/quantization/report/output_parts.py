"""Find outputs that concatenate several tensors, and measure each part against the float model.

The boxes of a detector (values up to the size of a picture) and its scores (up to 1) often leave as
one tensor. One scale for both preserves the boxes and rounds every score to zero, which the overall
SQNR does not show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...operators.macs import count_macs
from ...runtime.metrics import Agreement

__all__ = ["OutputPart", "PartAgreement", "find_part_boundaries"]

_MAX_BOUNDARIES = 64  # more parts along one axis are channels, not branches
_JOINING_OPS = frozenset(("Concat", "Pad", "ScatterND"))  # of which boundaries of parts come


class _AxisPlacement(NamedTuple):
    """Position of one axis of a tensor in the output.

    Index i of the tensor's axis is index offset + i * stride of `axis` of the output.
    """

    axis: int
    offset: int
    stride: int


class _TracedInput(NamedTuple):
    """An input that a traced tensor is made of.

    Attributes
    ----------
    value
        The input.
    placements
        Positions of its axes in the output.
    boundaries
        (axis, index) in the output where parts end.
    """

    value: ir.Value
    placements: _AxisPlacements
    boundaries: list[tuple[int, int]]


_AxisPlacements = Mapping[int, _AxisPlacement]  # by axis of a tensor


@dataclass(frozen=True)
class OutputPart:
    """Agreement of elements `first` to `last` of one axis of an output with the float model."""

    output: str
    axis: int
    first: int
    last: int
    cosine: float
    sqnr: float

    def __str__(self) -> str:
        """Describe the part, such as "elements 0 to 3 of axis 1"."""
        if self.first == self.last:
            return f"element {self.first} of axis {self.axis}"
        return f"elements {self.first} to {self.last} of axis {self.axis}"


def find_part_boundaries(model: ir.Model) -> dict[str, dict[int, list[int]]]:
    """Find the outputs of `model` that are assembled from several tensors.

    These are Concat, stacks, a sum of padded tensors, and ScatterND with constant indices, traced
    through operators that keep the elements apart.

    Returns
    -------
    dict
        {output: {axis: sorted indices where parts end}}, without 0 and the length of the axis.
        Outputs of a single part are left out.
    """
    by_output: dict[str, dict[int, list[int]]] = {}
    if _JOINING_OPS.isdisjoint(node.op_type for node in model.graph):
        return by_output
    for output in model.graph.outputs:
        boundaries = _trace_part_boundaries(output)
        if boundaries:
            by_output[str(output.name)] = boundaries
    return by_output


def _trace_part_boundaries(output: ir.Value) -> dict[int, list[int]]:
    """Return {axis: sorted indices where parts end} of an output.

    Follows the output back through concatenations and nodes that keep elements apart. Axes without
    boundaries, or with `_MAX_BOUNDARIES` and more, are left out.
    """
    shape = _static_shape(output)
    boundaries: dict[int, set[int]] = {axis: set() for axis in range(len(shape))}
    pending = [_TracedInput(output, {axis: _AxisPlacement(axis, 0, 1) for axis in boundaries}, [])]
    visited = set()
    while pending:
        traced = pending.pop()
        key = id(traced.value), tuple(sorted(traced.placements.items()))
        if key in visited:
            continue
        visited.add(key)
        node = ir.producer(traced.value)
        if node is None or not _keeps_elements_apart(node):
            continue
        for traced_input in _trace_producer(node, traced.value, traced.placements):
            pending.append(traced_input)
            for axis, index in traced_input.boundaries:
                boundaries[axis].add(index)
    inner = {}
    for axis, indices in boundaries.items():
        inner[axis] = sorted(index for index in indices if 0 < index < shape[axis])
    return {axis: ends for axis, ends in inner.items() if 0 < len(ends) < _MAX_BOUNDARIES}


def _keeps_elements_apart(node: ir.Node) -> bool:
    """Whether `node` is a standard operator or composed function that is not a layer."""
    return node.domain in ("", ir.FUNCTION_DOMAIN) and not count_macs(node)


def _static_shape(value: ir.Value | None) -> list[int]:
    """Return the shape of a value with 1 for unknown dimensions; [] for an unknown rank."""
    return [1 if d is None else int(d) for d in ir.get_shape(value) or ()]


def _trace_producer(
    node: ir.Node, value: ir.Value, placements: _AxisPlacements
) -> list[_TracedInput]:
    """Trace `value` to the computed inputs of its producer `node`; [] if it cannot be traced.

    Traced are Concat, Transpose, Pad, ScatterND, operands of the shape of `value`, and single
    operands of another shape.

    Parameters
    ----------
    node
        Producer of `value`.
    value
        The traced tensor.
    placements
        Positions of its axes in the output.
    """
    inputs = [
        operand
        for operand in node.inputs
        if operand is not None and ir.const_value(operand) is None
    ]
    if node.op_type == "Concat":
        return _trace_concat(node, inputs, placements)
    if not inputs:
        return []
    data = inputs[0]
    shape = _static_shape(value)
    if node.op_type == "Transpose":
        perm = ir.get_attr(node, "perm") or list(range(len(shape)))[::-1]
        permuted = {int(perm[axis]): placement for axis, placement in placements.items()}
        return [_TracedInput(data, permuted, [])]
    if node.op_type == "Pad":
        return _trace_pad(node, data, value, placements)
    if node.op_type == "ScatterND":
        return [_TracedInput(data, placements, _scatter_boundaries(node, value, placements))]
    same_shape = [operand for operand in inputs if _static_shape(operand) == shape]
    if same_shape:
        return [_TracedInput(operand, placements, []) for operand in same_shape]
    if len(inputs) > 1:
        return []
    return [_TracedInput(data, _map_changed_shape(_static_shape(data), shape, placements), [])]


def _map_changed_shape(
    before: Sequence[int], after: Sequence[int], placements: _AxisPlacements
) -> _AxisPlacements:
    """Map the placements of a result of shape `after` to its input of shape `before`.

    Equal numbers of elements count as a reshape, which maps axis by axis; otherwise, as for a Slice
    or a reduction, the axes of equal size are kept, none if the ranks differ.
    """
    if math.prod(before) == math.prod(after):
        return _map_axes_through_reshape(after, before, placements)
    if len(before) != len(after):
        return {}
    return {
        axis: placement for axis, placement in placements.items() if before[axis] == after[axis]
    }


def _trace_concat(
    node: ir.Node, inputs: Sequence[ir.Value], placements: _AxisPlacements
) -> list[_TracedInput]:
    """Trace the inputs of a Concat; the placements are those of its output.

    Each input gets its offset on the concatenated axis, with its start and end as boundaries; if
    that axis has no placement, the inputs keep the others without boundaries.
    """
    axis = int(ir.get_attr(node, "axis")) % max(len(_static_shape(node.outputs[0])), 1)
    if axis not in placements:
        remaining = {key: placement for key, placement in placements.items() if key != axis}
        return [_TracedInput(value, remaining, []) for value in inputs]
    output_axis, offset, stride = placements[axis]
    traced = []
    for value in node.inputs:
        if value is None or not _static_shape(value):
            continue
        end = offset + stride * _static_shape(value)[axis]
        input_placements = {**placements, axis: _AxisPlacement(output_axis, offset, stride)}
        boundaries = [(output_axis, offset), (output_axis, end)]
        traced.append(_TracedInput(value, input_placements, boundaries))
        offset = end
    return traced


def _trace_pad(
    node: ir.Node, data: ir.Value, value: ir.Value, placements: _AxisPlacements
) -> list[_TracedInput]:
    """Trace the padded tensor of a Pad; returns an empty list if the pads are not constant.

    `placements` are those of the output `value`; on padded axes the start and end of `data` are
    boundaries.
    """
    pads = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    data_shape, rank = _static_shape(data), len(_static_shape(value))
    if pads is None or pads.size != 2 * rank:
        return []
    begin_pads, end_pads = pads.reshape(2, rank)
    data_placements, boundaries = {}, []
    for axis, (output_axis, offset, stride) in placements.items():
        start = offset + stride * int(begin_pads[axis])
        data_placements[axis] = _AxisPlacement(output_axis, start, stride)
        if begin_pads[axis] or end_pads[axis]:
            end = start + stride * data_shape[axis]
            boundaries += [(output_axis, start), (output_axis, end)]
    return [_TracedInput(data, data_placements, boundaries)]


def _scatter_boundaries(
    node: ir.Node, value: ir.Value, placements: _AxisPlacements
) -> list[tuple[int, int]]:
    """Return (axis, index) in the output where the elements written by a ScatterND end.

    Empty if the indices are not constant.
    """
    indices = ir.const_value(node.inputs[1])
    if indices is None:
        return []
    is_written = np.zeros(_static_shape(value), bool)
    try:
        is_written[tuple(np.moveaxis(indices, -1, 0))] = True
    except IndexError:  # the batch size is unknown
        return []
    boundaries = []
    for axis, (output_axis, offset, stride) in placements.items():
        changes = np.diff(is_written.astype(np.int8), axis=axis) != 0
        other_axes = tuple(i for i in range(is_written.ndim) if i != axis)
        ends = np.flatnonzero(changes.any(axis=other_axes)) + 1
        boundaries += [(output_axis, offset + stride * int(end)) for end in ends]
    return boundaries


def _map_axes_through_reshape(
    after: Sequence[int], before: Sequence[int], placements: _AxisPlacements
) -> _AxisPlacements:
    """Map the placements of a result of a reshape to its input, where an axis is preserved.

    Axes of size 1 and those that the reshape splits or merges get no placement.

    Parameters
    ----------
    after
        Shape of the result.
    before
        Shape of the input.
    placements
        Positions of the axes of the result in the output.
    """
    mapped: dict[int, _AxisPlacement] = {}
    for axis, size in enumerate(before):
        if size <= 1:
            continue
        inner = math.prod(before[axis + 1 :])
        for result_axis, placement in placements.items():
            result_inner = math.prod(after[result_axis + 1 :])
            same_outer = math.prod(before[:axis]) == math.prod(after[:result_axis])
            if not same_outer or inner % max(result_inner, 1):
                continue
            ratio = inner // result_inner
            if size * ratio == after[result_axis]:
                output_axis, offset, stride = placement
                mapped[axis] = _AxisPlacement(output_axis, offset, stride * ratio)
    return mapped


class PartAgreement:
    """Measures the agreement of the parts of one output with the float model.

    Parameters
    ----------
    output
        Name of the output.
    boundaries
        {axis: indices where parts end}, from `find_part_boundaries`.
    """

    def __init__(self, output: str, boundaries: Mapping[int, Sequence[int]]) -> None:
        """Start without samples; an agreement per part is created with its first batch."""
        self._output, self._boundaries = output, boundaries
        self._agreements: dict[tuple[int, int, int], Agreement] = {}

    def add(self, expected: np.ndarray, actual: np.ndarray) -> None:
        """Add one batch of the output, as the float model and the integer graph give it.

        An axis that is too short for its parts is skipped.
        """
        for axis, ends in self._boundaries.items():
            size = expected.shape[axis] if axis < expected.ndim else 0
            if size <= ends[-1]:
                continue
            for first, end in itertools.pairwise([0, *ends, size]):
                index = (slice(None),) * axis + (slice(first, end),)
                agreement = self._agreements.setdefault((axis, first, end), Agreement())
                agreement.add(expected[index], actual[index])

    @property
    def parts(self) -> list[OutputPart]:
        """All parts that are not zero in the float model, by axis and position."""
        return [
            OutputPart(self._output, axis, first, end - 1, agreement.cosine, agreement.sqnr)
            for (axis, first, end), agreement in self._agreements.items()
            if agreement.sums[2] > 0
        ]
