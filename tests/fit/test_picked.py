"""Padding with copies and slices with steps as slices side by side: the float function stays, chips
take it, exact.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.luna import VENUS
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS
from tests.case_selection import limit_examples
from tests.nets import Net, samples
from tests.passes.helpers import feeds, ops, outputs

CHIPS = [target for target in PLATFORMS if target.has_packer]


def build_pad(pads, mode, size=(5, 6)):
    """A convolution, a Pad of the last two axes by (top, left, bottom, right), a convolution."""
    net = Net(3, *size, seed=2)
    pad_top, pad_left, pad_bottom, pad_right = pads
    all_pads = net.const(np.array([0, 0, pad_top, pad_left, 0, 0, pad_bottom, pad_right]))
    a = net.conv("x", (4, 3, 3, 3), pads=[1] * 4, out="a")
    return net.graph(
        net.conv(net.node("Pad", a, all_pads, mode=mode, out="b"), (2, 4, 1, 1), out="y")
    )


def build_slice(axes, starts, ends, steps, size=(7, 8)):
    net = Net(3, *size, seed=3)
    a = net.conv("x", (6, 3, 3, 3), pads=[1] * 4, out="a")
    bounds = [net.const(np.array(part)) for part in (starts, ends, axes, steps)]
    channels = len(range(*slice(starts[0], ends[0], steps[0]).indices(6))) if axes == [1] else 6
    return net.graph(net.conv(net.node("Slice", a, *bounds, out="b"), (2, channels, 1, 1), out="y"))


def legalize_and_compare(model, target=VENUS):
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    feed = feeds(model)
    want = outputs(model, feed)["y"]
    rewrites = legalize_graph(model, target)
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-6)
    return rewrites


@limit_examples(30)
@given(st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(["edge", "reflect"]))
def test_padding_with_copies(pads, mode):
    """Law: every element comes from where the mode says."""
    rewrites = legalize_and_compare(build_pad(pads, mode))
    assert bool(rewrites) == any(pads)
    assert all(rewrite.cost == "exact" for rewrite in rewrites)


@limit_examples(30)
@given(st.integers(2, 3), st.integers(0, 4), st.integers(2, 4))
def test_slices_with_steps(axis, start, step):
    """Law: the function is kept, whether full steps end inside the axis or not."""
    model = build_slice([axis], [start], [1 << 40], [step])
    rewrites = legalize_and_compare(model)
    assert [rewrite.cost for rewrite in rewrites] == ["exact"]


def test_backwards_and_on_two_axes():
    assert legalize_and_compare(build_slice([3], [-1], [-(1 << 40)], [-1]))
    model = build_slice([2, 3], [0, 1], [7, 8], [2, 2])
    assert legalize_and_compare(model)
    assert ops(model).count("Conv") == 2


def test_the_host_does_it_at_the_ends():
    net = Net(4, 6, 6, seed=1)
    bounds = [net.const(np.array([part])) for part in (0, 6, 2, 2)]
    padded_ = net.node("Pad", "x", net.const(np.array([0, 0, 1, 1, 0, 0, 1, 1])), mode="reflect")
    last = net.conv(padded_, (4, 4, 3, 3))
    assert legalize_and_compare(net.graph(net.node("Slice", last, *bounds, out="y"))) == []


def test_many_runs_stay():
    """Sixteen slices are enough; and the batch is not cut."""
    assert legalize_and_compare(build_slice([3], [-1], [-(1 << 40)], [-1], size=(2, 17))) == []


@pytest.mark.sweep
@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize(
    "make",
    [
        lambda: build_pad((1, 2, 0, 1), "reflect"),
        lambda: build_pad((1, 1, 1, 1), "edge"),
        lambda: build_slice([2, 3], [0, 1], [7, 8], [2, 2]),
        lambda: build_slice([1], [1], [6], [2]),
        lambda: build_slice([3], [-1], [-(1 << 40)], [-1]),
    ],
    ids=["reflect", "edge", "steps", "channels", "backwards"],
)
def test_chips_take_it_and_nothing_is_rounded(target, make):
    model = make()
    result = quantize(model, samples(model, 24), platform=target.name, effort="fast")
    assert result.report.chip_ready, result.report.findings
    tensors = {
        name: q.real(array)
        for name, array, q in Session(result.graph).tensors(samples(model, 4, seed=9))
        if q is not None
    }
    assert set(np.unique(tensors["b"])) <= set(np.unique(tensors["a"]))
