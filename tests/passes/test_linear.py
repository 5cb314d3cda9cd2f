"""linear: Gemm and MatMul with a constant weight, and the bias behind, are one
``lingeronnx.Linear``.
"""

import itertools

import numpy as np
import onnx
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    graph,
    outputs,
    rand,
)

TOLERANCE = 1e-5
TEXT = "g (float[N,4] x) => (float[N,3] y)"


@pytest.mark.parametrize(
    "turned, alpha, beta, bias", list(itertools.product((0, 1), (1.0, 0.5), (1.0, -2.0), (0, 1)))
)
def test_gemm(turned, alpha, beta, bias):
    """alpha and beta go into weight and bias, transB either way, with and without C."""
    attributes = f"alpha: float = {alpha}, beta: float = {beta}, transB: int = {turned}"
    text = f"{TEXT} {{ y = Gemm<{attributes}>(x, w{', b' if bias else ''}) }}"
    arrays = {"b": rand(3)} if bias else {}
    model = graph(text, w=rand(*((3, 4) if turned else (4, 3))), **arrays)
    check_pass_fires(model, fuse_linear, 1, ["Linear"], atol=TOLERANCE)
    assert ir.get_shape(model.graph.node(0).inputs[1]) == (3, 4)  # [outputs, inputs]
    assert ir.get_shape(model.graph.node(0).inputs[2]) == (3,)


@pytest.mark.parametrize("shape", ((3,), (1, 3), (1,), (), (1, 1)))
def test_gemm_bias_shapes(shape):
    """C may be a row, a row with an axis in front, or one number."""
    model = graph(f"{TEXT} {{ y = Gemm(x, w, b) }}", w=rand(4, 3), b=rand(*shape))
    check_pass_fires(model, fuse_linear, 1, ["Linear"], atol=TOLERANCE)


@pytest.mark.parametrize("order", ("m, b", "b, m"))
def test_matmul_and_bias(order):
    """The bias may stand first."""
    text = f"{TEXT} {{ m = MatMul(x, w) y = Add({order}) }}"
    check_pass_fires(
        graph(text, w=rand(4, 3), b=rand(3)), fuse_linear, 1, ["Linear"], atol=TOLERANCE
    )


def test_matmul_of_three_dimensions():
    """A row of features per position."""
    text = "g (float[N,5,4] x) => (float[N,5,3] y) { m = MatMul(x, w) y = Add(b, m) }"
    check_pass_fires(
        graph(text, w=rand(4, 3), b=rand(1, 1, 3)), fuse_linear, 1, ["Linear"], atol=TOLERANCE
    )


def test_shared_weight():
    """One weight of two layers stays one weight's values in both."""
    text = (
        "g (float[N,4] x) => (float[N,3] y, float[N,3] z) { y = MatMul(x, w) e = Exp(x) z = "
        "MatMul(e, w) }"
    )
    model = check_pass_fires(
        graph(text, w=rand(4, 3)), fuse_linear, 2, ["Linear", "Exp", "Linear"], atol=1e-4
    )
    assert len(model.functions) == 1


def test_weight_read_as_data_too():
    """A weight that another operator reads keeps its form for it."""
    text = "g (float[N,4] x) => (float[N,3] y, float[4,3] z) { y = MatMul(x, w) z = Exp(w) }"
    check_pass_fires(graph(text, w=rand(4, 3)), fuse_linear, 1, ["Linear", "Exp"], atol=TOLERANCE)


def test_function_is_plain_onnx():
    """The model-local function's body is what the layer means; the checker takes it and onnxruntime
    inlines it.
    """
    model = graph(f"{TEXT} {{ y = Gemm(x, w, b) }}", w=rand(4, 3), b=rand(3))
    fuse_linear(model)
    model = ir.from_proto(ir.to_proto(model))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = rand(6, 4, seed=9)
    got = outputs(model, {"x": x})["y"]
    np.testing.assert_allclose(got, x @ rand(4, 3) + rand(3), rtol=0, atol=TOLERANCE)


def test_bias_with_a_second_reader():
    """The product is read elsewhere: the bias stays a node."""
    text = (
        "g (float[N,4] x) => (float[N,3] y, float[N,3] z) { m = MatMul(x, w) y = Add(m, b) z = "
        "Exp(m) }"
    )
    check_pass_fires(
        graph(text, w=rand(4, 3), b=rand(3)), fuse_linear, 1, ["Linear", "Add", "Exp"], atol=1e-4
    )


@pytest.mark.parametrize("shape", ((5, 1), (5, 3), (3, 1)))
def test_bias_of_another_axis(shape):
    """A bias that varies along the rows is no bias of the layer: it stays an Add."""
    rows = shape[0]
    text = f"g (float[N,{rows},4] x) => (float[N,{rows},3] y) {{ m = MatMul(x, w) y = Add(m, b) }}"
    check_pass_fires(
        graph(text, w=rand(4, 3), b=rand(*shape)), fuse_linear, 1, ["Linear", "Add"], atol=TOLERANCE
    )


@pytest.mark.parametrize("shape", ((1, 1, 3), (1, 1, 1)))
def test_bias_that_widens(shape):
    """A bias with more axes than the product changes the rank of the result: it stays an Add."""
    text = "g (float[N,4] x) => (float[1,N,3] y) { m = MatMul(x, w) y = Add(m, b) }"
    check_pass_fires(
        graph(text, w=rand(4, 3), b=rand(*shape)), fuse_linear, 1, ["Linear", "Add"], atol=TOLERANCE
    )


def test_bias_of_the_run():
    """A computed bias stays an Add."""
    text = "g (float[N,4] x, float[N,3] b) => (float[N,3] y) { m = MatMul(x, w) y = Add(m, b) }"
    check_pass_fires(graph(text, w=rand(4, 3)), fuse_linear, 1, ["Linear", "Add"], atol=TOLERANCE)


def test_refuses_a_weight_of_the_run():
    """MatMul of two activations, Gemm with a computed B or C."""
    check_pass_leaves_alone(
        graph("g (float[N,2,4] x, float[N,4,3] w) => (float[N,2,3] y) { y = MatMul(x, w) }"),
        fuse_linear,
    )
    assert (
        changes(
            fuse_linear,
            graph("g (float[N,4] x, float[4,3] w) => (float[N,3] y) { y = Gemm(x, w) }"),
        )
        == 0
    )
    assert (
        changes(
            fuse_linear,
            graph(
                "g (float[N,4] x, float[3] b) => (float[N,3] y) { y = Gemm(x, w, b) }", w=rand(4, 3)
            ),
        )
        == 0
    )


def test_refuses_a_constant_on_the_left():
    """w x is not x w."""
    check_pass_leaves_alone(
        graph("g (float[N,4,2] x) => (float[N,3,2] y) { y = MatMul(w, x) }", w=rand(3, 4)),
        fuse_linear,
    )


def test_refuses_trans_a():
    """transA would move the batch."""
    text = "g (float[4,N] x) => (float[N,3] y) { y = Gemm<transA: int = 1>(x, w) }"
    assert changes(fuse_linear, graph(text, w=rand(4, 3))) == 0


def test_refuses_gemm_with_a_bias_per_row():
    """C as a column."""
    text = "g (float[5,4] x) => (float[5,3] y) { y = Gemm(x, w, b) }"
    check_pass_leaves_alone(graph(text, w=rand(4, 3), b=rand(5, 1)), fuse_linear, trace=False)


def test_refuses_a_stack_of_weights():
    """A weight of three dimensions is a batch of matrices; of one, a dot product."""
    check_pass_leaves_alone(
        graph("g (float[N,2,5,4] x) => (float[N,2,5,3] y) { y = MatMul(x, w) }", w=rand(2, 4, 3)),
        fuse_linear,
    )
    check_pass_leaves_alone(
        graph("g (float[N,4] x) => (float[N] y) { y = MatMul(x, w) }", w=rand(4)), fuse_linear
    )
