"""Small networks with seeded weights for the tests of the whole library, built layer by layer."""

import numpy as np
import onnx
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes


class Net:
    """A float model under construction; every method appends a node and returns its output's
    name.
    """

    def __init__(self, *shape, seed=0, opset=13, batch="N"):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.constants, self.opset = [], [], opset
        self.inputs = [helper.make_tensor_value_info("x", 1, [batch, *shape])]
        self.shape = shape

    def const(self, array):
        """Register a constant and return its name."""
        name = f"k{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op_type, *inputs, out=None, **attributes):
        """Append any node."""
        out = out or f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, inputs, [out], name=f"{op_type}_{out}", **attributes)
        )
        return out

    def conv(self, x, weight, *, bias=True, out=None, gain=1.0, **attributes):
        """Append a Conv with He-scaled weights of shape `weight`."""
        values = self.rng.standard_normal(weight) * gain * np.sqrt(2 / np.prod(weight[1:]))
        names = [self.const(values.astype(np.float32))]
        if bias:
            names.append(self.const((0.1 * self.rng.standard_normal(weight[0])).astype(np.float32)))
        return self.node("Conv", x, *names, out=out, **attributes)

    def relu6(self, x, out=None):
        """Append Clip(0, 6)."""
        return self.node("Clip", x, self.const(np.float32(0)), self.const(np.float32(6)), out=out)

    def linear(self, x, size, out=None):
        """Append a Gemm with a weight of shape `size` (inputs, outputs)."""
        values = self.rng.standard_normal(size) / np.sqrt(size[0])
        bias = 0.1 * self.rng.standard_normal(size[1])
        return self.node(
            "Gemm",
            x,
            *map(self.const, (values.astype(np.float32), bias.astype(np.float32))),
            out=out,
        )

    def proto(self, *outputs):
        """Return the model."""
        results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8
        )
        return onnx.shape_inference.infer_shapes(model)

    def graph(self, *outputs):
        """Return the model in memory."""
        return ir.from_proto(self.proto(*outputs))


def plain():
    """Conv, Relu, MaxPool, Conv, global average, Linear."""
    net = Net(3, 12, 12, seed=1)
    r = net.node("Relu", net.conv("x", (8, 3, 3, 3), pads=[1, 1, 1, 1]))
    p = net.node("MaxPool", r, kernel_shape=[2, 2], strides=[2, 2])
    c = net.conv(p, (8, 8, 3, 3))
    f = net.node("Flatten", net.node("GlobalAveragePool", c))
    return net.graph(net.linear(f, (8, 5), out="y"))


def residual():
    """Two blocks: an identity shortcut and a 1x1 shortcut of stride 2."""
    net = Net(4, 12, 12, seed=2)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1, 1, 1, 1]))
    b = net.conv(
        net.node("Relu", net.conv(a, (8, 8, 3, 3), pads=[1] * 4)),
        (8, 8, 3, 3),
        pads=[1] * 4,
        gain=0.3,
    )
    s = net.node("Relu", net.node("Add", b, a))
    d = net.conv(s, (12, 8, 3, 3), pads=[1] * 4, strides=[2, 2])
    e = net.conv(s, (12, 8, 1, 1), strides=[2, 2])
    f = net.node("Relu", net.node("Add", d, e))
    pool = net.node("GlobalAveragePool", f)
    return net.graph(net.linear(net.node("Flatten", pool), (12, 4), out="y"))


def shortcut():
    """One block with an identity shortcut, for tests of what takes long."""
    net = Net(2, 6, 6, seed=2)
    a = net.node("Relu", net.conv("x", (4, 2, 3, 3), pads=[1] * 4))
    s = net.node("Relu", net.node("Add", net.conv(a, (4, 4, 3, 3), pads=[1] * 4, gain=0.5), a))
    return net.graph(
        net.linear(net.node("Flatten", net.node("GlobalAveragePool", s)), (4, 3), out="y")
    )


def depthwise():
    """Inverted residual: 1x1 with ReLU6, depthwise with ReLU6, 1x1, and an Add."""
    net = Net(6, 10, 10, seed=3)
    a = net.conv("x", (6, 6, 3, 3), pads=[1] * 4)
    b = net.relu6(net.conv(a, (18, 6, 1, 1)))
    c = net.relu6(net.conv(b, (18, 1, 3, 3), group=18, pads=[1] * 4))
    d = net.node("Add", net.conv(c, (6, 18, 1, 1)), a)
    return net.graph(
        net.relu6(net.conv(d, (8, 6, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]), out="y")
    )


def concat():
    """Dense block: each layer reads all before it."""
    net = Net(4, 8, 8, seed=4)
    a = net.node("Relu", net.conv("x", (6, 4, 3, 3), pads=[1] * 4))
    b = net.node("Relu", net.conv(a, (4, 6, 3, 3), pads=[1] * 4, gain=3.0))
    c = net.node("Concat", a, b, axis=1)
    d = net.node("Relu", net.conv(c, (4, 10, 3, 3), pads=[1] * 4, gain=0.2))
    return net.graph(net.node("Concat", c, d, axis=1, out="y"))


def asymmetric():
    """Asymmetric pads, unequal strides, a batch normalisation that stays."""
    net = Net(3, 9, 11, seed=5)
    a = net.conv("x", (8, 3, 3, 3), pads=[1, 0, 0, 1], strides=[2, 1])
    scale, shift = (net.const(net.rng.uniform(0.5, 1.5, 8).astype(np.float32)) for _ in range(2))
    mean, var = (net.const(net.rng.uniform(0.5, 1.5, 8).astype(np.float32)) for _ in range(2))
    n = net.node("BatchNormalization", net.node("Relu", a), scale, shift, mean, var)
    return net.graph(net.conv(n, (8, 1, 5, 5), group=8, strides=[2, 2], pads=[2, 2, 2, 1], out="y"))


def branches():
    """Two outputs, a product with a channel gate, pools of two kinds."""
    net = Net(4, 8, 8, seed=6)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4, bias=False))
    gate = net.node("Relu", net.conv(net.node("GlobalAveragePool", a), (8, 8, 1, 1)))
    m = net.node("Mul", a, gate)
    p = net.node("AveragePool", m, kernel_shape=[2, 2], strides=[2, 2])
    q = net.node("MaxPool", a, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    net.conv(net.node("Concat", p, q, axis=1), (4, 16, 1, 1), out="y")
    t = net.node("Transpose", p, perm=[0, 2, 3, 1])
    net.node("Reshape", t, net.const(np.array([0, -1, 8])), out="r")
    w = net.const((0.3 * net.rng.standard_normal((8, 6))).astype(np.float32))
    return net.graph("y", net.node("MatMul", "r", w, out="z"))


def line():
    """One-dimensional convolutions and a fully connected layer on rows."""
    net = Net(6, 16, seed=9)
    a = net.node("Relu", net.conv("x", (8, 6, 5), strides=[2], pads=[2, 1]))
    b = net.conv(a, (8, 1, 3), group=8, pads=[1, 1])
    t = net.node("Transpose", b, perm=[0, 2, 1])
    w = net.const((0.4 * net.rng.standard_normal((8, 5))).astype(np.float32))
    return net.graph(net.node("MatMul", t, w, out="y"))


NETS = (plain, residual, depthwise, concat, asymmetric, branches)


def samples(model, count=24, seed=0):
    """Return seeded normal inputs for `model`, by name."""
    rng = np.random.default_rng(seed)
    shapes = {str(v.name): ir.get_shape(v)[1:] for v in model.graph.inputs if v.const_value is None}
    return {
        name: rng.standard_normal((count, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def quantized(model, **settings):
    """Return `quantize` of `model` on its `samples`."""
    return quantize(model, samples(model), **settings)


def prepared(model):
    """Return the normalised model with traced shapes."""
    feed = samples(model, 1)
    trace_shapes(model, feed)
    normalize(model)
    trace_shapes(model, feed)
    return model


def single(build, *shape, **options):
    """Return the prepared one-output net that `build(net)` makes."""
    net = Net(*shape, **options)
    return prepared(net.graph(build(net)))
