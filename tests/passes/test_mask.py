"""mask: what hides numbers from a Softmax is a sum with 0 or FAR."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.operators.attention_masks import MASK_VALUE
from lingeronnx.quantization.normalize.activations.attention_mask import (
    canonicalize_attention_masks,
)
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph, rand

NET = "g (float[N,3,4] x) => (float[N,3,4] y) {{ {nodes} }}"
SUM = NET.format(nodes="s = Add(x, m) y = Softmax<axis = -1>(s)")
SHOWN = np.tril(np.ones((3, 4), bool))


def hidden(value, shown=SHOWN):
    return np.where(shown, np.float32(0), np.float32(value))


def constants(model):
    """Return what is added, in order."""
    return [ir.const_value(node.inputs[1]) for node in model.graph if node.op_type == "Add"]


@pytest.mark.parametrize("value", (-np.inf, np.finfo(np.float32).min, -1e9, -1e4, -100.0))
def test_a_sum(value):
    model = check_pass_fires(
        graph(SUM, m=hidden(value)), canonicalize_attention_masks, 1, ["Add", "Softmax"], atol=1e-7
    )
    assert np.array_equal(constants(model)[0], hidden(MASK_VALUE)[None])


def test_a_sum_of_both():
    """A bias and a mask in one constant are two sums."""
    bias = rand(3, 4) - 60.0
    model = check_pass_fires(
        graph(SUM, m=np.where(SHOWN, bias, np.float32(-1e9))),
        canonicalize_attention_masks,
        1,
        ["Add", "Add", "Softmax"],
        atol=1e-6,
    )
    assert np.array_equal(constants(model)[0], np.where(SHOWN, bias, np.float32(0)))


def test_another_axis():
    check_pass_fires(
        graph(SUM.replace("-1", "1"), m=hidden(-np.inf, np.triu(np.ones((3, 4), bool)))),
        canonicalize_attention_masks,
        1,
        ["Add", "Softmax"],
        atol=1e-7,
    )


@pytest.mark.parametrize("value", (-np.inf, -1e9))
@pytest.mark.parametrize("order", ("c, x, v", "c, v, x"))
def test_a_choice(order, value):
    text = NET.format(nodes=f"s = Where({order}) y = Softmax<axis = -1>(s)")
    shown = SHOWN if order == "c, x, v" else ~SHOWN
    model = check_pass_fires(
        graph(text, c=shown, v=np.float32(value)),
        canonicalize_attention_masks,
        1,
        ["Add", "Softmax"],
        atol=1e-7,
    )
    assert np.array_equal(constants(model)[0], hidden(MASK_VALUE)[None])


def test_a_choice_of_zero():
    text = NET.format(nodes="p = Softmax<axis = -1>(x) y = Where(c, p, v)")
    check_pass_fires(
        graph(text, c=SHOWN, v=np.float32(0)),
        canonicalize_attention_masks,
        1,
        ["Softmax", "Mul"],
        atol=0,
    )
    text = NET.format(nodes="p = Softmax<axis = -1>(x) y = Where(c, v, p)")
    check_pass_fires(
        graph(text, c=SHOWN, v=np.float32(0)),
        canonicalize_attention_masks,
        1,
        ["Softmax", "Mul"],
        atol=0,
    )


def test_a_guard():
    """A Softmax whose rows are not masked as a whole is never NaN."""
    text = NET.format(
        nodes="s = Add(x, m) p = Softmax<axis = -1>(s) n = IsNaN(p) y = Where(n, v, p)"
    )
    check_pass_fires(
        graph(text, m=hidden(-np.inf), v=np.float32(0)),
        canonicalize_attention_masks,
        2,
        ["Add", "Softmax"],
        atol=1e-7,
    )
    whole = hidden(-np.inf)
    whole[1] = -np.inf
    check_pass_leaves_alone(graph(text, m=whole, v=np.float32(0)), canonicalize_attention_masks)


# ---- what stays ------------------------------------------------------------------------------------------------------


def test_a_row_that_is_hidden_as_a_whole():
    whole = hidden(-1e9)
    whole[2] = -1e9
    check_pass_leaves_alone(graph(SUM, m=whole), canonicalize_attention_masks)
    check_pass_leaves_alone(
        graph(SUM, m=np.full((3, 1), -1e9, np.float32)), canonicalize_attention_masks
    )


@pytest.mark.parametrize(
    "constant", (rand(3, 4), np.float32(-5.0) * np.arange(12, dtype=np.float32).reshape(3, 4))
)
def test_a_bias(constant):
    """Numbers of one kind are no mask, though the least ones may be small."""
    check_pass_leaves_alone(graph(SUM, m=constant), canonicalize_attention_masks)


@pytest.mark.parametrize("kind", ("LogSoftmax", "Exp"))
def test_another_reader(kind):
    """The numbers themselves count."""
    check_pass_leaves_alone(
        graph(NET.format(nodes=f"s = Add(x, m) y = {kind}(s)"), m=hidden(-100.0)),
        canonicalize_attention_masks,
    )


def test_two_readers():
    text = (
        "g (float[N,3,4] x) => (float[N,3,4] y, float[N,3,4] s) { s = Add(x, m) y = "
        "Softmax<axis = -1>(s) }"
    )
    check_pass_leaves_alone(graph(text, m=hidden(-100.0)), canonicalize_attention_masks)


def test_a_choice_of_another_number():
    text = NET.format(nodes="s = Where(c, x, v) y = Softmax<axis = -1>(s)")
    check_pass_leaves_alone(graph(text, c=SHOWN, v=np.float32(-3)), canonicalize_attention_masks)


def test_a_choice_that_is_computed():
    text = NET.format(nodes="c = Greater(x, l) s = Where(c, x, v) y = Softmax<axis = -1>(s)")
    check_pass_leaves_alone(
        graph(text, l=np.float32(0), v=np.float32(-1e9)), canonicalize_attention_masks
    )


def test_one_mask_per_sample():
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { s = Add(x, m) y = Softmax<axis = -1>(s) }"
    check_pass_leaves_alone(
        graph(text, m=np.stack([hidden(-1e9), hidden(-1e9, SHOWN[:, ::-1])])),
        canonicalize_attention_masks,
        trace=False,
    )


def test_a_guard_of_something_else():
    check_pass_leaves_alone(
        graph(NET.format(nodes="p = Log(x) n = IsNaN(p) y = Where(n, v, p)"), v=np.float32(1)),
        canonicalize_attention_masks,
    )
