"""The command `profile-board` on real files, and what --timing makes of its file afterwards."""

import json
import re

from lingeronnx.quantization.json_schemas import make_json_schema
from tests.flow.test_json_schemas import faults
from tests.targets.luna.test_board_log import board


def test_profile_board(quant):
    """A chip of which nothing is published gets cycles, in check, quantize, trace and the rest."""
    import lingeronnx as lo

    (quant.folder / "board.log").write_text(
        "\n".join(board(lo.Session("tiny_quant.onnx").model, "venus"))
    )
    words = (
        "profile-board",
        "board.log",
        "--model",
        "tiny_quant.onnx",
        "--clock",
        "200",
        "-o",
        "timing.json",
    )
    result = quant(*words, "--json")
    assert result.exit_code == 0, result.output
    assert "layers that are furthest off" in result.stderr
    assert re.search(r"venus: [4-9] layers measured, runs: 1\n", result.stderr)
    body = json.loads((quant.folder / "timing.json").read_text())
    assert list(faults(body, make_json_schema("timing"), make_json_schema("timing"))) == []
    assert json.loads(result.stdout)["timing"] == body
    timed = ("--timing", "timing.json")
    told = quant.json("check", "tiny_quant.onnx", *timed)["time"]
    assert told["clock_mhz"] == 200
    assert told["cycles"]["low"] < told["cycles"]["total"] < told["cycles"]["high"]
    made = quant.json(
        "quantize",
        "tiny.onnx",
        "--calib",
        "calib.npz",
        "--effort",
        "fast",
        *timed,
        "--budget-ms",
        "9",
    )
    assert made["time"]["cycles"]["total"] > 0
    quant.run_ok("trace", "tiny_quant.onnx", "-o", "t.json", *timed)
    quant.run_ok("deploy", "tiny_quant.onnx", "--input", "calib.npz", "-o", "board", *timed)
    assert " ms at 200 MHz" in (quant.folder / "board" / "README.md").read_text()
    other = quant("quantize", "tiny.onnx", "--calib", "calib.npz", "--platform", "arcs", *timed)
    assert (other.exit_code, other.stderr.count("\n")) == (1, 1)
    assert "the timing file is for venus, but the model targets arcs" in other.stderr


def test_profile_board_mistakes(quant):
    """One line each, nothing written."""
    (quant.folder / "empty.log").write_text("")
    (quant.folder / "noise.log").write_bytes(bytes(range(256)) * 100)
    before = quant.files()
    for log, told in (
        ("empty.log", "no profile line"),
        ("noise.log", "no profile line"),
        ("gone.log", "cannot read"),
    ):
        failed = quant("profile-board", log, "--model", "tiny_quant.onnx", "-o", "timing.json")
        assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1), failed.output
        assert told in failed.stderr
    failed = quant(
        "profile-board", "empty.log", "--model", "tiny_quant.onnx", "--platform", "generic"
    )
    assert (failed.exit_code, failed.stderr.count("\n")) == (1, 1)
    assert "generic is not a chip" in failed.stderr
    assert quant.files() == before
