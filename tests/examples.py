"""How many cases a law is tried with: fewer in `make test-fast`, ten times as many random ones in `make test-all`."""

import os

import pytest
from hypothesis import settings

FACTOR = int(os.environ.get("LINGERONNX_EXAMPLES", "1"))


def examples(count, **more):
    """Return settings with so many random examples, and no limit of time: a loaded machine is no error."""
    return settings(max_examples=count * FACTOR, deadline=None, **more)


def first(count, values):
    """Return the values as parameters of a test, of which `make test-fast` takes the first `count` alone."""
    values = list(values)
    rest = [v if isinstance(v, tuple) else (v,) for v in values[count:]]
    return [*values[:count], *(pytest.param(*v, marks=pytest.mark.slow) for v in rest)]


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
