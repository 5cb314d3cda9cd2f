"""How many cases a test runs in each tier: fewer random examples and types in `make test`.

`LINGERONNX_TESTS` is the tier: "fast" (`make test`), "slow" (`make test-slow`) or "all" (if it is
not set). `LINGERONNX_EXAMPLES` multiplies the number of random examples. `tests/selection.py`
chooses the cases.
"""

import os

import pytest
from hypothesis import settings

TIER = os.environ.get("LINGERONNX_TESTS", "all")
_FACTOR = int(os.environ.get("LINGERONNX_EXAMPLES", "1"))
_DIVISOR = 4 if TIER == "fast" else 1


def limit_examples(count, **options):
    """Make Hypothesis settings with `count` examples and without a time limit: a loaded machine is
    no error.
    """
    return settings(max_examples=-(-count * _FACTOR // _DIVISOR), deadline=None, **options)


def mark_rest_slow(count, values):
    """Turn values into parameters of a test of which the fast tier takes the first `count` only."""
    values = list(values)
    others = [value if isinstance(value, tuple) else (value,) for value in values[count:]]
    return [*values[:count], *(pytest.param(*value, marks=pytest.mark.slow) for value in others)]


def choose_fast_subset(count, values):
    """Return the values that a random draw chooses from; in the fast tier the first `count` only.

    Meant for number types: each further one compiles a kernel.
    """
    return values[:count] if TIER == "fast" else values


def pair_in_rotation(values, others):
    """Pair each value with one of the others in turn, marked slow; the remaining pairs are marked
    deep.

    For a property of the values that depends little on the others, such as chips.
    """
    others = list(others)
    return [
        pytest.param(
            value,
            other,
            marks=pytest.mark.slow if turn == place % len(others) else pytest.mark.deep,
        )
        for place, value in enumerate(values)
        for turn, other in enumerate(others)
    ]
