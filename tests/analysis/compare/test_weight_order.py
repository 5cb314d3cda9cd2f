"""Channels that have each other's weights are told by the weights, of every layout; sound layers
are left alone.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.analysis.compare.compare import compare
from lingeronnx.analysis.compare.weight_order import find_swapped_channels, find_transposed_axes
from lingeronnx.ir import ir
from tests.nets import Net, depthwise, plain


def layers(net):
    """Return (integer layer, float layer) of what `quantize` makes of a net, in the order of the
    graph.

    An average by weights of one value has no bias, and is none of them.
    """
    shape = [d if isinstance(d, int) else 16 for d in ir.get_shape(net.graph.inputs[0])]
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    graph = lo.quantize(net, {"x": data}, platform="venus", effort="fast").graph
    ours = [
        node
        for node in graph.graph
        if node.op_type in ("Conv2dInt", "LinearInt") and len(node.inputs) > 2
    ]
    theirs = [node for node in net.graph if node.op_type in ("Conv", "Gemm")]
    return list(zip(ours, theirs, strict=True))


def linear(turned):
    """A square matrix, which may lie either way."""
    net = Net(8, seed=7)
    weight, bias = (
        net.const(a.astype(np.float32)) for a in (net.rng.standard_normal((8, 8)), np.ones(8))
    )
    return net.graph(net.node("Gemm", "x", weight, bias, out="y", transB=turned))


NETS = {
    "depthwise": depthwise,
    "plain": plain,
    "linear": partial(linear, 0),
    "turned": partial(linear, 1),
}


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_the_two_that_were_swapped_are_told(build):
    """Whichever two; and nothing of the layers as they were made, nor where signs are turned
    round.
    """
    rng = np.random.default_rng(1)
    for ours, theirs in layers(build()):
        weight = np.array(ir.const_value(ours.inputs[1]))
        assert find_swapped_channels(ours, theirs) == []
        for _ in range(5):
            pair = sorted(rng.choice(len(weight), 2, replace=False))
            changed = weight.copy()
            changed[pair] = -weight[pair[::-1]]
            ir.set_initializer_value(ours.inputs[1], changed)
            assert find_swapped_channels(ours, theirs) == [tuple(pair)]
        ir.set_initializer_value(ours.inputs[1], weight)


def test_a_row_of_a_few_counts_is_told_by_the_other():
    """Its own direction is rounding's; a row that holds another's and nothing of its own is
    enough.
    """
    ours, theirs = layers(plain())[1]
    meant, made = (np.array(ir.const_value(node.inputs[1])) for node in (theirs, ours))
    meant[3] *= 1e-3
    ir.set_initializer_value(theirs.inputs[1], meant)
    made[3] = made[5]
    made[5] = 0
    made[5, 0, 0, 0] = 1
    ir.set_initializer_value(ours.inputs[1], made)
    assert find_swapped_channels(ours, theirs) == [(3, 5)]


def test_factors_of_inputs_are_taken_out():
    """Equalization multiplies inputs by up to a hundred times each other: without them rows look
    strange.
    """
    ours, theirs = layers(plain())[1]
    factor = np.geomspace(0.1, 10, 8)
    weight = np.array(ir.const_value(theirs.inputs[1])) / factor.reshape(1, 8, 1, 1)
    made = np.rint(weight * 127 / np.abs(weight).max()).astype(np.int8)
    made[[0, 6]] = made[[6, 0]]
    ir.set_initializer_value(ours.inputs[1], made)
    assert find_swapped_channels(ours, theirs, tuple(factor)) == [(0, 6)]


def test_what_cannot_be_compared_is_not():
    (depth, theirs), (other, _) = layers(depthwise())[2], layers(plain())[0]
    assert find_swapped_channels(other, theirs) == []  # of another form
    weight = np.array(ir.const_value(depth.inputs[1]))
    alike = np.broadcast_to(weight[:1], weight.shape).copy()  # rows of one direction have no order
    ir.set_initializer_value(theirs.inputs[1], alike.astype(np.float32))
    ir.set_initializer_value(depth.inputs[1], alike)
    assert find_swapped_channels(depth, theirs) == []


def test_a_swap_is_told_where_no_sample_shows_it():
    """Both channels are cut off by a Relu whatever the input: the outputs are right, and the graph
    is not.
    """
    net = Net(3, 8, 8, seed=4)
    weight = net.rng.standard_normal((6, 3, 3, 3)).astype(np.float32)
    first = net.node(
        "Conv", "x", net.const(weight), net.const(np.array([0, 0, 0, 0, -99, -99], np.float32))
    )
    graph = net.graph(net.node("GlobalAveragePool", net.node("Relu", first), out="y"))
    data = {"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}
    quantized = onnx.load_from_string(
        ir.to_bytes(lo.quantize(graph, data, platform="venus", effort="fast").graph)
    )
    held = next(t for t in quantized.graph.initializer if list(t.dims) == [6, 3, 3, 3])
    array = np.array(onnx.numpy_helper.to_array(held))
    array[[4, 5]] = array[[5, 4]]
    held.CopyFrom(onnx.numpy_helper.from_array(array, held.name))
    comparison = compare(graph, ir.from_proto(quantized), data).findings[0]
    assert (comparison.kind, comparison.layer) == ("channels swapped", "t0")
    assert "4 and 5" in comparison.measured


@pytest.mark.parametrize(
    ("transpose", "expected"),
    [
        (lambda weight: weight.swapaxes(2, 3), "height and width swapped"),
        (lambda weight: weight[:, :, ::-1, ::-1], "their spatial axes reversed"),
        (lambda weight: weight.swapaxes(0, 1), "input and output channels swapped"),
        (lambda weight: weight, ""),
    ],
)
def test_transposed_kernels_are_told(transpose, expected):
    """Of a layer with as many inputs as outputs; a difference of sign per channel is no matter."""
    ours, theirs = layers(plain())[1]
    weight = np.array(ir.const_value(ours.inputs[1]))
    assert weight.shape[0] == weight.shape[1]
    ir.set_initializer_value(ours.inputs[1], np.ascontiguousarray(-transpose(weight)))
    assert find_transposed_axes(ours, theirs) == expected


def test_matrices_may_be_transposed():
    net = Net(8, seed=2)
    ours, theirs = layers(net.graph(net.linear("x", (8, 8), out="y")))[0]
    weight = np.array(ir.const_value(ours.inputs[1]))
    ir.set_initializer_value(ours.inputs[1], np.ascontiguousarray(weight.T))
    assert find_transposed_axes(ours, theirs) == ""
