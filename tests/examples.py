"""How many cases a law is tried with: fewer in `make test-fast`, ten times as many random ones in `make test-all`.

`LINGERONNX_TESTS` is the size of a run: "fast", "usual" (`make test`) or "all" (when it is not set). `selection.py` has
the rule.
"""

import os

import pytest
from hypothesis import settings

SIZE = os.environ.get("LINGERONNX_TESTS", "all")
FACTOR = int(os.environ.get("LINGERONNX_EXAMPLES", "1"))
SHARE = 4 if SIZE == "fast" else 1  # of random cases, one in so many


def examples(count, **more):
    """Return settings with so many random examples, and no limit of time: a loaded machine is no error."""
    return settings(max_examples=-(-count * FACTOR // SHARE), deadline=None, **more)


def first(count, values):
    """Return the values as parameters of a test, of which `make test-fast` takes the first `count` alone."""
    values = list(values)
    rest = [v if isinstance(v, tuple) else (v,) for v in values[count:]]
    return [*values[:count], *(pytest.param(*v, marks=pytest.mark.slow) for v in rest)]


def some(count, values):
    """Return the values that a random draw chooses from; in `make test-fast` the first `count` alone.

    For types of numbers: each one more is compiled anew.
    """
    return values[:count] if SIZE == "fast" else values


def in_turn(values, others):
    """Return pairs as parameters of a slow test: each value with one of the others, which take turns; the rest is deep.

    For a law that speaks of the values, on others (chips) that differ little for it.
    """
    others = list(others)
    return [
        pytest.param(value, other, marks=pytest.mark.slow if turn == place % len(others) else pytest.mark.deep)
        for place, value in enumerate(values)
        for turn, other in enumerate(others)
    ]
