"""Layer normalisation as older exporters write it."""

import numpy as np
import pytest

from lingeronnx.passes.layer_norm import layer_norm
from tests.passes.helpers import fires, graph, positive, rand, stays

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
        HEAD + CORE.replace("Pow(d, two)", "Mul(d, d)") + "n = Div(d, s)" + AFFINE.replace("n, gamma", "gamma, n"),
        HEAD + CORE + "n = Div(d, s)  y = Mul(n, gamma) }",
        HEAD + CORE + "y = Div(d, s) }",
        HEAD + CORE.replace("[-1]", "[1, 2]") + "y = Div(d, s) }",
    ),
    ids=("division", "reciprocal", "power", "square", "no summand", "bare", "two axes"),
)
def test_chain(text, opset):
    arrays = held(text) | ({"half": np.float32(-0.5)} if "half" in text else {})
    name = "LayerNormalization" + ("_2axes" if "[1, 2]" in text and opset < 17 else "")
    model = fires(graph(text, opset=opset, **arrays), layer_norm, 1, [name], atol=1e-5)
    assert (model.graph.node(0).domain == "") == (opset >= 17)


def core(x, y, eps):
    """Return a bare normalisation x -> y."""
    return (f"m{y} = ReduceMean<axes = [-1]>({x}) d{y} = Sub({x}, m{y}) q{y} = Mul(d{y}, d{y}) "
            f"v{y} = ReduceMean<axes = [-1]>(q{y}) e{y} = Add(v{y}, {eps}) s{y} = Sqrt(e{y}) {y} = Div(d{y}, s{y}) "
            )  # fmt: skip


def test_two_epsilons_are_two_functions():
    model = graph(HEAD + core("x", "z", "eps") + core("z", "y", "eps2") + "}", eps=EPS, eps2=np.float32(1e-3))
    fires(model, layer_norm, 2, ["LayerNormalization", "LayerNormalization_2"], atol=1e-5)


@pytest.mark.parametrize(
    "text",
    (
        HEAD + CORE.replace("v = ReduceMean<axes = [-1]>", "v = ReduceMean<axes = [1]>") + "y = Div(d, s) }",
        HEAD + CORE.replace("[-1]", "[0]") + "y = Div(d, s) }",
        HEAD + CORE.replace("[-1]", "[1]") + "y = Div(d, s) }",
        HEAD.replace("=> (", "=> (float[N,4,1] v, ") + CORE + "y = Div(d, s) }",
        HEAD + CORE.replace("Pow(d, two)", "Pow(x, two)") + "y = Div(d, s) }",
    ),
    ids=("other axis", "batch", "not the last", "variance is an output", "not centred"),
)
def test_stays(text):
    stays(graph(text, **held(text)), layer_norm)
