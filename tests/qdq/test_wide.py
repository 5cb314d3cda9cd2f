"""16 bits, where the platform has them, for tensors that a quantized model keeps in float and for zero
points that no operator takes.
"""

import numpy as np
import onnx
import pytest
from onnxruntime import quantization as ort_quantization

import lingeronnx as lo
from tests.passes.helpers import positive, proto, rand

NET = """g (float[N,8,16] x) => (float[N,8,4] y) {
    a = MatMul(x, w1)
    b = Add(a, b1)
    n = LayerNormalization<axis = -1>(b, gamma, beta)
    c = MatMul(n, w2)
    e = Erf(c)
    f = Mul(c, e)
    y = MatMul(f, w3)
}"""
ARRAYS = {
    "w1": rand(16, 16),
    "b1": 20 * (np.arange(16) == 3).astype(np.float32),
    "gamma": positive(16),
    "beta": positive(16, seed=1),
    "w2": rand(16, 16, seed=2),
    "w3": rand(16, 4, seed=3),
}
CALIB = {"x": rand(64, 8, 16, seed=4)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model of which onnxruntime has quantized the products only."""
    folder = tmp_path_factory.mktemp("wide")
    model = proto(NET, opset=17, **ARRAYS)
    onnx.save(model, folder / "float.onnx")
    ort_quantization.quantize_static(
        folder / "float.onnx",
        folder / "quantized.onnx",
        Reader(),
        op_types_to_quantize=["MatMul"],
        activation_type=ort_quantization.QuantType.QInt8,
        weight_type=ort_quantization.QuantType.QInt8,
    )
    return folder / "quantized.onnx"


class Reader:
    """What onnxruntime asks of calibration data."""

    def __init__(self):
        self._items = iter([{"x": CALIB["x"][i : i + 1]} for i in range(16)])

    def get_next(self):
        return next(self._items, None)


def file_scales(path):
    """Return {tensor: (scale, zero point)} of the quantizers of a file."""
    model = onnx.load(path)
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    return {
        node.input[0]: (float(arrays[node.input[1]]), int(arrays[node.input[2]]))
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


def test_float_tensors_have_16_bits(path):
    """The sum before the layer normalization has no scale in the file."""
    quantized = lo.quantize(path, CALIB, platform="generic")
    tensors, scales = quantized.plan.tensors, file_scales(path)
    assert "b" not in scales
    assert tensors["b"].bits == 16
    assert tensors["x"].bits == 8
    assert any("16 bits, calibrated" in note for note in quantized.report.notes)


def test_zero_points_become_16_bits_of_the_same_scale(path):
    """A layer normalization writes no zero point."""
    quantized = lo.quantize(path, CALIB, platform="generic")
    scale, zero_point = file_scales(path)["n"]
    qparams = quantized.plan.tensors["n"]
    assert zero_point
    assert (qparams.bits, qparams.zero_point) == (16, 0)
    assert qparams.scale == pytest.approx(1 / scale, rel=1e-6)
    assert all(taken.kept for taken in quantized.report.taken)
    note = "1 zero points replaced by 16 bits of the same scale"
    assert note in quantized.report.notes


def test_nearer_to_float_than_with_8_bits(path):
    """With a channel that the sum raises to 20, 8 bits have few steps for the others."""
    wide = lo.quantize(path, CALIB, platform="generic").report.outputs["y"]["sqnr"]
    narrow = lo.quantize(path, CALIB, platform="generic", bits=8).report.outputs["y"]["sqnr"]
    assert wide > narrow + 0.5


@pytest.mark.parametrize(
    ("platform", "options"),
    (("generic", {"bits": 8}), ("generic", {"requantize": True}), ("venus", {})),
)
def test_no_16_bits_elsewhere(path, platform, options):
    """Set by the user, without the scales of the file, and on platforms without 16 bits."""
    quantized = lo.quantize(path, CALIB, platform=platform, **options)
    assert 16 not in {qparams.bits for qparams in quantized.plan.tensors.values()}


def test_a_model_with_quantized_weights_only(tmp_path):
    """It says nothing of its activations: they have the usual width."""
    text = """g (float[N,8,16] x) => (float[N,8,16] y) {
        w = DequantizeLinear(q, s, z)
        y = MatMul(x, w)
    }"""
    weight = np.random.default_rng(0).integers(-127, 128, (16, 16)).astype(np.int8)
    model = proto(text, opset=17, q=weight, s=np.float32(0.01), z=np.int8(0))
    onnx.save(model, tmp_path / "weights.onnx")
    quantized = lo.quantize(tmp_path / "weights.onnx", CALIB, platform="generic")
    assert {qparams.bits for qparams in quantized.plan.tensors.values()} == {8}
