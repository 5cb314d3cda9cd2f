"""Nodes that lose much by themselves: told apart from what is lost before, on the host where that
is better.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.quantization import build_candidate, plan_model, prepare_model, refine_weights
from lingeronnx.quantization.report.fidelity import measure_tensor_sqnr
from lingeronnx.quantization.trials.low_sqnr_nodes import find_low_sqnr_nodes, measure_node_sqnr
from lingeronnx.runtime.session import LoweredSession
from tests.nets import Net, samples


def uneven():
    """Three convolutions, an Erf between each two. The middle one has weights of 100 for a channel
    of next to nothing.

    One scale for its weights leaves of the others, of about 0.3, next to nothing.
    """
    net = Net(8, 8, 8, seed=3)
    first = (net.rng.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
    first[0] *= 1e-4
    depth = (net.rng.standard_normal((8, 1, 3, 3)) / 3).astype(np.float32)
    depth[0] *= 300
    a = net.node("Erf", net.node("Conv", "x", net.const(first), pads=[1] * 4))
    b = net.node("Erf", net.node("Conv", a, net.const(depth), pads=[1] * 4, group=8))
    return net.graph(net.conv(b, (8, 8, 3, 3), pads=[1] * 4, out="y"))


def of_one_plan(model):
    """Return a plan's comparison without effort."""
    prepared = prepare_model(
        model, samples(model, 32), None, {"platform": "venus", "effort": "fast", "max_parts": 9}
    )
    planned = plan_model(prepared, None, None)
    return build_candidate(planned, refine_weights(planned))


def by_operator(graph, levels):
    """Return [(groups, dB)] of the convolutions in order."""
    nodes = [node for node in graph.graph if node.op_type == "Conv"]
    return [
        (
            node.attributes["group"].as_int() if "group" in node.attributes else 1,
            levels[str(node.outputs[0].name)],
        )
        for node in nodes
    ]


def test_what_a_node_loses_is_told_apart_from_what_is_lost_before_it():
    """Of the convolution behind the uneven one little arrives; by itself it is as near as the
    first.
    """
    best = of_one_plan(uneven())
    feed = best.prepared.data.first(32)
    session = LoweredSession(best.lowered.graph, best.planned.prepared.target)
    arrives = by_operator(
        best.float_graph, measure_tensor_sqnr(best.lowered.graph, best.float_graph, session, feed)
    )
    own = by_operator(best.float_graph, measure_node_sqnr(best))
    assert [groups for groups, _ in own] == [1, 8, 1]
    assert own[0][1] == pytest.approx(arrives[0][1], abs=1)  # nothing is before it
    assert own[1][1] < 10 < 25 < min(own[0][1], own[2][1])
    assert arrives[2][1] < own[2][1] - 10


def test_layers_leave_the_worst_first_as_long_as_nine_tenths_stay():
    best = of_one_plan(uneven())
    parts = best.prepared.parts
    layers = [node for node, _ in parts.integer_nodes if node.op_type == "Conv"]
    names = [str(node.name) for node in layers]
    own = {
        str(node.outputs[0].name): level
        for node, level in zip(layers, (12.0, 5.0, 8.0), strict=True)
    }
    assert find_low_sqnr_nodes(parts, own, 4.0) == {}
    assert set(find_low_sqnr_nodes(parts, own, 20.0)) == {
        names[1]
    }  # of the others one alone is more than a tenth
    assert find_low_sqnr_nodes(parts, dict.fromkeys(own, 30.0), 20.0) == {}


def test_a_weak_layer_goes_to_the_host_where_that_is_measured_to_be_better():
    model = uneven()
    stays, moved = (
        lo.quantize(model, samples(model, 32), platform="venus", **more)
        for more in ({}, {"max_parts": 9})
    )
    assert moved.report.outputs["y"]["sqnr"] > stays.report.outputs["y"]["sqnr"] + 10
    (layer,) = [node for node in (*moved.report.float_nodes, *moved.report.host_part) if node.macs]
    assert "its 8-bit SQNR is" in layer.why
    assert moved.report.integer_macs > 0.9
    assert stays.report.integer_macs == 1.0


def test_all_that_is_no_layer_is_the_last_thing_tried():
    """Without an end to the level all nodes without products leave, and of layers those that are
    weak, as before.
    """
    best = of_one_plan(uneven())
    parts = best.prepared.parts.with_added_floats({})
    layers = [node for node, _ in parts.integer_nodes if node.op_type == "Conv"]
    own = {
        str(node.outputs[0].name): level
        for node, level in zip(layers, (40.0, 5.0, 35.0), strict=True)
    }
    others = {str(node.name) for node, op in parts.integer_nodes if node.op_type != "Conv"}
    assert {*find_low_sqnr_nodes(parts, own, math.inf)} == others | {str(layers[1].name)}
    own[str(layers[1].outputs[0].name)] = 31.0
    assert {*find_low_sqnr_nodes(parts, own, math.inf)} == others


def test_what_multiplies_each_number_by_another_is_no_layer():
    """A depthwise convolution of one tap has a product for each number: of a level without an end
    it leaves as well.
    """
    net = Net(8, 8, 8, seed=3)
    a = net.node("Erf", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    model = net.graph(
        net.conv(net.node("Erf", net.conv(a, (8, 1, 1, 1), group=8)), (8, 8, 3, 3), out="y")
    )
    parts = of_one_plan(model).prepared.parts.with_added_floats({})
    layers = [node for node, _ in parts.integer_nodes if node.op_type == "Conv"]
    own = {str(node.outputs[0].name): 40.0 for node in layers}
    found = find_low_sqnr_nodes(parts, own, math.inf)
    assert [str(node.name) in found for node in layers] == [False, True, False]
    assert not {str(node.name) for node in layers} & find_low_sqnr_nodes(parts, own, 30.0).keys()
