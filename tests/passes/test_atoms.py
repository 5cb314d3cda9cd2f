"""Axes told by atoms: what is regrouped has the same elements in the same order, and what cannot be
is None.
"""

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.quantization.normalize.axes.factored_axes import (
    BATCH_FACTOR,
    AxisFactor,
    FactoredView,
    match_leading_axes,
    merge_adjacent_factors,
    regroup_factors,
    substitute_factors,
)
from tests.case_selection import limit_examples

BATCHES = 3  # what stands for the batch, which atoms give no size


def fresh_from(first):
    numbers = itertools.count(first)
    return lambda size: AxisFactor(next(numbers), size)


def view(*axes):
    """A view whose axes are what it holds."""
    return FactoredView(None, axes, axes)


def array_of(atoms, made):
    """Distinct numbers along `atoms`, and the array with the axes `made` in the same order of
    elements.
    """
    return np.arange(math.prod(made)).reshape([a.size or BATCHES for a in atoms])


def sizes_of(axes):
    return [None if BATCH_FACTOR in axis else math.prod(a.size for a in axis) for axis in axes]


@limit_examples(80)
@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=3),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_regrouped_keeps_elements_in_their_order(sizes, place, random):
    """Law: the atoms of the new axes, read one after another, are those of the old ones, some of
    them cut in two.
    """
    atoms = [AxisFactor(i + 1, size) for i, size in enumerate(sizes)]
    atoms.insert(min(place, len(sizes)), BATCH_FACTOR)
    whole = [
        n
        for atom in atoms
        for n in ([None] if atom == BATCH_FACTOR else _factors(atom.size, random))
    ]
    told = regroup_factors(view(*((a,) for a in atoms)), whole, fresh_from(100))
    assert told is not None
    assert sizes_of(told.axes) == whole
    have = [a for axis in told.axes for a in axis]
    assert [
        a for axis in told.base_axes for a in axis
    ] == have  # what is held is cut in the same places
    made = [n or BATCHES for n in whole]
    np.testing.assert_array_equal(
        array_of(atoms, made).reshape(made), array_of(have, made).reshape(made)
    )


def _factors(size, random):
    ways = [n for n in range(2, size) if size % n == 0]
    return [size] if not ways or random.random() < 0.5 else [(n := random.choice(ways)), size // n]


def test_axes_are_joined_and_cut():
    one, two = AxisFactor(1, 4), AxisFactor(2, 6)
    assert regroup_factors(
        view((BATCH_FACTOR,), (one,), (two,)), [None, 24], fresh_from(9)
    ).axes == (
        (BATCH_FACTOR,),
        (one, two),
    )
    cut = regroup_factors(view((BATCH_FACTOR,), (one,)), [None, 2, 2], fresh_from(9))
    assert sizes_of(cut.axes) == [None, 2, 2]
    assert sizes_of(cut.base_axes) == [None, 4]


def test_what_cannot_be_regrouped_is_none():
    one, two = AxisFactor(1, 2), AxisFactor(2, 3)
    given_ = view((BATCH_FACTOR,), (one,), (two,))
    for sizes in (None, [6], [None, None], [None, 3, 2], [None, 4], [2, None], [None, 12]):
        assert regroup_factors(given_, sizes, fresh_from(9)) is None, sizes
    assert regroup_factors(given_, [None, 2, 3], fresh_from(9)).axes == given_.axes


def test_the_same_sizes_get_the_same_names():
    one, two, three = AxisFactor(1, 4), AxisFactor(2, 4), AxisFactor(3, 5)
    assert match_leading_axes(
        view((BATCH_FACTOR,), (two,), (three,)), ((BATCH_FACTOR,), (one,))
    ).axes == (
        (BATCH_FACTOR,),
        (one,),
        (three,),
    )
    assert match_leading_axes(view((BATCH_FACTOR,), (three,)), ((BATCH_FACTOR,), (one,))) is None
    assert substitute_factors(view((one,)), {one: two}).base_axes == ((two,),)


def test_runs_that_stay_together_are_joined():
    a, b, c = (AxisFactor(i, i + 1) for i in (1, 2, 3))
    assert merge_adjacent_factors([a, b, c], [c, a, b]) == [(a, b), (c,)]
    assert merge_adjacent_factors([BATCH_FACTOR, a, b], [BATCH_FACTOR, a, b]) == [
        (BATCH_FACTOR,),
        (a, b),
    ]
