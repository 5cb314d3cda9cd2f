"""fold-affine: per-channel constants go into the layer in front, or become a BatchNormalization."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize.layers.channel_affine import fold_affine
from lingeronnx.quantization.normalize.layers.fold_into_next_layer import (
    fold_batch_norm_into_next_layer,
    fold_factor_into_next_layer,
)
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    graph,
    positive,
    rand,
)

TOLERANCE = 1e-5
WEIGHT = rand(3, 4, 3, 3)


def behind_conv(operator, order="c, k", bias=""):
    return (
        f"g (float[N,4,6,6] x) => (float[N,3,4,4] y) {{ c = Conv(x, w{bias}) y = "
        f"{operator}({order}) }}"
    )


@pytest.mark.parametrize("shape", ((3, 1, 1), (1, 3, 1, 1), (1,), (), (1, 1, 1, 1)))
@pytest.mark.parametrize("operator", ("Mul", "Div", "Add", "Sub"))
def test_behind_a_convolution(operator, shape):
    """One value, or one per output channel, in any of the shapes that broadcast so."""
    model = graph(behind_conv(operator), w=WEIGHT, k=positive(*shape))
    check_pass_fires(model, fold_affine, 1, ["Conv"], atol=TOLERANCE)


@pytest.mark.parametrize("operator", ("Mul", "Add", "Sub"))
def test_constant_first(operator):
    """The constant may be the left operand; c - x turns the sign."""
    model = graph(behind_conv(operator, "k, c", ", b"), w=WEIGHT, b=rand(3), k=positive(3, 1, 1))
    check_pass_fires(model, fold_affine, 1, ["Conv"], atol=TOLERANCE)


@pytest.mark.parametrize("number", (np.inf, -np.inf, np.nan))
@pytest.mark.parametrize("operator", ("Mul", "Add"))
def test_what_is_infinite_stays(operator, number):
    """Weights that are infinite sum up to what is no number."""
    array = positive(3, 1, 1)
    array[1] = number
    check_pass_leaves_alone(graph(behind_conv(operator), w=WEIGHT, k=array), fold_affine)


MOVES = {
    "Squeeze": ("float[N,3,4]", "s = Squeeze(c, axis)", (3, 1)),
    "Unsqueeze": ("float[N,1,3,1,4]", "s = Unsqueeze(c, front)", (3, 1, 1)),
    "Transpose": ("float[N,1,4,3]", "s = Transpose<perm = [0, 2, 3, 1]>(c)", (3,)),
    "both": ("float[N,4,3]", "t = Squeeze(c, axis) s = Transpose<perm = [0, 2, 1]>(t)", (1, 1, 3)),
}


@pytest.mark.parametrize("operator", ("Mul", "Sub"))
@pytest.mark.parametrize("move", MOVES)
def test_behind_what_only_moves(move, operator):
    """As TensorFlow's one-dimensional convolutions: the bias stands behind a Squeeze."""
    shape, step, size = MOVES[move]
    text = f"g (float[N,4,3,6] x) => ({shape} y) {{ c = Conv(x, w) {step} y = {operator}(s, k) }}"
    held = {"axis": np.array([2]), "front": np.array([1])}
    model = graph(text, w=WEIGHT, k=positive(*size), **{k: v for k, v in held.items() if k in text})
    check_pass_fires(
        model,
        fold_affine,
        1,
        ["Conv", *(["Squeeze", "Transpose"] if move == "both" else [move])],
        atol=TOLERANCE,
    )


BETWEEN = {
    "Abs": "a = Abs(c)",
    "GlobalAveragePool": "a = GlobalAveragePool(c)",
    "GlobalMaxPool": "a = GlobalMaxPool(c)",
    "LeakyRelu": "a = LeakyRelu(c)",
    "MaxPool": "a = MaxPool<kernel_shape = [2, 2]>(c)",
    "PRelu": "a = PRelu(c, s)",
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_a_factor_behind_what_takes_factors_through(kind):
    """f(a x) = a f(x) for a > 0."""
    text = (
        f"g (float[N,4,6,6] x) => (float[N,3,A,B] y) {{ c = Conv(x, w) {BETWEEN[kind]} y = "
        "Mul(a, k) }"
    )
    held = {"s": rand(3, 1, 1)} if kind == "PRelu" else {}
    check_pass_fires(
        graph(text, w=WEIGHT, k=positive(3, 1, 1), **held),
        fold_affine,
        1,
        ["Conv", kind],
        atol=TOLERANCE,
    )


def test_not_behind_what_is_read_elsewhere():
    """Then another reader would see the constant, too."""
    text = """g (float[N,4,3,6] x) => (float[N,3,4] y, float[N,3,4] z) {
        c = Conv(x, w) s = Squeeze(c, a) y = Add(s, k) z = Relu(s)
    }"""
    check_pass_leaves_alone(graph(text, w=WEIGHT, k=positive(3, 1), a=np.array([2])), fold_affine)


def test_chain_of_four():
    """All four in a row end in one convolution."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y) {
        c = Conv(x, w) d = Mul(c, k) e = Add(k, d) f = Div(e, k) y = Sub(f, k)
    }"""
    check_pass_fires(
        graph(text, w=WEIGHT, k=positive(3, 1, 1)), fold_affine, 4, ["Conv"], atol=TOLERANCE
    )


def test_behind_a_linear():
    """A Linear's channels are the last axis."""
    text = "g (float[N,5,4] x) => (float[N,5,3] y) { c = MatMul(x, w) d = Mul(c, k) y = Add(d, k) }"
    model = graph(text, w=rand(4, 3), k=rand(3))
    assert changes(fuse_linear, model) == 1
    check_pass_fires(model, fold_affine, 2, ["Linear"], atol=TOLERANCE)


def test_one_weight_of_two_layers():
    """A weight another layer reads too is copied, not changed."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] d) {
        c = Conv(x, w) y = Mul(c, k) d = Conv(x, w)
    }"""
    check_pass_fires(
        graph(text, w=WEIGHT, k=rand(3, 1, 1)), fold_affine, 1, ["Conv", "Conv"], atol=TOLERANCE
    )


@pytest.mark.parametrize("operator", ("Mul", "Div", "Add", "Sub"))
def test_becomes_batch_norm(operator):
    """Where no layer is in front a per-channel constant on a 4-D tensor becomes a
    BatchNormalization.
    """
    text = f"g (float[N,4,6,6] x) => (float[N,4,6,6] y) {{ c = Relu(x) y = {operator}(c, k) }}"
    check_pass_fires(
        graph(text, k=positive(4, 1, 1)),
        fold_affine,
        1,
        ["Relu", "BatchNormalization"],
        atol=TOLERANCE,
    )


def test_shared_output_becomes_batch_norm():
    """The layer's output is read twice: the factor may not go into it."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] z) {
        c = Conv(x, w) y = Mul(c, k) z = Relu(c)
    }"""
    check_pass_fires(
        graph(text, w=WEIGHT, k=rand(3, 1, 1)),
        fold_affine,
        1,
        ["Conv", "BatchNormalization", "Relu"],
        atol=TOLERANCE,
    )


@pytest.mark.parametrize("shape", ((4,), (4, 1), (3, 4, 4), (1, 1, 4, 4)))
def test_refuses_another_axis(shape):
    """A constant that varies along space is no channel factor."""
    check_pass_leaves_alone(graph(behind_conv("Add"), w=WEIGHT, k=rand(*shape)), fold_affine)


def test_refuses_wrong_axis_of_equal_size():
    """[4] on [N, 4, 4, 4] runs along the width, not along the channels."""
    text = "g (float[N,4,6,6] x) => (float[N,4,4,4] y) { c = Conv(x, w) y = Add(c, k) }"
    check_pass_leaves_alone(graph(text, w=rand(4, 4, 3, 3), k=rand(4)), fold_affine)


def test_refuses_constant_over_layer():
    """k / x is no affine function."""
    text = "g (float[N,4,6,6] x) => (float[N,3,4,4] y) { c = Conv(x, w) s = Exp(c) y = Div(k, s) }"
    check_pass_leaves_alone(graph(text, w=WEIGHT, k=positive(3, 1, 1)), fold_affine)


def test_refuses_division_by_zero():
    """A zero divisor stays the user's."""
    model = graph(behind_conv("Div"), w=WEIGHT, k=np.array([1, 0, 2], np.float32).reshape(3, 1, 1))
    assert changes(fold_affine, model) == 0


def test_refuses_two_activations():
    """No operand is constant."""
    text = (
        "g (float[N,4,6,6] x) => (float[N,3,4,4] y) { c = Conv(x, w) d = Conv(x, w) y = Add(c, d) }"
    )
    check_pass_leaves_alone(graph(text, w=WEIGHT), fold_affine)


def test_refuses_a_constant_that_widens():
    """A constant with more axes than the tensor changes its rank."""
    text = "g (float[N,5,4] x) => (float[1,N,5,3] y) { c = MatMul(x, w) y = Mul(c, k) }"
    model = graph(text, w=rand(4, 3), k=rand(1, 1, 1, 3))
    assert changes(fuse_linear, model) == 1
    check_pass_leaves_alone(model, fold_affine)


def test_refuses_a_widening_of_size_one():
    """[3,1,1,1,1] or a channel constant on an input with one channel only broadcasts: the shape
    would change.
    """
    text = "g (float[N,1,6,6] x) => (float[N,4,6,6] y) { c = Relu(x) y = Mul(c, k) }"
    check_pass_leaves_alone(graph(text, k=rand(4, 1, 1)), fold_affine)


def test_refuses_integers():
    """Integer arithmetic is not a layer's."""
    text = "g (int64[N,4,2,2] x) => (int64[N,4,2,2] y) { y = Mul(x, k) }"
    check_pass_leaves_alone(graph(text, k=np.ones((4, 1, 1), np.int64)), fold_affine)


@pytest.mark.parametrize(
    "steps, left",
    (
        ("r = Relu(c) y = Div(r, k)", ["Relu"]),
        ("r = MaxPool<kernel_shape = [2, 2]>(c) s = Relu(r) y = Mul(s, k)", ["MaxPool", "Relu"]),
        ("r = LeakyRelu(c) y = Div(r, n)", ["LeakyRelu"]),
        ("r = Flatten(c) y = Div(r, n)", ["Flatten"]),
        ("y = Neg(c)", []),
    ),
)
def test_behind_what_a_positive_factor_passes(steps, left):
    """Relu and its like, and for one factor what only reads the numbers in another shape."""
    held = {
        name: array
        for name, array in (("k", positive(3, 1, 1)), ("n", np.float32(3)))
        if f", {name})" in steps
    }
    text = f"g (float[N,4,6,6] x) => (float y) {{ c = Conv(x, w) {steps} }}"
    text = text.replace(
        "(float y)", "(float[N,48] y)" if "Flatten" in steps else "(float[N,3,P,Q] y)"
    )
    check_pass_fires(graph(text, w=WEIGHT, **held), fold_affine, 1, ["Conv", *left], atol=TOLERANCE)


@pytest.mark.parametrize("step", ("Mul(s, k)", "Add(s, n)", "Sub(n, s)"))
def test_not_behind_what_it_does_not_pass(step):
    """A Relu keeps neither negative factors nor summands out."""
    text = f"g (float[N,5,4] x) => (float[N,5,3] y) {{ c = MatMul(x, w) s = Relu(c) y = {step} }}"
    held = {"k": -positive(1)} if "k" in step else {"n": np.float32(1)}
    model = graph(text, w=rand(4, 3), **held)
    assert changes(fuse_linear, model) == 1
    check_pass_leaves_alone(model, fold_affine)


@pytest.mark.parametrize("step", ("Mul(s, n)", "Div(s, n)", "Neg(s)"))
def test_into_the_layer_behind(step):
    """One factor goes into the weight of the layer that reads the product alone."""
    text = f"""g (float[N,5,4] x, float[N,5,4] z) => (float[N,5,3] y) {{ s = Add(x, z) d = {step} y = MatMul(d, w) }}"""
    model = graph(text, w=rand(4, 3), **({} if "Neg" in step else {"n": np.float32(3)}))
    assert changes(fuse_linear, model) == 1
    check_pass_fires(model, fold_factor_into_next_layer, 1, ["Add", "Linear"], atol=TOLERANCE)


def test_what_is_fed_keeps_its_factor():
    """A first layer on pixels over 255 would need a scale below 1, which chips hardly hold."""
    model = graph(
        "g (float[N,5,4] x) => (float[N,5,3] y) { d = Div(x, n) y = MatMul(d, w) }",
        w=rand(4, 3),
        n=positive(1),
    )
    assert changes(fuse_linear, model) == 1
    check_pass_leaves_alone(model, fold_factor_into_next_layer)


def _norm(text, offset, **held):
    """Return a graph whose batch normalisations n and m are behind a Relu, the second with an
    offset.
    """
    names = {
        "g": positive(4),
        "b": rand(4) if offset else np.zeros(4, np.float32),
        "u": positive(4),
        "v": positive(4),
    }
    mean = {"u": names["u"] if offset else np.zeros(4, np.float32)}
    norm = "n = BatchNormalization<epsilon = 0.01>(r, g, b, u, v)"
    text = f"g (float[N,4,6,6] x) => (float[N,P,Q,R] y) {{ r = Relu(x) {norm} {text} }}"
    return graph(text, **{**names, **mean, **held})


@pytest.mark.parametrize("bias", ("", ", b"))
@pytest.mark.parametrize(
    "attributes, shape, offset",
    (
        ("", (3, 4, 3, 3), True),
        ("<pads = [1, 1, 1, 1]>", (3, 4, 3, 3), False),
        ("<group = 2>", (6, 2, 1, 1), True),
    ),
)
def test_batch_norm_into_the_layer_behind(attributes, shape, offset, bias):
    """Factors into the input channels of the weight, offsets into the bias; with padding there must
    be none.
    """
    text = f"y = Conv{attributes}(n, w{bias.replace('b', 'k')})"
    model = _norm(text, offset, w=rand(*shape), **({"k": rand(shape[0])} if bias else {}))
    check_pass_fires(model, fold_batch_norm_into_next_layer, 1, ["Relu", "Conv"], atol=TOLERANCE)


def test_batch_norm_into_another():
    model = _norm("y = BatchNormalization(n, g, v, u, g)", True)
    check_pass_fires(
        model, fold_batch_norm_into_next_layer, 1, ["Relu", "BatchNormalization"], atol=TOLERANCE
    )


@pytest.mark.parametrize(
    "text",
    (
        "y = Conv<pads = [1, 1, 1, 1]>(n, w)",
        "c = Conv(n, w) p = Relu(n) q = Conv(p, w) y = Add(c, q)",
        "y = Relu(n)",
    ),
)
def test_batch_norm_that_stays(text):
    """What is padded is 0 behind the offset; a tensor that others read stays; an activation takes
    nothing up.
    """
    check_pass_leaves_alone(
        _norm(text, True, **({"w": rand(3, 4, 3, 3)} if "w)" in text else {})),
        fold_batch_norm_into_next_layer,
    )


@pytest.mark.parametrize("kind, left", (("Div", "Mul"), ("Sub", "Add")))
def test_several_constants_have_one_form(kind, left):
    text = f"g (float[N,5,4] x) => (float[N,5,4] y) {{ s = Relu(x) y = {kind}(s, k) }}"
    check_pass_fires(graph(text, k=positive(4)), fold_affine, 1, ["Relu", left], atol=TOLERANCE)
