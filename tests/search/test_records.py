"""What the journal of a search holds of an attempt: read back as written, and what is damaged is
not believed.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.common.errors import DataError
from lingeronnx.search.cost import AttemptCost
from lingeronnx.search.goal import Measurement
from lingeronnx.search.records import is_complete, make_record, parse_cost

COUNTS = st.integers(0, 10**9)


@given(
    st.floats(-100, 100),
    st.tuples(
        COUNTS,
        st.dictionaries(st.sampled_from(["8x8", "8x4", "float"]), COUNTS),
        st.none() | st.floats(0, 1e9),
        st.none() | COUNTS,
    ),
    st.booleans(),
)
def test_a_record_comes_back(value, costs, ready):
    """Law: by way of JSON, the cost and what was measured."""
    cost = AttemptCost(*costs)
    record = json.loads(
        json.dumps(
            {"attempt": {}, "seconds": 1.0, **make_record(Measurement(value, 0.0), cost, ready)}
        )
    )
    assert is_complete(record, labels=False)
    assert not is_complete(record, labels=True)  # the float model's value is not there
    assert (parse_cost(record), record["value"], record["ready"]) == (cost, value, ready)


WHOLE = {
    "attempt": {},
    "seconds": 1.0,
    **make_record(Measurement(1.0, 0.0, 2.0), AttemptCost(3, {"8x8": 1}), ready=True),
}


@pytest.mark.parametrize(
    "damage",
    (
        {"flash": -1},
        {"flash": 1.5},
        {"flash": "1"},
        {"cycles": "1"},
        {"bytes": 10**400},
        {"bytes": None},
        {"macs": {"8x8": -1}},
        {"macs": 3},
        {"ready": None},
        {"value": "1"},
        {"float": None},
        {"seconds": float("inf")},
        {"attempt": 1},
        {"why": 1},
    ),
)
def test_a_damaged_record_is_none(damage):
    assert is_complete(WHOLE, labels=True)
    assert not is_complete({**WHOLE, **damage}, labels=True)


def test_widths_that_are_none_are_told():
    with pytest.raises(DataError, match="'macs' has invalid widths"):
        parse_cost({**WHOLE, "macs": {"8 by 8": 1}})
