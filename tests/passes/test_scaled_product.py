"""The scale of attention moves into a layer."""

import numpy as np
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.ir.folded_factors import (
    FOLDED_FACTORS_KEY,
    add_folded_factor,
    load_folded_factors,
)
from lingeronnx.quantization.normalize.layers.factor_through_matmul import (
    fold_factor_through_matmul,
)
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph, rand

HELD = {"w": rand(6, 6), "u": rand(6, 6, seed=1), "s": np.float32(0.25)}
HEAD = "g (float[N,4,6] x) => (float[N,4,4] y) { q = MatMul(x, w)  k = MatMul(x, u) "


def prepared(text):
    model = graph(text, **HELD)
    fuse_linear(model)
    return model


@pytest.mark.parametrize("last", ("y = Mul(p, s)", "y = Mul(s, p)", "y = Div(p, s)"))
def test_behind_the_product(last):
    model = prepared(HEAD + "t = Transpose<perm = [0, 2, 1]>(k) p = MatMul(q, t) " + last + " }")
    check_pass_fires(
        model, fold_factor_through_matmul, 1, ["Linear", "Linear", "Transpose", "MatMul"], atol=1e-5
    )


def test_two_factors_of_one_tensor_are_recorded_as_their_product():
    model = prepared(HEAD + "y = MatMul(q, k) }")
    add_folded_factor(model, "q", "q_scaled", 0.25)
    add_folded_factor(model, "q_scaled", "q_scaled_1", 0.5)
    assert load_folded_factors(model) == {"q_scaled_1": ("q", 0.125)}


@pytest.mark.parametrize("stored", ('{"a": ["b", -1.0]}', '{"a": ["b", NaN]}', '{"a": 1}', "[1]"))
def test_malformed_factors_are_refused(stored):
    model = prepared(HEAD + "y = MatMul(q, k) }")
    model.metadata_props[FOLDED_FACTORS_KEY] = stored
    with pytest.raises(ModelError, match="lingeronnx.folded_factors"):
        load_folded_factors(model)


def test_before_the_product():
    model = prepared(HEAD + "t = Transpose<perm = [0, 2, 1]>(k) m = Mul(t, s) y = MatMul(q, m) }")
    check_pass_fires(
        model, fold_factor_through_matmul, 1, ["Linear", "Linear", "Transpose", "MatMul"], atol=1e-5
    )


@pytest.mark.parametrize(
    "text",
    (
        HEAD + "t = Transpose<perm = [0, 2, 1]>(k) y = MatMul(q, t) }",
        HEAD.replace("=> (", "=> (float[N,4,4] p, ")
        + "t = Transpose<perm = [0, 2, 1]>(k) p = MatMul(q, t) y = Mul(p, s) }",
        HEAD + "t = Transpose<perm = [0, 2, 1]>(k) p = MatMul(q, t) y = Div(s, p) }",
        "g (float[N,4,6] x) => (float[N,4,6] y) { q = MatMul(x, w)  y = Mul(q, s) }",
        (
            "g (float[N,4,6] x) => (float[N,6,4] y) { t = Transpose<perm = [0, 2, 1]>(x)  y = Mul(t, "
            "s) }"
        ),
    ),
    ids=("no factor", "read elsewhere", "quotient", "a layer itself", "no layer"),
)
def test_stays(text):
    model = graph(text, **{k: v for k, v in HELD.items() if f" {k})" in text or f"({k}," in text})
    fuse_linear(model)
    check_pass_leaves_alone(model, fold_factor_through_matmul)
