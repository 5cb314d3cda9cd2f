"""Functions of one number become one node: GELU and its kin as exporters write them."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.activations.unary_functions import (
    fuse_known_activations,
    fuse_unary_functions,
)
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph

ONE, HALF, ROOT2 = np.float32(1), np.float32(0.5), np.float32(np.sqrt(2))
GELU = """g (float[N,4,6] x) => (float[N,4,6] y) {
  d = Div(x, root2)  e = Erf(d)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half)
}"""
TANH_GELU = """g (float[N,4] x) => (float[N,4] y) {
  c = Pow(x, three)  s = Mul(c, k)  i = Add(x, s)  j = Mul(i, r)  t = Tanh(j)  p = Add(one, t)  h = Mul(half, x)
  y = Mul(h, p)
}"""
CUBED = TANH_GELU.replace("c = Pow(x, three)", "sq = Mul(x, x)  c = Mul(sq, x)")
TANH = {
    "three": np.float32(3),
    "k": np.float32(0.044715),
    "r": np.float32(np.sqrt(2 / np.pi)),
    "one": ONE,
    "half": HALF,
}
HARD = "g (float[N,4] x) => (float[N,4] y) {{ a = Add(x, three) {} }}"
RELU6 = {
    "three": np.float32(3),
    "zero": np.float32(0),
    "six": np.float32(6),
    "sixth": np.float32(1 / 6),
}


@pytest.mark.parametrize(
    "text, name, arrays",
    (
        (GELU, "Gelu", {"root2": ROOT2, "one": ONE, "half": HALF}),
        (TANH_GELU, "Gelu", TANH),
        (CUBED, "Gelu", {k: v for k, v in TANH.items() if k != "three"}),
        ("g (float[N,4] x) => (float[N,4] y) { s = Sigmoid(x) y = Mul(x, s) }", "Silu", {}),
        (
            "g (float[N,4] x) => (float[N,4] y) { s = Softplus(x) t = Tanh(s) y = Mul(x, t) }",
            "Mish",
            {},
        ),
        (HARD.format("h = Clip(a, zero, six) m = Mul(x, h) y = Div(m, six)"), "HardSwish", RELU6),
        (HARD.format("h = Clip(a, zero, six) m = Mul(h, sixth) y = Mul(m, x)"), "HardSwish", RELU6),
        (
            (
                "g (float[N,4] x) => (float[N,4] y) { s = HardSigmoid<alpha = 0.16666667>(x) y = "
                "Mul(x, s) }"
            ),
            "HardSwish",
            {},
        ),
        (
            "g (float[N,4] x) => (float[N,4] y) { a = Abs(x) b = Add(a, one) y = Div(x, b) }",
            "Curve",
            {"one": ONE},
        ),
        (
            "g (float[N,4] x) => (float[N,4] y) { a = Mish(x) y = Add(a, one) }",
            "Curve",
            {"one": ONE},
        ),
    ),
    ids=(
        "erf",
        "tanh",
        "cubed",
        "silu",
        "mish",
        "divided",
        "multiplied",
        "hard sigmoid",
        "softsign",
        "of mish",
    ),
)
def test_one_node(text, name, arrays):
    version = 18 if "Swish" in text or "Mish" in text else 13
    run = fuse_known_activations if name in ("Gelu", "HardSwish") else fuse_unary_functions
    model = check_pass_fires(graph(text, opset=version, **arrays), run, 1, [name], atol=1e-6)
    (node,) = model.graph
    assert node.domain == ir.FUNCTION_DOMAIN


@pytest.mark.parametrize("kind", ("Log", "Sqrt", "Reciprocal"))
def test_functions_with_gaps_are_tried_in_silence(kind):
    """Of what is compared with GELU some has no value on half of the grid."""
    text = (
        f"g (float[N,4] x) => (float[N,4] y) {{ a = {kind}(x) t = Tanh(a) e = Erf(t) y = "
        "Mul(e, "
        "x) }"
    )
    check_pass_leaves_alone(graph(text), fuse_known_activations)


def test_equal_functions_are_one():
    text = (
        "g (float[N,4] x) => (float[N,4] y) { s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = "
        "Mul(t, a) }"
    )
    model = graph(text)
    check_pass_fires(
        model, fuse_unary_functions, 2, ["Silu_2", "Silu"], atol=1e-6
    )  # Mul(a, t) and Mul(t, a) differ in text
    same = graph(text.replace("Mul(t, a)", "Mul(a, t)"))
    check_pass_fires(same, fuse_unary_functions, 2, ["Silu", "Silu"], atol=1e-6)
    assert len(same.functions) == 1


@pytest.mark.parametrize(
    "text",
    (
        "g (float[N,4] x) => (float[N,4] y) { y = Erf(x) }",
        "g (float[N,4] x) => (float[N,4] y) { a = Add(x, one) r = Relu(a) y = Mul(r, one) }",
        (
            "g (float[N,4] x) => (float[N,4] y) { a = "
            "Add(x, one) c = Clip(a, one, two) y = Mul(x, c) }"
        ),
        "g (float[N,4] x, float[N,4] z) => (float[N,4] y) { e = Exp(x) y = Mul(e, z) }",
        "g (float[N,4] x) => (float[N,4] y, float[N,4] s) { s = Sigmoid(x) y = Mul(x, s) }",
        "g (float[N,4] x) => (float[N,4] y) { e = Exp(x) y = Add(e, row) }",
        "g (float[N,4] x) => (float[1,N,4] y) { e = Exp(x) y = Add(e, wide) }",
    ),
    ids=(
        "alone",
        "arithmetic",
        "another clip",
        "two inputs",
        "used elsewhere",
        "per element",
        "wider",
    ),
)
def test_stays(text):
    held = {
        "one": ONE,
        "two": np.float32(2),
        "row": np.ones(4, np.float32),
        "wide": np.ones((1, 1, 1), np.float32),
    }
    check_pass_leaves_alone(
        graph(text, **{k: v for k, v in held.items() if f", {k}" in text}), fuse_unary_functions
    )
    check_pass_leaves_alone(
        graph(text, **{k: v for k, v in held.items() if f", {k}" in text}), fuse_known_activations
    )


@pytest.mark.parametrize("kind", ("HardSigmoid", "HardSwish", "LeakyRelu"))
def test_what_chips_compute_without_a_table_stays(kind):
    """Joined with what is behind it a chip would leave both in float."""
    check_pass_leaves_alone(
        graph(f"g (float[N,4] x) => (float[N,4] y) {{ a = {kind}(x) y = Relu(a) }}", opset=14),
        fuse_unary_functions,
    )
