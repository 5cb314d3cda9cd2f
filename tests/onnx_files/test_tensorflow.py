# ruff: noqa: E501 (ONNX text reads better in long lines)
"""Graphs as TensorFlow converters write them: channel-last islands end in a channel-first graph without Transposes."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.onnx_files.helpers import close, images, proto, quantized, rand
from tests.passes.helpers import feeds, graph, ops, outputs, positive

DOWN, UP = "Transpose<perm = [0, 3, 1, 2]>", "Transpose<perm = [0, 2, 3, 1]>"


def normalized(text, /, *, opset=13, **arrays):
    """Normalise; the outputs must stay what they are."""
    model = graph(text, opset=opset, **arrays)
    feed = feeds(model)
    before = outputs(model, feed)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    normalize(model)
    for name, array in outputs(model, feed).items():
        np.testing.assert_allclose(array, before[name], rtol=0, atol=1e-4)
    return model


HEAD = f"g (float[N,3,8,8] x) => (float[N,K] y) {{ c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w) t = {UP}(c)"
W = {"w": rand(4, 3, 3, 3)}


@pytest.mark.parametrize(
    "middle",
    (
        "r = Relu(t)",
        "r = Add(k, t)",
        "m = Mul(t, k) r = Add(m, k2)",
        "m = Max(t, zero) r = Min(m, six)",
        "a = Relu(t) b = Sigmoid(t) r = Mul(a, b)",
        "r = Clip(t, zero, six)",
        "s = Softmax<axis = -1>(t) r = Mul(s, six)",
    ),
)
def test_nhwc_between_convolutions(middle):
    """Element-wise work in NHWC between two convolutions needs no Transpose."""
    text = f"{HEAD} {middle} d = {DOWN}(r) e = Conv<kernel_shape = [8, 8]>(d, w2) y = Flatten(e) }}"
    arrays = {
        "k": rand(4),
        "k2": rand(1, 1, 1, 4),
        "zero": np.float32(0),
        "six": np.float32(6),
        "w2": rand(5, 4, 8, 8),
    }
    assert "Transpose" not in ops(normalized(text, **W, **arrays))


def test_pad_before_a_strided_convolution():
    """An explicit NHWC Pad goes into the pads of the convolution."""
    text = f"""{HEAD} p = Pad(t, pads) d = {DOWN}(p)
        e = Conv<strides = [2, 2]>(d, w2) f = Relu(e) g = ReduceMean<axes = [2, 3], keepdims = 0>(f) y = Identity(g) }}"""
    found = normalized(text, **W, pads=np.array([0, 0, 0, 0, 0, 1, 1, 0]), w2=rand(5, 4, 3, 3))
    assert ops(found) == ["Conv", "Conv", "Relu", "AveragePool", "Flatten"]


@pytest.mark.parametrize("keep", (0, 1))
def test_mean_over_space(keep):
    """A mean over H and W in NHWC is one over the last axes; a Reshape behind a kept one does not mind the order."""
    tail = "y = Identity(m)" if keep == 0 else "y = Reshape(m, target)"
    text = f"{HEAD} m = ReduceMean<axes = [1, 2], keepdims = {keep}>(t) {tail} }}"
    found = normalized(text, **W, target=np.array([-1, 4]))
    assert ops(found)[:2] == ["Conv", "AveragePool"]
    assert "Transpose" not in ops(found)


@pytest.mark.parametrize("flat", ("Flatten(r)", "Reshape(r, target)"))
@pytest.mark.parametrize(
    "layer", ("y = MatMul(f, w2)", "m = MatMul(f, w2) y = Add(m, b)", "y = Gemm(f, w2, b)")
)
def test_dense_layer_behind_a_flatten(flat, layer):
    """The columns of the weight are permuted; Relu may stand on either side of the Flatten."""
    text = f"{HEAD} r = Relu(t) f0 = {flat} f = Relu(f0) {layer} }}"
    found = normalized(text, **W, target=np.array([-1, 256]), w2=rand(256, 5), b=rand(5))
    assert "Transpose" not in ops(found)
    assert ops(found)[-1] == "Linear"


def test_concat_and_split_along_channels():
    """Axes of Concat and Split move with the layout."""
    text = f"""{HEAD} u, v = Split<axis = 3>(t, halves) c2 = Concat<axis = -1>(v, u, t) d = {DOWN}(c2)
        e = Conv(d, w2) y = Flatten(e) }}"""
    found = normalized(text, **W, halves=np.array([1, 3]), w2=rand(5, 8, 8, 8))
    assert "Transpose" not in ops(found)


def test_residual_in_channel_last():
    """Both branches of a sum come from Transposes."""
    text = f"""g (float[N,8,8,3] x) => (float[N,8,8,4] y) {{
        n = {DOWN}(x) c = Conv<pads = [1, 1, 1, 1]>(n, w) t = {UP}(c) r = Relu(t)
        n2 = {DOWN}(r) c2 = Conv<pads = [1, 1, 1, 1]>(n2, w2) t2 = {UP}(c2) s = Add(t2, r) y = Relu(s) }}"""
    found = normalized(text, **W, w2=rand(4, 4, 3, 3))
    assert ops(found) == ["Transpose", "Conv", "Relu", "Conv", "Add", "Relu", "Transpose"]


def test_names_keep_their_meaning():
    """The channel-last tensors that vanish leave their names to nobody."""
    text = f"{HEAD} r = Relu(t) d = {DOWN}(r) e = Conv(d, w2) y = Flatten(e) }}"
    names = {
        v.name for node in normalized(text, **W, w2=rand(5, 4, 8, 8)).graph for v in node.outputs
    }
    assert {"t", "r"}.isdisjoint(names)


@pytest.mark.parametrize(
    "middle",
    (
        "r = Add(t, q)",  # the other operand is an activation that is not transposed
        "r = CumSum(t, one)",  # not an operator that may be moved
    ),
)
def test_refuses(middle):
    """Where a Transpose would come back elsewhere nothing changes."""
    text = f"""g (float[N,3,8,8] x, float[N,8,8,4] q) => (float[N,8,8,4] y) {{ c = Conv<pads = [1, 1, 1, 1]>(x, w) t = {UP}(c)
        {middle} y = Relu(r) }}"""
    found = normalized(text, **W, one=np.array(1))
    assert ops(found).count("Transpose") == 1
    assert ops(found)[1] == "Transpose"


def test_a_whole_network(tmp_path):
    """NHWC input, decomposed batch normalisation, Relu6, Pad, dense layer: chip-ready and close."""
    text = f"""g (float[N,16,16,3] x) => (float[N,10] y) {{
        n = {DOWN}(x) c = Conv<strides = [2, 2], auto_pad = "SAME_UPPER", kernel_shape = [3, 3]>(n, w) t = {UP}(c)
        m = Mul(t, g) a = Add(m, h) z = Max(a, zero) r = Min(z, six)
        p = Pad(r, pads) d = {DOWN}(p) c2 = Conv<strides = [2, 2]>(d, w2) t2 = {UP}(c2) m2 = Mul(t2, g2) a2 = Sub(m2, h2)
        r2 = Relu(a2) f = Reshape(r2, target) o = MatMul(f, w3) y = Add(o, b) }}"""
    model = proto(
        text,
        w=rand(6, 3, 3, 3),
        g=positive(6),
        h=rand(6),
        zero=np.float32(0),
        six=np.float32(6),
        pads=np.array([0, 0, 0, 0, 0, 1, 1, 0]),
        w2=rand(8, 6, 3, 3),
        g2=positive(8),
        h2=rand(8),
        target=np.array([-1, 128]),
        w3=rand(128, 10),
        b=rand(10),
    )
    found = quantized(model, tmp_path, images(16, 16, 3), platform="venus")
    assert found.report.integer_macs == 1
    assert not found.report.float_nodes
    assert close(found, 0.98)
