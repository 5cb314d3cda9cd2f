"""Clip(0, b) on a chip whose b no scale brings to the top of the integers: composed between layers,
else in float.
"""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.api import quantize
from tests import nets
from tests.packability import CHIPS, evaluate_result


def doubled():
    """A sum keeps no finer scale than its operands have, and they are wider than the Clip."""
    net = nets.Net(3, 6, 6, seed=3, batch=1)
    t = net.conv("x", (8, 3, 3, 3), gain=8.0, out="t")
    net.node("Add", t, t, out="before")
    net.conv(net.relu6("before", out="six"), (4, 8, 1, 1), out="y")
    return net.graph("y")


def passed_by():
    """What is clipped is read beside the Clip as well, unclipped."""
    net = nets.Net(3, 6, 6, seed=3, batch=1)
    net.conv("x", (8, 3, 3, 3), gain=8.0, out="before")
    net.conv(net.node("Add", "before", net.relu6("before", out="six")), (4, 8, 1, 1), out="y")
    return net.graph("y")


def clipped_twice():
    """Two Clips of one group ask for two factors."""
    net = nets.Net(3, 6, 6, seed=3, batch=1)
    four = net.node(
        "Clip",
        net.conv("x", (8, 3, 3, 3), gain=8.0),
        net.const(np.float32(0)),
        net.const(np.float32(4)),
    )
    net.node("Add", four, net.conv("x", (8, 3, 3, 3), gain=8.0), out="before")
    net.conv(net.relu6("before", out="six"), (4, 8, 1, 1), out="y")
    return net.graph("y")


def in_rows():
    """No image: the Clip stands between two Gemm."""
    net = nets.Net(12, seed=3, batch=1)
    t = net.linear("x", (12, 16), out="t")
    net.node("Add", t, t, out="before")
    net.linear(net.relu6("before", out="six"), (16, 4), out="y")
    return net.graph("y")


@pytest.mark.sweep
@pytest.mark.parametrize("build", (doubled, passed_by, clipped_twice, in_rows))
@pytest.mark.parametrize("chip", CHIPS)
def test_a_clip_between_layers_is_composed(build, chip):
    """The integers are those that a Clip gives, `check` says so beforehand, and the other packer
    takes it.
    """
    graph = build()
    feed = {"x": 3 * nets.samples(graph, 8)["x"]}
    assert lo.check(graph, platform=chip).choice.verdict.is_chip_ready
    result = quantize(graph, feed, platform=chip, effort="fast")
    assert result.report.chip_ready, result.report.findings
    assert "Clip" not in {node.op_type for node in result.graph.graph}
    verdict = evaluate_result(result, chip)
    assert (verdict.problems, verdict.right) == ([], True)
    taps = {name: array for name, array, _ in result.session().taps(feed)}
    factor = result.plan.transforms["six"].factor[0] if "six" in result.plan.transforms else 1.0
    high = int(np.floor(6 * factor * result.plan.tensors["six"].scale + 0.5))
    assert taps["before"].max() > high
    np.testing.assert_array_equal(taps["six"], np.clip(taps["before"], 0, high))


def read_outside(outputs):
    """A ReLU6 that is a graph output, alone or beside a layer's."""
    net = nets.Net(3, 8, 8, seed=2)
    six = net.relu6(net.conv("x", (8, 3, 3, 3)), out="six")
    if "y" in outputs:
        net.conv(six, (4, 8, 1, 1), out="y")
    return net.graph(*outputs)


@pytest.mark.parametrize(("outputs", "floats"), [(("y", "six"), 0), (("six",), 1)])
def test_a_clip_that_is_an_output(outputs, floats):
    """It takes no factor. With a layer behind it, it is on the chip; as the last one it is the
    host's, who says why.
    """
    graph = read_outside(outputs)
    report = quantize(graph, nets.samples(graph, 8), platform="venus", effort="fast").report
    assert report.chip_ready
    assert [node.op_type for node in report.host_part] == ["Clip"] * floats
    assert all("no Clip" in node.why for node in report.host_part)


def test_bounds_below_the_top_cost_little():
    """A sum that is wider than its Clip keeps its values: what is read beside the Clip is not cut
    off at the bound.
    """
    graph = passed_by()
    feed = {"x": 3 * nets.samples(graph, 8)["x"]}
    result = quantize(graph, feed, platform="arcs", effort="fast")
    scale = result.plan.tensors["before"].scale * result.plan.transforms["before"].factor[0]
    seen = next(array for name, array, _ in result.session().taps(feed) if name == "before")
    assert seen.max() / scale > 12
    assert result.report.outputs["y"]["sqnr"] > 25
