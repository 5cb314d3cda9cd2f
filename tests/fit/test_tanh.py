"""Tanh between layers by the sigmoid's table: the float function stays, chips without a right tanh
take it.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.operators.macs import count_macs
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC
from tests.nets import Net, samples
from tests.passes.helpers import feeds, ops, outputs

WITHOUT = [ARCS, VENUSA]


def layer(net, source, units, rank, out=""):
    if rank == 2:
        return net.linear(source, (6, units), out=out)
    return net.conv(source, (units, 6, *(3,) * (rank - 2)), pads=[1] * 2 * (rank - 2), out=out)


def between(rank=4, read=False):
    """A layer, a tanh, a layer; read : the first one's outputs are read by another layer, too."""
    net = Net(*(6, 5, 8)[: rank - 1], seed=rank)
    first = layer(net, "x", 6, rank)
    last = layer(net, net.node("Tanh", first), 4, rank, out="" if read else "y")
    return net.graph(net.node("Add", last, layer(net, first, 4, rank), out="y") if read else last)


def trace_and_normalize(model):
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    normalize(model)
    return model


@pytest.mark.parametrize("target", WITHOUT, ids=lambda target: target.name)
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_the_function_stays(rank, read, target):
    """Twice the weights where nothing else reads the layer, a factor of its own where something
    does.
    """
    model = trace_and_normalize(between(rank, read))
    feed = feeds(model)
    want, before = outputs(model, feed)["y"], model.clone()
    rewrites = [f for f in legalize_graph(model, target) if "sigmoid" in f.what]
    assert len(rewrites) == 1
    assert "Tanh" not in ops(model)
    assert ops(model).count("BatchNormalization") == 1 + read
    assert sum(map(count_macs, model.graph)) == sum(map(count_macs, before.graph))
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("target", WITHOUT, ids=lambda target: target.name)
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_chips_take_it(rank, read, target):
    model = between(rank, read)
    report = quantize(model, samples(model, 32), platform=target.name, effort="fast").report
    assert report.chip_ready, report.findings
    assert not report.float_nodes
    assert min(fidelity["sqnr"] for fidelity in report.outputs.values()) > 28


@pytest.mark.parametrize("target", [VENUS, GENERIC], ids=lambda target: target.name)
def test_a_tanh_of_their_own_stays(target):
    model = trace_and_normalize(between())
    legalize_graph(model, target)
    assert "Tanh" in ops(model)


@pytest.mark.parametrize("target", WITHOUT, ids=lambda target: target.name)
def test_at_the_ends_the_host_computes_it(target):
    """In front of the first layer and behind the last one it costs the chip nothing, and is
    exact.
    """
    net = Net(6, 5, 8)
    model = trace_and_normalize(
        net.graph(net.node("Tanh", net.conv(net.node("Tanh", "x"), (4, 6, 3, 3)), out="y"))
    )
    assert legalize_graph(model, target) == []
    assert [node.op_type for node in model.graph] == ["Tanh", "Conv", "Tanh"]
    assert ir.const_value(next(n for n in model.graph if n.op_type == "Conv").inputs[1]) is not None
