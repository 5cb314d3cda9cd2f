"""A report is read on one screen: what decides first, findings of one rule as one line, all of them
on demand.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import lingeronnx as lo
from lingeronnx.cli.report import show_report
from lingeronnx.quantization import WrittenFiles
from lingeronnx.quantization.legalize import AppliedRewrite
from lingeronnx.quantization.report import FloatNode
from lingeronnx.targets import VerdictFinding
from tests.cli.helpers import GAP, TINY, CommandFolder, samples, write_model
from tests.nets import Net

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
SCREEN = 24


def heads(convolutions: int = 12, channels: int = 24) -> onnx.ModelProto:
    """Return many convolutions over maps of 64x64, and many outputs behind them, as a detector
    has.
    """
    net = Net(channels, 64, 64, seed=2)
    x, outputs = "x", []
    for index in range(convolutions):
        x = net.node("Relu", net.conv(x, (channels, channels, 3, 3), pads=[1] * 4))
        outputs.append(net.conv(x, (2, channels, 1, 1), out=f"head{index}"))
    return net.proto(*outputs)


def screen(text: str) -> int:
    """Return how many lines a terminal of 100 columns shows; a call to be copied is one, however
    long.
    """
    lines = text.rstrip("\n").split("\n")
    calls = ("  pack it with", "  try next")
    return sum(1 if line.startswith(calls) else max(-(-len(line) // 100), 1) for line in lines)


@pytest.fixture
def outside(here: CommandFolder) -> tuple[CommandFolder, str]:
    """Return a folder with an integer graph, and packer arguments that put every map where no
    convolution reads it.
    """
    onnx.save(heads(), here.folder / "heads.onnx")
    np.savez(
        here.folder / "maps.npz",
        x=np.random.default_rng(0).standard_normal((1, 24, 64, 64)).astype(np.float32),
    )
    here.run_ok("quantize", "heads.onnx", "--calib", "maps.npz", "--effort", "fast", "-o", "q.onnx")
    graph = onnx.load(here.folder / "q.onnx").graph
    maps = [
        name
        for node in graph.node
        if node.domain
        for name in node.output
        if "Dequant" not in node.op_type
    ]
    return here, f"-p venus -d False -m {','.join(f'{name}:psram' for name in maps)}"


def test_check_tells_each_rule_once_and_the_verdict_first(
    outside: tuple[CommandFolder, str],
) -> None:
    here, arguments = outside
    call = ("check", "q.onnx", "--packer-args", arguments)
    short, full = here(*call), here(*call, "--notes", "full")
    body = json.loads(here(*call, "--json").stdout)
    assert short.exit_code == full.exit_code == 1
    rules = {finding["rule"] for finding in body["findings"]}
    nodes = {finding["node"] for finding in body["findings"]}
    assert len(body["findings"]) >= 10 > len(rules)
    first, *lines = short.stdout.splitlines()
    assert re.fullmatch(
        (
            rf"venus: (wrong on the chip|the packer refuses it), {len(rules)} rules? (is|are) violated "
            rf"at {len(nodes)} nodes"
        ),
        first,
    )
    for rule in rules:
        assert sum(rule in line for line in lines) == 1
        assert sum(rule in line for line in full.stdout.splitlines()) == sum(
            finding["rule"] == rule for finding in body["findings"]
        )
    assert "no limit of" not in short.stdout
    assert screen(short.stdout) <= SCREEN
    here(*call, "-o", "folder")
    assert set(full.stdout.splitlines()) <= set(
        (here.folder / "folder" / "check.txt").read_text().splitlines()
    )


def shown(done: WrittenFiles) -> str:
    out = io.StringIO()
    show_report(
        Console(file=out, width=100, highlight=False, markup=False, emoji=False),
        Path("m.onnx"),
        done,
    )
    return out.getvalue()


def test_quantize_shows_all_sorts_of_findings_on_one_screen(tmp_path: Path) -> None:
    """60 findings, 40 rewrites, 30 host nodes and 50 notes of many reasons; --notes full shows each
    of them.
    """
    made = lo.quantize(write_model(tmp_path / "tiny.onnx", TINY), {"x": samples()}, effort="fast")
    done = made.write(tmp_path / "q.onnx")
    rules = [
        f"rule {letter} of the chip, which needs some words, fit {{}} bytes" for letter in "ab"
    ]
    findings = [
        VerdictFinding(
            "right",
            f"Conv_{i}",
            rules[i % 2].format(5),
            f"{1000 + i} bytes",
            "cut the map into tiles of rows",
        )
        for i in range(60)
    ]
    why = [
        "first reason",
        "second reason of another kind",
        "third",
        "a fourth, and it is long",
        "a fifth",
        "6th",
        "g",
    ]
    report = replace(
        done.report,
        chip_ready=False,
        findings=findings,
        fitted=[
            AppliedRewrite(f"node{i}", f"{why[i % 7]} was done {i} times", "exact")
            for i in range(40)
        ],
        host_part=[FloatNode(f"host{i}", f"Op{i % 11}", why[i % 7]) for i in range(30)],
        notes=[f"{why[i % 7]}: '{i}' is so" for i in range(50)],
        warnings=[f"output '{i}' is {i} dB off" for i in range(12)],
        outputs={f"y{i}": {"cosine": 0.9, "sqnr": 10.0 + i} for i in range(12)},
    )
    text = shown(replace(done, report=report))
    assert screen(text) <= SCREEN, text
    words = " ".join(text.split())
    assert words.index("chip-ready no why not wrong on the chip: rule a") < words.index(
        "integer layers"
    )
    assert "30 nodes, the worst Conv_58 with 1058 bytes" in words
    assert "30 nodes, the worst Conv_59 with 1059 bytes" in words
    assert "y0: cosine 0.900000, SQNR 10.00 dB" in words
    full = " ".join(shown(replace(done, report=replace(report, full=True))).split())
    for part in (*(f"Conv_{i}: rule" for i in range(60)), *(f"'{i}' is so" for i in range(50))):
        assert part in full
    for part in (
        *(f"host{i}: " for i in range(30)),
        *(f"done {i} times" for i in range(40)),
        "y11: cosine",
    ):
        assert part in full
    assert [f["node"] for f in map(vars, report.findings)] == [
        f["node"] for f in report.to_dict()["findings"]
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the models lie beside the repository")
@pytest.mark.slow
def test_a_face_detector_on_one_screen(here: CommandFolder) -> None:
    model = SHARED / "models" / "real" / "face_yunet_n.onnx"
    data = f"{SHARED / 'data' / 'real_models.py'}:face_yunet_calib"
    call = ("--calib", data, "--effort", "fast", "--limit", "1", "--platform", "venus")
    assert screen(here.run_ok("quantize", model, "-o", "yunet.onnx", *call)) <= SCREEN


# ---- what to try next ------------------------------------------------------------------------------------------------


def pasted(here: CommandFolder, text: str) -> str:
    """Run the first line to try next, and return what it says."""
    line = next(line for line in text.splitlines() if line.startswith("  try next"))
    program, *words = shlex.split(line.removeprefix("  try next"))
    assert program == "lingeronnx"
    return here.run_ok(*words)


def test_a_float_operator_between_integers_is_followed_by_a_cut_that_works(
    here: CommandFolder,
) -> None:
    write_model(here.folder / "gap.onnx", GAP, {"e": "a node's name/Erf"})
    text = here.run_ok("quantize", "gap.onnx", "--calib", "calib.npz", "--effort", "fast")
    assert "chip-ready        no" in text
    assert "no float operator between integer ones; 50.0 % of the MACs stay in integers" in text
    again = pasted(here, text)
    assert "chip-ready        yes" in again
    assert "integer MACs      50.0 %" in again
    assert "try next" not in again


def test_a_heavy_loss_is_followed_by_a_search_that_mends_it(here: CommandFolder) -> None:
    """A constant of 1000 beside values of 1, of which the output is made."""
    rng = np.random.default_rng(3)
    net = Net(4)
    a = net.node("MatMul", "x", net.const(rng.standard_normal((4, 4)).astype(np.float32)))
    b = net.node(
        "Add", net.node("Sigmoid", a), net.const(np.float32([1000, 0, 0, 0])), out="spoils"
    )
    onnx.save(
        net.proto(net.node("MatMul", b, net.const(np.float32([[0], [1], [1], [1]])), out="y")),
        here.folder / "loss.onnx",
    )
    np.savez(here.folder / "rows.npz", x=rng.standard_normal((640, 4)).astype(np.float32))
    text = here.run_ok("quantize", "loss.onnx", "--calib", "rows.npz", "--platform", "generic")
    assert "WARNING: output 'y' is " in text
    found = re.search(r"SQNR (\d+\.\d+) dB", pasted(here, text))
    assert found is not None
    assert float(found[1]) >= 15


def test_a_bug_of_ours_ends_with_what_to_try(
    here: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise lo.InternalError("normalization changed output 'y' by 1.2 of its range")

    with monkeypatch.context() as patched:
        patched.setattr(
            "lingeronnx.quantization.steps.scale_sources.check_outputs_unchanged", broken
        )
        result = here("quantize", "tiny.onnx", "--calib", "calib.npz")
    assert result.exit_code == 70
    last = result.stderr.splitlines()[-1]
    assert last.startswith("try next: lingeronnx quantize tiny.onnx --calib calib.npz ")
    here.run_ok(*shlex.split(last.removeprefix("try next: "))[1:])
    assert any(name.startswith("rewrites/") for name in here.files())


# ---- figures that say little -----------------------------------------------------------------------------------------


def test_a_figure_from_one_sample_says_so_in_its_line(here: CommandFolder) -> None:
    np.savez(here.folder / "one.npz", x=samples()[:1])
    text = " ".join(here.run_ok("quantize", "tiny.onnx", "--calib", "one.npz").split())
    assert re.search(
        r"fidelity y: cosine \S+ SQNR \S+ dB on the calibration data \(optimistic\) \(from 1 sample\)",
        text,
    )
    assert here.json("quantize", "tiny.onnx", "--calib", "one.npz")["doubts"] == {
        "y": "from 1 sample"
    }
    assert "(from 1 sample)" not in here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz")
    here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz", "-o", "q.onnx")
    assert "(from 1 sample)" in here.run_ok(
        "compare", "tiny.onnx", "q.onnx", "--data", "one.npz", "-o", "c"
    )


def test_an_output_that_never_changes_says_so(here: CommandFolder) -> None:
    """The same sample again and again is one sample."""
    np.savez(here.folder / "same.npz", x=np.repeat(samples()[:1], 9, axis=0))
    text = " ".join(here.run_ok("quantize", "tiny.onnx", "--calib", "same.npz").split())
    assert "(the output is identical for every sample; equivalent to 1 sample)" in text


def test_an_output_with_one_sample_of_any_size_says_so(here: CommandFolder) -> None:
    """Of detectors whose outputs are near 0 but once: the error of that sample is all there is."""
    x = samples()[:9]
    for factor, doubted in ((1.0, False), (40.0, True)):
        np.savez(here.folder / "once.npz", x=np.concatenate([factor * x[:1], x[1:]]))
        report = here.json("quantize", "tiny.onnx", "--calib", "once.npz", "--effort", "fast")
        doubt = report["doubts"].get("y", "")
        assert bool(
            re.fullmatch(r"\d+% of the output's power is in one of 9 samples, .*", doubt)
        ) == (doubted)


@pytest.mark.parametrize("value", [0.0, 3.5])
def test_constant_calibration_data_are_an_error(here: CommandFolder, value: float) -> None:
    np.savez(here.folder / "flat.npz", x=np.full((8, 2, 4, 4), value, np.float32))
    before = here.files()
    result = here("quantize", "tiny.onnx", "--calib", "flat.npz")
    told = (
        f"input 'x' is {value:g} everywhere, so no scale can be determined; use representative "
        "samples"
    )
    assert (result.exit_code, result.stderr) == (1, f"error: calibration data: {told}\n")
    assert here.files() == before


@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_calibration_data_beyond_float32_scales_are_an_error(
    here: CommandFolder, platform: str
) -> None:
    """The scale of such an input is infinite in float32."""
    x = samples()
    np.savez(here.folder / "small.npz", x=(x * 1e-20) * np.float32(1e-20))
    result = here("quantize", "tiny.onnx", "--calib", "small.npz", "--platform", platform)
    message = (
        r"error: calibration data: input 'x' has no value beyond \S+, and a scale needs 1.9e-34"
    )
    assert result.exit_code == 1
    assert re.match(message, result.stderr), result.stderr
    assert result.stderr.count("\n") == 1
    np.savez(here.folder / "tiny.npz", x=(x * 1e-16) * np.float32(1e-16))
    here.run_ok("quantize", "tiny.onnx", "--calib", "tiny.npz", "--platform", platform)


def test_calibration_data_of_another_size_name_the_data(here: CommandFolder) -> None:
    """A Clip in front of a layer bounds what 1e30 leave: the two scales have no common ratio."""
    net = Net(4)
    onnx.save(net.proto(net.linear(net.relu6(net.linear("x", (4, 4))), (4, 3), out="y")), "c.onnx")
    x = np.random.default_rng(0).standard_normal((16, 4)) * 1e30
    np.savez("large.npz", x=x.astype(np.float32))
    result = here("quantize", "c.onnx", "--calib", "large.npz", "--platform", "generic")
    assert result.exit_code == 1, result.output
    assert "a rescale ratio must be below 2^30" in result.stderr
    assert "with data of the size that it will see" in result.stderr


def test_one_constant_input_beside_others_is_noted(here: CommandFolder) -> None:
    net = Net(4)
    net.inputs.append(onnx.helper.make_tensor_value_info("h", 1, ["N", 4]))
    onnx.save(
        net.proto(net.linear(net.node("Add", "x", "h"), (4, 3), out="y")), here.folder / "two.onnx"
    )
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    np.savez(here.folder / "two.npz", x=x, h=np.zeros_like(x))
    text = here.run_ok("quantize", "two.onnx", "--calib", "two.npz")
    assert "note: input 'h' is 0 in all calibration samples; its scale is arbitrary" in text
