"""What the journal of a search holds of an attempt: read back as written, and what is damaged is not believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.errors import DataError
from lingeronnx.search.cost import AttemptCost
from lingeronnx.search.goal import Measured
from lingeronnx.search.records import cost_in, is_whole, record_of

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
    record = json.loads(json.dumps({"attempt": {}, "seconds": 1.0, **record_of(Measured(value, 0.0), cost, ready)}))
    assert is_whole(record, labels=False)
    assert not is_whole(record, labels=True)  # the float model's value is not there
    assert (cost_in(record), record["value"], record["ready"]) == (cost, value, ready)


WHOLE = {"attempt": {}, "seconds": 1.0, **record_of(Measured(1.0, 0.0, 2.0), AttemptCost(3, {"8x8": 1}), ready=True)}


@pytest.mark.parametrize(
    "damage",
    (
        {"flash": -1}, {"flash": 1.5}, {"flash": "1"}, {"cycles": "1"}, {"bytes": 10**400}, {"bytes": None},
        {"macs": {"8x8": -1}}, {"macs": 3}, {"ready": None}, {"value": "1"}, {"float": None}, {"seconds": float("inf")},
        {"attempt": 1}, {"why": 1},
    ),
)  # fmt: skip
def test_a_damaged_record_is_none(damage):
    assert is_whole(WHOLE, labels=True)
    assert not is_whole({**WHOLE, **damage}, labels=True)


def test_widths_that_are_none_are_told():
    with pytest.raises(DataError, match="names no widths"):
        cost_in({**WHOLE, "macs": {"8 by 8": 1}})
