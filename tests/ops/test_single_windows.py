"""Pools with one window on a map that is larger: rows and columns beyond it are not read."""

import numpy as np
import pytest
from onnx import helper

import lingeronnx as lo

#: Size of the map, kernel, strides; all outputs are 1x1.
SINGLE = [
    ((2, 3), (2, 2), (2, 2)),
    ((9, 9), (8, 8), (2, 2)),
    ((12, 12), (9, 9), (4, 4)),
    ((7, 1), (4, 1), (4, 1)),
    ((45, 4), (40, 4), (40, 4)),
    ((90, 6), (40, 4), (100, 9)),
    ((8, 8), (8, 8), (8, 8)),
]


def pool(op_type, size, kernel, strides):
    """Return a model of one pool whose output has no declared shape."""
    node = helper.make_node(op_type, ["x"], ["y"], kernel_shape=kernel, strides=strides)
    x = helper.make_tensor_value_info("x", 1, ["N", 6, *size])
    y = helper.make_tensor_value_info("y", 1, None)
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


@pytest.mark.parametrize(("size", "kernel", "strides"), SINGLE, ids=str)
@pytest.mark.parametrize("platform", ["generic", "venus", "arcs"])
def test_max_pool(size, kernel, strides, platform):
    """The result is the maximum of the quantized inputs within the window, bit for bit."""
    x = np.random.default_rng(1).standard_normal((8, 6, *size)).astype(np.float32)
    found = lo.quantize(pool("MaxPool", size, kernel, strides), x, platform=platform, effort="fast")
    lo.check_model(found.graph)
    (y,) = lo.Session(found.graph).run(None, {"x": x})
    quant = next(node for node in found.graph.graph if node.op_type == "Quant")
    scale = quant.attributes["scale_x"].as_float()
    integers = np.clip(np.floor(x.astype(np.float64) * scale + 0.5), -128, 127)
    window = integers[:, :, : kernel[0], : kernel[1]].max(axis=(2, 3), keepdims=True)
    np.testing.assert_array_equal(y, (window / scale).astype(np.float32))


@pytest.mark.parametrize(("size", "kernel", "strides"), SINGLE, ids=str)
@pytest.mark.parametrize("platform", ["generic", "venus", "arcs"])
def test_average_pool(size, kernel, strides, platform):
    """The result is the mean within a step of the output, or of both steps of two."""
    x = np.random.default_rng(2).standard_normal((8, 6, *size)).astype(np.float32)
    model = pool("AveragePool", size, kernel, strides)
    found = lo.quantize(model, x, platform=platform, effort="fast")
    lo.check_model(found.graph)
    (y,) = lo.Session(found.graph).run(None, {"x": x})
    mean = x[:, :, : kernel[0], : kernel[1]].mean(axis=(2, 3), keepdims=True)
    assert y.shape == mean.shape
    assert np.abs(y - mean).max() <= 1.5 / 16
