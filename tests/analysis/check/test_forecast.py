"""What is said of a float model before calibration comes true."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.luna import ARCS
from lingeronnx.luna.faults import LunaFault
from lingeronnx.targets import PLATFORMS
from tests import nets
from tests.analysis.check.helpers import small


def test_a_float_model_is_priced_before_calibration():
    """The same packing, memory and cost as the integer graph has afterwards."""
    model = small()
    ahead = lo.check(model, platform="arcs")
    report = nets.quantized(model, platform="arcs", effort="fast").report
    assert (ahead.packs, ahead.runs_right) == (True, True)
    assert ahead.choice.command_line == report.packer_args
    assert ahead.cost == report.cost
    words = "-p arcs -d False -m params:share-mem"
    assert (
        f"packed with {words}, before calibration: it packs and is correct by measured rules"
        in ahead.lines()
    )


@pytest.mark.parametrize(
    "target", [target for target in PLATFORMS if target.has_packer], ids=lambda target: target.name
)
def test_what_is_foretold_of_the_digits_comes_true(target):
    """ReLU6, which saturation makes, packs; of the average, which has a scale of its own, no fault
    is told.
    """
    path = Path(__file__).resolve().parents[3] / "models" / "digits_cnn.onnx"
    ahead, report = (
        lo.check(path, platform=target),
        lo.quantize(path, platform=target, effort="fast").report,
    )
    assert (ahead.packs, ahead.runs_right) == (True, True)
    assert (ahead.choice.command_line, ahead.cost) == (report.packer_args, report.cost)
    assert "clip" in {met.fault for met in ahead.faults}
    assert not {met.fault for met in ahead.faults} & {
        LunaFault.AVGPOOL_SCALE.key,
        LunaFault.AVGPOOL_GLOBAL.key,
    }


def test_a_float_model_that_does_not_fit_says_which_layers_and_what_helps():
    net = nets.Net(8, 20, 20, seed=3)
    flat = net.node("Flatten", net.conv("x", (80, 8, 1, 1)))
    target = dataclasses.replace(ARCS, shared_memory=31000)
    report = lo.check(net.graph(net.linear(flat, (32000, 2), out="y")), platform=target)
    (finding,) = report.findings
    assert not report.sound
    assert finding.rule == "the memory plan must fit in 31000 bytes"
    assert re.search(r"\d+ bytes; \d+ at \S+ \(\S+ \d+", finding.value)
    assert "venus (655360 bytes)" in finding.remedy
    assert "packed with -p arcs -d False, before calibration: it does not pack" in report.lines()


def across():
    net = nets.Net(4, 8, 8, seed=3)
    a = net.node("Mod", net.conv("x", (4, 4, 3, 3)), net.const(np.float32(3)), fmod=1)
    b = net.node("Softmax", net.conv(a, (4, 4, 3, 3)), axis=3)
    return net.graph(net.conv(b, (4, 4, 3, 3), out="y"))


def test_the_time_of_parts_is_foretold():
    """The sum of the chip's parts, within the tenth that is promised; the host's share is said to
    be unknown.
    """
    ahead = lo.check(across(), platform="arcs")
    report = nets.quantized(across(), platform="arcs", effort="fast").report
    assert len(ahead.program.chip) == 2
    assert ahead.time.latency.total == pytest.approx(report.time.latency.total, rel=0.1)
    assert ahead.time.latency.total == sum(
        part.verdict.latency.total for part in ahead.program.chip
    )
    assert ahead.time.has_host_parts
    assert report.time.has_host_parts


@pytest.mark.parametrize("platform", ["venus", "arcs"])
def test_parts_are_foretold(platform):
    """As many parts, the same work and the same reasons as `quantize` has; as JSON too."""
    report, quantized = (
        lo.check(across(), platform=platform),
        nets.quantized(across(), platform=platform, effort="fast"),
    )
    assert report.cost is None
    parts = [
        (part.name, part.nodes, part.macs, part.float_operations, part.runs)
        for part in report.program.parts
    ]
    assert parts == [
        (p.name, p.nodes, p.macs, p.float_operations, p.runs)
        for p in quantized.report.program.parts
    ]
    assert len(report.program.chip) == (3 if platform == "venus" else 2)
    assert {node.node: node.why for node in report.host_nodes} == {
        node.node: node.why for node in (*quantized.report.float_nodes, *quantized.report.host_part)
    }
    body = report.to_dict()
    assert body["runs"] == quantized.report.runs_text
    assert (
        body["crossings"] == report.program.host_chip_transfers == 2 * len(report.program.chip) - 2
    )
    assert any(line.startswith("in parts, before calibration: ") for line in report.lines())
    merged = [merge["operator"] for merge in body["merges"]]
    assert merged == (["Softmax"] if platform == "venus" else [])
    assert [merge.to_dict() for merge in quantized.report.merges] == body["merges"]


def test_a_part_that_is_refused_is_foretold():
    """A layer that needs too much memory, as when it is quantized."""
    net = nets.Net(8, 20, 20, seed=3)
    flat = net.node("Flatten", net.conv("x", (80, 8, 1, 1)))
    target = dataclasses.replace(ARCS, shared_memory=31000)
    model = net.graph(net.linear(flat, (32000, 2), out="y"))
    found, made = (
        lo.check(model, platform=target),
        nets.quantized(model, platform=target, effort="fast").report,
    )
    assert not made.chip_ready
    parts = [[(part.name, part.runs) for part in report.program.parts] for report in (found, made)]
    assert parts[0] == parts[1] == [("chip1", False)]
    assert not found.sound


def test_no_price_where_nothing_can_be_lowered():
    """A row without a packer has no parts."""
    report = lo.check(across(), platform="generic")
    assert report.cost is None
    assert report.program.parts == ()
    assert report.to_dict()["runs"] == ""


@pytest.mark.parametrize("platform", ["venus", "arcs"])
def test_weights_that_a_chip_cannot_share_are_foretold(platform):
    """The refined bias of each step of a recurrent layer is its own; where a chip copies the
    weights with it, they count once for each step, as in the written graph.
    """
    rng = np.random.default_rng(2)
    length, size = 8, 16
    shapes = {"W": (1, 3 * size, 6), "R": (1, 3 * size, size), "B": (1, 6 * size)}
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32) / 4, name)
        for name, shape in shapes.items()
    ]
    layer = helper.make_node(
        "GRU", ["x", *shapes], ["y"], "gru", hidden_size=size, linear_before_reset=1
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, 1, 6])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [length, 1, 1, size])]
    graph = helper.make_graph([layer], "steps", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ahead = lo.check(model, platform=platform).cost.weights
    report = lo.quantize(model, platform=platform).report
    assert ahead == pytest.approx(report.cost.weights, rel=0.02)
    fast = lo.quantize(model, platform=platform, effort="fast").report
    assert report.cost.weights > 4 * fast.cost.weights  # with the biases of the model, shared
