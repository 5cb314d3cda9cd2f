"""Channels chosen through the batch axis: one Gather, the same numbers; everything else stays."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.channel_selection import fold_channel_selection
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.passes.helpers import changes, check_pass_leaves_alone, feeds, graph, ops, outputs, rand

FOLD = "a = Reshape(c, fold) t = Transpose<perm = [1, 0, 2]>(a) "
HELD = {"w": rand(6, 2, 1, 1), "fold": np.array([-1, 2, 12]), "back": np.array([2, -1, 3, 3, 4])}
HELD |= {"zero": np.array(0), "one": np.array(1)}
HALVES = FOLD + "b = Reshape(t, back) y = Gather<axis = 0>(b, zero) z = Gather<axis = 0>(b, one) }"
HEAD = "g (float[N,2,3,4] x) => (float[N,3,3,4] y, float[N,3,3,4] z) { c = Conv(x, w) "


def held(text):
    return {name: array for name, array in HELD.items() if name in text}


def test_halves_of_a_shuffle():
    """Even channels and odd ones, as in ShuffleNetV2's own code."""
    model = graph(HEAD + HALVES, **held(HALVES + "w"))
    feed = feeds(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    want = outputs(model, feed)
    assert changes(fold_channel_selection, model) == 2
    ir.remove_unused(model)
    assert ops(model) == ["Conv", "Gather", "Gather"]
    chosen = [ir.const_value(node.inputs[1]).tolist() for node in list(model.graph)[1:]]
    assert chosen == [[0, 2, 4], [1, 3, 5]]
    for name, array in outputs(model, feed).items():
        np.testing.assert_array_equal(array, want[name])
    assert changes(fold_channel_selection, model) == 0


@pytest.mark.parametrize(
    "steps",
    (
        # the batch stays in front
        "a = Reshape(c, r) t = Transpose<perm = [0, 1, 3, 2]>(a) y = Reshape(t, r)",
        # elements, not channels
        "t = Transpose<perm = [1, 0, 3, 2]>(c) y = Transpose<perm = [1, 0, 2, 3]>(t)",
    ),
)
def test_other_moves(steps):
    arrays = {"r": np.array([-1, 6, 4, 3])} if "r)" in steps else {}
    text = f"g (float[N,2,3,4] x) => (float[N,6,4,3] y) {{ c = Conv(x, w) {steps} }}"
    check_pass_leaves_alone(graph(text, w=HELD["w"], **arrays), fold_channel_selection)


def test_two_samples_that_mix():
    """What ends up in another sample is no choice of channels."""
    text = """g (float[N,2,3,4] x) => (float[N,6,3,4] y) {
        c = Conv(x, w) a = Reshape(c, r) t = Transpose<perm = [1, 0, 2]>(a) y = Reshape(t, s)
    }"""
    check_pass_leaves_alone(
        graph(text, w=HELD["w"], r=np.array([-1, 6, 12]), s=np.array([-1, 6, 3, 4])),
        fold_channel_selection,
    )
