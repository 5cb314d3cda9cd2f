"""What preparation leaves to the host: infinite values of a constant, in whatever sample they
show.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
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


class _Loader:
    """Shuffles and augments, as data loaders for training do."""

    def __init__(self, samples):
        self.samples, self.passes = samples, 0

    def __iter__(self):
        self.passes += 1
        rng = np.random.default_rng(self.passes)
        for index in rng.permutation(len(self.samples)):
            yield self.samples[index : index + 1] + rng.normal(0, 0.1, (1, 8)).astype(np.float32)


@pytest.mark.parametrize("count", (64, 600), ids=("all for calibration", "some held out"))
def test_both_models_are_compared_on_the_same_samples(count):
    loader = _Loader(rand(count, 8, seed=3))
    model = ir.from_proto(
        proto(
            "g (float[N,8] x) => (float[N,8] y) { a = MatMul(x, w) r = Relu(a) y = MatMul(r, w) }",
            w=rand(8, 8, seed=1),
        )
    )
    report = quantize(model, loader, platform="generic").report
    assert report.outputs["y"]["sqnr"] > 30
    assert report.warnings == []
    assert loader.passes == 1


def test_a_generator_is_calibrated_like_a_list():
    x = rand(64, 8, seed=3)
    model = ir.from_proto(
        proto("g (float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }", w=rand(8, 8, seed=1))
    )
    listed = quantize(model, [x[:32], x[32:]], platform="generic")
    generated = quantize(model, iter([x[:32], x[32:]]), platform="generic")
    assert generated.plan.to_json() == listed.plan.to_json()
    assert generated.report.outputs == listed.report.outputs
