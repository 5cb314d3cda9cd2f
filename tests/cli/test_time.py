"""The time on the chip as commands show it: check, quantize, deploy; clock, budget, chips of which
nothing is known.
"""

import json
import re
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from tests.cli.helpers import GAP, write_model
from tests.each import check_each

QUANTIZE = (
    "quantize",
    "tiny.onnx",
    "--calib",
    "calib.npz",
    "--platform",
    "arcs",
    "--effort",
    "fast",
)


def test_check_foretells_what_quantize_then_says(here):
    """The same cycles in check before calibration, in quantize, in check of its file and in
    lo.latency.
    """
    before = here.json("check", "tiny.onnx", "--platform", "arcs")["time"]
    made = here.json(*QUANTIZE, "--clock", "100")["time"]
    after = here.json("check", "tiny_quant.onnx", "--clock", "100")["time"]
    assert before["cycles"]["total"] == pytest.approx(made["cycles"]["total"], rel=0.1)
    assert made == after
    assert made["cycles"] == json.loads(json.dumps(lo.latency("tiny_quant.onnx").to_dict()))
    assert made["milliseconds"]["total"] == pytest.approx(made["cycles"]["total"] / 1e5)
    assert before["milliseconds"] is None
    assert sum(layer["cycles"] for layer in made["cycles"]["layers"]) == made["cycles"]["luna"]
    shown = here.run_ok("check", "tiny_quant.onnx", "--clock", "100")
    assert f"{made['cycles']['total']:,.0f} (at most " in shown
    assert " ms at 100 MHz: " in shown
    assert shown.split("cost on the chip:")[1].split("\n")[1].rstrip().endswith("cycles")


def test_too_slow_is_a_finding(here):
    """check ends with 1 and says it first; quantize tells it, and with --require-chip fails and
    writes nothing.
    """
    slow = ("--clock", "100", "--budget-ms", "0.001")
    told = here(*QUANTIZE, *slow)
    assert told.exit_code == 0
    assert "too slow" in told.stdout
    body = here.json(*QUANTIZE, *slow)
    assert [f["level"] for f in body["findings"]] == ["time"]
    assert (body["chip_ready"], body["why_not"]) == (True, [])
    checked = here("check", "tiny_quant.onnx", *slow)
    assert checked.exit_code == 1
    assert checked.stdout.splitlines()[0] == "arcs: too slow"
    assert checked.stdout.splitlines()[1].startswith("too slow: ")
    assert "latency must not exceed 0.001 ms at 100 MHz; here " in checked.stdout
    (here.folder / "tiny_quant.onnx").unlink()
    before = here.files()
    failed = here(*QUANTIZE, *slow, "--require-chip")
    assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1)
    assert failed.stderr.startswith("error: too slow: ")
    assert here.files() == before
    assert here(*QUANTIZE, "--clock", "100", "--budget-ms", "100", "--require-chip").exit_code == 0


def test_nothing_is_made_up_for_a_chip_that_nobody_has_published(here):
    """Said plainly, in words and as JSON; a budget is refused before any work."""
    plain = ("quantize", "tiny.onnx", "--calib", "calib.npz", "--effort", "fast", "--platform")
    for platform in ("venus", "venusA"):
        body = here.json(*plain, platform, "--clock", "100")
        assert body["time"]["cycles"] is None
        assert body["time"]["unknown"].startswith(f"no published timing data for {platform}")
        assert f"no published timing data for {platform}" in here.run_ok("check", "tiny_quant.onnx")
        failed = here(*plain, platform, "--clock", "100", "--budget-ms", "5")
        assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1)
        assert f"no published timing data for {platform}" in failed.stderr
    body = here.json(*plain, "generic")
    assert (body["time"]["cycles"], body["time"]["unknown"]) == (None, "")


def test_the_parts_of_a_program_are_added(here):
    """A float operator cuts the chip's work in two: the whole is the sum of both files, the host's
    part is apart.
    """
    write_model(here.folder / "gap.onnx", GAP)
    body = here.json(
        "quantize", "gap.onnx", "--calib", "calib.npz", "--platform", "arcs", "--effort", "fast"
    )
    parts = [lo.latency(here.folder / path) for path in body["chip_parts"]]
    assert len(parts) == 2
    assert body["time"]["cycles"]["total"] == pytest.approx(sum(part.total for part in parts))
    assert lo.latency("gap_quant.onnx").total == pytest.approx(body["time"]["cycles"]["total"])
    checked = here("check", "gap_quant.onnx")
    assert checked.exit_code == 1  # a float operator between integers
    assert "host time not included" in checked.stdout


def test_a_layer_in_another_form_keeps_its_name(here):
    """By default, with the same numbers; --objective plain leaves it as it was; later commands find
    it.
    """
    made = {}
    for objective in ("plain", "accuracy"):
        body = here.json(*QUANTIZE, "--objective", objective)
        nodes = {node.name: node.op_type for node in onnx.load("tiny_quant.onnx").graph.node}
        feed = {"x": np.load("calib.npz")["x"]}
        made[objective] = (body, nodes["fc"], lo.Session("tiny_quant.onnx").run(None, feed))
    plain, default = made["plain"], made["accuracy"]
    assert (plain[1], default[1]) == ("LinearInt", "Conv2dInt")
    assert plain[0]["cycles"] is None
    assert default[0]["cycles"]["after"] < default[0]["cycles"]["before"]
    assert default[0]["time"]["cycles"]["high"] < plain[0]["time"]["cycles"]["high"]
    np.testing.assert_array_equal(default[2][0], plain[2][0])
    assert "before / after" in here.run_ok(*QUANTIZE)
    here.run_ok("compare", "tiny.onnx", "tiny_quant.onnx", "--data", "calib.npz", "-o", "compared")
    assert ",fc,fc," in (here.folder / "compared" / "compare_per_layer_out.csv").read_text()


def test_parts_whose_forms_stay_count_with_their_time(here):
    """A form is chosen behind the float operator alone: before and after are still those of both
    parts.
    """
    between = GAP.replace("float[N, 2, 4, 4] y", "float[N, 3] y").replace(
        "y = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(e, w, b)",
        (
            "p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(e) f = Flatten(p) y = Gemm<transB=1>(f, "
            "v, d)"
        ),
    )
    write_model(here.folder / "gap.onnx", between)
    body = here.json(
        "quantize", "gap.onnx", "--calib", "calib.npz", "--platform", "arcs", "--effort", "fast"
    )
    assert len(body["chip_parts"]) == 2
    assert body["cycles"]["after"] == pytest.approx(body["time"]["cycles"]["high"], abs=2)
    assert body["cycles"]["before"] > body["cycles"]["after"]


def test_the_readme_of_a_deployed_folder_has_the_time(here):
    """Cycles, milliseconds, the layers; too slow is refused before anything is written."""
    here.run_ok(*QUANTIZE)
    here.run_ok(
        "deploy",
        "tiny_quant.onnx",
        "--input",
        "calib.npz",
        "-o",
        "board",
        "--clock",
        "100",
        "--budget-ms",
        "9",
    )
    text = (here.folder / "board" / "DETAILS.md").read_text()
    assert "## Time on the chip" in text
    assert " ms at 100 MHz" in text
    assert "| layer | operator | cycles | at most | waits for constants |" in text
    words = (
        "deploy",
        "tiny_quant.onnx",
        "--input",
        "calib.npz",
        "-o",
        "slow",
        "--clock",
        "100",
        "--budget-ms",
        "1e-4",
    )
    failed = here(*words)
    assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1)
    assert failed.stderr.startswith("error: too slow: ")
    assert not (here.folder / "slow").exists()


def test_pages_have_the_cycles(here):
    """A picture of check, a column of compare's page and of the search's."""
    here.run_ok(*QUANTIZE)
    layers = {layer.node: layer.total_cycles for layer in lo.latency("tiny_quant.onnx").layers}
    here.run_ok("check", "tiny_quant.onnx", "-o", "found")
    drawn = (here.folder / "found" / "cycles.svg").read_text()
    texts = [node.text for node in ElementTree.fromstring(drawn) if node.tag.endswith("text")]
    for layer in lo.latency("tiny_quant.onnx").layers:
        assert f"{layer.operator} {layer.node}" in texts
        assert any(text.startswith(f"{layer.total_cycles:,.0f} (") for text in texts)
    here.run_ok("compare", "tiny.onnx", "tiny_quant.onnx", "--data", "calib.npz", "-o", "compared")
    page = (here.folder / "compared" / "profiler.html").read_text()
    rows = json.loads(
        re.search(r'<script[^>]* id="data-compare">(.*?)</script>', page, re.DOTALL)[1]
    )["rows"]
    shown = {row["place"]: row["cycles"] for row in rows if row["cycles"] is not None}
    assert [n for place, n in shown.items() if place.endswith(" pool")] == [layers["pool"]]
    assert sum(shown.values()) == pytest.approx(sum(layers.values()))
    wish = ("--eval", "test.npz", "--max-drop", "5", "--json")
    trials = json.loads(here(*QUANTIZE, *wish).stdout)["search"]["trials"]
    assert trials[0]["cycles"] == pytest.approx(sum(layers.values()))
    found = (here.folder / "tiny_quant_search.html").read_text()
    assert re.search(r"<th[^>]*>cycles</th>", found)
    assert re.search(rf"<td[^>]*>{trials[0]['cycles']:,.0f}</td>", found)


def test_what_cannot_be_asked_is_one_line(here):
    """Before any work, nothing is written."""
    before = here.files()

    def check(options, message):
        failed = here(*QUANTIZE, *options)
        assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1)
        assert message in failed.stderr
        assert here.files() == before

    cases = [
        (("--budget-ms", "1"), "no clock is published"),
        (("--clock", "0"), "clock = 0.0"),
        (("--clock", "nan"), "clock = nan"),
        (("--timing", "tiny.onnx"), "the timing file tiny.onnx: Invalid JSON"),
        (("--timing", "gone.json"), "cannot read the timing file gone.json"),
    ]
    check_each(check, cases)
