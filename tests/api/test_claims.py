"""Words such as "correct", "same integers", "exact" and "proved" stand on results of checks: without
the result the words are not there. docs/explanation/reliability.md says what each of them means.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.analysis.check.page import render_check_section
from lingeronnx.api.report_page import _list_facts
from lingeronnx.cli.report import _readiness_rows
from lingeronnx.deployment.c_program.proof import Proof
from lingeronnx.interchange.qdq.exact.exact_file import ExactFile
from lingeronnx.interchange.qdq.exact.verification import MatchCount
from lingeronnx.ir import ir
from lingeronnx.luna.evaluation import NodeLimitChecker
from lingeronnx.luna.packer.assumptions import UNMEASURED_RULES, is_unmeasured, unmeasured
from lingeronnx.quantization.report import candidate, format_findings, format_rewrites
from lingeronnx.targets import AppliedRewrite, Verdict, VerdictFinding, get_target
from lingeronnx.targets.latency import CycleSavings
from tests import nets

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models" / "digits_cnn.onnx"
CALIB = ROOT / "models" / "digits_calib.npz"


def make_finding(level, basis="measured"):
    return VerdictFinding(level, "n", "a rule", "a value", "a remedy", basis)


@pytest.fixture(scope="module")
def digits():
    return lo.quantize(DIGITS, CALIB, platform="arcs", effort="fast")


# ---- verdicts on a graph for a chip ----------------------------------------------------------------


def test_correct_stands_on_measured_rules():
    measured = Verdict(True, True, ())
    assert measured.basis == "computed"
    assert measured.format_outcome() == "it packs and is correct by measured rules"
    assumed = replace(measured, assumptions=(make_finding("unmeasured"),))
    assert assumed.basis == "assumed"
    assert assumed.is_chip_ready
    assert "is correct" not in assumed.format_outcome().replace("that it is correct is assumed", "")
    assert "hardware" not in assumed.assumption_summary
    wrong = Verdict(True, False, (make_finding("right"),))
    assert wrong.format_outcome() == "it packs, but the executor computes other integers"
    assert (Verdict(False, False, ()).basis, wrong.basis) == ("", "")


def test_wrong_stands_on_a_measured_rule():
    read = Verdict(True, False, (make_finding("right", "read"),))
    assert "probably" in read.format_outcome()
    both = replace(read, findings=(*read.findings, make_finding("right")))
    assert "probably" not in both.format_outcome()
    lines = format_findings([*both.findings, make_finding("packs", "read"), make_finding("packs")])
    heads = [line.partition(": ")[0] for line in lines]
    assert heads == [
        "probably wrong on the chip (read, not measured)",
        "wrong on the chip",
        "the packer probably refuses (read, not measured)",
        "the packer refuses",
    ]


def test_findings_of_rules_that_were_read_say_so(monkeypatch):
    monkeypatch.setattr(
        "lingeronnx.luna.packer.assumptions.UNMEASURED_RULES", dict(UNMEASURED_RULES)
    )

    @unmeasured("a stride of three is wrong on all chips")
    def check_stride(level):
        yield make_finding(level)

    assert is_unmeasured(check_stride)
    assert [finding.basis for finding in check_stride("right")] == ["read"]
    assert not is_unmeasured(make_finding)


def test_a_limit_that_was_read_gives_such_a_finding(monkeypatch):
    module = "lingeronnx.luna.evaluation"

    def limit(node, target):
        """The number of inputs must be {own.name} | use another."""
        return "3"

    target = get_target("venus")
    monkeypatch.setattr(f"{module}.format_limit_rule", lambda *arguments: ("rule", "remedy"))
    monkeypatch.setattr(f"{module}.PACKER_LIMITS", {"Relu": (limit,)})
    monkeypatch.setattr(f"{module}.CORRECTNESS_LIMITS", {})
    relu = ir.node("Relu", [ir.Value(name="x")], name="n")
    for basis in ("measured", "read"):
        monkeypatch.setattr(f"{module}.is_unmeasured", lambda rule, basis=basis: basis == "read")
        (finding,) = NodeLimitChecker(target)._evaluate_limits(relu)
        assert finding.basis == basis


def test_chip_ready_disappears_with_its_basis(digits):
    report = digits.report
    assert (report.chip_ready, report.chip_ready_basis) == (True, "computed")
    for basis, text in (
        ("computed", "yes"),
        ("assumed", "assumed, not measured: see the note"),
        ("", "not judged"),
    ):
        changed = replace(report, chip_ready_basis=basis)
        assert ("chip-ready", text) in [row[:2] for row in _readiness_rows(changed, 4)]
        assert ("chip-ready", text) in _list_facts(changed)
        assert changed.to_dict()["chip_ready_basis"] == basis


def test_check_says_what_correct_stands_on(digits):
    found = lo.check(digits)
    assert (found.runs_right, found.basis) == (True, "computed")
    assert "yes, by measured rules" in render_check_section(found).html
    assert any(line.endswith("is correct by measured rules") for line in found.lines())
    verdict = replace(found.choice.verdict, assumptions=(make_finding("unmeasured"),))
    assumed = replace(found, choice=replace(found.choice, verdict=verdict))
    assert assumed.basis == assumed.to_dict()["basis"] == "assumed"
    assert "assumed, not measured" in render_check_section(assumed).html
    assert not any("is correct by" in line for line in assumed.lines())
    assert any("not measured on the vendor's executor" in line for line in assumed.lines())


# ---- rewrites --------------------------------------------------------------------------------------


def test_exact_is_said_of_compared_outputs_only():
    rewrite = AppliedRewrite("n", "two Relu", "exact; 4 % more products")
    (line,) = format_rewrites([rewrite])
    assert line == "n: two Relu (exact by construction; 4 % more products)"
    (line,) = format_rewrites([replace(rewrite, checked_samples=1)])
    assert line == "n: two Relu (exact; 4 % more products)"
    savings = CycleSavings(200, 100, "arcs")
    assert savings.summary == "before / after 200 / 100 (upper bounds)"
    checked = replace(savings, checked_samples=1)
    assert checked.summary == "before / after 200 / 100 (same integers; upper bounds)"


def test_rewrites_for_a_chip_are_compared(digits, monkeypatch):
    report = digits.report
    rewrites = [rewrite for rewrite in report.fitted if rewrite.cost.startswith("exact")]
    assert rewrites
    assert all(rewrite.checked_samples == 1 for rewrite in rewrites)
    assert report.saved.checked_samples == 1
    nothing = candidate.IntegerCheck()
    monkeypatch.setattr(candidate.BackendPasses, "check_integers", lambda self: nothing)
    unchecked = lo.quantize(DIGITS, CALIB, platform="arcs", effort="fast").report
    assert "same integers" not in unchecked.saved.summary
    assert "exact by construction" in " ".join(format_rewrites(unchecked.fitted))


def test_a_rewrite_that_changes_integers_is_a_warning(monkeypatch):
    target = type(get_target("arcs"))
    run_passes = target.run_backend_passes

    def break_bias(self, graph):
        graph, rewrites = run_passes(self, graph)
        for name, value in graph.graph.initializers.items():
            array = ir.const_value(value)
            if array.dtype == np.int32 and array.ndim == 1:
                value.const_value = ir.tensor(array + 100000, name=name)
        return graph, rewrites

    monkeypatch.setattr(target, "run_backend_passes", break_bias)
    report = lo.quantize(DIGITS, CALIB, platform="arcs", effort="fast").report
    assert report.warnings[0].startswith("rewrites for the chip changed the values of output")
    assert report.saved.checked_samples == 0


def test_rewrites_of_the_float_graph_are_compared():
    net = nets.Net(3, 9, 9)
    model = net.graph(net.conv("x", (4, 3, 1, 1), strides=[2, 2], out="y"))
    x = nets.samples(model, 4)
    fitted = lo.quantize(model, x, platform="venus", effort="fast").report.fitted
    assert [(rewrite.cost[:5], rewrite.checked_samples) for rewrite in fitted] == [("exact", 1)]
    fitted = lo.check(model, platform="venus").fitted
    assert all("exact by construction" in rewrite.cost_text for rewrite in fitted)


# ---- programs and standard graphs ------------------------------------------------------------------

CLAIMS = {
    "chip_values": "bit-equal to the simulator's",
    "host_values": "of onnxruntime",
    "output_values": "bit-equal to a session",
    "known_answers": "known-answer test passes",
}


def test_a_program_claims_what_was_compared():
    full = Proof(calls=3, chip_values=7, host_values=5, output_values=2, known_answers=True)
    for claim in CLAIMS.values():
        assert claim in full.lines()[0]
    for name, claim in CLAIMS.items():
        text = replace(full, **{name: 0}).lines()[0]
        assert claim not in text
        assert all(other in text for other in CLAIMS.values() if other != claim)
        assert name in full.to_dict()
    assert Proof().lines() == ["tried on a PC, 0 calls: nothing was compared"]
    failed = replace(full, failed=["chip1 did not run"]).lines()
    assert failed == ["tried on a PC, 3 calls: chip1 did not run"]


@pytest.fixture(scope="module")
def exact():
    net = nets.Net(4, 6, 6)
    model = net.graph(net.conv("x", (4, 4, 3, 3), out="y"))
    return ExactFile(lo.quantize(model, nets.samples(model, 8), effort="fast").graph, False)


def test_proved_stands_on_a_bound_for_every_sum(exact):
    def find(word):
        return [line for line in exact.lines() if word in line]

    assert len(find("proved to change nothing else")) == 1
    assert len(find("bit for bit")) == 1
    written, compared = exact.written, exact.compared
    exact.written = replace(written, sum_bounds={})
    assert not find("proved")
    exact.written, exact.compared = written, {"like calibration data": MatchCount(15, 16)}
    assert not find("proved")
    assert find("deviates from the bounds")
    exact.compared = {}
    assert not find("bit for bit")
    exact.compared = compared


# ---- words of messages -----------------------------------------------------------------------------


def test_the_report_has_the_fields_of_its_claims(digits):
    body = json.loads(json.dumps(digits.report.to_dict(), default=str))
    assert {"chip_ready_basis", "fitted", "cycles"} <= set(body)
    assert all("checked_samples" in rewrite for rewrite in [*body["fitted"], body["cycles"]])
    assert all("basis" in finding for finding in body["findings"])
