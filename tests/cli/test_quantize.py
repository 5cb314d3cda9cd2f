"""`quantize` as its users meet it: real files in, exit code and whole outputs out."""

from __future__ import annotations

import json
import re

import onnx
import pytest

from tests.cli.helpers import CALIB, DIGITS, GAP, TEST, TINY, CommandFolder, write_model

pytestmark = pytest.mark.smoke


def test_quantize_the_whole_output(here: CommandFolder) -> None:
    text = here.run_ok(
        "quantize",
        "tiny.onnx",
        "--calib",
        "calib.npz",
        "--eval",
        "test.npz",
        "--save-plan",
        "plan.json",
    )
    text = re.sub(r"cosine 0\.99\d{4}, SQNR \d\d\.\d\d dB", "cosine 0.99xxxx, SQNR xx.xx dB", text)
    text = re.sub(
        r"integer \d+\.\d\d %, drop -?\d+\.\d\d points", "integer xx %, drop xx points", text
    )
    assert re.sub(r"\(\d\.\d kB\)", "(x kB)", text) == (
        "tiny.onnx -> venus, q-value\n"
        "\n"
        "  chip-ready        yes\n"
        "  versions          same integers on 3.0.4, 3.0.8, 3.0.9, 3.0.10; safe plan on 3.0.4, 3.0.10"
        "\n"
        "  integer layers    5: Conv2dInt 1, Flatten 1, LinearInt 1, MaxPool 1, Relu 1\n"
        "  integer MACs      100.0 %\n"
        "  on the chip       600 MACs 8x8; weights 208 bytes; shared memory 320 of 655,360 bytes, "
        "psram 208\n"
        "                    of 8,388,608; 208 bytes over DMA\n"
        "  time              no published timing data for venus; calibrate with "
        "`lingeronnx profile-board`\n"
        "  fidelity          y: cosine 0.99xxxx, SQNR xx.xx dB on 4 samples held back in a trial run\n"
        "  accuracy          float 100.00 %, integer xx %, drop xx points (top1, 20 samples)\n"
        "\n"
        "  Cost on the chip, most expensive nodes (--json lists all)\n"
        "\n"
        "  layer  operator   MACs  width  weights  activations  work area  DMA\n"
        "  conv   Conv2dInt   576  8x8        160           64          0  160\n"
        "  pool   MaxPool       0               0           40          0    0\n"
        "  fc     LinearInt    24  8x8         48           11         64   48\n"
        "  total              600  8x8        208          131             208\n"
        "\n"
        "  pack it with      tpacker -g tiny_quant.onnx -p venus -d False -o tiny_quant.pkg\n"
        "  plan              plan.json\n"
        "  written           tiny_quant.onnx (x kB)\n"
    )
    assert {"tiny_quant.onnx", "plan.json"} < set(here.files())


def test_quantize_digits_as_json(here: CommandFolder) -> None:
    body = here.json(
        "quantize", DIGITS, "--calib", CALIB, "--eval", TEST, "--metric", "top1", "-o", "d.onnx"
    )
    assert body["chip_ready"] is True
    assert body["integer_macs"] == 1.0
    assert body["float_nodes"] == body["host_part"] == body["notes"] == []
    assert body["packer"] == "tpacker -g d.onnx -p venus -d False -o d.pkg"
    assert body["packer_args"] == "-p venus -d False"
    assert body["findings"] == []
    assert body["cost"]["macs"] == {"8x8": sum(layer["macs"] for layer in body["cost"]["layers"])}
    assert body["cost"]["shared"] <= body["cost"]["shared_limit"]
    assert body["outputs"]["logits"]["cosine"] > 0.99
    assert body["output"] == "d.onnx"
    accuracy = body["accuracy"]
    assert (accuracy["metric"], accuracy["samples"], accuracy["float"]) == (
        "top1",
        500,
        pytest.approx(99.2),
    )
    assert accuracy["integer"] >= 98.5
    assert accuracy["drop"] == pytest.approx(accuracy["float"] - accuracy["integer"])


def test_steps_are_printed_with_time_and_verdicts(here: CommandFolder) -> None:
    text = here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz", "--steps")
    lines = text[text.index(" s  prepare") :].splitlines()
    names = [line.split(" s  ")[-1].strip() for line in lines if " s  " in line]
    assert names[:5] == ["prepare", "plan", "refine", "measure", "ends"]
    assert names[-1] == "finish"
    assert any("tensors with scales" in line for line in lines)


def test_steps_as_json(here: CommandFolder) -> None:
    report = json.loads(
        here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz", "--steps", "--json")
    )
    steps = {step["name"]: step for step in report["steps"]}
    assert steps["stages"]["verdicts"]
    assert all(verdict["trial"] == "stages" for verdict in steps["stages"]["verdicts"])
    assert "steps" not in json.loads(
        here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz", "--json")
    )


def test_the_default_output_is_beside_the_model(here: CommandFolder) -> None:
    (here.folder / "sub").mkdir()
    write_model(here.folder / "sub" / "m.onnx", TINY)
    here.run_ok("quantize", "sub/m.onnx", "--calib", "calib.npz")
    assert (here.folder / "sub" / "m_quant.onnx").is_file()


def test_without_calibration_data_it_says_so(here: CommandFolder) -> None:
    text = here.run_ok("quantize", "tiny.onnx")
    assert (
        "  WARNING: calibrated on synthetic inputs: its outputs for real data are meaningless"
        in text
    )


def test_the_part_for_the_packer_is_written_beside(here: CommandFolder) -> None:
    """With a host part behind the integers, the graph without it is written too, and the packer's
    line names it.
    """
    text = TINY.replace(
        "y = Gemm<transB=1>(f, v, d)", "g = Gemm<transB=1>(f, v, d) [soft] y = Softmax<axis=1>(g)"
    )
    write_model(here.folder / "soft.onnx", text)
    shown = here.json("quantize", "soft.onnx", "--calib", "calib.npz")
    assert shown["chip_part"] == "soft_quant_chip.onnx"
    assert "soft_quant_chip.onnx" in shown["packer"]
    assert shown["written"] == ["soft_quant.onnx", "soft_quant_chip.onnx"]
    part = onnx.load(here.folder / "soft_quant_chip.onnx")
    assert [node.op_type for node in part.graph.node][-2:] == ["LinearInt", "Dequant"]
    assert [value.name for value in part.graph.output] == ["g"]


def test_all_files_of_a_model_in_parts_are_told(here: CommandFolder) -> None:
    """By `quantize --json` and in its text; `check` foretells the parts in the same words."""
    write_model(here.folder / "gap.onnx", GAP)
    shown = here.json("quantize", "gap.onnx", "--calib", "calib.npz", "--save-plan", "plan.json")
    assert shown["written"] == [
        "gap_quant.onnx",
        "gap_quant_chip1.onnx",
        "gap_quant_chip2.onnx",
        "plan.json",
    ]
    assert set(shown["written"]) <= set(here.files())
    foretold = json.loads(here("check", "gap.onnx", "--json").stdout)
    assert (foretold["runs"], foretold["crossings"]) == (shown["runs"], 2)
    assert foretold["merges"] == shown["merges"]


def test_float_nodes_are_listed_with_their_names_unchanged(here: CommandFolder) -> None:
    write_model(here.folder / "gap.onnx", GAP, {"e": "/[red]x[/red]/:smile:/Erf"})
    text = here.run_ok("quantize", "gap.onnx", "--calib", "calib.npz")
    assert "  chip-ready        no\n" in text
    assert "  runs on venus     2 chip parts (" in text
    assert text.count("pack it with") == 2
    assert {"gap_quant_chip1.onnx", "gap_quant_chip2.onnx"} < set(here.files())
    why = "in float between integers: Erf /[red]x[/red]/:smile:/Erf: venus has no operator for Erf"
    assert f" why not {why} " in re.sub(r"\s+", " ", text)


def test_a_plan_gives_the_same_graph_again(here: CommandFolder) -> None:
    here.run_ok(
        "quantize", "tiny.onnx", "--calib", "calib.npz", "-o", "a.onnx", "--save-plan", "plan.json"
    )
    here.run_ok(
        "quantize", "tiny.onnx", "--plan", "plan.json", "--calib", "calib.npz", "-o", "b.onnx"
    )
    files = here.files()
    assert files["a.onnx"] == files["b.onnx"]


def test_a_plan_brings_its_platform_and_mode(here: CommandFolder) -> None:
    made = ("--platform", "generic", "--mode", "max-value", "--save-plan", "plan.json")
    here.run_ok("quantize", "tiny.onnx", "--calib", "calib.npz", "-o", "a.onnx", *made)
    body = here.json(
        "quantize", "tiny.onnx", "--plan", "plan.json", "--calib", "calib.npz", "-o", "b.onnx"
    )
    assert (body["platform"], body["mode"]) == ("generic", "max-value")
    result = here("quantize", "tiny.onnx", "--plan", "plan.json", "--platform", "venus")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: --platform venus: the plan plan.json is for generic; remove one of the two\n",
    )


def test_options_win_over_the_configuration(here: CommandFolder) -> None:
    (here.folder / "quant.yaml").write_text(
        "platform: generic\nmode: max-value\ncalibrator: max\nskip: [fc]\n"
    )
    config = ("quantize", "tiny.onnx", "--calib", "calib.npz", "--config", "quant.yaml")
    body = here.json(*config)
    assert (body["platform"], body["mode"]) == ("generic", "max-value")
    assert [node["node"] for node in body["host_part"]] == ["fc"]
    body = here.json(*config, "--mode", "q-value", "--skip", "conv")
    assert (body["platform"], body["mode"]) == ("generic", "q-value")
    assert [node["node"] for node in body["host_part"]] == ["conv"]


def test_overrides_reach_the_plan(here: CommandFolder) -> None:
    override = ("--override", "x=scale:2^4", "--override", "type:Conv=calibrator:max")
    here.run_ok(
        "quantize", "tiny.onnx", "--calib", "calib.npz", *override, "--save-plan", "plan.json"
    )
    assert json.loads((here.folder / "plan.json").read_text())["tensors"]["x"]["scale"] == 16.0


@pytest.mark.parametrize("calibrator", ("percentile", "kl"))
def test_calibrators(here: CommandFolder, calibrator: str) -> None:
    body = here.json("quantize", "tiny.onnx", "--calib", "calib.npz", "--calibrator", calibrator)
    assert body["outputs"]["y"]["cosine"] > 0.99


def test_widths_on_the_command_line(here: CommandFolder) -> None:
    widths = (
        "--platform",
        "generic",
        "--bits",
        "16",
        "--weight-bits",
        "16",
        "--override",
        "y=out_bits:float",
    )
    override = (
        "--override",
        "conv=bits:8,weight_bits:4,percentile:99.9",
        "--save-plan",
        "plan.json",
    )
    body = here.json("quantize", "tiny.onnx", "--calib", "calib.npz", *widths, *override)
    assert body["outputs"]["y"]["cosine"] > 0.99
    tensors = json.loads((here.folder / "plan.json").read_text())["tensors"]
    assert {name: tensors[name]["bits"] for name in ("x", "w", "c", "v")} == {
        "x": 16,
        "w": 4,
        "c": 8,
        "v": 16,
    }
    assert "y" not in tensors
    result = here("quantize", "tiny.onnx", "--calib", "calib.npz", "--override", "y=out_bits:16")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: override y: out_bits 16 on platform venus: the last integer output"
    )
