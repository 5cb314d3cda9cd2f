"""Functions of numbers by sums and products: the float function stays, chips take them, |x| is
exact in integers.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from lingeronnx.targets import GENERIC, PLATFORMS
from tests.nets import Net, samples
from tests.passes.helpers import feeds, ops, outputs

CHIPS = [target for target in PLATFORMS if target.has_packer]


def between(ends=False):
    net = Net(3, 6, 8, seed=1)
    a = net.conv("x", (6, 3, 3, 3), pads=[1] * 4, out="a")
    b = net.node("Abs", a, out="b")
    return net.graph(b if ends else net.conv(b, (4, 6, 1, 1), out="y"))


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_the_function_stays(target):
    model = between()
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    feed = feeds(model)
    want = outputs(model, feed)["y"]
    assert [f.cost for f in legalize_graph(model, target)][:1] == ["exact"]
    assert "Abs" not in ops(model)
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
def test_integers_are_exact(target):
    """The integers of |a| are the absolute values of those of a, but for those that do not fit."""
    model = between()
    result = quantize(model, samples(model, 32), platform=target.name, effort="fast")
    assert result.report.chip_ready, result.report.findings
    session = Session(result.graph)
    tensors = {
        name: q.real(array)
        for name, array, q in session.tensors(samples(model, 8, seed=4))
        if q is not None
    }
    a, b = tensors["a"], tensors["b"]
    step = np.diff(np.unique(b)).min()
    assert (np.abs(np.minimum(np.abs(a), b.max()) - b) <= step / 2).all()


@pytest.mark.parametrize("target", [*CHIPS, GENERIC], ids=lambda target: target.name)
def test_it_stays_at_the_ends_and_where_there_is_a_table(target):
    model = between(ends=target is not GENERIC)
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    assert legalize_graph(model, target) == []
    assert "Abs" in ops(model)


def build_combination(kind):
    """A function of two layers' outputs in front of a third."""
    net = Net(3, 6, 8, seed=5)
    operands = [net.conv("x", (6, 3, 3, 3), pads=[1] * 4) for _ in "ab"]
    return net.graph(net.conv(net.node(kind, *operands), (4, 6, 1, 1), out="y"))


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_the_larger_and_the_smaller(kind, target):
    model = build_combination(kind)
    report = quantize(model, samples(model, 32), platform=target.name, effort="fast").report
    assert report.chip_ready, report.findings
    assert min(fidelity["sqnr"] for fidelity in report.outputs.values()) > 20
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    feed = feeds(model)
    want = outputs(model, feed)["y"]
    assert len(legalize_graph(model, target)) == 1
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=1e-5, atol=1e-5)
