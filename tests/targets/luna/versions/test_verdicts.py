"""What check says of the measured graphs of each version, and the planned shared memory.

A graph that packs, runs and follows the formula is accepted; one that does not pack is refused; one
that does not run, whose outputs differ from the formula or depend on old memory, is called wrong.
"""

import json

import pytest

from benchmarks.version_agreement import ROWS as FOLDER
from benchmarks.version_agreement import (
    format_answer,
    get_expected_answer,
    has_measured_plan,
    judge_row,
)

ROWS = json.loads((FOLDER / "index.json").read_text())


def judge(row):
    return judge_row(FOLDER, row)


def test_the_set_has_rows_of_every_kind():
    counts = dict.fromkeys(("refused", "wrong", "right"), 0)
    for row in ROWS:
        counts[get_expected_answer(row)] += 1
    assert counts == {"refused": 26, "wrong": 66, "right": 194}


@pytest.mark.parametrize("status", ["measured", "rewritten"])
def test_every_row_gets_the_verdict_of_its_version(status):
    different = {}
    for row in ROWS:
        if row["status"] == status:
            verdict = judge(row)
            expected, answer = get_expected_answer(row), format_answer(verdict)
            if answer != expected:
                different[row["name"]] = expected, answer, [str(f) for f in verdict.findings]
    assert different == {}


def test_planned_shared_memory_is_the_measured_one():
    different = {}
    for row in ROWS:
        if row.get("plan"):
            verdict = judge(row)
            if not has_measured_plan(row, verdict):
                different[row["name"]] = verdict.memory_plan, row["plan"][1]
    assert different == {}


def test_every_wrong_row_names_a_rule_with_its_value():
    for row in ROWS:
        if get_expected_answer(row) == "wrong":
            findings = [f for f in judge(row).findings if f.level == "right"]
            assert findings, row["name"]
            assert all(f.rule and f.value and f.remedy for f in findings), row["name"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("avg_venus_v310_k2_6_4", "avgpool-scale"),
        ("avg_venusA_v310_k3_4_6", "avgpool-scale"),
        ("div_venusA_v304", "div-scale"),
        ("div_venusA_v310", "div-stops"),
        ("iqcat_venusA_v308_5_4_3", "cat-scale"),
        ("iqmul_venusA_v308_same", "mul-stops"),
        ("gru_venusA_nohist_v310", "gru-state"),
        ("gru_venus_hist_v310", "gru-first-state"),
        ("lstm_venus_v310_T3", "lstm-cell"),
        ("iqsigmoid_arcs_v2608_32_q27", "sigmoid-stops"),
    ],
)
def test_a_known_fault_is_named(name, fault):
    (row,) = [row for row in ROWS if row["name"] == name]
    assert any(f"known fault {fault}:" in finding.rule for finding in judge(row).findings)


def test_rules_of_the_read_version_say_that_they_were_read():
    for row in ROWS:
        if row["status"] == "rewritten" and not row["packs"]:
            findings = [f for f in judge(row).findings if f.level == "packs"]
            assert {finding.basis for finding in findings} == {"read"}, row["name"]
