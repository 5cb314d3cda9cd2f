"""Select non-consecutive positions of an axis by consecutive slices, exactly.

    Pad by the edge, a reflection or the other end, and a Slice backwards:
        runs of positions, concatenated
    Slice with a step k of [.., n, ..]:
        viewed as [.., n/k, k, ..], one position of the new axis

All parts have one scale, so nothing is rounded. This does not apply before the first layer or after
the last one, where the host computes these nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from ...ir import ir
from ...operators.repeat_resize.lowering.pad import get_pads
from ...operators.selection.integer_op import read_constant_slices
from ...targets import Target
from ._base import RewriteBuilder, has_known_sample_shape, is_standard_op
from .constant_arithmetic import is_between_layers

__all__ = ["decompose_pad", "decompose_strided_slice"]

_MAX_RUNS = 16  # runs of positions along an axis; each becomes a slice
_PAD_MODES = ("edge", "reflect", "wrap")


def decompose_pad(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a Pad that repeats elements by slices of these elements and a concatenation.

    Only between layers, for constant nonnegative pads in a mode of `_PAD_MODES` but not of the
    batch, and a known sample shape. Returns the description and the cost of the change, or None
    without a change.
    """
    if not is_standard_op(node, "Pad") or not is_between_layers(node):
        return None
    shape = ir.get_shape(node.inputs[0]) or ()
    if not has_known_sample_shape(shape):
        return None
    mode, pads = str(ir.get_attr(node, "mode", "constant")), get_pads(node)
    if mode not in _PAD_MODES or pads is None or min(pads) < 0:
        return None
    pads_by_axis = list(zip(pads[: len(shape)], pads[len(shape) :], strict=True))
    if any(pads_by_axis[0]):
        return None
    positions = {}
    for axis, pad in enumerate(pads_by_axis):
        if any(pad):
            indices = np.arange(int(shape[axis] or 0))
            positions[axis] = np.pad(indices, pad, mode=mode)  # type: ignore[call-overload]
    return _rewrite_as_slices(model, node, target, positions, f"padding ({mode})")


def decompose_strided_slice(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Replace a Slice with a step other than 1 between layers by Slices with step 1.

    Only with constant bounds, not of the batch, and a known sample shape. Returns the description
    and the cost of the change, or None without a change.
    """
    if not is_standard_op(node, "Slice"):
        return None
    shape = ir.get_shape(node.inputs[0]) or ()
    if not has_known_sample_shape(shape) or not is_between_layers(node):
        return None
    ranges = read_constant_slices(node)
    if not ranges or 0 in ranges or all(part.step == 1 for part in ranges.values()):
        return None
    positions = {
        axis: np.arange(*part.indices(int(shape[axis] or 0))) for axis, part in ranges.items()
    }
    return _rewrite_as_slices(model, node, target, positions, "a slice with steps")


def _rewrite_as_slices(
    model: ir.Model,
    node: ir.Node,
    target: Target,
    positions: Mapping[int, np.ndarray],
    label: str,
) -> tuple[str, str] | None:
    """Replace `node` by the selection of `positions` (axis -> positions of the input) by slices.

    `label` begins the description. Returns description and cost. None, without a change, if the
    platform does not support the result, an axis has no position or more than `_MAX_RUNS` runs of
    consecutive ones, or every axis is selected in full.
    """
    builder, value = RewriteBuilder(model, node), ir.require_input(node)
    for axis, axis_positions in positions.items():
        selected = _emit_positions(builder, value, axis, axis_positions)
        if selected is None:
            builder.discard()
            return None
        value = selected
    if not builder.nodes:
        builder.discard()
        return None
    if not builder.replace_node_if_supported(target):
        return None
    return f"{label} as slices", "exact"


def _emit_positions(
    builder: RewriteBuilder, value: ir.Value, axis: int, positions: np.ndarray
) -> ir.Value | None:
    """Append nodes that select `positions` of `value` along `axis`; return the result.

    Positions with a constant step above 1 are selected by that step, others as runs of consecutive
    ones that are concatenated; nothing is appended if they are the complete axis, and `value`
    itself is returned. None for no positions and for more than `_MAX_RUNS` runs.
    """
    steps = np.diff(positions)
    if len(positions) > 1 and (steps == steps[0]).all() and steps[0] > 1:
        return _emit_strided_positions(builder, value, axis, positions, int(steps[0]))
    bounds = [0, *(np.flatnonzero(steps != 1) + 1).tolist(), len(positions)]
    if not len(positions) > 0 or len(bounds) > _MAX_RUNS + 1:
        return None
    runs = [positions[start:end] for start, end in itertools.pairwise(bounds)]
    parts = [builder.slice_axis(value, axis, int(run[0]), int(run[-1]) + 1, "part") for run in runs]
    if len(parts) == 1:
        return parts[0]
    shape = list(value.shape or ())
    shape[axis] = len(positions)
    return builder.concat_parts(parts, axis, shape)


def _emit_strided_positions(
    builder: RewriteBuilder, value: ir.Value, axis: int, positions: np.ndarray, step: int
) -> ir.Value:
    """Append nodes that select `positions`, which are `step` apart, of `value` along `axis`.

    Returns the result. The axis is viewed as [count, step], of which one position is kept. If full
    steps would reach past the end, the last position is selected separately.
    """
    shape = list(value.shape or ())
    sizes = [int(size or 0) for size in ir.require_shape(value)[1:]]
    sample_axis, first, count = axis - 1, int(positions[0]), len(positions)
    start = min(first, sizes[sample_axis] - count * step)
    if start < 0:
        last = int(positions[-1])
        shape[axis] = count
        parts = [
            _emit_strided_positions(builder, value, axis, positions[:-1], step),
            builder.slice_axis(value, axis, last, last + 1, "last"),
        ]
        return builder.concat_parts(parts, axis, shape)
    leading, trailing = sizes[:sample_axis], sizes[sample_axis + 1 :]
    full_steps = builder.slice_axis(value, axis, start, start + count * step, "whole_steps")
    split = builder.reshape(
        full_steps, [math.prod(leading) * count, step, math.prod(trailing)], "steps"
    )
    selected = builder.slice_axis(split, 2, first - start, first - start + 1, "phase")
    return builder.reshape(selected, [*leading, count, *trailing], "chosen")
