"""A float node that no single integer operator serves: the report says what stands for it, as for
any other rewrite.
"""

import numpy as np
import pytest

import lingeronnx as lo
from tests import nets


def line():
    """A convolution along a line, of which chips make an image's."""
    net = nets.Net(4, 12)
    net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]), out="y")
    return net.graph("y"), (20, 4, 12)


def difference():
    """Two maps, one taken from the other."""
    net = nets.Net(3, 8, 8)
    a, b = (net.node("Relu", net.conv("x", (4, 3, 3, 3), pads=[1] * 4)) for _ in range(2))
    net.conv(net.node("Sub", a, b), (4, 4, 1, 1), out="y")
    return net.graph("y"), (20, 3, 8, 8)


def written(build, platform):
    """Return the integer graph's operators, in order, and {node: (what, cost)} of the report."""
    model, shape = build()
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    done = lo.quantize(model, {"x": x}, platform=platform, effort="fast")
    return [node.op_type for node in done.graph.graph], {
        f.node: (f.what, f.cost) for f in done.report.fitted
    }


def test_movement_is_exact():
    """A line is an image of height 1; nothing is rounded but by the convolution, as before."""
    kinds, report = written(line, "venusA")
    start = kinds.index("Unsqueeze")
    assert kinds[start : start + 3] == ["Unsqueeze", "Conv2dInt", "Squeeze"]
    assert report == {
        "Conv_t0": ("Conv written as Unsqueeze, Conv2dInt, Squeeze", "rounds at most once")
    }


def test_what_rounds_more_often_is_told():
    """A difference is the sum with the negated operand where the chip's own is wrong."""
    kinds, report = written(difference, "venus")
    assert "iqSub" not in kinds
    assert kinds.count("BatchNorm2dInt") == kinds.count("iqAdd") == 1
    (said,) = (entry for name, entry in report.items() if name.startswith("Sub"))
    assert said == (
        "Sub written as BatchNorm2dInt, iqAdd",
        "2 operators, each rounds at most once",
    )


@pytest.mark.parametrize("build", (line, difference))
def test_one_operator_for_one_node_is_no_rewrite(build):
    """Quant and Dequant at the borders are none either."""
    kinds, report = written(build, "generic")
    assert {"Quant", "Dequant"} <= set(kinds)
    assert report == {}
