"""A net that breaks one limit, and its integer graph."""

import numpy as np

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets


def small():
    """Conv, Relu, a strided 1x1 shortcut (which --fit mends), Add, average, Linear."""
    net = nets.Net(4, 8, 8, seed=3)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    b = net.conv(a, (8, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    c = net.conv(a, (8, 8, 1, 1), strides=[2, 2], out="short")
    s = net.node("Relu", net.node("Add", b, c))
    pooled = net.node("AveragePool", s, kernel_shape=[2, 2], strides=[2, 2])
    return net.graph(net.linear(net.node("Flatten", pooled), (32, 5), out="y"))


def quantized():
    """Return `small`'s integer graph for venus as protobuf."""
    x = np.random.default_rng(0).standard_normal((16, 4, 8, 8)).astype(np.float32)
    return ir.to_proto(lo.quantize(small(), x, effort="fast").graph)
