"""Masks computed at run time: their sources, sums and softmax stay in float together."""

import numpy as np
import pytest

from lingeronnx.operators.attention_masks import (
    RUN_TIME_MASK_REASON,
    find_masked_nodes,
    is_mask_array,
    is_mask_source,
)
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC
from tests.passes.helpers import feeds, graph

MASKED = """g (float[N,2,4,4] x, float[N,1,4,4] m) => (float[N,2,4,4] y{more}) {{
    a = Mul(m, lowest) {between} s = Add(x, b) y = Softmax<axis = -1>(s) }}"""


def masked(between="b = Identity(a)", more="", lowest=-3e38):
    text = MASKED.format(between=between, more=more)
    model = graph(text, lowest=np.array([[lowest]], np.float32))
    trace_shapes(model, feeds(model))
    return model, next(node for node in model.graph if node.op_type == "Mul")


def test_the_product_that_makes_a_mask_stays_in_float():
    _, product = masked()
    assert is_mask_source(product)
    assert find_lowering_rule(product, GENERIC) == (None, RUN_TIME_MASK_REASON)


@pytest.mark.parametrize(
    "changes",
    [
        {"more": ", float[N,1,4,4] a"},
        {"between": "b = Abs(a)"},
        {"lowest": -60.0},
        {"lowest": 3.0},
    ],
)
def test_other_products_are_no_masks(changes):
    _, product = masked(**changes)
    assert not is_mask_source(product)


def test_sums_with_masks_that_are_inputs_are_found():
    model = graph("""g (float[N,2,4,4] x, float[N,1,4,4] m) => (float[N,2,4,4] y) {
        c = Transpose<perm = [0, 1, 3, 2]>(m) s = Add(x, c) y = Softmax<axis = -1>(s) }""")
    names = {node.name for node in model.graph if node.op_type != "Transpose"}
    assert find_masked_nodes(model, {"m"}) == names
    assert not find_masked_nodes(model, {"other"})


@pytest.mark.parametrize(
    ("values", "is_mask"),
    [([0, -1e9], True), ([0, -60], True), ([3, -2000], True), ([1, -60], False), ([0, 1], False)],
)
def test_what_is_a_mask_shows_in_its_values(values, is_mask):
    assert is_mask_array(np.float32(values)) == is_mask
    assert not is_mask_array(np.array(values, np.int64))
