"""clip: a Clip that only cuts at 0 is a Relu; Relu and Clip in a row are one Clip."""

import numpy as np
import pytest

from lingeronnx.operators.clamp.lowering import get_clip_bounds
from lingeronnx.quantization.normalize.activations.clip import simplify_clip
from tests.passes.helpers import changes, check_pass_fires, check_pass_leaves_alone, graph, rand

OPSETS = (6, 11, 13)
ZERO, SIX = np.float32(0), np.float32(6)


def model(opset, low=None, high=None, before=""):
    """Return ``y = Clip(x)`` in the form of `opset`, behind `before`."""
    source = "r" if before else "x"
    head = f"g (float[N,8] x) => (float[N,8] y) {{ {before}"
    if opset < 11:
        given = [
            f"{key}: float = {value}"
            for key, value in (("min", low), ("max", high))
            if value is not None
        ]
        return graph(
            f"{head} y = Clip{'<' + ', '.join(given) + '>' if given else ''}({source}) }}",
            opset=opset,
        )
    arrays = {k: np.float32(v) for k, v in (("lo", low), ("hi", high)) if v is not None}
    names = ", ".join(
        name if name in arrays else "" for name in ("lo", "hi")[: 2 if high is not None else 1]
    )
    return graph(
        f"{head} y = Clip({source}{', ' + names if arrays else ''}) }}", opset=opset, **arrays
    )


def test_bounds_of_every_form():
    """Bounds read the same from attributes and from inputs; what is absent is infinite."""
    for opset in OPSETS:
        for low, high in ((-1.0, 2.5), (0.0, 6.0), (None, 3.0), (0.5, None), (None, None)):
            node = model(opset, low, high).graph.node(0)
            assert get_clip_bounds(node) == (
                -np.inf if low is None else low,
                np.inf if high is None else high,
            )


@pytest.mark.parametrize("opset", OPSETS)
def test_lower_bound_zero_is_relu(opset):
    """Clip(0, nothing) is Relu."""
    check_pass_fires(model(opset, low=0.0), simplify_clip, 1, ["Relu"], atol=0)


@pytest.mark.parametrize("opset", OPSETS)
def test_relu_and_upper_bound(opset):
    """Relu, then Clip(anything below, 6) is Clip(0, 6)."""
    for low in (None, -2.0, 0.0):
        found = check_pass_fires(
            model(opset, low, 0.75, before="r = Relu(x)"), simplify_clip, 1, ["Clip"], atol=0
        )
        assert get_clip_bounds(found.graph.node(0)) == (0.0, 0.75)


def test_relu_and_open_clip():
    """Relu, then Clip(-1, nothing): first one Clip, then a Relu."""
    check_pass_fires(model(13, -1.0, before="r = Relu(x)"), simplify_clip, 2, ["Relu"], atol=0)


@pytest.mark.parametrize("opset", OPSETS)
def test_relu6_stays(opset):
    """Clip(0, 6) has nothing to simplify, whatever its form."""
    check_pass_leaves_alone(model(opset, 0.0, 0.75), simplify_clip)


@pytest.mark.parametrize("low, high", ((-1.0, 1.0), (0.25, None), (None, 0.5), (-0.5, None)))
def test_refuses_other_bounds(low, high):
    """Only 0 and nothing is a Relu."""
    check_pass_leaves_alone(model(13, low, high), simplify_clip)


def test_refuses_bounds_of_the_run():
    """A bound that is a graph input is not known."""
    text = "g (float[N,8] x, float hi) => (float[N,8] y) { r = Relu(x) y = Clip(r, lo, hi) }"
    found = graph(text, lo=ZERO)
    assert changes(simplify_clip, found) == 0
    assert [node.op_type for node in found.graph] == ["Relu", "Clip"]


def test_refuses_relu_with_a_second_reader():
    """The Relu's own output is needed elsewhere."""
    text = (
        "g (float[N,8] x) => (float[N,8] y, float[N,8] z) { r = Relu(x) y = Clip(r, lo, hi) z "
        "= "
        "Exp(r) }"
    )
    check_pass_leaves_alone(graph(text, lo=ZERO, hi=SIX), simplify_clip)


def test_refuses_relu_that_is_an_output():
    """The Relu's output is a graph output."""
    text = "g (float[N,8] x) => (float[N,8] y, float[N,8] r) { r = Relu(x) y = Clip(r, lo, hi) }"
    check_pass_leaves_alone(graph(text, lo=ZERO, hi=SIX), simplify_clip)


def test_relu_before_a_positive_bound():
    """Relu, then Clip(0.5, 0.75): the Relu does nothing, and the Clip does not become Clip(0,
    0.75).
    """
    found = check_pass_fires(
        model(13, 0.5, 0.75, before="r = Relu(x)"), simplify_clip, 1, ["Clip"], atol=0
    )
    assert get_clip_bounds(found.graph.node(0)) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("first", "second", "want"),
    (
        ((-1, 6), (0, 8), (0, 6)),
        ((0, 6), (1, 2), (1, 2)),
        ((-2, -1), (0, 6), (0, 0)),
        ((3, 6), (0, 1), (1, 1)),
    ),
)
def test_two_clips(first, second, want):
    """The outer one acts on the ends of the inner one."""
    text = "g (float[N,8] x) => (float[N,8] y) { c = Clip(x, a, b) y = Clip(c, d, e) }"
    arrays = dict(zip("abde", map(np.float32, (*first, *second)), strict=True))
    found = check_pass_fires(graph(text, **arrays), simplify_clip, 1, ["Clip"], atol=0)
    assert get_clip_bounds(found.graph.node(0)) == want


def test_refuses_integers():
    """Relu has no integer form in every opset: an integer Clip stays."""
    text = "g (int64[N,8] x) => (int64[N,8] y) { y = Clip(x, lo) }"
    check_pass_leaves_alone(graph(text, lo=np.int64(0)), simplify_clip)


def test_shared_bound_is_not_changed():
    """A bound that two Clips share is replaced for the merged one only."""
    text = (
        "g (float[N,8] x) => (float[N,8] y, float[N,8] z) { r = Relu(x) y = Clip(r, lo, hi) z "
        "= "
        "Clip(x, lo, hi) }"
    )
    arrays = {"lo": np.float32(-0.5), "hi": np.float32(0.5)}
    found = check_pass_fires(graph(text, **arrays), simplify_clip, 1, ["Clip", "Clip"], atol=0)
    assert sorted(get_clip_bounds(node)[0] for node in found.graph) == [-0.5, 0.0]


def test_not_merged_across_a_bias():
    """A layer between the two keeps both."""
    text = "g (float[N,8] x) => (float[N,8] y) { r = Relu(x) s = Add(r, k) y = Clip(s, lo, hi) }"
    check_pass_leaves_alone(graph(text, k=rand(8), lo=ZERO, hi=SIX), simplify_clip)


@pytest.mark.parametrize("low", [-0.5, 0.0])
def test_goes_where_no_value_can_be(low):
    """Behind a sigmoid, also moved, a lower end of 0 or less cuts nothing."""
    moved = model(13, low=low, before="s = Sigmoid(x) r = Transpose<perm = [0, 1]>(s)")
    check_pass_fires(moved, simplify_clip, 1, ["Sigmoid", "Transpose"], atol=0)
    check_pass_leaves_alone(model(13, low=0.1, before="r = Sigmoid(x)"), simplify_clip)
    check_pass_leaves_alone(model(13, low=-0.5, high=0.5, before="r = Sigmoid(x)"), simplify_clip)
    check_pass_leaves_alone(model(13, low=-0.5, before="r = Tanh(x)"), simplify_clip)
