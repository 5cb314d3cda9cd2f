"""The log of verdicts: one JSON object for each, from the trials of a real run too."""

import json
import logging
import math

import lingeronnx as lo
from lingeronnx.flow.trials.verdict_log import LOGGER, log_verdict
from tests import nets
from tests.flow.trials.test_cross_validation import classifier


def test_a_verdict_is_logged_as_json(caplog):
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        accepted = log_verdict(
            "ends",
            False,
            criterion={"some_db": 3.0},
            measured={"gain_db": 1 / 3, "error_db": math.inf},
            label="tail",
        )
    assert accepted is False
    (record,) = map(json.loads, caplog.messages)
    assert record == {
        "trial": "ends",
        "label": "tail",
        "accepted": False,
        "criterion": {"some_db": 3.0},
        "measured": {"gain_db": 0.333333333, "error_db": "inf"},
    }


def test_nothing_is_logged_by_default(caplog):
    assert log_verdict("ends", True, criterion={}, measured={}) is True
    assert not caplog.messages


def test_trials_log_their_verdicts(caplog):
    """On a net of random weights: refinement is judged, and each verdict says by which
    thresholds.
    """
    model = classifier()
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        lo.quantize(model, nets.samples(model, 16), platform="venus", effort="best")
    records = list(map(json.loads, caplog.messages))
    assert {"methods", "stages"} <= {record["trial"] for record in records}
    for record in records:
        assert record["criterion"]
        assert record["measured"]
        if record["trial"] == "methods" and record["accepted"] and "mean_db" in record["criterion"]:
            assert record["measured"]["gain_db"] >= record["criterion"]["mean_db"]
