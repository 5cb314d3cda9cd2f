"""constant-factor: a product by a constant has the constant behind, as a matrix."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.constant_matmul import canonicalize_constant_matmul
from tests.passes.helpers import changes, graph, ops, outputs, rand, reasons


def product(factor, sizes, left):
    body = "y = MatMul(a, x)" if left else "y = MatMul(x, a)"
    rank = max(len(sizes) + 1, factor.ndim)
    out = ",".join(f"d{i}" for i in range(rank))
    shape = ",".join(["N", *map(str, sizes)])
    model = graph(f"g (float[{shape}] x) => (float[{out}] y) {{ {body} }}", a=factor)
    trace_shapes(model, {"x": rand(1, *sizes)})
    return model


@pytest.mark.parametrize(
    ("factor", "sizes", "left", "made"),
    [
        ((5, 4), (4, 3), True, ["Transpose", "MatMul", "Transpose"]),
        ((4, 4), (2, 4, 3), True, ["Transpose", "MatMul", "Transpose"]),
        ((1, 1, 5, 4), (2, 4, 3), True, ["Transpose", "MatMul", "Transpose"]),
        ((1, 4, 6), (3, 4), False, ["MatMul"]),
    ],
)
def test_the_constant_goes_behind(factor, sizes, left, made):
    array = rand(*factor, seed=3)
    model = product(array, sizes, left)
    assert changes(canonicalize_constant_matmul, model) == 1
    assert ops(model) == made
    x = rand(2, *sizes, seed=4)
    want = np.matmul(array, x) if left else np.matmul(x, array)
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, rtol=0, atol=1e-5)
    assert changes(canonicalize_constant_matmul, model) == 0


def test_a_matrix_behind_is_what_it_should_be():
    assert changes(canonicalize_constant_matmul, product(rand(4, 6), (3, 4), False)) == 0


@pytest.mark.parametrize(
    ("factor", "sizes"),
    [((2, 5, 4), (2, 4, 3)), ((1, 1, 5, 4), (4, 3)), ((4,), (4, 3)), ((3, 2), (4,))],
)
def test_what_is_no_matrix_stays(factor, sizes):
    """One matrix for each position, more axes than the other factor has, a vector, rows that count
    samples.
    """
    x = (2, 4) if len(sizes) == 1 else None
    if x is not None:  # MatMul [3, 2] x [N = 2, 4] sums over samples
        model = graph("g (float[2,4] x) => (float[3,4] y) { y = MatMul(a, x) }", a=rand(*factor))
        trace_shapes(model, {"x": rand(*x)})
    else:
        model = product(rand(*factor), sizes, True)
    assert reasons(canonicalize_constant_matmul, model)[0].endswith(
        "its constant is not a matrix, or a size of the other operand is not known"
    )
