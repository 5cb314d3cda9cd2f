"""What preparation leaves to the host: infinite values of a constant, in whatever sample they
show.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.graph import ir
from lingeronnx.targets import PLATFORMS
from tests.passes.helpers import proto, rand

TEXT = """g (float[N,8] x) => (float[N,8] y) {
    d = Shape(x) turned = Expand(places, d) c = MatMul(x, w) high = Greater(c, bound) m = Where(high, never, c)
    g = GatherElements<axis = 1>(m, turned) s = Softmax<axis = 1>(g) y = MatMul(s, v) }"""


def samples(first):
    """48 of which those from `first` on reach what the mask cuts off."""
    x = np.random.default_rng(3).standard_normal((48, 8)).astype(np.float32)
    x[first:] *= 20
    return {"x": x}


@pytest.mark.parametrize("first", (0, 40, 48), ids=("all", "last", "none"))
@pytest.mark.parametrize("target", PLATFORMS, ids=lambda target: target.name)
def test_infinite_values_are_the_hosts(target, first):
    held = {
        "w": np.eye(8, dtype=np.float32),
        "bound": np.float32(12),
        "never": np.float32(-np.inf),
        "v": rand(8, 8),
        "places": np.arange(8)[None, ::-1].copy(),
    }
    report = quantize(
        ir.from_proto(proto(TEXT, **held)), samples(first), platform=target, effort="fast"
    ).report
    why = {node.op_type: node.why for node in report.float_nodes}.get("Softmax", "")
    assert ("infinite values" in why) == (first < 48 and target.is_computed_correctly("SoftmaxInt"))
    assert np.isfinite(report.outputs["y"]["sqnr"])
