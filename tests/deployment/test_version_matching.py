"""`verify` says which versions of the executor compute the integers of a device, if that differs."""

import numpy as np
import pytest

import lingeronnx as lo
from tests import nets


def make_norm_net():
    """Build a fully connected layer on rows of 16, and a LayerNormalization."""
    net = nets.Net(5, 16, opset=17)
    weight = net.const((net.rng.standard_normal((16, 16)) / 4).astype(np.float32))
    hidden = net.node("MatMul", "x", weight)
    gamma = net.const(net.rng.uniform(0.5, 1.5, 16).astype(np.float32))
    beta = net.const((0.1 * net.rng.standard_normal(16)).astype(np.float32))
    return net.graph(net.node("LayerNormalization", hidden, gamma, beta, axis=-1, out="y"))


def quantize_and_write_output(model, samples, path, board):
    """Quantize for venusA, and write the output that executor `board` computes to a file."""
    quantized = lo.quantize(model, samples, platform="venusA", effort="fast")
    session = lo.Session(quantized.graph, platform=board)
    feed = {name: array[:1] for name, array in samples.items()}
    integers = {name: array for name, array, _ in session.taps(feed)}
    node = next(n for n in quantized.graph.graph if n.op_type == "Dequant")
    path.write_bytes(np.ascontiguousarray(integers[node.inputs[0].name]).tobytes())
    return quantized.graph


@pytest.mark.parametrize(
    ("board", "expected"),
    [("venusA", ("3.0.4", "3.0.5")), ("venusA@3.0.9", ("3.0.4", "3.0.9"))],
)
def test_layer_norm_tells_versions_apart(tmp_path, board, expected):
    model = make_norm_net()
    samples = nets.samples(model, 8)
    graph = quantize_and_write_output(model, samples, tmp_path / "out.bin", board)
    verification = lo.verify(graph, samples, output=tmp_path / "out.bin")
    assert verification.agrees
    assert set(expected) <= set(verification.versions.equal)
    assert verification.versions.different == ("3.0.10", "2026-08-20")
    assert "not of 3.0.10, 2026-08-20" in verification.versions.format_line()


def test_a_difference_may_be_that_of_another_version(tmp_path):
    model = make_norm_net()
    samples = nets.samples(model, 8)
    graph = quantize_and_write_output(model, samples, tmp_path / "out.bin", "venusA@3.0.10")
    verification = lo.verify(graph, samples, output=tmp_path / "out.bin")
    assert not verification.agrees
    assert verification.versions.equal == ("3.0.10", "2026-08-20")


def test_convolutions_cannot_tell_versions_apart(tmp_path):
    model = nets.plain()
    samples = nets.samples(model, 8)
    graph = quantize_and_write_output(model, samples, tmp_path / "out.bin", "venusA")
    versions = lo.verify(graph, samples, output=tmp_path / "out.bin").versions
    assert not versions.different
    assert "cannot tell versions of the executor apart" in versions.format_line()
