"""merge-axes: transposes of five and more axes whose axes stay together become transposes of four at most."""

import numpy as np
import pytest

from lingeronnx.graph import ir
from lingeronnx.passes.axes.merge_axes import merge_axes
from tests.passes.helpers import fires, graph, stays


def perm(model):
    return ir.attr(next(node for node in model.graph if node.op_type == "Transpose"), "perm")


def test_shuffled_channels():
    """The reshapes on both sides are merged with the new ones."""
    text = """g (float[N,6,4,5] x) => (float[N,6,4,5] y) {
        a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) y = Reshape(b, t)
    }"""
    model = graph(text, s=np.array([0, 2, 3, 4, 5]), t=np.array([0, 6, 4, 5]))
    model = fires(model, merge_axes, 1, ["Reshape", "Transpose", "Reshape"], atol=0)
    assert perm(model) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "order, few",
    (([0, 4, 1, 2, 3], [0, 2, 1]), ([0, 3, 4, 1, 2], [0, 2, 1]), ([0, 1, 2, 4, 3], [0, 1, 3, 2])),
)
def test_axes_that_stay_together(order, few):
    """Alone, between new reshapes; the tensor keeps its name."""
    text = f"g (float[N,2,3,4,5] x) => (float[N,A,B,C,D] y) {{ a = Exp(x) y = Transpose<perm = {order}>(a) }}"
    model = fires(graph(text), merge_axes, 1, ["Exp", "Reshape", "Transpose", "Reshape"], atol=0)
    assert perm(model) == few


def test_others_read_the_reshapes():
    """What is read elsewhere stays."""
    text = """g (float[N,6,4,5] x) => (float[N,6,4,5] y, float[N,A,B,C,D] z, float[N,2,3,4,5] w) {
        a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) y = Reshape(b, t) z = Exp(b) w = Exp(a)
    }"""
    model = graph(text, s=np.array([0, 2, 3, 4, 5]), t=np.array([0, 6, 4, 5]))
    fires(model, merge_axes, 1, ["Reshape", "Reshape", "Transpose", "Reshape", "Reshape", "Exp", "Exp"], atol=0)


def test_a_reshape_that_moves_the_batch_stays():
    text = """g (float[N,12,4,5] x) => (float[M,A,B,C,D] y) {
        a = Reshape(x, s) y = Transpose<perm = [0, 2, 1, 3, 4]>(a)
    }"""
    model = graph(text, s=np.array([-1, 2, 3, 4, 5]))
    fires(model, merge_axes, 1, ["Reshape", "Reshape", "Transpose", "Reshape"], atol=0)


@pytest.mark.parametrize("order", ([0, 4, 3, 2, 1], [1, 0, 2, 3, 4]))
def test_left_alone(order):
    """Nothing stays together, or the batch moves."""
    text = f"g (float[N,2,3,4,5] x) => (float[A,B,C,D,E] y) {{ y = Transpose<perm = {order}>(x) }}"
    stays(graph(text), merge_axes)


def test_few_axes_are_left_alone():
    stays(graph("g (float[N,2,3,4] x) => (float[N,A,B,C] y) { y = Transpose<perm = [0, 3, 1, 2]>(x) }"), merge_axes)
