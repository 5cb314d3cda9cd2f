"""Describe tensors by axes that are products of factors: [T, N*H, D] is ((T), (N, H), (D)).

Transposes, Reshapes and similar operators only change the order and grouping of the factors,
without any computation. `batch_first` traverses the graph with these descriptions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ....ir import ir

__all__ = [
    "BATCH_FACTOR",
    "BATCH_AXIS",
    "AxisFactor",
    "FactoredView",
    "FactoredAxes",
    "flatten_axes",
    "PendingNode",
    "match_leading_axes",
    "slice_layer_outputs",
    "merge_adjacent_factors",
    "substitute_factors",
    "regroup_factors",
]


@dataclass(frozen=True)
class AxisFactor:
    """A factor of the size of an axis: an axis of N*H elements consists of the factors N and H.

    Factors are told apart by `index`; 0 is the batch, with the size 0. Those of size 1 are left
    out, so an axis may have none.
    """

    index: int
    size: int


FactoredAxes = tuple[tuple[AxisFactor, ...], ...]
BATCH_FACTOR = AxisFactor(0, 0)
BATCH_AXIS = ((BATCH_FACTOR,),)


@dataclass(frozen=True, eq=False)
class PendingNode:
    """An operator to be created if it is needed.

    Name and type are taken from `node`, which it replaces. An input is a tensor, an array, None
    (omitted), or a pair (view, axes): a tensor described as a rearrangement of another one, to be
    arranged to these axes.
    """

    node: ir.Node
    op_type: str
    inputs: tuple[tuple[FactoredView, FactoredAxes] | ir.Value | np.ndarray | None, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FactoredView:
    """A tensor of the graph as a rearrangement (Reshape, Transpose) of another tensor.

    Attributes
    ----------
    base
        The other tensor, or the operator that will compute it.
    base_axes
        Axes of `base`, with the batch first; each axis is a tuple of factors.
    axes
        Axes of the tensor of the graph, of the same factors.
    """

    base: ir.Value | PendingNode
    base_axes: FactoredAxes
    axes: FactoredAxes


def flatten_axes(axes: FactoredAxes) -> list[AxisFactor]:
    """Return the factors of all `axes` (each a tuple of factors) as one list, in order."""
    return list(itertools.chain.from_iterable(axes))


def substitute_factors(
    view: FactoredView, factors: Mapping[AxisFactor, AxisFactor]
) -> FactoredView:
    """Return a copy of `view` with each axis factor that is a key of `factors` replaced.

    The value takes its place. The sizes must be equal, which is not checked. Applies to the axes of
    the base tensor and to those of the viewed tensor.
    """
    return FactoredView(
        view.base,
        _substitute_in_axes(view.base_axes, factors),
        _substitute_in_axes(view.axes, factors),
    )


def _substitute_in_axes(
    axes: FactoredAxes, factors: Mapping[AxisFactor, AxisFactor]
) -> FactoredAxes:
    """Return `axes`, tuples of factors, with factors replaced by the mapping old -> new.

    Others stay.
    """
    substituted = []
    for axis in axes:
        substituted.append(tuple(factors.get(factor, factor) for factor in axis))
    return tuple(substituted)


def match_leading_axes(view: FactoredView, axes: FactoredAxes) -> FactoredView | None:
    """Return `view` with the factors of its leading axes replaced by those of `axes`.

    So that two tensors that are combined elementwise use the same factors. As many axes are
    replaced as `axes` has. None if the factors of an axis differ in number or size.
    """
    factors: dict[AxisFactor, AxisFactor] = {}
    for axis, target_axis in zip(view.axes, axes, strict=False):
        if [factor.size for factor in axis] != [factor.size for factor in target_axis]:
            return None
        factors.update(zip(axis, target_axis, strict=True))
    return substitute_factors(view, factors)


def regroup_factors(
    view: FactoredView, sizes: Sequence[int | None] | None, make_factor: Callable[[int], AxisFactor]
) -> FactoredView | None:
    """Return `view` reshaped to axes of `sizes`, or None if that is not possible.

    Parameters
    ----------
    view
        A tensor described by axes that are tuples of factors.
    sizes
        Sizes of the new axes. Exactly one is None: it has the batch and all other factors.
    make_factor
        Creates a factor of a size. A factor that is larger than its new axis is split in two, in
        `base_axes` too.
    """
    if sizes is None or list(sizes).count(None) != 1:
        return None
    batch_axis = list(sizes).index(None)
    factors = flatten_axes(view.axes)
    splits: _FactorSplits = {}
    leading = _take_axes(factors, sizes[:batch_axis], 0, make_factor, splits)
    if leading is None:
        return None
    trailing = _take_axes(factors, sizes[:batch_axis:-1], -1, make_factor, splits)
    if trailing is None or BATCH_FACTOR not in factors:
        return None
    base_axes = _split_in_axes(view.base_axes, splits)
    return FactoredView(view.base, base_axes, (*leading, tuple(factors), *trailing[::-1]))


#: Factor -> the two factors that it is split into.
_FactorSplits = dict[AxisFactor, tuple[AxisFactor, AxisFactor]]


def _take_axes(
    factors: list[AxisFactor],
    sizes: Sequence[int | None],
    end: int,
    make_factor: Callable[[int], AxisFactor],
    splits: _FactorSplits,
) -> list[tuple[AxisFactor, ...]] | None:
    """Remove factors from one end of `factors`, in place, to form axes of `sizes`.

    `end` is 0 to take them from the front, -1 from the back; the axes are in the order in which
    they were taken. A factor larger than its axis is split by `make_factor` and recorded in
    `splits`. None if the factors at that end do not multiply to a size.
    """
    axes = []
    for size in sizes:
        axis = _take_axis(factors, int(size or 0), end, make_factor, splits)
        if axis is None:
            return None
        axes.append(axis)
    return axes


def _take_axis(
    factors: list[AxisFactor],
    size: int,
    end: int,
    make_factor: Callable[[int], AxisFactor],
    splits: _FactorSplits,
) -> tuple[AxisFactor, ...] | None:
    """Remove factors whose sizes have the product `size` from one end of `factors`, in place.

    `end` is 0 for the front, -1 for the back. A larger factor is split into two new ones by
    `make_factor`, recorded in `splits`. Returns the factors in order, or None if the batch or the
    end of the list comes first, or if the sizes do not divide.
    """
    axis: list[AxisFactor] = []
    while _product_of_sizes(axis) < size:
        if not factors or factors[end] == BATCH_FACTOR:
            return None
        remaining = size // _product_of_sizes(axis)
        factor = factors.pop(end)
        if factor.size > remaining:
            if factor.size % remaining or remaining == 1:  # there are no factors of size 1
                return None
            inner, outer = make_factor(remaining), make_factor(factor.size // remaining)
            splits[factor] = (inner, outer) if end == 0 else (outer, inner)
            factors.insert(0 if end == 0 else len(factors), outer)
            factor = inner
        axis.insert(len(axis) if end == 0 else 0, factor)
    return tuple(axis) if _product_of_sizes(axis) == size else None


def _split_in_axes(axes: FactoredAxes, splits: _FactorSplits) -> FactoredAxes:
    """Return `axes` with each factor that is a key of `splits` replaced by its parts, in order.

    Parts are split again if they are keys themselves.
    """
    result = []
    for axis in axes:
        factors: list[AxisFactor] = []
        pending = list(axis)
        while pending:
            factor = pending.pop(0)
            if factor in splits:
                pending[:0] = splits[factor]
            else:
                factors.append(factor)
        result.append(tuple(factors))
    return tuple(result)


def _product_of_sizes(factors: Sequence[AxisFactor]) -> int:
    """Return the product of the sizes of `factors`; 1 if there are none."""
    return math.prod(factor.size for factor in factors)


def merge_adjacent_factors(
    source_factors: Sequence[AxisFactor], target_factors: Sequence[AxisFactor]
) -> list[tuple[AxisFactor, ...]]:
    """Group `source_factors` into runs of factors that follow each other in `target_factors` too.

    Each run can be one axis of a Transpose from the source order to the target order. The batch is
    a run by itself.
    """
    runs: list[tuple[AxisFactor, ...]] = []
    for factor in source_factors:
        previous = runs[-1][-1] if runs else None
        is_adjacent = (
            previous is not None
            and target_factors.index(factor) == target_factors.index(previous) + 1
        )
        if is_adjacent and BATCH_FACTOR not in (factor, previous):
            runs[-1] = (*runs[-1], factor)
        else:
            runs.append((factor,))
    return runs


def slice_layer_outputs(
    layer: ir.Value | PendingNode, start: int, last_axis: tuple[AxisFactor, ...]
) -> PendingNode | None:
    """Return a linear layer that computes only a slice of the output features of `layer`, or None.

    Parameters
    ----------
    layer
        A MatMul with a constant weight, or the Add of a constant bias to one, not created yet. For
        anything else the result is None.
    start
        First output feature of the slice.
    last_axis
        Factors of the last axis of the slice; the product of their sizes is the number of features.

    Returns
    -------
    PendingNode or None
        The same operator, not created yet, with sliced weight or bias.
    """
    if not isinstance(layer, PendingNode) or len(layer.inputs) != 2:
        return None
    index = 0 if isinstance(layer.inputs[0], tuple) else 1
    source, constant = layer.inputs[index], layer.inputs[1 - index]
    if isinstance(constant, tuple) or not isinstance(source, tuple):
        return None
    array = constant if isinstance(constant, np.ndarray) else ir.const_value(constant)
    if array is None:
        return None
    features = slice(start, start + _product_of_sizes(last_axis))
    if layer.op_type == "MatMul" and index == 0:
        return replace(layer, inputs=(source, np.ascontiguousarray(array[:, features])))
    if layer.op_type != "Add" or array.ndim != 1 or array.size == 1:
        return None
    sliced_source = _slice_view(*source, start, last_axis)
    if sliced_source is None:
        return None
    return replace(layer, inputs=(sliced_source, np.ascontiguousarray(array[features])))


def _slice_view(
    view: FactoredView, target: FactoredAxes, start: int, last_axis: tuple[AxisFactor, ...]
) -> tuple[FactoredView, FactoredAxes] | None:
    """Return (view, axes): the input of an Add of a bias, reduced to a slice of its last axis.

    `view` describes the input and `target` the axes to which it is arranged. The slice begins at
    `start` and its last axis has the factors `last_axis`. None if the view's last axis is not that
    of `target`, or if it is not the output of a linear layer that can be sliced.
    """
    if view.base_axes[-1] != target[-1]:
        return None
    product = slice_layer_outputs(view.base, start, last_axis)
    if product is None:
        return None
    sliced_view = FactoredView(product, (*view.base_axes[:-1], last_axis), view.axes)
    return sliced_view, (*target[:-1], last_axis)
