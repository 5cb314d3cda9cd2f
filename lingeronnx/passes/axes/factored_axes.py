"""Tensors told by their axes, each a product of atoms: [T, N*H, D] is ((T), (N, H), (D)).

Transposes, Reshapes and the like tell the atoms in another order; nothing is computed for them.
`batch_first` walks with these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import ir

__all__ = [
    "BATCH_FACTOR",
    "BATCH_AXIS",
    "AxisFactor",
    "FactoredView",
    "FactoredAxes",
    "PendingNode",
    "match_leading_axes",
    "slice_layer_outputs",
    "merge_adjacent_factors",
    "substitute_factors",
    "regroup_factors",
]


@dataclass(frozen=True)
class AxisFactor:
    """A part of an axis; number 0 is the batch, of size 0.

    Parts of size 1 are left out: an axis may have none.
    """

    number: int
    size: int


FactoredAxes = tuple[tuple[AxisFactor, ...], ...]
BATCH_FACTOR = AxisFactor(0, 0)
BATCH_AXIS = ((BATCH_FACTOR,),)


@dataclass(frozen=True, eq=False)
class PendingNode:
    """An operator to be made after `node`.

    Of its inputs, views are arranged as the axes beside them say.
    """

    node: ir.Node
    op_type: str
    inputs: tuple[tuple[FactoredView, FactoredAxes] | ir.Value | np.ndarray | None, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FactoredView:
    """A tensor of the graph told by its `axes`.

    What `base` gives, whose own axes are `held`, the batch in front.
    """

    base: ir.Value | PendingNode
    held: FactoredAxes
    axes: FactoredAxes


def substitute_factors(view: FactoredView, names: Mapping[AxisFactor, AxisFactor]) -> FactoredView:
    """Return `view` with other atoms of the same sizes."""
    held, axes = (
        tuple(tuple(names.get(a, a) for a in group) for group in groups)
        for groups in (view.held, view.axes)
    )
    return FactoredView(view.base, held, axes)


def match_leading_axes(view: FactoredView, axes: FactoredAxes) -> FactoredView | None:
    """Return `view` with the atoms of `axes` for its own in its first axes.

    None where they have other sizes.
    """
    names: dict[AxisFactor, AxisFactor] = {}
    for mine, wanted in zip(view.axes, axes, strict=False):
        if [a.size for a in mine] != [a.size for a in wanted]:
            return None
        names.update(zip(mine, wanted, strict=True))
    return substitute_factors(view, names)


def regroup_factors(
    view: FactoredView, sizes: Sequence[int | None] | None, make_factor: Callable[[int], AxisFactor]
) -> FactoredView | None:
    """Return `view` with its atoms in axes of `sizes`, of which one, with the batch, is not known; None where it fails.

    make_factor : makes an atom of a size. An atom that is larger than its axis is cut in two, in
    `held` also.
    """
    if sizes is None or list(sizes).count(None) != 1:
        return None
    place = list(sizes).index(None)
    atoms, cuts = (
        [a for axis in view.axes for a in axis],
        dict[AxisFactor, tuple[AxisFactor, AxisFactor]](),
    )
    groups: tuple[list[tuple[AxisFactor, ...]], list[tuple[AxisFactor, ...]]] = ([], [])
    for own, part, end in zip(groups, (sizes[:place], sizes[:place:-1]), (0, -1), strict=True):
        for size in part:
            group: list[AxisFactor] = []
            while _product_of_sizes(group) < int(size or 0):
                if not atoms or atoms[end] == BATCH_FACTOR:
                    return None
                atom, left = atoms.pop(end), int(size or 0) // _product_of_sizes(group)
                if atom.size > left:
                    if atom.size % left or left == 1:  # an atom of size 1 is none
                        return None
                    inner, outer = make_factor(left), make_factor(atom.size // left)
                    cuts[atom] = (inner, outer) if end == 0 else (outer, inner)
                    atoms.insert(0 if end == 0 else len(atoms), outer)
                    atom = inner
                group.insert(len(group) if end == 0 else 0, atom)
            if _product_of_sizes(group) != size:
                return None
            own.append(tuple(group))
    if BATCH_FACTOR not in atoms:
        return None
    held = view.held
    while any(a in cuts for axis in held for a in axis):
        held = tuple(tuple(b for a in axis for b in cuts.get(a, (a,))) for axis in held)
    front, back = groups
    return FactoredView(view.base, held, (*front, tuple(atoms), *back[::-1]))


def _product_of_sizes(atoms: Sequence[AxisFactor]) -> int:
    return math.prod(atom.size for atom in atoms)


def merge_adjacent_factors(
    have: Sequence[AxisFactor], want: Sequence[AxisFactor]
) -> list[tuple[AxisFactor, ...]]:
    """Return the atoms `have`, joined where they follow each other in `want` too.

    The batch stays alone.
    """
    runs: list[tuple[AxisFactor, ...]] = []
    for atom in have:
        last = runs[-1][-1] if runs else None
        follows = last is not None and want.index(atom) == want.index(last) + 1
        if follows and BATCH_FACTOR not in (atom, last):
            runs[-1] = (*runs[-1], atom)
        else:
            runs.append((atom,))
    return runs


def slice_layer_outputs(
    of: ir.Value | PendingNode, start: int, last: tuple[AxisFactor, ...]
) -> PendingNode | None:
    """Return the layer, a product and perhaps a bias, that makes only `last` of the outputs of `of`, from `start`."""
    stop = start + _product_of_sizes(last)
    if (
        not isinstance(of, PendingNode)
        or of.op_type not in ("MatMul", "Add")
        or len(of.inputs) != 2
    ):
        return None
    index = 0 if isinstance(of.inputs[0], tuple) else 1
    source, constant = of.inputs[index], of.inputs[1 - index]
    if isinstance(constant, tuple):
        return None
    array = constant if isinstance(constant, np.ndarray) else ir.const_value(constant)
    if not isinstance(source, tuple) or array is None or (of.op_type == "MatMul" and index):
        return None
    if of.op_type == "MatMul":
        return replace(of, inputs=(source, np.ascontiguousarray(array[:, start:stop])))
    view, target = source
    inner = (
        slice_layer_outputs(view.base, start, last)
        if array.ndim == 1 and view.held[-1] == target[-1]
        else None
    )
    if inner is None or array.size == 1:
        return None
    less = FactoredView(inner, (*view.held[:-1], last), view.axes)
    return replace(
        of, inputs=((less, (*target[:-1], last)), np.ascontiguousarray(array[start:stop]))
    )
