"""`lo.latency`: what a user asks of an integer graph."""

import json

import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets
from tests.each import check_each


@pytest.fixture(scope="module")
def graph():
    """An integer graph for arcs with a convolution, pools and a product."""
    return nets.quantized(nets.plain(), platform="arcs").graph


def test_a_file_and_a_graph_have_the_same_time(graph, tmp_path):
    """The layers are those that run: Relus in convolutions are gone, Quant and Dequant too."""
    ir.save(graph, tmp_path / "q.onnx")
    latency = lo.latency(graph)
    assert latency == lo.latency(tmp_path / "q.onnx", "arcs")
    assert latency.platform == "arcs"
    assert not {"Quant", "Dequant"} & {layer.operator for layer in latency.layers}
    assert latency.luna == pytest.approx(sum(layer.cycles for layer in latency.layers))
    assert latency.low <= latency.total <= latency.high
    assert json.loads(json.dumps(latency.to_dict()))["total"] == latency.total


def test_constants_in_shared_memory_are_not_waited_for(graph):
    """And the NPU computes as long as before."""
    outside, inside = (
        lo.latency(graph, packer_args=""),
        lo.latency(graph, packer_args="-m params:share-mem"),
    )
    assert outside.waits > 0 == inside.waits
    assert outside.luna == inside.luna


def test_data_in_external_memory_cost_copies(graph):
    """All tensors there: each is copied in and out."""
    latency = lo.latency(graph, packer_args="--threshold4 1")
    assert latency.moved > 0
    assert latency.total > lo.latency(graph, packer_args="").total


def test_what_cannot_be_told_is_one_line(graph):
    """No figure is made up."""

    def check(options, message):
        with pytest.raises(lo.ConfigError, match=message) as caught:
            lo.latency(graph, **options)
        assert "\n" not in str(caught.value)

    cases = [
        ({"platform": "venus"}, "no published timing data for venus"),
        ({"platform": "generic"}, "no timing model for generic"),
        ({"packer_args": "-m 'x"}, "cannot be split into words"),
        ({"packer_args": "-p venus"}, "does not pack"),
    ]
    check_each(check, cases)
    for platform in (None, "venus", "generic"):
        with pytest.raises(lo.ConfigError, match="no integer operator; quantize it first"):
            lo.latency(nets.plain(), platform)


def test_a_relu_behind_a_convolution_of_lines_is_a_layer():
    """The packer takes it into a convolution of maps only."""
    net = nets.Net(8, 32)
    graph = net.graph(
        net.node("Relu", net.conv(net.node("Relu", net.conv("x", (8, 8, 3))), (8, 8, 3)))
    )
    result = nets.quantized(graph, platform="arcs").graph
    operators = [layer.operator for layer in lo.latency(result).layers]
    assert operators.count("Relu") == (2 if "Conv1dInt" in operators else 0)
    assert "Conv1dInt" in operators
