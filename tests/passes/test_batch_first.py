"""Stretches with the batch on another axis, or folded with heads, are computed with the batch in
front.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.ir.batch_axes import set_batch_axes
from lingeronnx.quantization.normalize.axes.batch_first import move_batch_to_front
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import (
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    interface,
    outputs,
    rand,
)

T, E, H, D = 5, 6, 2, 3
ARRAYS = {
    "win": rand(E, 3 * E),
    "bin": rand(3 * E, seed=1),
    "wout": rand(E, E, seed=2),
    "bout": rand(E, seed=3),
    "weight": rand(E, 4, seed=4),
    "bias": rand(4, seed=5),
    "half": np.float32(0.5),
    "row": rand(E, seed=6),
    "mask": rand(T, T, seed=7),
    "gamma": rand(E, seed=8),
    "beta": rand(E, seed=9),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "axis0": np.array([0]),
    "axis3": np.array([3]),
    "three": np.array([T, -1, 3, E]),
    "heads": np.array([T, -1, D]),
    "apart": np.array([-1, H, T, D]),
    "flat": np.array([-1, E]),
    "back": np.array([T, -1, E]),
    "axis1": np.array([1]),
}

PROJECTED = """
    t = Transpose<perm=[1,0,2]>(x)
    m = MatMul(t, win) p = Add(bin, m)
    r = Reshape(p, three) u = Unsqueeze(r, axis0) v = Transpose<perm=[3,1,2,0,4]>(u) s = Squeeze(v, axis3)
    q = Gather<axis=0>(s, zero) k = Gather<axis=0>(s, one) w = Gather<axis=0>(s, two)
    qh = Reshape(q, heads) qt = Transpose<perm=[1,0,2]>(qh)
    kh = Reshape(k, heads) kt = Transpose<perm=[1,0,2]>(kh)
    vh = Reshape(w, heads) vt = Transpose<perm=[1,0,2]>(vh)
"""
OUT = """
    c = Transpose<perm=[1,0,2]>(o) f = Reshape(c, flat) g = Gemm<transB=1>(f, wout, bout)
    b = Reshape(g, back) y = Transpose<perm=[1,0,2]>(b)
"""
FOLDED = """
    qs = Mul(qt, half) kk = Transpose<perm=[0,2,1]>(kt) a = MatMul(qs, kk) n = Softmax<axis=-1>(a) o = MatMul(n, vt)
"""


def model(body, result=f"float[N,{T},{E}] y", given=f"float[N,{T},{E}] x", **arrays):
    return graph(f"g ({given}) => ({result}) {{ {body} }}", opset=17, **{**ARRAYS, **arrays})


def free(graph):
    """Return the operators that read or write a tensor whose axis 0 is not the batch."""
    found = []
    for node in graph.graph:
        values = [
            v for v in (*node.inputs, *node.outputs) if v is not None and ir.const_value(v) is None
        ]
        if any(
            (ir.get_shape(v) or (None,))[0] is not None or None in (ir.get_shape(v) or ())[1:]
            for v in values
        ):
            found.append(node.op_type)
    return found


def check(made, count):
    """Run the pass; same outputs for several sizes of batch, the interface kept, a second run
    without effect.
    """
    feed = feeds(made, 3)
    trace_shapes(made, {name: array[:1] for name, array in feed.items()})
    before, names = outputs(made, feed), interface(made)
    assert move_batch_to_front(made).changes == count
    assert interface(made) == names
    after = outputs(made, feed)
    for name, want in before.items():
        np.testing.assert_allclose(after[name], want, rtol=0, atol=1e-5)
    assert not free(made)
    trace_shapes(made, {name: array[:1] for name, array in feed.items()})
    assert move_batch_to_front(made).changes == 0
    return [node.op_type for node in made.graph]


def test_heads_folded_into_the_batch():
    """torch's attention with weights: no tensor is left whose batch is not in front, and three
    layers for one.
    """
    found = check(model(PROJECTED + FOLDED + OUT), 1)
    assert found.count("MatMul") == 6  # query, key, value, two products, output
    assert not {"Gather", "Slice", "Gemm", "Unsqueeze", "Squeeze"} & set(found)


def test_heads_apart():
    """The form without weights: the products are on four axes already."""
    attention = """
        q4 = Reshape(qt, apart) k4 = Reshape(kt, apart) v4 = Reshape(vt, apart)
        kk = Transpose<perm=[0,1,3,2]>(k4) qs = Mul(q4, half) a = MatMul(qs, kk) n = Softmax<axis=-1>(a)
        o4 = MatMul(n, v4) c = Transpose<perm=[2,0,1,3]>(o4) f = Reshape(c, flat)
        g = Gemm<transB=1>(f, wout, bout) b = Reshape(g, back) y = Transpose<perm=[1,0,2]>(b)
    """
    check(model(PROJECTED + attention), 4)


def test_two_readers_of_the_probabilities():
    """What is an output as well, with heads apart, is not computed twice."""
    body = PROJECTED + FOLDED + "p4 = Reshape(n, square) pw = Abs(p4)" + OUT
    result = f"float[N,{T},{E}] y, float[N,{H},{T},{T}] pw"
    found = check(model(body, result, square=np.array([-1, H, T, T])), 2)
    assert found.count("Softmax") == 1


BETWEEN = {
    "linear": ("m = MatMul(t, weight) z = Add(m, bias)", 4),
    "gemm": ("f = Reshape(t, flat) m = Gemm<transB=1>(f, wout, bout) z = Reshape(m, back)", E),
    "gemm without bias": ("f = Reshape(t, flat) m = Gemm(f, weight) z = Reshape(m, back4)", 4),
    "norm": ("z = LayerNormalization<axis=-1>(t, gamma, beta)", E),
    "softmax": ("z = Softmax<axis=2>(t)", E),
    "element by element": ("r = Relu(t) s = Sigmoid(r) z = Tanh(s)", E),
    "constants": ("a = Mul(half, t) b = Sub(row, a) z = Div(b, two_)", E),
    "residual": ("r = Relu(t) m = MatMul(r, wout) z = Add(t, m)", E),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_between_two_transposes(name):
    body, units = BETWEEN[name]
    text = f"t = Transpose<perm=[1,0,2]>(x) {body} y = Transpose<perm=[1,0,2]>(z)"
    found = check(
        model(text, f"float[N,{T},{units}] y", back4=np.array([T, -1, 4]), two_=np.float32(2)), 1
    )
    assert "Transpose" not in found


@pytest.mark.parametrize("keep", (0, 1))
def test_mean_over_time(keep):
    """The mean over axis 0 leaves the batch in front, or does so after a Reshape."""
    text = (
        "t = Transpose<perm=[1,0,2]>(x) r = Relu(t) m = ReduceMean<axes=[0], "
        f"keepdims={keep}>(r) y = Reshape(m, flat)"
    )
    found = check(model(text, f"float[N,{E}] y"), 1)
    assert "Transpose" not in found


def test_output_elsewhere():
    """A graph output with the batch elsewhere is turned at the end alone."""
    made = model(
        "t = Transpose<perm=[1,0,2]>(x) z = MatMul(t, weight) y = Relu(z)", f"float[{T},N,4] y"
    )
    check_pass_fires(made, move_batch_to_front, 1, ["MatMul", "Relu", "Transpose"], atol=1e-6)


def turned(body, result):
    """Run the pass on a graph whose input has the batch on axis 1; return its count and the
    operators left.
    """
    made = model(body, result, f"float[{T},N,{E}] x")
    set_batch_axes(made, {"x": 1})
    feed = {"x": rand(T, 3, E, seed=20)}
    trace_shapes(made, {"x": feed["x"][:, :1]})
    before = outputs(made, feed)
    count = move_batch_to_front(made).changes
    for name, want in before.items():
        np.testing.assert_allclose(outputs(made, feed)[name], want, rtol=0, atol=1e-6)
    trace_shapes(made, {"x": feed["x"][:, :1]})
    assert move_batch_to_front(made).changes == 0
    return count, [node.op_type for node in made.graph]


def test_input_elsewhere():
    """A graph input with the batch on axis 1 is turned once, at its entry."""
    body = "m = MatMul(x, wout) s = Add(x, m) r = ReduceMean<axes=[0], keepdims=0>(s) y = Abs(r)"
    assert turned(body, f"float[N,{E}] y") == (
        1,
        ["Transpose", "MatMul", "Add", "ReduceMean", "Abs"],
    )
    alone = "t = Transpose<perm=[1,0,2]>(x) y = Relu(t)"  # it is turned where it should be
    assert turned(alone, f"float[N,{T},{E}] y") == (0, ["Transpose", "Relu"])


@pytest.mark.parametrize(
    "body, result",
    (
        ("a = Transpose<perm=[0,2,1]>(x) y = Relu(a)", f"float[N,{E},{T}] y"),  # the batch stays
        (
            "t = Transpose<perm=[1,0,2]>(x) y = Cast<to=1>(t)",
            f"float[{T},N,{E}] y",
        ),  # nothing that it knows
        (
            "t = Transpose<perm=[1,0,2]>(x) z = Softmax<axis=1>(t) y = Relu(z)",
            f"float[{T},N,{E}] y",
        ),  # along the batch
        ("t = Transpose<perm=[1,0,2]>(x) y = ReduceMean<axes=[1]>(t)", f"float[{T},1,{E}] y"),
        (
            "t = Transpose<perm=[1,0,2]>(x) f = Reshape(t, flat) y = Gemm<alpha=2.0>(f, wout)",
            f"float[M,{E}] y",
        ),
        ("t = Transpose<perm=[2,1,0]>(x) y = Cumsum(t)", f"float[{E},{T},N] y"),
    ),
)
def test_refuses(body, result):
    if "Cumsum" in body:
        body = body.replace("Cumsum(t)", "CumSum(t, zero)")
    check_pass_leaves_alone(model(body, result), move_batch_to_front)


# ---- windows of a sample beside samples ------------------------------------------------------------------------------

P = 2  # windows of 2 x 2 positions
WINDOWS = {
    "qkv": rand(E, 3 * E, seed=11),
    "out": rand(E, E, seed=12),
    "heads_": rand(H, P * P, P * P, seed=13),
    "split": np.array([0, 2, P, 2, P, E]),
    "fold": np.array([-1, P * P, E]),
    "taken": np.array([-1, P * P, 3, H, D]),
    "axis": np.array([0]),
    "joined": np.array([-1, P * P, E]),
    "unfold": np.array([-1, 2, 2, P, P, E]),
    "image": np.array([0, 2 * P, 2 * P, E]),
}
CUT = "a = Reshape(x, split) b = Transpose<perm=[0,1,3,2,4,5]>(a) w = Reshape(b, fold)"
PARTS = """
    m = MatMul(w, qkv) r = Reshape(m, taken) t = Transpose<perm=[2,0,3,1,4]>(r) q0, k0, v0 = Split<axis=0>(t)
    q = Squeeze(q0, axis) k1 = Squeeze(k0, axis) v = Squeeze(v0, axis) k = Transpose<perm=[0,1,3,2]>(k1)
    qs = Mul(q, half) s = MatMul(qs, k) h = Add(s, heads_)
"""
JOIN = """
    n = Softmax<axis=-1>(h) o = MatMul(n, v) c = Transpose<perm=[0,2,1,3]>(o) f = Reshape(c, joined)
    e = MatMul(f, out) i = Reshape(e, unfold) j = Transpose<perm=[0,1,3,2,4,5]>(i) y = Reshape(j, image)
"""
IMAGE = f"float[N,{2 * P},{2 * P},{E}]"


def test_attention_within_windows():
    """A constant for each head; what computes has four axes at most."""
    made = model(CUT + PARTS + JOIN, f"{IMAGE} y", f"{IMAGE} x", **WINDOWS)
    found = check(made, 1)
    assert found.count("MatMul") == 6
    assert not {"Split", "Squeeze", "Slice"} & set(found)
    computing = [node for node in made.graph if node.op_type in ("MatMul", "Softmax", "Add")]
    assert all(len(ir.get_shape(node.outputs[0]) or ()) <= 4 for node in computing)


def test_layers_of_windows():
    """What is element by element, or along the last axis, between two folds."""
    body = CUT + "m = MatMul(w, out) r = Relu(m) z = Add(row, r) i = Reshape(z, unfold) y = Relu(i)"
    found = check(model(body, f"float[N,2,2,{P},{P},{E}] y", f"{IMAGE} x", **WINDOWS), 1)
    assert found.count("MatMul") == 1


def test_patches_of_channels():
    """MobileViT puts channels beside samples, and takes the places of a patch apart."""
    body = """
        a = Reshape(x, rows) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(b, patches) d = Transpose<perm=[0,3,2,1]>(c)
        e = Reshape(d, tokens) m = MatMul(e, out) i = Reshape(m, back_) j = Transpose<perm=[0,3,2,1]>(i) y = Relu(j)
    """
    sizes = {
        "rows": [-1, P, 2, P],
        "patches": [-1, E, 4, P * P],
        "tokens": [-1, 4, E],
        "back_": [-1, P * P, 4, E],
    }
    arrays = {**WINDOWS, **{name: np.array(size) for name, size in sizes.items()}}
    made = model(body, f"float[N,{E},4,{P * P}] y", f"float[N,{E},{2 * P},{2 * P}] x", **arrays)
    assert "MatMul" in check(made, 2)


def test_a_split_of_more_than_positions_stays():
    body = CUT + (
        "m = MatMul(w, qkv) q, k, v = Split<axis=2>(m) z = Relu(k) i = Reshape(z, unfold) y = "
        "Relu(i)"
    )
    check_pass_leaves_alone(
        model(body, f"float[N,2,2,{P},{P},{E}] y", f"{IMAGE} x", **WINDOWS), move_batch_to_front
    )
