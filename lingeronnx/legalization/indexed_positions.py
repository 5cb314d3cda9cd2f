"""Positions of an axis that are not one after the other, by slices that are: exact.

    Pad by the edge, a reflection or the other end, and a Slice backwards: runs of positions, side
    by side again Slice with a step k of [.., n, ..]:  read as [.., n/k, k, ..], one position of the
    new axis

On both sides of the runs the scale is one, so nothing is rounded. Not in front of the first layer
and not behind the last one: there the host does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..formats.data_movement.selection import read_constant_slices
from ..graph import ir
from ..ops.data_movement.pad import get_pads
from ..targets import Target
from ._base import RewriteBuilder, can_lower
from .constant_arithmetic import is_between_layers

__all__ = ["decompose_pad", "decompose_strided_slice"]

_MAX_RUNS = 16  # runs along an axis, each a slice
_PAD_MODES = ("edge", "reflect", "wrap")


def decompose_pad(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Write a Pad that repeats elements as these elements beside the others."""
    if node.op_type != "Pad" or node.domain or not is_between_layers(node):
        return None
    mode, pads, sizes = (
        str(ir.get_attr(node, "mode", "constant")),
        get_pads(node),
        ir.get_shape(node.inputs[0]),
    )
    if mode not in _PAD_MODES or pads is None or not sizes or None in sizes[1:] or min(pads) < 0:
        return None
    around = list(zip(pads[: len(sizes)], pads[len(sizes) :], strict=True))
    if any(around[0]):
        return None
    places = {
        axis: np.pad(np.arange(int(sizes[axis] or 0)), pair, mode=mode)  # type: ignore[call-overload]
        for axis, pair in enumerate(around)
        if any(pair)
    }
    return _rewrite_as_slices(model, node, target, places, f"padding ({mode})")


def decompose_strided_slice(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write a Slice with a step as one without."""
    sizes = ir.get_shape(node.inputs[0]) if node.op_type == "Slice" and not node.domain else None
    if not sizes or None in sizes[1:] or not is_between_layers(node):
        return None
    ranges = read_constant_slices(node)
    if not ranges or 0 in ranges or all(part.step == 1 for part in ranges.values()):
        return None
    places = {
        axis: np.arange(*part.indices(int(sizes[axis] or 0))) for axis, part in ranges.items()
    }
    return _rewrite_as_slices(model, node, target, places, "a slice with steps")


def _rewrite_as_slices(
    model: ir.Model, node: ir.Node, target: Target, places: Mapping[int, np.ndarray], what: str
) -> tuple[str, str] | None:
    """Write `node` as a choice of `places` along each axis.

    None where the platform does not take it so.
    """
    make, value = RewriteBuilder(model, node), ir.require_input(node)
    for axis, chosen in places.items():
        picked = _emit_positions(make, value, axis, chosen)
        if picked is None:
            make.discard()
            return None
        value = picked
    if not make.nodes or not all(can_lower(each, target) for each in make.nodes):
        make.discard()
        return None
    make.replace_node()
    return f"{what} as slices", "exact"


def _emit_positions(
    make: RewriteBuilder, value: ir.Value, axis: int, places: np.ndarray
) -> ir.Value | None:
    """Return the `places` of `value` along `axis`; None where they are many runs, or none."""
    steps = np.diff(places)
    if len(places) > 1 and (steps == steps[0]).all() and steps[0] > 1:
        return _emit_strided_positions(make, value, axis, places, int(steps[0]))
    cuts = [0, *(np.flatnonzero(steps != 1) + 1).tolist(), len(places)]
    if not len(places) > 0 or len(cuts) > _MAX_RUNS + 1:
        return None
    parts = [
        make.slice_axis(value, axis, int(places[a]), int(places[b - 1]) + 1, "part")
        for a, b in zip(cuts, cuts[1:], strict=False)
    ]
    shape = list(value.shape or ())
    shape[axis] = len(places)
    return parts[0] if len(parts) == 1 else make.concat_parts(parts, axis, shape)


def _emit_strided_positions(
    make: RewriteBuilder, value: ir.Value, axis: int, places: np.ndarray, step: int
) -> ir.Value:
    """Return every `step`-th position along `axis`.

    Where the last steps reach beyond the end, its last by itself.
    """
    shape = list(value.shape or ())
    sizes = [int(size or 0) for size in ir.require_shape(value)[1:]]
    at, first, count = axis - 1, int(places[0]), len(places)
    begin = min(first, sizes[at] - count * step)
    if begin < 0:
        last = int(places[-1])
        shape[axis] = count
        parts = [
            _emit_strided_positions(make, value, axis, places[:-1], step),
            make.slice_axis(value, axis, last, last + 1, "last"),
        ]
        return make.concat_parts(parts, axis, shape)
    whole = make.slice_axis(value, axis, begin, begin + count * step, "whole_steps")
    apart = make.reshape(
        whole, [math.prod(sizes[:at]) * count, step, math.prod(sizes[at + 1 :])], "steps"
    )
    chosen = make.slice_axis(apart, 2, first - begin, first - begin + 1, "phase")
    return make.reshape(chosen, [*sizes[:at], count, *sizes[at + 1 :]], "chosen")
