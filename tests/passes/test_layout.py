"""layout: Transposes sink through operators until they meet their opposite; where that saves none,
nothing moves.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.cancel_transposes import cancel_transposes
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    ops,
    rand,
    reasons,
)

IN = "g (float[N,3,4,5] x)"
LAST = "t = Transpose<perm = [0, 2, 3, 1]>(x)"  # channels last: [N, 4, 5, 3]
FIRST = "Transpose<perm = [0, 3, 1, 2]>"

#: Operators between two Transposes that undo each other -> opset, constants and the body on t, which gives u.
BETWEEN = {
    "unary": ("u = Relu(t)", {}),
    "clip": ("u = Clip(t, low, high)", {"low": np.float32(-1), "high": np.float32(1)}),
    "scalar": ("u = Mul(t, k)", {"k": np.float32(3)}),
    "channel": ("u = Mul(t, k)", {"k": rand(3)}),
    "row": ("u = Add(k, t)", {"k": rand(5, 3)}),
    "whole": ("u = Sub(t, k)", {"k": rand(1, 4, 5, 3)}),
    "softmax": ("u = Softmax<axis = -1>(t)", {}),
    "mean": ("u = ReduceMean<axes = [1, 2]>(t)", {}),
    "pad": ("u = Pad(t, k)", {"k": np.array([0, 1, 0, 0, 0, 0, 2, 0])}),
    "slice": (
        "u = Slice(t, s, e, a)",
        {"s": np.array([1]), "e": np.array([3]), "a": np.array([3])},
    ),
    "gather": ("u = Gather<axis = 3>(t, k)", {"k": np.array([2, 0])}),
    "concat": ("r = Relu(t) u = Concat<axis = -1>(t, r)", {}),
    "constant": ("u = Concat<axis = 2>(t, k)", {"k": rand(1, 4, 2, 3)}),
    "several": ("r = Relu(t) s = Sigmoid(r) u = Add(s, r)", {}),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_fallback_of_channels_last(name):
    """Both Transposes go; axes, pads and constants are those of the channel-first operator; same
    numbers.
    """
    body, arrays = BETWEEN[name]
    out = "float[1,3,4,7] y" if name == "constant" else "float[N,A,B,C] y"
    text = (
        f"{IN.replace('N', '1') if name == 'constant' else IN} => ({out}) {{ {LAST} {body} v = "
        f"{FIRST}(u) y = Neg(v) }}"
    )
    model = graph(text, **arrays)
    left = [op for op in ops(model) if op != "Transpose"]
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    count = changes(cancel_transposes, model.clone())
    assert count >= 2
    check_pass_fires(graph(text, **arrays), cancel_transposes, count, left, atol=1e-6)


def test_two_in_a_row_are_one():
    """Their product, where it is not the identity."""
    text = f"{IN} => (float[N,5,3,4] y) {{ {LAST} y = Transpose<perm = [0, 2, 3, 1]>(t) }}"
    model = check_pass_fires(graph(text), cancel_transposes, 1, ["Transpose"], atol=0)
    assert ir.get_attr(next(iter(model.graph)), "perm") == [0, 3, 1, 2]


def test_the_order_of_a_default_transpose():
    """Without perm the axes are reversed."""
    text = (
        "g (float[N,3,4] x) => (float[N,3,4] y) { t = Transpose(x) r = Relu(t) u = "
        "Transpose(r) "
        "y = Neg(u) }"
    )
    check_pass_fires(graph(text), cancel_transposes, 2, ["Relu", "Neg"], atol=0)


@pytest.mark.parametrize(
    "opset, node", ((12, "u = Squeeze<axes = [1]>(t)"), (13, "u = Squeeze(t, k)"))
)
def test_a_squeeze_takes_up_a_transpose(opset, node):
    """[N, 3, 1, 5] -> [N, 1, 3, 5] -> [N, 3, 5] is the Squeeze of another axis."""
    text = (
        "g (float[N,3,1,5] x) => (float[N,3,5] y) { t = Transpose<perm = [0, 2, 1, 3]>(x) "
        f"{node} y = Relu(u) }}"
    )
    model = graph(text, opset=opset, **({"k": np.array([1])} if opset == 13 else {}))
    model = check_pass_fires(model, cancel_transposes, 1, ["Squeeze", "Relu"], atol=0)
    assert ir.get_axes(next(iter(model.graph))) == [2]


@pytest.mark.parametrize(
    "opset, node", ((12, "u = Squeeze<axes = [1]>(t)"), (13, "u = Squeeze(t, k)"))
)
def test_a_squeeze_that_leaves_another_order_stays(opset, node):
    """[N, 3, 1, 5] -> [N, 1, 5, 3] -> [N, 5, 3] -> back."""
    text = (
        f"g (float[N,3,1,5] x) => (float[N,3,5] y) {{ {LAST} {node} y = Transpose<perm = [0, "
        "2, "
        "1]>(u) }"
    )
    model = graph(text, opset=opset, **({"k": np.array([1])} if opset == 13 else {}))
    found = reasons(
        cancel_transposes, with_shapes(model)
    )  # [N, 3, 5] and [N, 5, 3] are in another order: it stays
    assert found == [
        "Transpose Transpose_t: moving it down the graph would not leave fewer than 2",
        "Transpose Transpose_y: moving it down the graph would not leave fewer than 2",
    ]


def test_a_matrix_product_keeps_its_axis():
    """A Transpose that leaves the last axis alone passes a MatMul with a weight."""
    text = """g (float[N,2,4,3] x) => (float[N,2,4,5] y) {
        t = Transpose<perm = [0, 2, 1, 3]>(x) m = MatMul(t, w) u = Transpose<perm = [0, 2, 1, 3]>(m) y = Neg(u) }"""
    check_pass_fires(graph(text, w=rand(3, 5)), cancel_transposes, 2, ["MatMul", "Neg"], atol=1e-6)


def test_an_axis_of_one_before_a_reshape():
    """[N, 1, 5, 3] from [N, 3, 1, 5] is another order, from [N, 1, 3, 5] by moving the 1 it is
    none.
    """
    moved = (
        "g (float[N,1,3,5] x) => (float[N,15] y) { t = Transpose<perm = [0, 2, 1, 3]>(x) y = "
        "Flatten(t) }"
    )
    check_pass_fires(graph(moved), cancel_transposes, 1, ["Flatten"], atol=0)
    check_pass_leaves_alone(
        graph(
            "g (float[N,2,3,5] x) => (float[N,30] y) { t = Transpose<perm = [0, 2, 1, 3]>(x) y = "
            "Flatten(t) }"
        ),
        cancel_transposes,
    )


def test_a_transpose_that_writes_an_output_stays():
    """The graph output must be written by somebody: its name cannot go to an input or to a tensor
    that stays.
    """
    text = f"{IN} => (float[N,A,B,C] y) {{ {LAST} y = {FIRST}(t) }}"
    check_pass_leaves_alone(graph(text), cancel_transposes)


def with_shapes(model):
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    return model


def test_one_alone_stays():
    """Moving it behind a Relu saves nothing: the graph is as it was, with a reason."""
    text = f"{IN} => (float[N,4,5,3] y) {{ {LAST} y = Relu(t) }}"
    assert reasons(cancel_transposes, with_shapes(graph(text))) == [
        "Transpose Transpose_t: moving it down the graph would not leave fewer than 1"
    ]
    check_pass_leaves_alone(graph(text), cancel_transposes)


def test_different_orders_stay():
    """A sum of tensors in two orders has no common one."""
    text = """g (float[N,3,3,3] x) => (float[N,3,3,3] y) {
        t = Transpose<perm = [0, 2, 3, 1]>(x) s = Transpose<perm = [0, 3, 2, 1]>(x) y = Add(t, s) }"""
    assert len(reasons(cancel_transposes, with_shapes(graph(text)))) == 2
    check_pass_leaves_alone(graph(text), cancel_transposes)


def test_a_window_bars_the_way():
    """A convolution has its channels on axis 1: what stands around it does not move through."""
    text = f"{IN} => (float[N,A,B,C] y) {{ {LAST} u = Conv(t, w) y = {FIRST}(u) }}"
    check_pass_leaves_alone(graph(text, w=rand(2, 4, 1, 1)), cancel_transposes)


def test_an_axis_of_the_run_bars_the_way():
    """Axes that are a graph input are not known."""
    text = f"""g (float[N,3,4,5] x, int64[1] a) => (float[N,A,B,C] y) {{
        {LAST} u = ReduceSum(t, a) y = {FIRST}(u) }}"""
    model = graph(text)
    assert changes(cancel_transposes, model) == 0
    assert ops(model) == ["Transpose", "ReduceSum", "Transpose"]


def test_old_softmax_bars_the_way():
    """Before opset 13 a Softmax takes several axes together."""
    text = f"{IN} => (float[N,A,B,C] y) {{ {LAST} u = Softmax<axis = 1>(t) y = {FIRST}(u) }}"
    check_pass_leaves_alone(graph(text, opset=12), cancel_transposes)


def test_a_tensor_read_twice_keeps_its_transpose_for_the_outside():
    """Only the way that ends in the opposite order is freed; the graph output stays what it is."""
    text = f"""{IN} => (float[N,4,5,3] z, float[N,3,4,5] y) {{
        {LAST} z = Relu(t) s = Neg(z) u = Neg(s) v = {FIRST}(u) y = Neg(v) }}"""
    model = graph(text)
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    count = changes(cancel_transposes, model.clone())
    after = check_pass_fires(
        graph(text), cancel_transposes, count, ["Relu", "Transpose", "Neg", "Neg", "Neg"], atol=0
    )
    assert [str(v.name) for v in after.graph.outputs] == ["z", "y"]
