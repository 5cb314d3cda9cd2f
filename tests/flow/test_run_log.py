"""The log of a quantization: verdicts as JSON, steps with their time and verdicts."""

import json
import logging
import math

import pytest

import lingeronnx as lo
from lingeronnx.quantization.run_log import LOGGER, RunLog, VerdictRecord, format_steps
from tests import nets
from tests.flow.trials.test_cross_validation import classifier


def test_a_verdict_is_logged_as_json(caplog):
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        VerdictRecord(
            "ends", "tail", False, {"some_db": 3.0}, {"gain_db": 1 / 3, "error_db": math.inf}
        ).log()
    (record,) = map(json.loads, caplog.messages)
    assert record == {
        "trial": "ends",
        "label": "tail",
        "accepted": False,
        "criterion": {"some_db": 3.0},
        "measured": {"gain_db": 0.333333333, "error_db": "inf"},
    }


def test_nothing_is_logged_by_default(caplog):
    VerdictRecord("ends", "", True, {}, {}).log()
    assert not caplog.messages


def test_steps_are_formatted_with_what_they_changed():
    log = RunLog()
    with log.step("plan") as step:
        step.changes.append("3 tensors with scales")
        with log.step("stages") as trial:
            trial.verdicts.append(
                VerdictRecord("stages", "no transforms", True, {"mean_db": 0.2}, {"gain_db": 1.5})
            )
    for step in log.steps:
        step.seconds = 0.25
    assert format_steps(log.steps).splitlines() == [
        "    0.25 s  plan",
        "            3 tensors with scales",
        "    0.25 s    stages",
        "              no transforms: kept; gain_db 1.50 (criterion: mean_db 0.2)",
    ]


def test_a_failing_step_is_recorded():
    log = RunLog()
    with pytest.raises(ZeroDivisionError), log.step("plan"):
        raise ZeroDivisionError
    with log.step("next"):
        pass
    assert [(step.name, step.depth) for step in log.steps] == [("plan", 0), ("next", 0)]


def test_trials_log_their_verdicts(caplog):
    """On a net of random weights: refinement is judged, and each verdict says by which
    thresholds.
    """
    model = classifier()
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        result = lo.quantize(model, nets.samples(model, 16), platform="venus", effort="best")
    records = list(map(json.loads, caplog.messages))
    verdicts = [verdict for step in result.steps for verdict in step.verdicts]
    assert sorted(record["label"] for record in records) == sorted(v.label for v in verdicts)
    assert {"methods", "stages"} <= {record["trial"] for record in records}
    for record in records:
        assert record["criterion"]
        assert record["measured"]
        if record["trial"] == "methods" and record["accepted"] and "mean_db" in record["criterion"]:
            assert record["measured"]["gain_db"] >= record["criterion"]["mean_db"]
