"""`lingeronnx try`: what a float model is, which platforms run it, and what to type next."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import lingeronnx as lo
from lingeronnx.analysis.check import assessment
from lingeronnx.cli import main
from lingeronnx.ir import ir
from tests.nets import Net, plain, samples

_FILES = Path(__file__).parents[2] / "files" / "0.1"


def run(*arguments):
    """Run ``lingeronnx try`` and return (exit code, output)."""
    result = CliRunner().invoke(main, ["try", *map(str, arguments)])
    return result.exit_code, result.output


def uneven():
    """A depthwise convolution whose first channel is 50 times as large as the others."""
    net = Net(8, 6, 6)
    weight = np.random.default_rng(0).normal(size=(8, 1, 3, 3)).astype(np.float32)
    weight[0] *= 50
    net.node("Conv", "x", net.const(weight), group=8, pads=[1, 1, 1, 1], out="y")
    return net.graph("y")


def test_the_whole_text(tmp_path):
    """The model's facts, a verdict for each platform and commands that run as they are printed."""
    path = tmp_path / "my model.onnx"
    model = plain()
    ir.save(model, path)
    code, output = run(path)
    assert code == 0
    lines = output.splitlines()
    assert "input: x float32 [?, 3, 12, 12]" in lines
    for platform in ("generic", "venus", "arcs", "venusA"):
        assert sum(line.startswith(f"{platform}: 100.0 % of MACs") for line in lines) == 1
    assert "venus: 100.0 % of MACs in integers; chip-ready, before calibration" in lines
    assert any("no weight is below 20 dB" in line for line in lines)
    commands = [line.removeprefix("next: ") for line in lines if ": lingeronnx quantize" in line]
    np.savez(tmp_path / "calib.npz", **samples(model, 4))
    words = shlex.split(commands[0])
    assert words[:2] == ["lingeronnx", "quantize"]
    words[words.index("calib.npz")] = str(tmp_path / "calib.npz")
    result = CliRunner().invoke(main, [*words[1:], "--effort", "fast"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "factors, suggestion",
    [
        ([0], "--fix rate=1 (rate: it is multiplied by 0, so that any number will do)"),
        ([3], "--fix rate=1 (rate: this value has no effect)"),
        ([0, 8000], "--fix rate=8000 (rate: the model compares it with that number)"),
    ],
    ids=["multiplied by 0", "multiplied", "compared"],
)
def test_a_setting_is_suggested_with_the_reason_for_its_number(factors, suggestion):
    """A number that the model compares the setting with comes first."""
    nodes = [
        helper.make_node("Mul", ["rate", "factor0"], ["product"]),
        helper.make_node("Cast", ["product"], ["added"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "added"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    if len(factors) > 1:
        nodes.append(helper.make_node("Equal", ["rate", "factor1"], ["is_slow"]))
        outputs.append(helper.make_tensor_value_info("is_slow", TensorProto.BOOL, []))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    constants = [
        helper.make_tensor(f"factor{index}", TensorProto.INT64, [], [factor])
        for index, factor in enumerate(factors)
    ]
    graph = helper.make_graph(nodes, "setting", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    lines = lo.assess(model).lines()
    assert any(line.endswith(f"then fix it with {suggestion}") for line in lines)
    assert any(" --calib calib.npz " + suggestion.partition(" (")[0] in line for line in lines)


def test_one_chip_is_judged(tmp_path):
    """`generic` is judged beside it; an unknown platform is refused before anything else."""
    ir.save(plain(), tmp_path / "m.onnx")
    code, output = run(tmp_path / "m.onnx", "--platform", "arcs")
    assert code == 0
    assert "venus" not in output
    assert "next: lingeronnx quantize" in output
    assert "--platform arcs" in output
    assert [entry.platform for entry in lo.assess(plain(), platform="arcs").platforms] == [
        "generic",
        "arcs",
    ]
    code, output = run(tmp_path / "m.onnx", "--platform", "mars")
    assert code == 1
    assert "mars" in output


def test_the_counts_are_those_of_check(tmp_path):
    """The verdict of a chip is that of `check`; MACs and parameters are those of the layers."""
    model = plain()
    ir.save(model, tmp_path / "m.onnx")
    result = CliRunner().invoke(main, ["try", str(tmp_path / "m.onnx"), "--json"])
    assert result.exit_code == 0
    body = json.loads(result.stdout)
    checked = lo.check(model, platform="venus")
    (venus,) = [entry for entry in body["platforms"] if entry["platform"] == "venus"]
    assert venus["ready"] is checked.sound is True
    assert venus["cost"] == checked.cost.format_totals()
    arrays = [value.const_value.numpy() for value in model.graph.initializers.values()]
    floats = sum(array.size for array in arrays if array.dtype == np.float32)
    assert body["summary"]["parameters"] == floats
    assert body["summary"]["macs"] == 8 * 27 * 12**2 + 8 * 72 * 4**2 + 8 * 5


def test_not_chip_ready():
    """A chip without an operator has the first reason and its parts; another chip is proposed."""
    result = lo.assess(_FILES / "attention.onnx")
    by_name = {entry.platform: entry for entry in result.platforms}
    assert not by_name["venus"].ready
    assert "Softmax" in by_name["venus"].reason
    assert by_name["venus"].cost.startswith("in parts: ")
    assert by_name["arcs"].ready
    assert any("--platform arcs" in step for step in result.next_steps)
    assert not any("all reasons" in step for step in result.next_steps)


def test_weights_at_risk():
    """Channels that one scale leaves a few counts are named, with the SQNR of the median one."""
    model = uneven()
    (risk,) = lo.assess(model, budget_s=0).weight_risks
    (node,) = [node for node in model.graph if node.op_type == "Conv"]
    assert risk.node == node.name
    weight = ir.require_const_value(node.inputs[1]).astype(np.float64)
    errors = [
        np.clip(np.rint(weight * scale), -128, 127) / scale - weight
        for scale in 2.0 ** np.arange(-8, 8)
    ]
    error = min(errors, key=lambda array: np.square(array).sum())
    signal, noise = (np.square(array).sum(axis=(1, 2, 3)) for array in (weight, error))
    assert risk.sqnr_db == pytest.approx(10 * np.log10(np.median(signal / noise)), abs=1e-6)
    assert 0 < risk.sqnr_db < 20
    assert not lo.assess(plain(), budget_s=0).weight_risks


def test_time_is_limited():
    """After the budget only the first chip is judged, and the others are named."""
    result = lo.assess(plain(), budget_s=0)
    assert [entry.platform for entry in result.platforms] == ["generic", "venus"]
    assert result.not_judged == ["arcs", "venusA"]
    assert "not judged in time: arcs, venusA; raise --budget" in result.lines()


def test_a_search_for_tiles_ends_with_the_time(monkeypatch):
    """A chip whose memory needs tiles is not judged then; the check that goes on is suggested."""
    net = Net(16, 300, 300)
    net.conv("x", (16, 16, 3, 3), pads=[1, 1, 1, 1], out="y")
    monkeypatch.setattr(assessment, "DEFAULT_BUDGET_S", 0.0)
    result = lo.assess(net.graph("y"), platform="arcs", budget_s=0)
    assert [entry.platform for entry in result.platforms] == ["generic"]
    assert result.not_judged == ["arcs"]
    check = "lingeronnx check model.onnx --platform arcs (searches tiles without a limit)"
    assert result.next_steps[-1] == check
    assert lo.check(net.graph("y"), platform="arcs").choice.verdict.is_chip_ready


def test_open_dimensions(tmp_path):
    """Exit code 1 with the model's facts and the option to pass, which then gives the verdicts."""
    net = Net(8, "T")
    net.node("Relu", net.conv("x", (4, 8, 3)), out="y")
    path = tmp_path / "m.onnx"
    ir.save(net.graph("y"), path)
    code, output = run(path)
    assert code == 1
    assert "input: x float32 [?, 8, ?]" in output
    assert "error: unknown dimensions: input 'x'; " in output
    assert "--input-shape x=1,8,?" in output
    code, output = run(path, "--input-shape", "x=1,8,32")
    assert code == 0
    assert f"next: lingeronnx quantize {path} --platform venus --calib calib.npz " in output
    assert output.count("--input-shape x=1,8,32") == 1
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 8, 32), np.float32))
    code, output = run(path, "--calib", tmp_path / "d.npz")
    assert code == 0
    assert f"--calib {tmp_path / 'd.npz'}" in output
    assert "np.savez" not in output


def test_states():
    """The suggested command feeds recurrent states back."""
    steps = lo.assess(_FILES / "stream.onnx", budget_s=0).next_steps
    assert any("--state h_out=h_in" in step for step in steps)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 16, 24), "--image-size 24,16"),
        ((1, 16, 24), "--image-size 24,16 --color gray"),
        ((16, 24, 3), "--image-size 24,16 --layout nhwc"),
        ((3, 8, 8), None),
        ((5, 16, 16), None),
    ],
)
def test_images(shape, options):
    """An input that looks like an image may be calibrated on a folder."""
    net = Net(*shape)
    net.node("Relu", "x", out="y")
    steps = lo.assess(net.graph("y"), budget_s=0).next_steps
    image_steps = [step for step in steps if "IMAGE_FOLDER" in step]
    assert len(image_steps) == (options is not None)
    assert options is None or options in image_steps[0]


def test_refusals(tmp_path):
    """An integer graph and a missing file are one line each with what to type."""
    path = _FILES / "conv_venus.onnx"
    code, output = run(path)
    assert code == 1
    assert output == (
        f"error: {path} is an integer graph: it is quantized already; judge it with "
        f"lingeronnx check {path}, or pass the float model\n"
    )
    code, output = run(tmp_path / "nothing.onnx")
    assert code == 1
    assert "does not exist" in output
    assert output.count("\n") == 1


def test_a_model_of_another_tool():
    """A model with QuantizeLinear needs no data: its scales are in the file."""
    result = lo.assess(_FILES / "conv_generic_qdq.onnx", budget_s=0)
    (step,) = [step for step in result.next_steps if "quantize" in step]
    assert "--calib" not in step
