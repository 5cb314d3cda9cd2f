"""Logits beyond 64: softmaxes whose probabilities suffer stay in float, and others do not."""

from typing import NamedTuple

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.operators.normalization.lowering.softmax import Softmax
from lingeronnx.quantization.methods.softmax_saturation import find_saturated_softmaxes
from tests.nets import Net, prepared, samples


def attention(gain, mask=None, offset=0.0):
    """Return self-attention over 12 tokens of 16 elements, with scores times `gain`."""
    net = Net(12, 16, seed=3)

    def project(size, scale):
        values = net.rng.standard_normal((16, size)) * scale
        return net.node("MatMul", "x", net.const(values.astype(np.float32)))

    query, key, value = project(16, gain / 16), project(16, 1.0), project(8, 0.5)
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=[0, 2, 1]))
    if offset:
        scores = net.node("Add", scores, net.const(np.full(1, offset, np.float32)))
    if mask is not None:
        scores = net.node("Add", scores, net.const(mask.astype(np.float32)))
    probabilities = net.node("Softmax", scores, axis=-1)
    return net.graph(net.node("MatMul", probabilities, value))


def get_float_softmaxes(result):
    return [node.why for node in result.report.float_nodes if node.op_type == "Softmax"]


@pytest.mark.parametrize(
    "gain, platform", ((10.0, "generic"), (10.0, "arcs"), (10.0, "venusA"), (300.0, "generic"))
)
def test_close_logits_beyond_the_limit_stay_in_float(gain, platform):
    """They were 1 to 3 dB, or with steps of more than 16 an error."""
    model = attention(gain)
    result = quantize(model, samples(model, 64), platform=platform)
    (why,) = get_float_softmaxes(result)
    assert "its logits reach" in why
    assert "beyond 64 become equal" in why
    (figures,) = result.report.outputs.values()
    assert figures["sqnr"] > 12


def test_small_logits_are_not_computed():
    """Without logits beyond the limit, no sample is run."""
    graph = prepared(attention(0.5))
    partition = _Partition(next(n for n in graph.graph if n.op_type == "Softmax"), Softmax())
    statistics = {ir.input_name(partition.integer_nodes[0][0]): _Entry(-64.0, 64.0)}
    assert find_saturated_softmaxes(partition, statistics, None, None) == {}


def test_logits_far_below_zero_stay_in_float():
    """Their scale has no ratio to the algorithm's format; it was an error of the simulator."""
    model = attention(0.05, offset=-5000.0)
    result = quantize(model, samples(model, 16), platform="generic")
    assert len(get_float_softmaxes(result)) == 1


class _Entry(NamedTuple):
    """Statistics of logits, as far as they are read."""

    low: float = -500.0
    high: float = 500.0


class _Partition:
    """A partition of one softmax."""

    def __init__(self, node, op):
        self.integer_nodes = [(node, op)]


class _Runner:
    """A runner that returns its logits for every batch."""

    def __init__(self, logits):
        self.logits = logits

    def run(self, batch, names):
        (name,) = names
        yield name, self.logits, None


@pytest.mark.parametrize(
    "rows, useless",
    (
        ([[100.0, 90.0, 1.0]], True),  # both become 64
        ([[100.0, 40.0, 1.0]], False),  # the lead is lost in part, and still leaves nothing
        ([[3.0, -400.0, 2.0]], False),  # nothing was left for the masked one
        ([[-100.0, -80.0, -300.0]], True),
        ([[100.0, 90.0, 1.0]] + 999 * [[1.0, 2.0, 3.0]], False),  # one row in a thousand
    ),
)
def test_what_counts_is_the_probabilities(rows, useless):
    graph = prepared(attention(1.0))
    (node,) = [node for node in graph.graph if node.op_type == "Softmax"]
    runner = _Runner(np.array([rows], np.float32))
    found = find_saturated_softmaxes(
        _Partition(node, Softmax()), {ir.input_name(node): _Entry()}, runner, [{}, {}]
    )
    assert list(found) == ([str(node.name)] if useless else [])


def test_a_causal_mask_keeps_its_softmax():
    """Masked scores lie far below the limit, which costs nothing."""
    model = attention(0.5, np.triu(np.full((12, 12), -1e4), 1))
    result = quantize(model, samples(model, 16), platform="generic")
    assert not get_float_softmaxes(result)
