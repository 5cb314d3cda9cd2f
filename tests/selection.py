"""Which tests a run takes: `make test` and `make test-fast` choose by one rule, `make test-all` takes all.

The rule looks at the values that the cases of one test combine (each `parametrize`, each fixture with parameters gives
one of them). `make test` leaves out the tests marked `deep`. Of a test with several parameters it takes as many cases
as show each value once, in combinations as different as can be. `make test-fast` leaves out the tests marked `slow` as
well. Of what is left to a test it takes `MOST` cases, spread from the first to the last.
"""

from collections import Counter
from itertools import combinations

__all__ = ["MOST", "chosen", "covering"]

MOST = 2
LEFT_OUT = {"fast": ("slow", "deep"), "usual": ("deep",), "all": ()}


def covering(cases):
    """Return the places of the cases that show each value of each parameter; each brings what is newest, or rarest.

    cases : of each one its values, hashable, a place each.
    """
    values = [set(enumerate(case)) for case in cases]
    pairs = [set(combinations(enumerate(case), 2)) for case in cases]
    missing, met, uses, kept = set().union(*values), set(), Counter(), []

    def worth(case):
        return len(values[case] & missing), len(pairs[case] - met), -sum(uses[value] for value in values[case]), -case

    while missing:
        best = max(range(len(cases)), key=worth)
        missing, met = missing - values[best], met | pairs[best]
        uses.update(values[best])
        kept.append(best)
    return sorted(kept)


def _values(item):
    """Return what a test was given: of each `parametrize` and each fixture the objects, as numbers."""
    left = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    found = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        found.append(tuple(id(left.pop(name)) for name in names if name in left))
    return (*found, *map(id, left.values()))


def chosen(items, size):
    """Return the tests of a run of this size ("fast", "usual", "all"), in their order."""
    items = [item for item in items if not any(map(item.get_closest_marker, LEFT_OUT[size]))]
    if size == "all":
        return items
    tests = {}
    for place, item in enumerate(items):
        tests.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(place)
    kept = set()
    for places in tests.values():
        taken = [places[case] for case in covering([_values(items[place]) for place in places])] or places[:1]
        if size == "fast" and len(taken) > MOST:
            taken = [taken[step * (len(taken) - 1) // (MOST - 1)] for step in range(MOST)]
        kept.update(taken)
    return [item for place, item in enumerate(items) if place in kept]
