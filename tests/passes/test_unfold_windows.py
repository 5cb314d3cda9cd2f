"""Windows of a sample that a Reshape folds into the batch get an axis of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.unfold_windows import unfold_windows
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import (
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    outputs,
    proto,
    rand,
)

TARGETS = {"fold": np.array([-1, 3, 4]), "back": np.array([-1, 5, 3, 4])}
HEAD, TAIL = "a = Reshape(x, fold)", "y = Reshape(b, back)"
TURN = "perm = [1, 0, 2]"


def net(body, result="float[N,5,3,4] y", **arrays):
    """Return a graph of an input [N, 5, 3, 4] with 5 windows of 3 positions."""
    return graph(f"g (float[N,5,3,4] x) => ({result}) {{ {body} }}", **TARGETS, **arrays)


def fires(body, left, **arrays):
    """Check that the pass acts once, and leaves no window in the batch."""
    model = check_pass_fires(
        net(f"{HEAD} {body} {TAIL}", **arrays), unfold_windows, 1, left, atol=1e-5
    )
    assert not any(ir.has_folded_batch(value) for node in model.graph for value in node.outputs)
    return model


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("b = Relu(a)", ["Relu"]),
        ("b = Add(a, row)", ["Add"]),
        ("b = Mul(one, a)", ["Mul"]),
        ("c = Softmax<axis = 1>(a) b = Softmax(c)", ["Softmax", "Softmax"]),
        ("b = MatMul(a, square)", ["MatMul"]),
        (
            "t = Transpose<perm = [0, 2, 1]>(a) c = MatMul(a, t) b = MatMul(c, a)",
            ["Transpose", "MatMul", "MatMul"],
        ),
        ("c, d = Split<axis = 2>(a) b = Concat<axis = -1>(d, c)", ["Split", "Concat"]),
        ("c = Slice(a, begin, end, second) b = Concat<axis = 1>(c)", ["Slice", "Concat"]),
        (
            "u = Unsqueeze(a, second) c = Neg(u) b = Squeeze(c, second)",
            ["Unsqueeze", "Neg", "Squeeze"],
        ),
        ("m = ReduceMean<axes = [1], keepdims = 1>(a) b = Sub(a, m)", ["ReduceMean", "Sub"]),
    ],
)
def test_what_gains_an_axis(body, left):
    """Operators along named axes, of single numbers and of matrices; the outer Reshapes go."""
    more = {
        "row": rand(3, 4),
        "one": rand(1, 3, 4),
        "square": rand(4, 4),
        "begin": np.array([0]),
        "end": np.array([3]),
        "second": np.array([1]),
    }
    fires(body, left, **more)


def test_heads_are_merged_with_windows():
    """A product of five axes is one of four."""
    body = (
        "h = Reshape(a, heads) q = Transpose<perm = [0, 2, 1, 3]>(h) "
        "k = Transpose<perm = [0, 2, 3, 1]>(h) s = MatMul(q, k) m = Softmax<axis = 3>(s) "
        "o = MatMul(m, q) t = Transpose<perm = [0, 2, 1, 3]>(o) b = Reshape(t, fold)"
    )
    model = net(f"{HEAD} {body} {TAIL}", heads=np.array([-1, 3, 2, 2]))
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    assert unfold_windows(model).changes == 1
    products = [node for node in model.graph if node.op_type == "MatMul"]
    assert [ir.get_shape(node.outputs[0])[1:] for node in products] == [(10, 3, 3), (10, 3, 2)]


@pytest.mark.parametrize("seed", range(6))
def test_attention_in_windows_of_any_size(seed):
    """Law: the outputs are the same, for any numbers of windows, positions, heads and channels."""
    rng = np.random.default_rng(seed)
    windows, positions, heads, width = (int(n) for n in rng.integers(2, 5, 4))
    channels = heads * width
    text = (
        f"g (float[N,{windows},{positions},{channels}] x) => "
        f"(float[N,{windows},{positions},{channels}] y) {{ {HEAD} "
        "h = Reshape(a, heads) q = Transpose<perm = [0, 2, 1, 3]>(h) "
        "k = Transpose<perm = [0, 2, 3, 1]>(h) s = MatMul(q, k) w = Reshape(s, apart) "
        "v = Add(w, mask) z = Reshape(v, together) m = Softmax<axis = 3>(z) o = MatMul(m, q) "
        f"t = Transpose<perm = [0, 2, 1, 3]>(o) b = Reshape(t, fold) {TAIL} }}"
    )
    model = graph(
        text,
        fold=np.array([-1, positions, channels]),
        back=np.array([-1, windows, positions, channels]),
        heads=np.array([-1, positions, heads, width]),
        apart=np.array([-1, windows, heads, positions, positions]),
        together=np.array([-1, heads, positions, positions]),
        mask=rand(1, windows, 1, positions, positions),
    )
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    feed = feeds(model, 3)
    expected = outputs(model, feed)["y"]
    assert unfold_windows(model).changes == 2  # the mask is added to windows on an axis
    assert unfold_windows(model).changes == 0
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(outputs(model, feed)["y"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "result", "reason"),
    [
        (f"{HEAD} b = Abs(a) z = Neg(a) {TAIL}", "float[N,5,3,4] y, float[M,3,4] z", "an output"),
        (f"{HEAD} b = CumSum(a, zero) {TAIL}", None, "CumSum 'n1' cannot have one more axis"),
        (f"{HEAD} b = Softmax<axis = 0>(a) {TAIL}", None, "Softmax 'n1' cannot"),
        (
            f"{HEAD} c = Transpose<{TURN}>(a) d = Abs(c) b = Transpose<{TURN}>(d) {TAIL}",
            None,
            "a size of Transpose 'n1' is not known",
        ),
    ],
)
def test_what_stays(body, result, reason):
    """Nodes that work along axis 0, or that are not known to gain an axis; outputs of the model."""
    model = net(body, *([result] if result else []), zero=np.array(0))
    for index, node in enumerate(model.graph):
        node.name = f"n{index}"
    check_pass_leaves_alone(model, unfold_windows)
    assert reason in str(unfold_windows(model).skip_reasons[0])


@pytest.mark.parametrize("platform", ["generic", "arcs"])
def test_attention_in_windows_is_integer(platform):
    """Without the axis the products of the windows stay in float."""
    text = (
        f"g (float[N,5,3,4] x) => (float[N,5,3,4] y) {{ {HEAD} l = MatMul(a, w) "
        "t = Transpose<perm = [0, 2, 1]>(l) s = MatMul(l, t) m = Softmax<axis = 2>(s) "
        f"o = MatMul(m, l) b = MatMul(o, v) {TAIL} }}"
    )
    model = proto(text, w=rand(4, 4), v=rand(4, 4, seed=1), **TARGETS)
    quantized = lo.quantize(
        ir.from_proto(model), {"x": rand(16, 5, 3, 4, seed=2)}, platform=platform, effort="fast"
    )
    assert quantized.report.integer_macs == 1
    assert quantized.report.outputs["y"]["sqnr"] > 20
