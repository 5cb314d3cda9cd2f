"""Dynamically quantized layers become the float layers that their weights represent."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime import InferenceSession
from onnxruntime import quantization as ort_quantization

import lingeronnx as lo
from lingeronnx.common.errors import ModelError
from lingeronnx.interchange.qdq.dynamic_layers import restore_dynamic_layers
from lingeronnx.interchange.qdq.gathered_tables import restore_gathered_tables
from lingeronnx.ir import ir
from tests.passes.helpers import rand

RNG = np.random.default_rng(0)
W = RNG.integers(0, 256, (4, 3)).astype(np.uint8)
KERNEL = RNG.integers(-128, 128, (3, 2, 3)).astype(np.int8)
STEP, ZERO = np.float32(0.02), np.uint8(120)
STEPS, ZEROS = np.float32([0.02, 0.01, 0.5]), np.uint8([120, 0, 255])
BIAS = rand(3)
REAL = (W.astype(np.float64) - 120) * 0.02
MATMUL = "q, s, z = DynamicQuantizeLinear(x)  m = MatMulInteger(q, w, z, wz)  f = Cast<to = 1>(m)  "
PRODUCT = "k = Mul(s, ws)  "


def parse(body, x="float[N,4]", **constants):
    """Return the model of `body`, which may use operators of onnxruntime as ``ms.Name``."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13, "ms" : 1]>g ({x} x) => (float y) {{ {body} }}'
    )
    for node in model.graph.node:
        node.domain = "com.microsoft" if node.domain == "ms" else node.domain
    model.opset_import[1].domain = "com.microsoft"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return model


def restore_and_run(model, x, count=1):
    """Return the result of the restored model, which is valid ONNX, in onnxruntime."""
    graph = ir.from_proto(model)
    assert restore_dynamic_layers(graph) == count
    proto = ir.to_proto(graph)
    assert not any("Integer" in node.op_type or node.domain for node in proto.graph.node)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(proto, strict_mode=True))
    return InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]


LAYERS = {
    "a product": (f"{MATMUL}{PRODUCT}y = Mul(f, k)", {}, REAL),
    "scales per channel": (
        f"{MATMUL}{PRODUCT}y = Mul(f, k)",
        {"ws": STEPS, "wz": ZEROS},
        (W - ZEROS.astype(np.float64)) * STEPS,
    ),
    "with a bias": (f"{MATMUL}{PRODUCT}p = Mul(f, k)  y = Add(p, b)", {"b": BIAS}, REAL),
    "a product in one node": ("y = ms.DynamicQuantizeMatMul(x, w, ws, wz, b)", {"b": BIAS}, REAL),
    "without zero point and bias": (
        "y = ms.DynamicQuantizeMatMul(x, w, ws)",
        {},
        W.astype(np.float64) * 0.02,
    ),
    "integers, but a float result": (
        ("q, s, z = DynamicQuantizeLinear(x)  y = ms.MatMulIntegerToFloat(q, w, s, ws, z, wz, b)"),
        {"b": BIAS},
        REAL,
    ),
    "a bias that is rounded": (
        (
            "q, s, z = DynamicQuantizeLinear(x)  k = Mul(s, ws)  d = Div(b, k)  r = Floor(d)  "
            "i = Cast<to = 6>(r)  j = Reshape(i, row)  m = MatMulInteger(q, w, z, wz)  a = Add(m, j)  "
            "f = Cast<to = 1>(a)  y = Mul(f, k)"
        ),
        {"b": BIAS, "row": np.array([1, 3])},
        REAL,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_products(name):
    """They multiply by the numbers that the integers represent; nothing is rounded."""
    body, constants, weight = LAYERS[name]
    used = {"w": W, "ws": STEP, "wz": ZERO, **constants}
    model = parse(body, **{key: a for key, a in used.items() if f"{key}" in body})
    x = rand(5, 4)
    want = x @ weight + constants.get("b", 0)
    np.testing.assert_allclose(restore_and_run(model, x), want, rtol=1e-6, atol=1e-5)


def test_convolution():
    """A ConvInteger keeps its attributes."""
    model = parse(
        "q, s, z = DynamicQuantizeLinear(x)  m = ConvInteger<pads = [1, 1]>(q, w, z)  "
        "f = Cast<to = 1>(m)  k = Mul(s, ws)  y = Mul(f, k)",
        "float[N,2,6]",
        w=KERNEL,
        ws=STEP,
    )
    x = rand(2, 2, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=2)
    want = np.einsum("nctk,ock->not", windows, KERNEL * 0.02)
    np.testing.assert_allclose(restore_and_run(model, x), want, rtol=1e-6, atol=1e-5)


def test_product_of_two_computed_tensors():
    """Both operands are float tensors then."""
    model = parse(
        "t = Transpose<perm = [1, 0]>(x)  q, s, z = DynamicQuantizeLinear(x)  "
        "q2, s2, z2 = DynamicQuantizeLinear(t)  m = MatMulInteger(q, q2, z, z2)  "
        "f = Cast<to = 1>(m)  k = Mul(s, s2)  y = Mul(f, k)"
    )
    x = rand(5, 4)
    np.testing.assert_allclose(restore_and_run(model, x), x @ x.T, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("per_channel", (False, True))
def test_lstm_of_onnxruntime(tmp_path, per_channel):
    """What `quantize_dynamic` writes for an LSTM in both directions is near the float LSTM."""
    arrays = {"w": rand(2, 20, 4), "r": rand(2, 20, 5), "b": rand(2, 40)}
    model = parse(
        'y, h = LSTM<direction = "bidirectional", hidden_size = 5>(x, w, r, b)',
        "float[6,N,4]",
        **arrays,
    )
    onnx.save(model, tmp_path / "float.onnx")
    ort_quantization.quantize_dynamic(
        tmp_path / "float.onnx",
        tmp_path / "dynamic.onnx",
        op_types_to_quantize=["LSTM"],
        per_channel=per_channel,
        weight_type=ort_quantization.QuantType.QInt8,
    )
    dynamic = onnx.load(tmp_path / "dynamic.onnx")
    assert "DynamicQuantizeLSTM" in [node.op_type for node in dynamic.graph.node]
    x = rand(6, 3, 4)
    want = InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(restore_and_run(dynamic, x), want, rtol=0, atol=0.02)


REFUSED = {
    "integers that are dequantized": (
        "q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z)",
        {},
        "DynamicQuantizeLinear",
    ),
    "integers that are an input of the product only": (
        "q = Cast<to = 2>(x)  m = MatMulInteger(q, w)  y = Cast<to = 1>(m)",
        {"w": W},
        "MatMulInteger",
    ),
    "a weight that is computed": (
        "v = Cast<to = 2>(x)  y = ms.DynamicQuantizeMatMul(x, v, ws)",
        {"ws": STEP},
        "DynamicQuantizeMatMul",
    ),
    "scales that do not match": (
        "y = ms.DynamicQuantizeMatMul(x, w, ws)",
        {"w": W, "ws": np.ones(5, np.float32)},
        "DynamicQuantizeMatMul",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_nodes_are_refused(name):
    """Scales are not stored, and the integers do not cancel."""
    body, constants, op_type = REFUSED[name]
    with pytest.raises(ModelError, match=f"{op_type} .*: dynamic quantization"):
        restore_dynamic_layers(ir.from_proto(parse(body, **constants)))


def test_quantize():
    """The model is quantized like a float one, and a note says so."""
    body, _, weight = LAYERS["a product"]
    model = parse(body, w=W, ws=STEP, wz=ZERO)
    x = rand(64, 4)
    result = lo.quantize(model, {"x": x}, platform="generic")
    assert any("1 layer is quantized dynamically" in note for note in result.report.notes)
    want = x @ weight
    actual = result.session().run(["y"], {"x": x})[0]
    assert 10 * np.log10((want**2).sum() / ((want - actual) ** 2).sum()) > 35
    assert "quantized dynamically" in str(lo.check(model).lines())


# ---- tables of embeddings ------------------------------------------------------------------------

TABLE = RNG.integers(-128, 128, (6, 4)).astype(np.int8)
IDS = np.array([[5, 0, 2], [1, 1, 4]])
GATHERED = "g = Gather(t, x)  e = DequantizeLinear(g, ts, tz)"


def gather_and_run(body, **constants):
    """Return the restored graph of `body` with the table, and its result for IDS."""
    arrays = {"t": TABLE, "ts": np.float32(0.5), "tz": np.int8(-3), **constants}
    graph = ir.from_proto(parse(body, "int64[N,3]", **arrays))
    count = restore_gathered_tables(graph)
    session = InferenceSession(ir.to_proto(graph).SerializeToString())
    return count, graph, session.run(None, {"x": IDS})[0]


def test_a_table_is_dequantized_in_front_of_its_gather():
    count, graph, result = gather_and_run(f"{GATHERED}  y = Relu(e)")
    assert (count, [node.op_type for node in graph.graph]) == (1, ["Gather", "Relu"])
    np.testing.assert_array_equal(result, np.maximum((TABLE[IDS] + 3.0) * 0.5, 0))
    assert "e" in ir.get_tensor_names(graph)  # a float tensor keeps its name


def test_movement_between_gather_and_dequantize():
    """Behind the Gather and behind a Transpose, as in a layer that reads time first."""
    body = f"""{GATHERED}  h = Transpose<perm = [1, 0, 2]>(g)  f = DequantizeLinear(h, ts, tz)
        k = Transpose<perm = [1, 0, 2]>(f)  y = Add(e, k)"""
    count, graph, result = gather_and_run(body)
    assert count == 1
    assert "DequantizeLinear" not in {node.op_type for node in graph.graph}
    np.testing.assert_array_equal(result, TABLE[IDS] + 3.0)


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        (f"{GATHERED}  c = Cast<to = 1>(g)  y = Add(c, e)", {}),
        (f"{GATHERED}  f = DequantizeLinear(g, us, tz)  y = Add(e, f)", {"us": np.float32(1)}),
        (
            "g = Gather(t, x)  e = DequantizeLinear<axis = 2>(g, ts, tz)  y = Relu(e)",
            {"ts": np.full(4, 0.5, np.float32), "tz": np.full(4, -3, np.int8)},
        ),
        ("g = Gather(t, x)  y = DequantizeLinear(g, ts, tz)", {}),
        (
            """g = Gather(t, x)  h = Gather(u, x)  c = Concat<axis = 2>(g, h)
            e = DequantizeLinear(c, ts, tz)  y = Relu(e)""",
            {"u": TABLE},
        ),
    ],
)
def test_tables_that_stay(body, constants):
    """Read as integers, two scales, scales per column, a result that the model returns, and a
    table that is joined to another.
    """
    assert gather_and_run(body, **constants)[0] == 0


def test_a_table_of_float16_stays():
    """Its consumers take no float32."""
    arrays = {"t": TABLE, "ts": np.float16(0.5), "tz": np.int8(-3)}
    graph = ir.from_proto(parse(f"{GATHERED}  y = Cast<to = 1>(e)", "int64[N,3]", **arrays))
    assert restore_gathered_tables(graph) == 0


def test_quantize_dynamic_with_an_embedding(tmp_path):
    """The file of onnxruntime's `quantize_dynamic` is quantized, close to its float layers."""
    table, weight = rand(6, 4), rand(4, 5)
    body = "e = Gather(t, x)  h = Transpose<perm = [1, 0, 2]>(e)  r = Relu(h)  y = MatMul(r, w)"
    onnx.save(parse(body, "int64[N,3]", t=table, w=weight), tmp_path / "float.onnx")
    ort_quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    proto = onnx.load(tmp_path / "int8.onnx")
    assert any(i.name == "t_quantized" for i in proto.graph.initializer)
    ids = np.random.default_rng(3).integers(0, 6, (32, 3))
    result = lo.quantize(proto, {"x": ids}, platform="generic", effort="fast")
    (got,) = result.session().run(["y"], {"x": ids})
    want = (np.maximum(table[ids], 0) @ weight).transpose(1, 0, 2)
    assert 10 * np.log10(np.square(want).sum() / np.square(got - want).sum()) > 30
