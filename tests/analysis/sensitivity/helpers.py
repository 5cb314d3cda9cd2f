"""Nets with data, planned, and what runs their trials."""

from __future__ import annotations

import numpy as np

from lingeronnx.analysis.sensitivity.layers import build_roundable_model, list_rounded_operators
from lingeronnx.analysis.sensitivity.trial import RoundedSet
from lingeronnx.ir import ir
from lingeronnx.quantization import plan_model, prepare_model
from tests.nets import Net

NETS = ("plain", "residual", "depthwise", "concat", "asymmetric", "branches")


def small_net():
    """Build two convolutions with an Add, a global average and a linear layer: few trials, each of
    them short.
    """
    net = Net(4, 6, 6, seed=7)
    shortcut = net.node("Relu", net.conv("x", (6, 4, 3, 3)))
    total = net.node("Add", net.conv(shortcut, (6, 6, 1, 1)), shortcut)
    pool = net.node("GlobalAveragePool", total)
    return net.graph(net.linear(net.node("Flatten", pool), (6, 3), out="y"))


def data(net, count=24, seed=3):
    """Return samples for the net's input x."""
    shape = [1 if i == 0 else d for i, d in enumerate(ir.get_shape(net.graph.inputs[0]))]
    return np.random.default_rng(seed).standard_normal((count, *shape[1:])).astype(np.float32)


def planned(net, **more):
    return plan_model(
        prepare_model(net, data(net), None, {"effort": "fast", **more}, hold_out=False)
    )


def engine_of(net, **more):
    plan = planned(net, **more)
    operators = list_rounded_operators(plan)
    outputs = [str(v.name) for v in plan.graph.graph.outputs]
    return plan, operators, build_roundable_model(plan, operators, outputs).create_engine()


def union(every):
    found = RoundedSet()
    for layer in every:
        found |= layer.all_rounded
    return found
