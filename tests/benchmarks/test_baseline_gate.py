"""The gate of `make baseline`: which rows fall, which may, what it prints and writes; and what the
table must hold.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.baselines import measure
from benchmarks.baselines.gate import measure_case as attempt
from benchmarks.baselines.gate import run_gate as gate
from benchmarks.baselines.measure import _named, _options, find_subject
from benchmarks.baselines.measure import measure_case as measured
from benchmarks.baselines.table import (
    Case,
    Outcome,
    Row,
    compare_with_baseline,
    format_page,
    parse_page,
    update_rows,
)
from tests.each import check_each

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "results" / "baseline.md"
A, B, REAL = (
    Case("net", "venus"),
    Case("net", "generic", "--mode max-value"),
    Case("real/yunet", "venus"),
)
ROWS = [
    Row(A, "chip-ready", True),
    Row(A, "SQNR, dB", 30.0, 0.3),
    Row(B, "top-1, %", 90.0, 0.2),
]
SAME = {A: {"chip-ready": True, "SQNR, dB": 30.0}, B: {"top-1, %": 90.0}}


def outcomes(rows, found, absent=()):
    return [verdict.outcome for verdict in compare_with_baseline(rows, found, dict(absent))]


def run_gate(tmp_path, rows, found, absent=(), **options):
    """Run the gate on a page with these rows, with figures in place of measurements; return (exit
    code, the page).
    """
    path = tmp_path / "baseline.md"
    path.write_text(format_page("# Promises\n\n|\n\nThe end.\n", rows))
    code = gate(
        path,
        lambda cases: [(case, found[case], 1.0) for case in cases],
        dict(absent).get,
        **options,
    )
    return code, path.read_text()


# ---- the table -----------------------------------------------------------------------------------------------------


def test_a_page_is_read_as_it_was_written():
    """Law: the rows come back, and the prose around the table stays."""
    rows = [
        *ROWS,
        Row(REAL, "chip-ready", None),
        Row(REAL, "packs", False, 0, "was yes: the packer takes no cuts"),
    ]
    page = format_page("# Head\n\n|old|\n\nTail.\n", rows)
    assert parse_page(page) == rows
    assert page.startswith("# Head\n\n| model |")
    assert page.endswith("|\n\nTail.\n")
    assert format_page(page, parse_page(page)) == page


def test_a_damaged_page_is_refused():
    page = format_page("", ROWS)

    def check(change, message):
        assert change[0] in page
        with pytest.raises(ValueError, match=message):
            parse_page(page.replace(*change))

    cases = (
        (("| 30.00 |", "| much |"), "line 4 of the baseline table cannot be read"),
        (("| 0.3 |", "|"), "line 4 of the baseline table cannot be read"),
        (("| model |", "| name |"), "no table with the columns model, platform"),
        (("chip-ready | yes", "SQNR, dB | 3"), "two rows for net venus, SQNR, dB"),
    )
    check_each(check, cases)


# ---- what a measurement says ---------------------------------------------------------------------------------------


def test_a_number_may_move_within_its_tolerance():
    def check(value, outcome):
        found = {A: {"chip-ready": True, "SQNR, dB": value}, B: SAME[B]}
        assert outcomes(ROWS, found) == [Outcome.KEPT, outcome, Outcome.KEPT]

    kept = ((30.0, Outcome.KEPT), (29.75, Outcome.KEPT), (30.25, Outcome.KEPT))
    check_each(check, (*kept, (29.6, Outcome.WORSE), (30.4, Outcome.BETTER)))


def test_yes_must_stay_yes():
    no = {**SAME, A: {"chip-ready": False, "SQNR, dB": 30.0}}
    assert outcomes(ROWS, no)[0] is Outcome.WORSE
    assert outcomes([Row(A, "chip-ready", False)], {A: {"chip-ready": True}}) == [Outcome.BETTER]


def test_what_is_not_measured_is_not_kept():
    """A measure that is gone and a case that fails are failures; a case without its data could not
    run.
    """
    assert outcomes(ROWS, {**SAME, A: {"chip-ready": True}})[1] is Outcome.FAILED
    assert outcomes(ROWS, {**SAME, A: "ModelError: no"})[:2] == [Outcome.FAILED] * 2
    assert outcomes(ROWS, {A: SAME[A]}, {B: "there is no net.onnx"})[2] is Outcome.ABSENT


def test_a_new_measure_gets_a_row():
    """Behind the rows of its case, for --write to keep."""
    verdicts = compare_with_baseline(ROWS, {**SAME, A: {**SAME[A], "packs": True}}, {})
    assert [(v.row.measure, v.outcome) for v in verdicts][2] == ("packs", Outcome.NEW)
    assert update_rows(verdicts)[2] == Row(A, "packs", True)


def test_a_reason_lets_a_row_fall_once():
    """Law: the fall passes with a reason; --write notes what the value was, and the next fall needs
    a new reason.
    """
    row = Row(A, "SQNR, dB", 30.0, 0.3, "sums of 16 bits were wrong on the chip")
    (verdict,) = compare_with_baseline([row], {A: {"SQNR, dB": 25.0}}, {})
    assert verdict.outcome is Outcome.TRADED
    (after,) = update_rows([verdict])
    assert after == Row(
        A, "SQNR, dB", 25.0, 0.3, "was 30.00: sums of 16 bits were wrong on the chip"
    )
    assert outcomes([after], {A: {"SQNR, dB": 20.0}}) == [Outcome.WORSE]


def test_small_falls_do_not_add_up():
    """Law: a value within its tolerance is not taken over, a worse one never."""
    rows = ROWS
    for level in (29.8, 29.8, 29.0):
        rows = update_rows(
            compare_with_baseline(
                rows, {A: {"chip-ready": True, "SQNR, dB": level}, B: SAME[B]}, {}
            )
        )
    assert rows == ROWS


# ---- the gate ------------------------------------------------------------------------------------------------------


def test_all_is_kept(tmp_path, capsys):
    code, _ = run_gate(tmp_path, ROWS, SAME)
    assert code == 0
    assert "3 figures, 3 within tolerance" in capsys.readouterr().out


def test_the_gate_names_the_row_that_fell(tmp_path, capsys):
    """A net that was chip-ready and packs no longer, as once happened to one: exit code 1, and the
    row with its change.

    The same regression, seen from the table: it has a better value than what is measured.
    """
    rows = [
        Row(REAL, "chip-ready", True),
        Row(REAL, "packs", True),
        Row(REAL, "SQNR of obj_32, dB", 18.9, 0.3),
    ]
    found = {REAL: {"chip-ready": False, "packs": False, "SQNR of obj_32, dB": 18.9}}
    code, page = run_gate(tmp_path, rows, found, write=True)
    told = capsys.readouterr().out
    assert code == 1
    assert "WORSE: real/yunet venus, chip-ready: yes -> no" in told
    assert "WORSE: real/yunet venus, packs: yes -> no" in told
    assert "SQNR of obj_32, dB: 18.90 ->" not in told
    assert parse_page(page) == rows  # --write takes no fall over by itself


def test_a_traded_row_passes_and_is_written(tmp_path, capsys):
    rows = [Row(A, "SQNR, dB", 30.0, 0.3, "the chip was wrong"), *ROWS[2:]]
    code, page = run_gate(tmp_path, rows, {**SAME, A: {"SQNR, dB": 25.0}}, write=True)
    assert code == 0
    assert (
        "traded away: net venus, SQNR, dB: 30.00 -> 25.00 (the chip was wrong)"
        in capsys.readouterr().out
    )
    assert parse_page(page)[0].accepted_reason == "was 30.00: the chip was wrong"
    assert page.endswith("\nThe end.\n")


@pytest.mark.parametrize("reason", ("was 31.00: the chip was wrong", "was 31.00 before"))
def test_a_reason_allows_one_fall(tmp_path, capsys, reason):
    """A reason that already has the old value, in any wording, does not excuse the next fall."""
    rows = [Row(A, "SQNR, dB", 30.0, 0.3, reason), *ROWS[2:]]
    code, _ = run_gate(tmp_path, rows, {**SAME, A: {"SQNR, dB": 25.0}})
    assert code == 1
    assert "WORSE: net venus, SQNR, dB: 30.00 -> 25.00" in capsys.readouterr().out


@pytest.mark.parametrize("complete, code", ((False, 0), (True, 1)))
def test_a_row_that_could_not_run(tmp_path, capsys, complete, code):
    """It is listed; in continuous integration it is a failure."""
    absent = {B: "there is no net.onnx"}
    assert run_gate(tmp_path, ROWS, {A: SAME[A]}, absent, complete=complete)[0] == code
    assert (
        "could not run: net generic --mode max-value, top-1, %: there is no net.onnx"
        in capsys.readouterr().out
    )


def test_a_case_that_fails_hides_no_other(tmp_path, capsys):
    def broken(case):
        raise RuntimeError("first line\nsecond")

    case, why, _ = attempt(broken, A)
    assert (case, why) == (A, "RuntimeError: first line")
    assert run_gate(tmp_path, ROWS, {**SAME, A: why}, write=True) == (
        1,
        format_page("# Promises\n\n|\n\nThe end.\n", ROWS),
    )
    assert "FAILED: net venus, chip-ready: RuntimeError: first line" in capsys.readouterr().out


def test_only_some_rows(tmp_path, capsys):
    """Those of the cases that hold all texts; --write leaves the others as they are."""
    found = {A: {"chip-ready": True, "SQNR, dB": 33.0}}
    code, page = run_gate(tmp_path, ROWS, found, only=("net", "venus"), write=True)
    assert code == 0
    assert [row.value for row in parse_page(page)] == [True, 33.0, 90.0]
    assert "2 figures" in capsys.readouterr().out


def test_nothing_chosen_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no case of baseline\.md holds net and nowhere"):
        run_gate(tmp_path, ROWS, SAME, only=("net", "nowhere"))


@pytest.mark.parametrize("before", (True, False))
def test_two_judges_must_agree(tmp_path, capsys, before):
    """What is called chip-ready and does not pack is a failure, whatever the table says, and is
    never written.
    """
    rows = [Row(A, "chip-ready", before), Row(A, "packs", False)]
    code, page = run_gate(tmp_path, rows, {A: {"chip-ready": True, "packs": False}}, write=True)
    assert code == 1
    assert (
        "FAILED: net venus, chip-ready: called so, but the second judge says"
        in capsys.readouterr().out
    )
    assert parse_page(page) == rows


@pytest.mark.slow
def test_the_whole_gate_on_a_small_net(tmp_path):
    """As `make baseline` runs it, on one net: the table's values are measured; a better value there
    makes it fail.
    """
    path = tmp_path / "baseline.md"
    command = [
        sys.executable,
        "-m",
        "benchmarks.baselines",
        "--table",
        str(path),
        "--only",
        "digits_lstm",
        "arcs",
    ]
    rows = [row for row in parse_page(TABLE.read_text()) if row.case == Case("digits_lstm", "arcs")]
    better = [
        Row(r.case, r.measure, r.value + 1, r.tolerance) if r.measure == "SQNR, dB" else r
        for r in rows
    ]
    for given, code in ((rows, 0), (better, 1)):
        path.write_text(format_page("", given))
        done = subprocess.run(
            [*command, "--processes", "1"], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert ("WORSE: digits_lstm arcs, SQNR, dB" in done.stdout) == bool(code)


# ---- the table in docs/ --------------------------------------------------------------------------------------------


def test_every_case_of_the_table_can_run():
    """Each model of the table is known, each row was measured; the models of models/ are there on
    every platform.
    """
    rows = parse_page(TABLE.read_text())
    for case in {row.case for row in rows}:
        find_subject(case.model)
    assert [row for row in rows if row.value is None] == []
    values = {(row.case, row.measure): row.value for row in rows}
    assert [
        row
        for row in rows
        if row.measure == "chip-ready" and row.value and not values[row.case, "packs"]
    ] == []
    pairs = {(row.case.model, row.case.platform) for row in rows}
    own = {path.stem for path in (ROOT / "models").glob("*.onnx")}
    assert {(m, p) for m in own for p in ("generic", "venus", "arcs", "venusA")} <= pairs


def test_settings_are_those_of_quantize():
    """As on the command line: names with dashes, numbers, and inputs that are fixed."""
    assert _options("--mode max-value --limit 1000 --weight-bits 4 --fix sr=16000 --fix k=0.5") == {
        "mode": "max-value",
        "limit": 1000,
        "weight_bits": 4,
        "fix": {"sr": 16000.0, "k": 0.5},
    }
    assert _options("") == {}


def test_figures_of_public_models_get_names():
    """Every output's SQNR, but of a model with states only the first; what the float model gives is
    no promise.
    """
    figures = {
        "y": 30.0,
        "z": 20.0,
        "boxes kept, %": 99.0,
        "mean IoU": 0.9,
        "float boxes": 12,
        "float top-1, %": 55.0,
    }
    kept = {"boxes kept, %": 99.0, "mean IoU": 0.9, "SQNR of y, dB": 30.0}
    assert _named(figures, streams=True) == kept
    assert _named(figures, streams=False) == {**kept, "SQNR of z, dB": 20.0}


def test_what_is_not_here_is_missing(tmp_path, monkeypatch):
    """Without the folder beside the checkout: its models could not run, those of the repository
    can.
    """
    monkeypatch.setattr(measure, "SHARED", tmp_path)
    assert find_subject("real/yunet").find_missing_file == "there is no real_models.py"
    assert find_subject("resnet8").find_missing_file == "there is no mlperf_tiny_resnet8.onnx"
    assert find_subject("digits_cnn").find_missing_file == ""


def test_an_unknown_model_is_named():
    _, why, _ = attempt(measured, Case("nothing", "venus"))
    assert why == "ValueError: the baseline table has an unknown model 'nothing'"


# ---- what is claimed elsewhere -------------------------------------------------------------------------------------

#: What a row of the table of accuracy with defaults begins with -> the model's name in the table of promises.
NAMED = {
    "MLPerf Tiny ResNet-8": "resnet8",
    "ResNet-20": "resnet_bn",
    "MobileNetV2, ReLU6": "mobilenetv2",
    "MobileNetV2, channels": "mobilenetv2_uneven",
    "DS-CNN": "dscnn",
    "LSTM": "lstm",
    "GRU": "gru",
    "attention": "attention",
    "MLPerf Tiny visual": "vww",
    "MLPerf Tiny keyword": "kws",
    "MLPerf Tiny anomaly": "ad",
    "digits CNN": "digits_cnn",
}
TRAINED_FIRST = "two bidirectional LSTMs"  # by its script, in ten minutes: no row of the gate
PUBLIC = {
    "faces (RFB": "rfb",
    "faces (YuNet": "yunet",
    "file types": "magika",
    "voice": "silero",
    "noise": "dtln2",
    "speech enh": "gtcrn",
    "digits": "mnist",
    "detection": "nanodet",
    "text recog": "text",
    "text turned": "angle",
    "speech qual": "dnsmos",
    "pitch": "swift",
    "gestures": "gesture",
}


@functools.cache
def table_rows():
    """Read the rows of the table of promises, once."""
    return tuple(parse_page(TABLE.read_text()))


def cells(page, head):
    """Yield the rows of the first table of a page whose head begins so."""
    lines = iter(
        (ROOT / page).read_text(encoding="utf-8").partition(f"\n| {head} |")[2].splitlines()[2:]
    )
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def claimed(text):
    """Return the figures of a text with their units; those of the float model are no promise."""
    text = re.sub(r"float \d+(\.\d+)? %", "", text).replace("mean IoU 0", "IoU 0")
    return [(number, unit) for number, unit in re.findall(r"(\d+(?:\.\d+)?) (%|dB)", text)] + [
        (number, "IoU") for number in re.findall(r"IoU (\d+\.\d+)", text)
    ]


def not_promised(model, platform, text):
    """Return the claimed figures that no row of a model has, rounded as they are; the least figure
    of several rows.
    """
    rows = [row for row in table_rows() if (row.case.model, row.case.platform) == (model, platform)]
    assert rows, (model, platform)
    values = [(float(row.value), row.measure) for row in rows]
    return [
        f"{model} {platform}: {number} {unit}"
        for number, unit in claimed(text)
        if not any(
            unit in m and abs(v - float(number)) <= 0.51 * 10.0 ** -len(number.partition(".")[2])
            for v, m in values
        )
    ]


def test_defaults_claim_what_is_promised():
    """Each figure of its table of accuracy is a row's value, rounded."""
    rows = list(cells("benchmarks/results/accuracy.md", "model | data"))
    assert len(rows) == len(NAMED) + 1
    wrong = []
    for name, _, _, venus, generic in rows:
        if not name.startswith(TRAINED_FIRST):
            (model,) = [own for begins, own in NAMED.items() if name.startswith(begins)]
            wrong += not_promised(model, "venus", venus) + not_promised(model, "generic", generic)
    assert wrong == []


def test_accuracy_claims_what_is_promised():
    """The same for the figures that benchmarks/results/accuracy.md has for the defaults on venus."""
    rows = list(cells("benchmarks/results/accuracy.md", "model | float | fast"))
    names = (
        "resnet8",
        "resnet_bn",
        "mobilenetv2",
        "mobilenetv2_uneven",
        "dscnn",
        "vww",
        "kws",
        "ad",
    )
    wrong = []
    for name, (*_, normal) in zip(names, rows, strict=True):
        unit = "dB" if name in ("vww", "kws", "ad") else "%"
        wrong += not_promised(name, "venus", f"{normal} {unit}")
    assert wrong == []


def test_real_models_claims_what_is_promised():
    """The same for benchmarks/results/real-models.md; a row of several platforms holds on each."""
    wrong, name = [], ""
    for label, _, platforms, result, macs in cells("benchmarks/results/real-models.md", "model"):
        name = next((own for begins, own in PUBLIC.items() if label.startswith(begins)), name)
        assert name
        for platform in platforms.split(", "):
            figures = result if "behind" in macs else f"{result}, {macs}"
            wrong += not_promised(f"real/{name}", platform, figures)
            if result.startswith("chip-ready"):
                wrong += [
                    str(r)
                    for r in table_rows()
                    if r.value is False
                    and (r.case.model, r.case.platform) == (f"real/{name}", platform)
                ]
    assert wrong == []
