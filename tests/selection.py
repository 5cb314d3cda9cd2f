"""Choose the cases of each test that a tier runs.

`LINGERONNX_TESTS` names the tier:

======  ================================================================================================
`fast`  `make test`: a covering set of the cases that are marked neither `slow` nor `deep`;
`MAX_CASES` of them
        at most if the test is marked `sweep`
`slow`  `make test-slow`: what `fast` leaves out of a covering set of the cases that are not marked
`deep` `all`   every case of every combination; what plain `pytest` runs
======  ================================================================================================

The values that the cases of one test combine come from each `parametrize` and from each fixture
with parameters. A
*covering set* of cases shows each value once, in combinations that differ as much as possible. Tests with random
examples run in both tiers, since `fast` draws fewer examples (`tests/case_selection.py`).

The choice is made while pytest generates the cases, so that the others are never created. A test
that is named on the command line (`pytest FILE::TEST`) runs in every tier.
"""

from collections import Counter
from itertools import combinations

import pytest

from tests.case_selection import TIER

__all__ = [
    "MAX_CASES",
    "cover_values",
    "drop_unselected_items",
    "pytest_generate_tests",
    "select_cases",
]

MAX_CASES = 2
#: Node ids of the tests of which no case was selected.
_WITHOUT_CASES = pytest.StashKey[set]()


def cover_values(cases):
    """Choose cases that show each value of each parameter, preferring new pairs of values and rare
    values.

    Parameters
    ----------
    cases
        For each case its values: a tuple of hashable objects, one position per parameter.

    Returns
    -------
    list of int
        Indices of the chosen cases, sorted.
    """
    values = [set(enumerate(case)) for case in cases]
    if len(cases) == 1:
        return [0] if values[0] else []
    pairs = [set(combinations(enumerate(case), 2)) for case in cases]
    missing, seen_pairs, uses, chosen = set().union(*values), set(), Counter(), []

    def rank(index):
        rarity = -sum(uses[value] for value in values[index])
        return len(values[index] & missing), len(pairs[index] - seen_pairs), rarity, -index

    while missing:
        best = max(range(len(cases)), key=rank)
        missing, seen_pairs = missing - values[best], seen_pairs | pairs[best]
        uses.update(values[best])
        chosen.append(best)
    return sorted(chosen)


def select_cases(cases, marks, tier, *, is_random=False):
    """Select the cases of one test that a tier runs.

    Parameters
    ----------
    cases
        For each case its values; a test without parameters has one case without values.
    marks
        For each case the set of names of its marks.
    tier
        ``"fast"``, ``"slow"`` or ``"all"``.
    is_random
        Whether the test draws random examples.

    Returns
    -------
    list of int
        Indices of the selected cases, sorted.
    """
    if tier == "all":
        return list(range(len(cases)))
    fast = _cover([i for i in range(len(cases)) if not marks[i] & {"slow", "deep"}], cases)
    if len(fast) > MAX_CASES and any("sweep" in marks[index] for index in fast):
        fast = [fast[step * (len(fast) - 1) // (MAX_CASES - 1)] for step in range(MAX_CASES)]
    if tier == "fast":
        return fast
    usual = _cover([i for i in range(len(cases)) if "deep" not in marks[i]], cases)
    return usual if is_random else [i for i in usual if i not in fast]


def _cover(indices, cases):
    """Cover the values of some of the cases; keep the first if there are no values."""
    if not indices:
        return []
    return [indices[i] for i in cover_values([cases[i] for i in indices])] or indices[:1]


def _read_values(metafunc, callspec):
    """Identify what each `parametrize` and each fixture gives to a case, by the identity of the
    objects.
    """
    remaining = dict(callspec.params)
    values = []
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        values.append(tuple(id(remaining.pop(name)) for name in names if name in remaining))
    return (*values, *map(id, remaining.values()))


def _is_named(config):
    """Whether single tests are named on the command line."""
    return any("::" in argument for argument in config.args)


def _is_random(function):
    return getattr(function, "is_hypothesis_test", False)


@pytest.hookimpl(trylast=True)  # after all parameters are known
def pytest_generate_tests(metafunc):
    """Drop the cases that the tier does not run before pytest creates them."""
    calls = metafunc._calls
    if TIER == "all" or not calls or _is_named(metafunc.config):
        return
    shared_marks = {mark.name for mark in metafunc.definition.iter_markers()}
    marks = [shared_marks | {mark.name for mark in call.marks} for call in calls]
    cases = [_read_values(metafunc, call) for call in calls]
    selected = select_cases(cases, marks, TIER, is_random=_is_random(metafunc.function))
    if not selected:  # without a case pytest would run the test without its parameters
        metafunc.config.stash.setdefault(_WITHOUT_CASES, set()).add(metafunc.definition.nodeid)
    calls[:] = [calls[i] for i in selected or [0]]


def drop_unselected_items(config, items):
    """Split items into those that the tier runs and those that it does not."""
    if TIER == "all" or _is_named(config):
        return items, []
    without_cases = config.stash.get(_WITHOUT_CASES, set())
    kept, dropped = [], []
    for item in items:
        if hasattr(item, "callspec"):
            selected = item.nodeid.partition("[")[0] not in without_cases
        else:
            names = {mark.name for mark in item.iter_markers()}
            selected = bool(
                select_cases(
                    [()], [names], TIER, is_random=_is_random(getattr(item, "function", None))
                )
            )
        (kept if selected else dropped).append(item)
    return kept, dropped
