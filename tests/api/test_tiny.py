"""A few seconds: one small net through quantize and Session, against plain numpy arithmetic."""

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from tests import nets
from tests.case_selection import mark_rest_slow

pytestmark = pytest.mark.smoke


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def shifted(accumulator, shift):
    """Return the accumulator shifted right by `shift`, ties up, saturated to int8."""
    rounded = np.floor(accumulator / 2.0**shift + 0.5).astype(np.int64)
    return np.clip(rounded, -128, 127)


def convolution(x, weight, bias, pads, strides):
    """Return the exact sums, window by window."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kh, kw = weight.shape[2:]
    rows, columns = (x.shape[2] - kh) // strides[0] + 1, (x.shape[3] - kw) // strides[1] + 1
    out = np.zeros((len(x), len(weight), rows, columns), np.int64)
    for i in range(rows):
        for j in range(columns):
            window = x[
                :, :, i * strides[0] : i * strides[0] + kh, j * strides[1] : j * strides[1] + kw
            ]
            out[:, :, i, j] = np.einsum("nchw,ochw->no", window, weight)
    return out + bias.reshape(1, -1, 1, 1)


def oracle(model, x):
    """Run the integer graph (a ModelProto) in plain numpy; return every tensor by name."""
    values = {
        t.name: onnx.numpy_helper.to_array(t).astype(np.int64) for t in model.graph.initializer
    }
    values["x"] = x
    for node in model.graph.node:
        a, args = attributes(node), [values[name] for name in node.input]
        shift = round(np.log2(a["scale_x"] * a["scale_w"] / a["scale_o"])) if "scale_w" in a else 0
        if node.op_type == "Quant":
            out = np.clip(
                np.floor(args[0].astype(np.float64) * a["scale_x"] + 0.5), -128, 127
            ).astype(np.int64)
        elif node.op_type == "Conv2dInt":
            out = shifted(convolution(*args, a["pads"], a["strides"]), shift)
        elif node.op_type == "LinearInt":
            out = shifted(args[0] @ args[1].T + (args[2] if len(args) > 2 else 0), shift)
        elif node.op_type == "Relu":
            out = np.maximum(args[0], 0)
        elif node.op_type == "MaxPool":
            n, c, h, w = args[0].shape
            out = args[0].reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
        elif node.op_type == "Reshape":
            out = args[0].reshape(len(args[0]), *args[1][1:])
        elif node.op_type == "Flatten":
            out = args[0].reshape(len(args[0]), -1)
        else:
            assert node.op_type == "Dequant"
            out = (args[0] / a["scale_o"]).astype(np.float32)
        values[node.output[0]] = out
    return values


def test_quantize_and_run(tmp_path):
    """Every tensor of the file that quantize wrote, bit for bit, and close to the float model."""
    q = lo.quantize(nets.plain(), nets.samples(nets.plain(), 32), platform="venus")
    assert q.report.chip_ready
    assert q.report.integer_macs == 1
    path = tmp_path / "model_quant.onnx"
    q.save(path)
    session = lo.Session(path)
    x = nets.samples(nets.plain(), 6, seed=5)["x"]
    want = oracle(onnx.load(path), x)
    seen = 0
    for name, array, scale in session.taps({"x": x}):
        np.testing.assert_array_equal(array, want[name])
        assert (scale is None) == (array.dtype.kind == "f")
        seen += 1
    assert seen == len(onnx.load(path).graph.node) + 1
    floats = lo.Session(nets.plain())(x)
    error = np.square(session(x) - floats).mean() / np.square(floats).mean()
    assert error < 1e-2


def test_the_oracle_can_fail():
    """A weight changed by one is noticed."""
    q = nets.quantized(nets.plain(), effort="fast")
    model = ir.to_proto(q.graph)
    tensor = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[0] += 1 if array.flat[0] < 127 else -1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    x = nets.samples(nets.plain(), 16, seed=5)["x"]
    right, wrong = (oracle(m, x) for m in (ir.to_proto(q.graph), model))
    assert any(not np.array_equal(right[name], wrong[name]) for name in right)


@pytest.mark.parametrize("platform", mark_rest_slow(1, ("venus", "generic")))
def test_accuracy_is_kept(platform):
    """Each small net keeps its signal."""
    for net in nets.NETS:
        for found in nets.quantized(
            net(), platform=platform, effort="fast"
        ).report.outputs.values():
            assert found["sqnr"] > 17
            assert found["cosine"] > 0.99
