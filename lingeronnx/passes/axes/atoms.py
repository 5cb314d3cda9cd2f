"""Tensors told by their axes, each a product of atoms: [T, N*H, D] is ((T), (N, H), (D)).

Transposes, Reshapes and the like tell the atoms in another order; nothing is computed for them. `batch_first` walks
with these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["BATCH", "FRONT", "Atom", "AtomView", "Axes", "Made", "alike", "cut", "joined", "named", "regrouped"]


@dataclass(frozen=True)
class Atom:
    """A part of an axis; number 0 is the batch, of size 0. Parts of size 1 are left out: an axis may have none."""

    number: int
    size: int


Axes = tuple[tuple[Atom, ...], ...]
BATCH = Atom(0, 0)
FRONT = ((BATCH,),)


@dataclass(frozen=True, eq=False)
class Made:
    """An operator to be made after `node`; of its inputs, views are arranged as the axes beside them say."""

    node: ir.Node
    op_type: str
    inputs: tuple[tuple[AtomView, Axes] | ir.Value | np.ndarray | None, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, eq=False)
class AtomView:
    """A tensor of the graph told by its `axes`: what `of` gives, whose own axes are `held`, the batch in front."""

    of: ir.Value | Made
    held: Axes
    axes: Axes


def named(view: AtomView, names: Mapping[Atom, Atom]) -> AtomView:
    """Return `view` with other atoms of the same sizes."""
    held, axes = (tuple(tuple(names.get(a, a) for a in group) for group in groups) for groups in (view.held, view.axes))
    return AtomView(view.of, held, axes)


def alike(view: AtomView, axes: Axes) -> AtomView | None:
    """Return `view` with the atoms of `axes` for its own in its first axes; None where they have other sizes."""
    names: dict[Atom, Atom] = {}
    for mine, wanted in zip(view.axes, axes, strict=False):
        if [a.size for a in mine] != [a.size for a in wanted]:
            return None
        names.update(zip(mine, wanted, strict=True))
    return named(view, names)


def regrouped(view: AtomView, sizes: Sequence[int | None] | None, fresh: Callable[[int], Atom]) -> AtomView | None:
    """Return `view` with its atoms in axes of `sizes`, of which one, with the batch, is not known; None where it fails.

    fresh : makes an atom of a size. An atom that is larger than its axis is cut in two, in `held` also.
    """
    if sizes is None or list(sizes).count(None) != 1:
        return None
    place = list(sizes).index(None)
    atoms, cuts = [a for axis in view.axes for a in axis], dict[Atom, tuple[Atom, Atom]]()
    groups: tuple[list[tuple[Atom, ...]], list[tuple[Atom, ...]]] = ([], [])
    for own, part, end in zip(groups, (sizes[:place], sizes[:place:-1]), (0, -1), strict=True):
        for size in part:
            group: list[Atom] = []
            while _size(group) < int(size or 0):
                if not atoms or atoms[end] == BATCH:
                    return None
                atom, left = atoms.pop(end), int(size or 0) // _size(group)
                if atom.size > left:
                    if atom.size % left or left == 1:  # an atom of size 1 is none
                        return None
                    inner, outer = fresh(left), fresh(atom.size // left)
                    cuts[atom] = (inner, outer) if end == 0 else (outer, inner)
                    atoms.insert(0 if end == 0 else len(atoms), outer)
                    atom = inner
                group.insert(len(group) if end == 0 else 0, atom)
            if _size(group) != size:
                return None
            own.append(tuple(group))
    if BATCH not in atoms:
        return None
    held = view.held
    while any(a in cuts for axis in held for a in axis):
        held = tuple(tuple(b for a in axis for b in cuts.get(a, (a,))) for axis in held)
    front, back = groups
    return AtomView(view.of, held, (*front, tuple(atoms), *back[::-1]))


def _size(atoms: Sequence[Atom]) -> int:
    return math.prod(atom.size for atom in atoms)


def joined(have: Sequence[Atom], want: Sequence[Atom]) -> list[tuple[Atom, ...]]:
    """Return the atoms `have`, joined where they follow each other in `want` too; the batch stays alone."""
    runs: list[tuple[Atom, ...]] = []
    for atom in have:
        last = runs[-1][-1] if runs else None
        follows = last is not None and want.index(atom) == want.index(last) + 1
        if follows and BATCH not in (atom, last):
            runs[-1] = (*runs[-1], atom)
        else:
            runs.append((atom,))
    return runs


def cut(of: ir.Value | Made, start: int, last: tuple[Atom, ...]) -> Made | None:
    """Return the layer, a product and perhaps a bias, that makes only `last` of the outputs of `of`, from `start`."""
    stop = start + _size(last)
    if not isinstance(of, Made) or of.op_type not in ("MatMul", "Add") or len(of.inputs) != 2:
        return None
    index = 0 if isinstance(of.inputs[0], tuple) else 1
    source, constant = of.inputs[index], of.inputs[1 - index]
    if isinstance(constant, tuple):
        return None
    array = constant if isinstance(constant, np.ndarray) else ir.const(constant)
    if not isinstance(source, tuple) or array is None or (of.op_type == "MatMul" and index):
        return None
    if of.op_type == "MatMul":
        return replace(of, inputs=(source, np.ascontiguousarray(array[:, start:stop])))
    view, target = source
    inner = cut(view.of, start, last) if array.ndim == 1 and view.held[-1] == target[-1] else None
    if inner is None or array.size == 1:
        return None
    less = AtomView(inner, (*view.held[:-1], last), view.axes)
    return replace(of, inputs=((less, (*target[:-1], last)), np.ascontiguousarray(array[start:stop])))
