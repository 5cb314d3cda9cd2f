"""trace_shapes: every tensor gets the shape it really has, the batch as N."""

import numpy as np

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding.shape_tracing import fold_known_shapes, trace_shapes
from tests.passes.helpers import graph, rand


def traced(model, **feed):
    trace_shapes(model, feed)
    return {str(v.name): ir.get_shape(v) for v in ir.iter_values(model)}


def test_batch_and_sizes():
    """The batch stays open, everything else is a number; computed tensors too."""
    model = graph(
        "g (float[N,3,H,W] x) => (float[N,A,B,C] y) { s = Shape(x) e = Exp(x) y = "
        "MaxPool<kernel_shape = [2, 2]>(e) }"
    )
    found = traced(model, x=rand(1, 3, 6, 8))
    assert found == {"x": (None, 3, 6, 8), "s": (4,), "e": (None, 3, 6, 8), "y": (None, 3, 5, 7)}
    assert next(v for v in ir.iter_values(model) if v.name == "s").dtype.name == "INT64"


def test_fixed_batch():
    """A model for one sample keeps a batch of 1."""
    assert traced(graph("g (float[1,3] x) => (float[1,3] y) { y = Exp(x) }"), x=rand(1, 3))[
        "y"
    ] == (1, 3)


def test_batch_in_another_place():
    """An axis other than 0 that grows with the batch is not known."""
    model = graph("g (float[N,3] x) => (float[3,M] y) { y = Transpose<perm = [1, 0]>(x) }")
    assert traced(model, x=rand(1, 3))["y"] == (3, None)


def test_model_that_takes_one_sample_only():
    """Where two samples fail the shapes are those of one."""
    model = graph(
        "g (float[N,3] x) => (float[1,3] y) { e = Exp(x) y = Reshape(e, t) }", t=np.array([1, 3])
    )
    assert traced(model, x=rand(1, 3))["y"] == (1, 3)


def test_sizes_that_are_cast_first_are_known():
    """Keras casts the shape before it takes the number of steps."""
    model = graph(
        "g (float[N,7,3] x) => (int32[1] y, int32[3] z) { t = Transpose<perm = [1, 0, 2]>(x) "
        "s = Shape(t) c = Cast<to = 6>(s) q = Slice(c, zero, one) y = Identity(q) z = Identity(c) }",
        zero=np.array([0]),
        one=np.array([1]),
    )
    trace_shapes(model, {"x": rand(1, 7, 3)})
    fold_known_shapes(model)
    assert not [node for node in model.graph if node.op_type == "Slice"]
    steps = ir.require_const_value(model.graph.initializers["q_known"])
    assert steps.tolist() == [7]
    assert steps.dtype == np.int32
