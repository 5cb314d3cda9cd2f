"""A curve in rows: of a large map some rows at a time, so that GluInt's work area leaves room; the
integers stay.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.quantization.legalize import activations as activation_module
from lingeronnx.runtime.session import Session
from lingeronnx.targets import get_target
from tests.nets import Net, samples


def build_activation_net(curve, size):
    """Two convolutions of 8 channels with a curve between them."""
    net = Net(3, size, size, seed=3, batch=1)
    x = net.conv("x", (8, 3, 3, 3), pads=[1] * 4)
    if curve == "SiLU":
        x = net.node("Mul", x, net.node("Sigmoid", x))
    else:
        x = net.node("Sigmoid", x)
    x = net.node("MaxPool", x, kernel_shape=[8, 8], strides=[8, 8])
    return net.graph(net.conv(x, (4, 8, 1, 1), out="y"))


@pytest.mark.parametrize("curve", ["SiLU", "Sigmoid"])
def test_a_large_map_in_pieces(curve, monkeypatch):
    """Chip-ready, which it is not as a whole; equal integers; each piece works in a quarter of the
    memory at most.
    """
    model = build_activation_net(curve, 64)
    feed = samples(model)
    split = quantize(model, feed, platform="venusA", effort="fast")
    texts = [fitted.what for fitted in split.report.fitted if "parts" in fitted.what]
    assert texts == ["in 1024 rows of 32, in 5 parts"]
    rows = [n.outputs[0].shape for n in split.graph.graph if n.op_type == "GluInt"]
    assert [shape.numpy()[-1] for shape in rows] == [32] * 5
    assert (
        max(14 * 32 * shape.numpy()[-2] for shape in rows)
        <= get_target("venusA").shared_memory // 4
    )
    monkeypatch.setattr(activation_module, "_count_parts", lambda count, target: 1)
    unsplit = quantize(model, feed, platform="venusA", effort="fast")
    assert (split.report.chip_ready, unsplit.report.chip_ready) == (True, False)
    for have, want in zip(
        Session(split.graph).run(None, feed), Session(unsplit.graph).run(None, feed), strict=True
    ):
        np.testing.assert_array_equal(have, want)


def test_a_small_map_stays_whole():
    """Where the work area takes half of the memory or less."""
    model = build_activation_net("Sigmoid", 40)
    result = quantize(model, samples(model), platform="venusA", effort="fast")
    assert result.report.chip_ready
    assert sum(node.op_type == "GluInt" for node in result.graph.graph) == 1
