"""Which tests a run takes: laws of the choice, on invented cases."""

from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.selection import MOST, chosen, covering

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@examples(60)
@given(SIZES)
def test_a_product_shows_each_value_once(sizes):
    """Law: every value of every parameter, and no more cases than the longest parameter has values."""
    cases = list(product(*(range(size) for size in sizes)))
    kept = [cases[place] for place in covering(cases)]
    assert [{case[axis] for case in kept} for axis in range(len(sizes))] == [{*range(size)} for size in sizes]
    assert len(kept) == max(sizes)


def test_values_take_turns():
    """Law: a short parameter's values come equally often beside a long one's."""
    cases = list(product(range(8), range(2), range(4)))
    kept = [cases[place] for place in covering(cases)]
    assert Counter(case[1] for case in kept) == {0: 4, 1: 4}
    assert Counter(case[2] for case in kept) == {0: 2, 1: 2, 2: 2, 3: 2}


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), unique=True, max_size=30))
def test_any_cases_show_each_value(cases):
    """Law: as before, where some combinations are missing; in the order of the cases, none twice."""
    places = covering(cases)
    assert places == sorted({*places})
    assert all({cases[place][axis] for place in places} == {case[axis] for case in cases} for axis in range(3))


class Item:
    """A collected test, as far as the choice looks at it."""

    path = "tests/test_invented.py"

    def __init__(self, name, *axes, marks=(), **given):
        self.nodeid = f"{self.path}::{name}[{given}]" if given else f"{self.path}::{name}"
        self.marks = [pytest.mark.parametrize(names, ()).mark for names in axes]
        self.closest = marks
        if given:
            self.callspec = SimpleNamespace(params=given)

    def get_closest_marker(self, name):
        return name if name in self.closest else None

    def iter_markers(self, name):
        return self.marks if name == "parametrize" else []


ITEMS = [
    *(Item("product", "a", "b, c", a=a, b=0, c=c) for a in range(3) for c in range(2)),
    *(Item("many", ["a"], a=a) for a in range(40)),
    *(Item("fixture", "a", a=a, made=made) for a in range(2) for made in "xyz"),
    *(Item("deeper", "a", a=a, marks=["deep"] * a) for a in range(2)),
    Item("slow", marks=["slow"]),
    Item("plain"),
]


@pytest.mark.parametrize(
    "size, left",
    (
        ("all", {"product": 6, "many": 40, "fixture": 6, "deeper": 2, "slow": 1, "plain": 1}),
        ("usual", {"product": 3, "many": 40, "fixture": 3, "deeper": 1, "slow": 1, "plain": 1}),
        ("fast", {"product": MOST, "many": MOST, "fixture": MOST, "deeper": 1, "plain": 1}),
    ),
)
def test_sizes(size, left):
    """Sizes leave out their marks; of several parameters each value is shown; a quick run has few cases of a test."""
    found = chosen(ITEMS, size)
    assert found == [item for item in ITEMS if item in found]
    assert Counter(item.nodeid.partition("::")[2].partition("[")[0] for item in found) == left
