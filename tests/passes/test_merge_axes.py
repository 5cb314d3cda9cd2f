"""merge-axes: transposes of five and more axes whose axes stay together become transposes of four
at most.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.merge_axes import merge_axes
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.case_selection import limit_examples
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    outputs,
    reasons,
)


def perm(model):
    return ir.get_attr(next(node for node in model.graph if node.op_type == "Transpose"), "perm")


def test_shuffled_channels():
    """The reshapes on both sides are merged with the new ones."""
    text = """g (float[N,6,4,5] x) => (float[N,6,4,5] y) {
        a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) y = Reshape(b, t)
    }"""
    model = graph(text, s=np.array([0, 2, 3, 4, 5]), t=np.array([0, 6, 4, 5]))
    model = check_pass_fires(model, merge_axes, 1, ["Reshape", "Transpose", "Reshape"], atol=0)
    assert perm(model) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "order, few",
    (([0, 4, 1, 2, 3], [0, 2, 1]), ([0, 3, 4, 1, 2], [0, 2, 1]), ([0, 1, 2, 4, 3], [0, 1, 3, 2])),
)
def test_axes_that_stay_together(order, few):
    """Alone, between new reshapes; the tensor keeps its name."""
    text = (
        "g (float[N,2,3,4,5] x) => (float[N,A,B,C,D] y) { a = Exp(x) y = Transpose<perm = "
        f"{order}>(a) }}"
    )
    model = check_pass_fires(
        graph(text), merge_axes, 1, ["Exp", "Reshape", "Transpose", "Reshape"], atol=0
    )
    assert perm(model) == few


def test_others_read_the_reshapes():
    """What is read elsewhere stays."""
    text = """g (float[N,6,4,5] x) => (float[N,6,4,5] y, float[N,A,B,C,D] z, float[N,2,3,4,5] w) {
        a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) y = Reshape(b, t) z = Exp(b) w = Exp(a)
    }"""
    model = graph(text, s=np.array([0, 2, 3, 4, 5]), t=np.array([0, 6, 4, 5]))
    check_pass_fires(
        model,
        merge_axes,
        1,
        ["Reshape", "Reshape", "Transpose", "Reshape", "Reshape", "Exp", "Exp"],
        atol=0,
    )


def test_a_reshape_that_moves_the_batch_stays():
    text = """g (float[N,12,4,5] x) => (float[M,A,B,C,D] y) {
        a = Reshape(x, s) y = Transpose<perm = [0, 2, 1, 3, 4]>(a)
    }"""
    model = graph(text, s=np.array([-1, 2, 3, 4, 5]))
    check_pass_fires(model, merge_axes, 1, ["Reshape", "Reshape", "Transpose", "Reshape"], atol=0)


@limit_examples(60)
@given(order=st.integers(4, 7).flatmap(lambda n: st.permutations(range(1, n + 1))))
def test_any_order_of_axes(order):
    """As transposes of four axes at most, the batch in front."""
    perm = [0, *order]
    sizes = ",".join(str(2 + axis % 2) for axis in range(len(order)))
    out = ",".join(f"d{axis}" for axis in perm)
    model = graph(
        f"g (float[N,{sizes}] x) => (float[{out}] y) {{ y = Transpose<perm = {perm}>(x) }}"
    )
    feed = feeds(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    groups = 1 + sum(after != before + 1 for before, after in itertools.pairwise(order))
    assert changes(merge_axes, model) == (1 < groups <= 6)
    np.testing.assert_array_equal(outputs(model, feed)["y"], feed["x"].transpose(perm))
    perms = [ir.get_attr(node, "perm") for node in model.graph if node.op_type == "Transpose"]
    assert not 1 < groups <= 6 or all(len(each) <= 4 and each[0] == 0 for each in perms)
    assert changes(merge_axes, model) == 0


def test_windows_of_an_image_are_two_transposes():
    """[N, a, h, b, w, C]: rows of windows, columns of windows."""
    text = """g (float[N,8,6,5] x) => (float[N,4,4,3,5] y) {
        a = Reshape(x, s) b = Transpose<perm = [0, 1, 3, 2, 4, 5]>(a) y = Reshape(b, t)
    }"""
    model = graph(text, s=np.array([0, 2, 4, 2, 3, 5]), t=np.array([0, 4, 4, 3, 5]))
    check_pass_fires(
        model, merge_axes, 1, ["Reshape", "Transpose", "Reshape", "Transpose", "Reshape"], atol=0
    )


def test_the_batch_stays_where_it_is():
    text = (
        "g (float[N,2,3,4,5] x) => (float[A,B,C,D,E] y) { y = Transpose<perm = [1, 0, 2, 3, "
        "4]>(x) }"
    )
    check_pass_leaves_alone(graph(text), merge_axes)


def test_too_many_groups_of_axes_stay():
    """The search for steps ends at six."""
    order = [0, 7, 6, 5, 4, 3, 2, 1]
    text = (
        "g (float[N,2,1,2,1,2,1,2] x) => (float[A,B,C,D,E,F,G,H] y) { y = Transpose<perm = "
        f"{order}>(x) }}"
    )
    model = graph(text)
    trace_shapes(model, {"x": np.zeros((1, 2, 1, 2, 1, 2, 1, 2), np.float32)})
    assert reasons(merge_axes, model)[0].endswith(
        "7 groups of its axes move separately; the limit is 6"
    )


def test_few_axes_are_left_alone():
    check_pass_leaves_alone(
        graph(
            "g (float[N,2,3,4] x) => (float[N,A,B,C] y) { y = Transpose<perm = [0, 3, 1, 2]>(x) }"
        ),
        merge_axes,
    )
