"""Layer normalisation as older exporters write it."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.layers.layer_norm import fuse_layer_norm
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph, positive, rand

EPS, TWO = np.float32(1e-5), np.float32(2)
HEAD = "g (float[N,4,6] x) => (float[N,4,6] y) {\n"
CORE = """m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean<axes = [-1]>(q)
 e = Add(v, eps)  s = Sqrt(e) """
AFFINE = " g = Mul(n, gamma)  y = Add(g, beta) }"
HELD = {"eps": EPS, "two": TWO, "gamma": positive(6), "beta": rand(6)}


def held(text):
    return {name: array for name, array in HELD.items() if name in text}


@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize(
    "text",
    (
        HEAD + CORE + "n = Div(d, s)" + AFFINE,
        HEAD + CORE + "r = Reciprocal(s)  n = Mul(d, r)" + AFFINE,
        HEAD + CORE.replace("s = Sqrt(e)", "r = Pow(e, half)") + "n = Mul(d, r)" + AFFINE,
        HEAD
        + CORE.replace("Pow(d, two)", "Mul(d, d)")
        + "n = Div(d, s)"
        + AFFINE.replace("n, gamma", "gamma, n"),
        HEAD + CORE + "n = Div(d, s)  y = Mul(n, gamma) }",
        HEAD + CORE + "y = Div(d, s) }",
        HEAD + CORE.replace("[-1]", "[1, 2]") + "y = Div(d, s) }",
    ),
    ids=("division", "reciprocal", "power", "square", "no summand", "bare", "two axes"),
)
def test_chain(text, opset):
    arrays = held(text) | ({"half": np.float32(-0.5)} if "half" in text else {})
    name = "LayerNormalization" + ("_2axes" if "[1, 2]" in text and opset < 17 else "")
    model = check_pass_fires(
        graph(text, opset=opset, **arrays), fuse_layer_norm, 1, [name], atol=1e-5
    )
    assert (model.graph.node(0).domain == "") == (opset >= 17)


def core(x, y, eps):
    """Return a bare normalisation x -> y."""
    return (
        f"m{y} = ReduceMean<axes = [-1]>({x}) d{y} = Sub({x}, m{y}) q{y} = Mul(d{y}, d{y}) "
        f"v{y} = ReduceMean<axes = [-1]>(q{y}) e{y} = Add(v{y}, {eps}) s{y} = Sqrt(e{y}) {y} = "
        f"Div(d{y}, s{y}) "
    )


def test_two_epsilons_are_two_functions():
    model = graph(
        HEAD + core("x", "z", "eps") + core("z", "y", "eps2") + "}", eps=EPS, eps2=np.float32(1e-3)
    )
    check_pass_fires(
        model, fuse_layer_norm, 2, ["LayerNormalization", "LayerNormalization_2"], atol=1e-5
    )


@pytest.mark.parametrize(
    "text",
    (
        HEAD + CORE.replace("[-1]", "[0]") + "y = Div(d, s) }",
        HEAD.replace("=> (", "=> (float[N,4,1] v, ") + CORE + "y = Div(d, s) }",
        HEAD + CORE.replace("Pow(d, two)", "Pow(x, two)") + "y = Div(d, s) }",
    ),
    ids=("batch", "variance is an output", "not centred"),
)
def test_stays(text):
    check_pass_leaves_alone(graph(text, **held(text)), fuse_layer_norm)


FUSED = """g (float[N,6] x) => (float[N,6] y) {
 size = Shape(x)  rows = Slice(size, zero, one, zero)  many = ReduceProd<axes = [0], keepdims = 0>(rows)
 dims = Unsqueeze(many, zero)  zeros = Expand(nought, dims)  ones = Expand(unit, dims)
 r = Reshape(x, target)  m = ReduceMean<axes = [0, 2, 3]>(r)  d = Sub(r, m)
 q = ReduceSumSquare<axes = [0, 2, 3], keepdims = 0>(d)  v = Div(q, count)  mean = Squeeze(m, space)
 n = BatchNormalization<epsilon = 0.001>(r, ones, zeros, mean, v)
 b = Reshape(n, size)  g = Mul(b, gamma)  y = Add(g, beta) }"""
FUSED_HELD = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "nought": np.float32(0),
    "unit": np.float32(1),
    "target": np.array([1, -1, 6, 1]),
    "count": np.float32(6),
    "space": np.array([0, 2, 3]),
    "gamma": positive(6),
    "beta": rand(6),
}
MOMENTS = (
    HEAD
    + """m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean<axes = [-1]>(q)
 e = Add(v, eps)  s = Sqrt(e)  r = Reciprocal(s)  k = Mul(r, gamma)  o = Mul(m, k)  c = Sub(beta, o)
 p = Mul(x, k)  y = Add(p, c) }"""
)
FAST = (
    HEAD
    + """t = ReduceSum(x, last)  m = Div(t, six)  w = Mul(x, x)  t2 = ReduceSum(w, last)  m2 = Div(t2, six)
 mm = Mul(m, m)  v = Sub(m2, mm)  e = Add(v, eps)  s = Sqrt(e)  d = Sub(x, m)  r = Div(unit, s)
 k = Mul(r, gamma)  p = Mul(d, k)  y = Add(p, beta) }"""
)
FAST_HELD = {"last": np.array([-1]), "six": np.float32(6), "unit": np.float32(1)}


@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize(
    ("text", "arrays", "atol"),
    (
        (MOMENTS, held(MOMENTS), 1e-5),
        (FAST, held(FAST) | FAST_HELD, 1e-4),  # mean(x^2) - mean(x)^2 loses digits
        (FUSED, FUSED_HELD, 1e-5),
    ),
    ids=("factor and offset", "mean of squares", "batch normalisation of rows"),
)
def test_other_ways_to_write_it(text, arrays, atol, opset):
    left = ["LayerNormalization"]
    model = graph(text, opset=opset, **arrays)
    model = check_pass_fires(model, fuse_layer_norm, 1, left, atol=atol)
    node = model.graph.node(0)
    np.testing.assert_array_equal(ir.const_value(node.inputs[1]), HELD["gamma"])
    np.testing.assert_array_equal(ir.const_value(node.inputs[2]), HELD["beta"])


def test_an_axis_that_is_not_the_last_is_turned_there():
    text = HEAD + CORE.replace("[-1]", "[1]") + "y = Div(d, s) }"
    check_pass_fires(
        graph(text, **held(text)),
        fuse_layer_norm,
        1,
        ["Transpose", "LayerNormalization", "Transpose"],
        atol=1e-5,
    )


def test_readers_inside_of_subgraphs():
    """What a branch reads stays, and nothing is taken for a part of the normalisation that is not
    in the main graph: only the part after the difference can be written otherwise.
    """
    text = (
        HEAD.replace("=> (", "=> (float[N,4,6] z, ")
        + CORE
        + """y = Div(d, s)
        z = If (flag) <then_branch = a () => (float[N,4,6] p) { p = Mul(d, d) },
                       else_branch = b () => (float[N,4,6] r) { r = Mul(x, x) }> }"""
    )
    model = graph(text, flag=np.array(True), **held(text))
    left = ["ReduceMean", "Sub", "Mul", "Concat", "LayerNormalization", "Slice", "If"]
    check_pass_fires(model, fuse_layer_norm, 1, left, atol=1e-5)


ROOT_MEAN_SQUARE = (
    """q = Mul(x, x)  v = ReduceMean<axes = [-1]>(q)  e = Add(v, eps)  s = Sqrt(e) """
)
UNCENTERED = {
    "division": ROOT_MEAN_SQUARE + "n = Div(x, s)" + AFFINE.replace("Add(g, beta)", "Identity(g)"),
    "reciprocal": ROOT_MEAN_SQUARE + "r = Reciprocal(s)  n = Mul(x, r)  y = Mul(gamma, n) }",
    "length": "s = ReduceL2<axes = [-1]>(x)  c = Clip(s, eps)  y = Div(x, c) }",
    "mean and square over other axes": CORE.replace(
        "v = ReduceMean<axes = [-1]>", "v = ReduceMean<axes = [1]>"
    )
    + "y = Div(d, s) }",
    "other axis": ROOT_MEAN_SQUARE.replace("-1", "1") + "y = Div(x, s) }",
}


@pytest.mark.parametrize("opset", (13, 17))
@pytest.mark.parametrize("case", UNCENTERED)
def test_a_root_mean_square_is_written_as_a_layer_norm(case, opset):
    text = HEAD + UNCENTERED[case]
    left = ["Mul", "Concat", "LayerNormalization", "Slice"]
    if "other ax" in case:
        left = ["Transpose", *left, "Transpose"]
    if "mean" in case:
        left = ["ReduceMean", "Sub", *left]
    if case == "division":
        left = [*left, "Identity"]
    model = graph(text, opset=opset, **held(text))
    check_pass_fires(model, fuse_layer_norm, 1, left, atol=1e-5)


def test_a_length_that_is_read_elsewhere_stays():
    text = HEAD.replace("=> (", "=> (float[N,4,1] s, ") + UNCENTERED["length"]
    check_pass_leaves_alone(graph(text, **held(text)), fuse_layer_norm)
