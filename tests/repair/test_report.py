"""What a repair says: kinds of findings apart, scales as people read them, JSON without
infinities.
"""

import json
import math

import pytest

from lingeronnx.interchange.repair.report import Edit, RepairFinding, RepairReport, format_scale


@pytest.mark.parametrize(
    "scale, text",
    [
        (8.0, "2^3"),
        (0.5, "2^-1"),
        (1, "2^0"),
        (0.3, "0.3"),
        (1 / 3, "0.333333"),
        (None, "none"),
        (math.inf, "inf"),
    ],
)
def test_scales_are_powers_of_two_where_they_are(scale, text):
    assert format_scale(scale) == text


def test_findings_are_sorted_by_what_becomes_of_them():
    levels = ("note", "wrong", "fatal", "wrong")
    report = RepairReport(
        [RepairFinding("dequants", f"text {i}", level=level) for i, level in enumerate(levels)]
    )
    assert [f.text for f in report.notes] == ["text 0"]
    assert [f.text for f in report.wrong] == ["text 1", "text 3"]
    assert [f.text for f in report.fatal] == ["text 2"]
    lines = report.lines()
    assert lines[0] == "found 2 problems:"
    assert "1 problem cannot be repaired:" in lines
    assert lines[-1] == "note: text 0"


def test_edits_are_told_as_done_or_planned_unless_something_is_fatal():
    edit = Edit("dequants", "insert", "a Dequant behind 'x'", after=16.0)
    report = RepairReport([RepairFinding("dequants", "wrong here")], [edit])
    assert "1 edit applied:" in report.lines()
    assert "1 edit planned:" in report.lines(planned=True)
    assert "  insert   a Dequant behind 'x', scale_o 2^4" in report.lines()
    report.findings.append(RepairFinding("dequants", "lost", level="fatal"))
    assert not any(line.endswith("applied:") for line in report.lines())
    assert RepairReport().lines() == ["no problems found"]


def test_reports_are_json_whatever_scale_stands_there():
    finding = RepairFinding("dequants", "strange", before=math.inf, after=math.nan)
    said = json.loads(
        json.dumps(
            RepairReport([finding], [Edit("dequants", "drop", "it")]).to_dict(), allow_nan=False
        )
    )
    assert (said["findings"][0]["before"], said["findings"][0]["after"]) == ("inf", "nan")
    assert said["edits"][0]["action"] == "drop"
    assert "edits" not in said["findings"][0]
