"""`quantize_static`: onnxruntime's arguments, each mapped or refused in one line."""

from __future__ import annotations

import enum
import importlib

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.ir import ir
from tests import nets


class Reader:
    """What onnxruntime asks of a reader."""

    def __init__(self, items):
        self._items = iter(items)

    def get_next(self):
        return next(self._items, None)


class QuantType(enum.Enum):
    QInt8 = 0
    QUInt8 = 1
    QInt16 = 3


class CalibrationMethod(enum.Enum):
    MinMax = 0
    Distribution = 3


@pytest.fixture
def model(tmp_path):
    """Return (path, samples) of Conv, Relu, Conv."""
    net = nets.Net(2, 5, 5, seed=3)
    c = net.conv("x", (3, 2, 3, 3), out="c")
    graph = net.graph(net.conv(net.node("Relu", c, out="r"), (4, 3, 1, 1), out="y"))
    path = tmp_path / "m.onnx"
    ir.save(graph, path)
    return path, [{"x": nets.samples(graph, 2)["x"]} for _ in range(3)]


def test_it_writes_what_quantize_makes(model, tmp_path):
    path, items = model
    out = tmp_path / "q.onnx"
    result = lo.compat.quantize_static(
        path,
        out,
        Reader(items),
        quant_format=None,
        activation_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
    )
    want = lo.quantize(path, items, platform="generic", calibrator="max")
    assert result.plan.tensors == want.plan.tensors
    np.testing.assert_array_equal(
        lo.Session(out).run(None, items[0])[0], want.session().run(None, items[0])[0]
    )


def test_arguments_are_mapped(model, tmp_path):
    path, items = model
    proto = onnx.load(path)
    result = lo.compat.quantize_static(
        proto,
        tmp_path / "q.onnx",
        Reader(items),
        None,
        per_channel=True,
        activation_type=QuantType.QInt16,
        weight_type="QInt4",
        platform="generic",
        calibrate_method="Percentile",
        extra_options={"CalibPercentile": 99.0, "ActivationSymmetric": True},
    )
    held = result.plan.tensors
    assert {q.bits for name, q in held.items() if name in ("x", "r", "y")} == {16}
    assert any(q.axis == 0 and q.bits == 4 for q in held.values())


def test_zero_points(model, tmp_path):
    path, items = model
    extra = {"ActivationSymmetric": False}
    result = lo.compat.quantize_static(
        path, tmp_path / "q.onnx", Reader(items), platform="generic", extra_options=extra
    )
    assert any(q.zero_point for q in result.plan.tensors.values())


def test_the_commonest_call_of_all(model, tmp_path):
    """Channels and QUInt8, on the default platform: int8 with zero points, a scale for each output
    channel.
    """
    path, items = model
    result = lo.compat.quantize_static(
        path,
        tmp_path / "q.onnx",
        Reader(items),
        "QDQ",
        per_channel=True,
        activation_type=QuantType.QUInt8,
    )
    held = result.plan.tensors.values()
    assert any(q.zero_point for q in held if q.single)
    assert any(q.axis == 0 for q in held)
    assert result.platform.name == "generic"


@pytest.mark.parametrize(
    "arguments",
    (
        {"op_types_to_quantize": ["Conv", "Relu"], "nodes_to_exclude": ["LAST"]},
        {"nodes_to_quantize": ["FIRST", "RELU"]},
    ),
)
def test_nodes_stay_in_float(model, tmp_path, arguments):
    path, items = model
    first, relu, last = (node.name for node in onnx.load(path).graph.node)
    names = {"FIRST": first, "RELU": relu, "LAST": last}
    given = {key: [names.get(v, v) for v in values] for key, values in arguments.items()}
    result = lo.compat.quantize_static(path, tmp_path / "q.onnx", Reader(items), **given)
    assert [node.node for node in result.report.host_part] == [last]


@pytest.mark.parametrize(
    "arguments, message",
    (
        ({"reduce_range": True}, "reduce_range = True: sums are exact"),
        (
            {"use_external_data_format": True},
            "use_external_data_format = True: the model is written",
        ),
        (
            {"activation_type": "QFLOAT8E4M3FN"},
            "activation_type = .* QInt4 or QInt8 or QUInt8 or QInt16",
        ),
        (
            {"activation_type": QuantType.QUInt8, "platform": "venus"},
            "activation_type = QUInt8, .* venus",
        ),
        ({"weight_type": "QFLOAT8E4M3FN"}, "weight_type = QFLOAT8E4M3FN"),
        ({"calibrate_method": CalibrationMethod.Distribution}, "calibrate_method = Distribution"),
        ({"quant_format": "QDX"}, "quant_format = QDX: .* QDQ or QOperator"),
        ({"calibration_providers": ["CUDAExecutionProvider"]}, "calibration_providers .* CPU"),
        (
            {"extra_options": {"SmoothQuant": True}},
            "extra_options: SmoothQuant = True is not supported",
        ),
        (
            {"extra_options": {"ActivationSymmetric": False}, "platform": "venus"},
            "ActivationSymmetric = False, on",
        ),
        ({"nodes_to_exclude": ["Konv"]}, "nodes_to_exclude: the model has no node 'Konv'"),
        (
            {"per_channel": True, "platform": "venus"},
            "per_channel = True on platform venus: a weight has one scale",
        ),
        (
            {"activation_type": QuantType.QInt16, "platform": "venus"},
            "activation_type of bits 16 on platform venus",
        ),
    ),
)
def test_what_has_no_counterpart_is_refused(model, tmp_path, arguments, message):
    path, items = model
    out = tmp_path / "q.onnx"
    with pytest.raises(ConfigError, match=message) as caught:
        lo.compat.quantize_static(path, out, Reader(items), **arguments)
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(("form", "operator"), (("QDQ", "Conv"), ("QOperator", "QLinearConv")))
def test_standard_forms(model, tmp_path, form, operator):
    """The file is standard ONNX, as convert writes it."""
    path, items = model
    out = tmp_path / "q.onnx"
    result = lo.compat.quantize_static(path, out, Reader(items), quant_format=form)
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert operator in kinds
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    want, got = result(items[0]["x"]), lo.Session(out).run(None, items[0])[0]
    assert np.abs(want - got).max() * result.plan.tensors["y"].scale <= 2


def test_the_default_is_what_onnxruntime_runs(model, tmp_path):
    """Without `quant_format` the file is QDQ, as that of the namesake."""
    path, items = model
    out = tmp_path / "q.onnx"
    lo.compat.quantize_static(path, out, Reader(items))
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds
    session = importlib.import_module("onnxruntime").InferenceSession(out)
    expected = lo.Session(path).run(None, items[0])[0]
    assert np.abs(session.run(None, items[0])[0] - expected).max() < 0.1 * np.abs(expected).max()


def test_dynamic_quantization_is_refused(model, tmp_path):
    """One line says what to call in its place."""
    with pytest.raises(ConfigError, match="no platform has: call quantize_static"):
        lo.compat.quantize_dynamic(model[0], tmp_path / "q.onnx", weight_type=QuantType.QInt8)
