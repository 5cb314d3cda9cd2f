"""Reshapes that fold steps into the batch for a Gemm go away."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.axes.unfold_linear_batch import unfold_linear_batch
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.passes.helpers import (
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    outputs,
    rand,
)

W, TARGET, BACK = {"w": rand(4, 3)}, {"flat": np.array([-1, 4])}, {"apart": np.array([-1, 5, 3])}
FOLDED = "a = Reshape(x, flat) b = Gemm(a, w) y = Reshape(b, apart)"


def prepared(body, result="float[N,5,3] y", **more):
    """Return the graph with traced shapes and one form of layers."""
    model = graph(f"g (float[N,5,4] x) => ({result}) {{ {body} }}", **W, **TARGET, **BACK, **more)
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    fuse_linear(model)
    return model


def test_one_layer():
    """Alone, and the output keeps its name."""
    model = check_pass_fires(
        prepared(FOLDED), unfold_linear_batch, 1, ["Linear"], atol=1e-6, trace=False
    )
    assert ir.get_shape(model.graph.outputs[0]) == (None, 5, 3)


def test_several_layers():
    """With activations between."""
    model = prepared(
        (
            "a = Reshape(x, flat) b = Gemm(a, w) c = Relu(b) d = Gemm(c, v) e = Tanh(d) y = "
            "Reshape(e, "
            "apart)"
        ),
        v=rand(3, 3),
    )
    check_pass_fires(
        model, unfold_linear_batch, 1, ["Linear", "Relu", "Linear", "Tanh"], atol=1e-6, trace=False
    )
    assert not any(ir.has_folded_batch(node.outputs[0]) for node in model.graph)


def test_two_readers_of_the_rows():
    """The first Reshape stays for the other reader."""
    model = prepared(
        "a = Reshape(x, flat) b = Gemm(a, w) y = Reshape(b, apart) z = Abs(a)",
        "float[N,5,3] y, float[M,4] z",
    )
    check_pass_fires(
        model, unfold_linear_batch, 1, ["Reshape", "Linear", "Abs"], atol=1e-6, trace=False
    )
    one = prepared("a = Reshape(x, flat) b = Gemm(a, w) y = Reshape(b, apart)")
    before = outputs(one, feeds(one))["y"]
    assert unfold_linear_batch(one).changes == 1
    np.testing.assert_allclose(outputs(one, feeds(one))["y"], before, rtol=0, atol=1e-6)


def test_a_zero_that_would_be_a_size():
    """As torch's dynamo exporter writes it: the batch is copied nevertheless."""
    text = "g (float[N,5,4] x) => (float[N,3,5] y) {"
    text += " a = Reshape(x, flat) b = Gemm(a, w) y = Reshape<allowzero = 1>(b, apart) }"
    model = graph(text, opset=14, **W, **TARGET, apart=np.array([-1, 3, 5]))
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    fuse_linear(model)
    check_pass_fires(model, unfold_linear_batch, 1, ["Linear", "Reshape"], atol=1e-6, trace=False)


@pytest.mark.parametrize("behind", ([-1, 1, 15], [-1, 5, 3, 1], [-1, 3, 5]))
def test_other_sizes_behind(behind):
    """A Reshape of one sample stays, as in front of heads."""
    model = prepared(
        FOLDED.replace("apart", "other"),
        f"float[N,{','.join(map(str, behind[1:]))}] y",
        other=np.array(behind),
    )
    model = check_pass_fires(
        model, unfold_linear_batch, 1, ["Linear", "Reshape"], atol=1e-6, trace=False
    )
    assert not any(ir.has_folded_batch(node.outputs[0]) for node in model.graph)


def test_queries_keys_and_values():
    """Three layers on the same rows, of axes that stand apart in front."""
    body = """u = Unsqueeze(x, two) a = Reshape(u, flat) b = Gemm(a, w) c = Gemm(a, v)
        y = Reshape(b, apart) z = Reshape(c, apart)"""
    model = prepared(
        body, "float[N,5,3] y, float[N,5,3] z", v=rand(4, 3, seed=1), two=np.array([2, 3])
    )
    left = ["Unsqueeze", "Reshape", "Linear", "Linear", "Reshape", "Reshape"]
    model = check_pass_fires(model, unfold_linear_batch, 2, left, atol=1e-6, trace=False)
    assert not any(ir.has_folded_batch(node.outputs[0]) for node in model.graph)


REASONS = {
    "the batch behind": FOLDED.replace("apart", "wrong"),
    "an operator along the rows": (
        "a = Reshape(x, flat) b = Gemm(a, w) c = Softmax <axis=0> (b) y = Reshape(c, apart)"
    ),
    "nothing behind": "a = Reshape(x, flat) y = Gemm(a, w)",
    "nothing between": "a = Reshape(x, flat) y = Reshape(a, square)",
    "a graph output between": FOLDED,
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_stays(reason):
    """Each reason."""
    result = {
        "nothing behind": "float[M,3] y",
        "a graph output between": "float[N,5,3] y, float[M,3] b",
    }
    model = prepared(
        REASONS[reason],
        result.get(reason, "float[A,B,C] y"),
        wrong=np.array([1, -1, 3]),
        square=np.array([-1, 5, 4]),
    )
    check_pass_leaves_alone(model, unfold_linear_batch)
