"""fold-constants: what does not depend on the inputs is computed once."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding import constants
from lingeronnx.quantization.normalize.folding.constants import fold_constants
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph, rand

TOLERANCE = 1e-6
TEXT = "g (float[N,4] x) => (float[N,3] y)"


def test_a_chain():
    """Transpose, Mul and Reshape of a weight are a weight."""
    text = (
        f"{TEXT} {{ t = Transpose<perm = [1, 0]>(w) m = Mul(t, k) r = Reshape(m, s) y = "
        "MatMul(x, r) }"
    )
    model = graph(text, w=rand(3, 4), k=np.float32(2), s=np.array([4, 3]))
    check_pass_fires(model, fold_constants, 3, ["MatMul"], atol=TOLERANCE)
    np.testing.assert_array_equal(ir.const_value(model.graph.node(0).inputs[1]), 2 * rand(3, 4).T)


def test_two_outputs_and_two_readers():
    """Both parts of a Split, each read twice."""
    text = f"""{TEXT} {{
        a, b = Split<axis = 1>(w, s) c = Add(a, b) d = MatMul(x, a) e = MatMul(x, b) f = MatMul(x, c) y = Sum(d, e, f)
    }}"""
    model = graph(text, w=rand(4, 6), s=np.array([3, 3]))
    check_pass_fires(
        model, fold_constants, 2, ["MatMul", "MatMul", "MatMul", "Sum"], atol=TOLERANCE
    )


def test_shapes():
    """Shape of a constant is one."""
    text = "g (float[N,4] x) => (float[4,N] y) { s = Shape(w) y = Reshape(x, s) }"
    model = graph(text.replace("[4,N]", "[2,4]"), w=rand(2, 4))
    check_pass_fires(model, fold_constants, 1, ["Reshape"], atol=0, trace=False)


def test_a_number():
    """A result without axes keeps its shape."""
    model = graph(
        f"{TEXT} {{ k = ReduceMax<keepdims = 0>(w) m = Mul(x, k) y = MatMul(m, w) }}", w=rand(4, 3)
    )
    check_pass_fires(model, fold_constants, 1, ["Mul", "MatMul"], atol=TOLERANCE)
    assert ir.const_value(model.graph.node(0).inputs[1]).shape == ()


def test_refuses_a_graph_output():
    """A constant that is a graph output needs a node that writes it."""
    check_pass_leaves_alone(
        graph(
            "g (float[N,4] x) => (float[4] y, float[N,4] z) { y = Exp(k) z = Exp(x) }", k=rand(4)
        ),
        fold_constants,
    )


def test_refuses_what_depends_on_the_input():
    """Also through its shape."""
    check_pass_leaves_alone(
        graph("g (float[N,4] x) => (float[N,4] y) { s = Shape(x) y = Reshape(x, s) }"),
        fold_constants,
    )


@pytest.mark.parametrize("kind", ("RandomNormalLike", "RandomUniformLike", "Bernoulli"))
def test_refuses_random_numbers(kind):
    """Another run gives other numbers."""
    model = graph(
        f"{TEXT} {{ r = {kind}(w) y = MatMul(x, r) }}", opset=15, w=np.full((4, 3), 0.5, np.float32)
    )
    assert fold_constants(model).changes == 0
    assert [node.op_type for node in model.graph] == [kind, "MatMul"]


def test_refuses_a_large_result(monkeypatch):
    """What would bloat the file is computed at run time."""
    monkeypatch.setattr(constants, "MAX_FOLDED_ELEMENTS", 11)
    text = f"{TEXT} {{ t = Expand(k, s) y = MatMul(x, t) }}"
    check_pass_leaves_alone(graph(text, k=np.float32(2), s=np.array([4, 3])), fold_constants)
    monkeypatch.setattr(constants, "MAX_FOLDED_ELEMENTS", 12)
    check_pass_fires(
        graph(text, k=np.float32(2), s=np.array([4, 3])),
        fold_constants,
        1,
        ["MatMul"],
        atol=TOLERANCE,
    )


def test_refuses_an_initializer_that_is_an_input():
    """A graph input with a default value may be fed another one."""
    model = graph(
        "g (float[N,4] x, float[4] k) => (float[N,4] y) { e = Exp(k) y = Mul(x, e) }", k=rand(4)
    )
    assert fold_constants(model).changes == 0
