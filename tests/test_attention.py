"""A block of attention from float to integers: everything between the first Quant and the last Dequant."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.runners import FloatRunner
from tests.nets import Net

T, D, HEADS = 8, 16, 2


def dense(net, x, inputs, outputs):
    """Append MatMul and Add."""
    weight = net.rng.standard_normal((inputs, outputs)).astype(np.float32) / np.float32(np.sqrt(inputs))
    bias = 0.1 * net.rng.standard_normal(outputs).astype(np.float32)
    return net.node("Add", net.const(bias), net.node("MatMul", x, net.const(weight)))


def norm(net, x):
    gamma = net.rng.uniform(0.7, 1.3, D).astype(np.float32)
    beta = 0.1 * net.rng.standard_normal(D).astype(np.float32)
    if net.opset >= 17:
        return net.node("LayerNormalization", x, net.const(gamma), net.const(beta), axis=-1)
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    spread = net.node("ReduceMean", net.node("Pow", centred, net.const(np.float32(2))), axes=[-1])
    root = net.node("Sqrt", net.node("Add", spread, net.const(np.float32(1e-5))))
    return net.node("Add", net.node("Mul", net.node("Div", centred, root), net.const(gamma)), net.const(beta))


def heads(net, x, perm):
    split = net.node("Reshape", x, net.const(np.array([0, T, HEADS, D // HEADS], np.int64)))
    return net.node("Transpose", split, perm=perm)


def gelu(net, x):
    root, one, half = (net.const(np.float32(v)) for v in (np.sqrt(2), 1, 0.5))
    phi = net.node("Add", net.node("Erf", net.node("Div", x, root)), one)
    return net.node("Mul", net.node("Mul", x, phi), half)


def attention(opset):
    """Return the model: position embedding, one block, mean, classifier, softmax."""
    net = Net(T, D, seed=5, opset=opset)
    x = net.node("Add", dense(net, "x", D, D), net.const(net.rng.standard_normal((1, T, D)).astype(np.float32)))
    n = norm(net, x)
    q, k, v = (
        heads(net, dense(net, n, D, D), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )  # fmt: skip
    scores = net.node("Mul", net.node("MatMul", q, k), net.const(np.float32(0.35)))
    mixed = net.node("Transpose", net.node("MatMul", net.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = net.node("Reshape", mixed, net.const(np.array([0, T, D], np.int64)))
    x = net.node("Add", x, dense(net, joined, D, D))
    x = net.node("Add", x, dense(net, gelu(net, dense(net, norm(net, x), D, 2 * D)), 2 * D, D))
    pooled = net.node("ReduceMean", norm(net, x), axes=[1], keepdims=0)
    return net.graph(net.node("Softmax", net.linear(pooled, (D, 5)), out="y", axis=-1))


@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize(
    ("platform", "mode"), (("generic", "max-value"), ("generic", "q-value"), ("arcs", "q-value"), ("venusA", "q-value"))
)
def test_attention(platform, mode, opset):
    """Nothing between the borders is left in float, and the integers stay near the float model."""
    model, rng = attention(opset), np.random.default_rng(0)
    feed = {"x": rng.standard_normal((128, T, D)).astype(np.float32)}
    result = quantize(model, feed, platform=platform, mode=mode, effort="fast")
    assert result.report.float_nodes == []
    assert [n.op_type for n in result.report.host_part] == ["Softmax"]
    assert result.report.integer_macs == 1.0
    test = {"x": rng.standard_normal((64, T, D)).astype(np.float32)}
    want = {n: a for n, a, _ in FloatRunner(model, ["y"]).run(test)}["y"]
    (got,) = result.session().run(None, test)
    assert np.sum(want**2) / np.sum((got - want) ** 2) > 10**2.2
    halves = [result.session().run(None, {"x": test["x"][i : i + 32]})[0] for i in (0, 32)]
    assert np.array_equal(np.concatenate(halves), got)  # the heads' reshapes mix no samples


def test_venus_names_its_softmax():
    """What keeps an attention from the chip is said."""
    feed = {"x": np.random.default_rng(0).standard_normal((32, T, D)).astype(np.float32)}
    report = quantize(attention(17), feed, platform="venus", effort="fast").report
    assert {n.op_type for n in report.float_nodes} == {"Softmax"}
    assert report.integer_macs == 1.0
