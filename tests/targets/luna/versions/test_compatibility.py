"""The report says on which versions a file gives the same integers and its plan is safe."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.ir import ir
from lingeronnx.targets import get_target
from simulator.kernel import have_equal_parameters
from simulator.kernels import Linear, Relu
from tests import nets

MEASURED = ("3.0.4", "3.0.8", "3.0.9", "3.0.10")


def make_norm_net():
    """Build a LayerNormalization of rows of 16 behind a fully connected layer."""
    net = nets.Net(5, 16, opset=17)
    weight = net.const((net.rng.standard_normal((16, 16)) / 4).astype(np.float32))
    gamma, beta = (net.const(net.rng.uniform(0.5, 1, 16).astype(np.float32)) for _ in range(2))
    hidden = net.node("MatMul", "x", weight)
    return net.graph(net.node("LayerNormalization", hidden, gamma, beta, axis=-1, out="y"))


def make_lstm_net(steps, features, direction="forward"):
    """Build an LSTM of 8 units over [steps, features], which emits its sequence."""
    net = nets.Net(steps, features)
    shapes = ((1, 32, features), (1, 32, 8), (1, 64))
    weights = [net.const((net.rng.standard_normal(s) / 3).astype(np.float32)) for s in shapes]
    by_time = net.node("Transpose", "x", perm=[1, 0, 2])
    sequence = net.node("LSTM", by_time, *weights, hidden_size=8, direction=direction)
    squeezed = net.node("Squeeze", sequence, net.const(np.array([1], np.int64)))
    return net.graph(net.node("Transpose", squeezed, perm=[1, 0, 2], out="y"))


def quantize(model, platform, **settings):
    settings = {"effort": "fast", **settings}
    return lo.quantize(model, nets.samples(model, 8), platform=platform, **settings)


def get_nodes(quantized, operator):
    return [node for node in quantized.graph.graph if node.op_type == operator]


def test_convolutions_compute_the_same_on_every_version():
    versions = quantize(nets.plain(), "arcs").report.versions
    assert set(MEASURED) < set(versions.equal_integers)
    assert versions.safe_plans == ("3.0.4", "3.0.10")
    assert [row.plan for row in versions.rows if row.version == "3.0.9"] == ["unmeasured"]
    assert versions.narrowing_nodes


def test_a_layer_norm_narrows_the_versions_of_venusA():
    quantized = quantize(make_norm_net(), "venusA")
    versions = quantized.report.versions
    assert "3.0.7" in versions.equal_integers
    assert "3.0.10" not in versions.equal_integers
    (node,) = get_nodes(quantized, "LayerNormInt")
    assert node.name in versions.narrowing_nodes
    assert any(
        node.name in line and line.startswith("3.0.10") for line in versions.format_reasons()
    )
    check = lo.check(quantized.graph)
    assert check.versions == versions


def test_the_newest_text_warns_of_what_it_refuses_with_the_form_that_it_takes():
    (row,) = [
        row
        for row in quantize(make_norm_net(), "venusA").report.versions.rows
        if row.version == "2026-08-20"
    ]
    assert row.basis == "read"
    assert not row.packs
    (finding,) = [finding for finding in row.findings if finding.level == "packs"]
    assert finding.basis == "read"
    assert "must be in shared memory" in finding.rule
    assert finding.remedy == "leave them there"


@pytest.mark.parametrize("platform", ["arcs", "venusA"])
def test_a_square_lstm_has_the_form_of_most_versions(platform):
    quantized = quantize(make_lstm_net(8, 8), platform)
    (node,) = get_nodes(quantized, "LSTMInt")
    assert ir.get_attr(node, "batch_first") == 1
    assert quantized.report.chip_ready
    assert set(MEASURED) < set(quantized.report.versions.equal_integers)


def test_an_lstm_in_another_form_stays_as_its_version_needs_it():
    for steps, direction in ((6, "forward"), (8, "reverse")):
        quantized = quantize(make_lstm_net(steps, 8, direction), "venusA")
        (node,) = get_nodes(quantized, "LSTMInt")
        assert ir.get_attr(node, "batch_first") == 0
        assert "3.0.10" not in quantized.report.versions.equal_integers
        assert node.name in quantized.report.versions.narrowing_nodes


def test_the_form_of_an_lstm_computes_the_same_integers():
    model = make_lstm_net(8, 8)
    graph = quantize(model, "arcs").graph
    other = graph.clone()
    for node in other.graph:
        if node.op_type == "LSTMInt":
            ir.set_attr(node, "batch_first", 0)
    feed = nets.samples(model, 4)
    results = [lo.Session(each, platform="arcs").run(None, feed) for each in (graph, other)]
    np.testing.assert_array_equal(results[0][0], results[1][0])


def test_a_layer_norm_of_venus_declares_the_width_of_its_weight():
    quantized = quantize(make_norm_net(), "venus")
    (node,) = get_nodes(quantized, "LayerNormInt")
    assert ir.get_attr(node, "parameter_bits") == 16
    rules = [
        finding.rule
        for row in quantized.report.versions.rows
        if row.version == "2026-08-20"
        for finding in row.findings
    ]
    assert not any("parameter_bits" in rule for rule in rules)


def test_the_report_in_json_has_both_lists():
    report = quantize(nets.plain(), "venus").report
    body = json.loads(json.dumps(report.to_dict()))["versions"]
    assert tuple(body["equal_integers"]) == report.versions.equal_integers
    assert tuple(body["safe_plans"]) == report.versions.safe_plans
    assert len(body["versions"]) == 8


def test_a_model_that_no_chip_runs_has_no_versions():
    assert quantize(nets.plain(), "generic").report.versions.rows == ()


def test_a_target_of_the_user_is_compared_with_the_versions_of_its_chip():
    own = replace(get_target("venus"), title="changed")
    assert "3.0.8" in quantize(nets.plain(), own).report.versions.equal_integers


def test_kernels_with_other_parameters_are_not_equal():
    weight = np.ones((2, 3), np.int64)
    kernels = [Linear(weight, None, rule) for rule in (1, 1, 2)]
    assert have_equal_parameters(kernels[0], kernels[1])
    assert not have_equal_parameters(kernels[0], kernels[2])
    assert not have_equal_parameters(kernels[0], replace(kernels[0], weight=weight * 2))
    assert not have_equal_parameters(kernels[0], Relu())
    assert not have_equal_parameters({"a": [1, 2]}, {"a": [1]})
    assert not have_equal_parameters((1,), (1.0,))


def test_the_commands_print_both_lists_and_what_narrows_them(tmp_path):
    ir.save(make_norm_net(), tmp_path / "net.onnx")
    samples = nets.samples(make_norm_net(), 8)
    np.savez(tmp_path / "calib.npz", **samples)
    argv = ["quantize", "net.onnx", "--calib", "calib.npz", "--platform", "venusA"]
    argv = [str(tmp_path / word) if word.endswith((".onnx", ".npz")) else word for word in argv]
    argv += ["--effort", "fast", "-o", str(tmp_path / "q.onnx")]
    short = " ".join(CliRunner().invoke(cli.main, argv).output.split())
    assert "same integers on 3.0.4" in short
    assert "narrowed by LayerNormalization_y" in short
    full = " ".join(CliRunner().invoke(cli.main, [*argv, "--notes", "full"]).output.split())
    assert "versions 3.0.10 computes other integers in LayerNormalization_y" in full
    assert "2026-08-20 probably refuses" in full


def test_the_page_has_both_lists(tmp_path):
    model = make_norm_net()
    samples = nets.samples(model, 8)
    quantized = quantize(model, "venusA")
    lo.report(model, quantized, samples, tmp_path / "page")
    text = (tmp_path / "page" / "report.html").read_text()
    assert "same integers on" in text
    assert "Other versions of packer and executor" in text
