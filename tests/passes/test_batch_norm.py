"""fold-batch-norm: BatchNormalization goes into the Conv or Linear in front of it, or stays as it
is.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.batch_norm import fold_batch_norm
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
CONV = "g (float[N,4,6,6] x) => (float[N,3,4,4] y)"


def norm(channels, tag=""):
    return {
        f"g{tag}": rand(channels, seed=1),
        f"b{tag}": rand(channels, seed=2),
        f"m{tag}": rand(channels, seed=3),
        f"v{tag}": positive(channels),
    }


@pytest.mark.parametrize("bias", (False, True))
def test_conv(bias):
    """Conv with and without bias takes up the normalisation; the epsilon is the node's own."""
    text = f"""{CONV} {{
        c = Conv(x, w{", cb" if bias else ""})
        y = BatchNormalization<epsilon: float = 0.25>(c, g, b, m, v)
    }}"""
    arrays = {"cb": rand(3)} if bias else {}
    model = check_pass_fires(
        graph(text, w=rand(3, 4, 3, 3), **arrays, **norm(3)),
        fold_batch_norm,
        1,
        ["Conv"],
        atol=TOLERANCE,
    )
    assert "w" in model.graph.initializers


def test_grouped_conv():
    """The factor runs along the outputs, also of a depthwise convolution."""
    text = """g (float[N,4,6,6] x) => (float[N,8,4,4] y) {
        c = Conv<group: int = 4>(x, w)
        y = BatchNormalization(c, g, b, m, v)
    }"""
    check_pass_fires(
        graph(text, w=rand(8, 1, 3, 3), **norm(8)), fold_batch_norm, 1, ["Conv"], atol=TOLERANCE
    )


def test_linear():
    """A Linear takes it up along its last axis."""
    text = """g (float[N,4] x) => (float[N,3] y) {
        c = Gemm<transB: int = 1>(x, w, cb)
        y = BatchNormalization(c, g, b, m, v)
    }"""
    model = graph(text, w=rand(3, 4), cb=rand(3), **norm(3))
    assert changes(fuse_linear, model) == 1
    check_pass_fires(model, fold_batch_norm, 1, ["Linear"], atol=TOLERANCE)


def test_shared_weight_with_two_norms():
    """Two convolutions with one weight and different normalisations each get a weight of their
    own.
    """
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] z) {
        c = Conv(x, w)
        y = BatchNormalization(c, g, b, m, v)
        d = Conv(x, w)
        z = BatchNormalization(d, g2, b2, m2, v2)
    }"""
    arrays = {**norm(3), **{name: 2 * array for name, array in norm(3, "2").items()}}
    model = check_pass_fires(
        graph(text, w=rand(3, 4, 3, 3), **arrays),
        fold_batch_norm,
        2,
        ["Conv", "Conv"],
        atol=TOLERANCE,
    )
    first, second = (ir.const_value(node.inputs[1]) for node in model.graph)
    assert not np.allclose(first, second)


def test_shared_bias():
    """A bias that two convolutions share is not changed for the other one."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] d) {
        c = Conv(x, w, cb)
        y = BatchNormalization(c, g, b, m, v)
        d = Conv(x, w, cb)
    }"""
    model = graph(text, w=rand(3, 4, 3, 3), cb=rand(3), **norm(3))
    check_pass_fires(model, fold_batch_norm, 1, ["Conv", "Conv"], atol=TOLERANCE)


def test_chain():
    """Two normalisations in a row both go in."""
    text = f"""{CONV} {{
        c = Conv(x, w)
        d = BatchNormalization(c, g, b, m, v)
        y = BatchNormalization(d, g, b, m, v)
    }}"""
    check_pass_fires(
        graph(text, w=rand(3, 4, 3, 3), **norm(3)), fold_batch_norm, 2, ["Conv"], atol=1e-4
    )


def test_refuses_a_second_reader():
    """The convolution's own output is needed elsewhere."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] z) {
        c = Conv(x, w)
        y = BatchNormalization(c, g, b, m, v)
        z = Relu(c)
    }"""
    check_pass_leaves_alone(graph(text, w=rand(3, 4, 3, 3), **norm(3)), fold_batch_norm)


def test_refuses_a_graph_output():
    """The convolution's output is a graph output: its name and meaning are the user's."""
    text = """g (float[N,4,6,6] x) => (float[N,3,4,4] y, float[N,3,4,4] c) {
        c = Conv(x, w)
        y = BatchNormalization(c, g, b, m, v)
    }"""
    check_pass_leaves_alone(graph(text, w=rand(3, 4, 3, 3), **norm(3)), fold_batch_norm)


@pytest.mark.parametrize("dynamic", ("g", "b", "m", "v"))
def test_refuses_parameters_of_the_run(dynamic):
    """A parameter that is a graph input is not known."""
    text = f"""g (float[N,4,6,6] x, float[3] {dynamic}) => (float[N,3,4,4] y) {{
        c = Conv(x, w)
        y = BatchNormalization(c, g, b, m, v)
    }}"""
    known = {name: array for name, array in norm(3).items() if name != dynamic}
    model = graph(text, w=rand(3, 4, 3, 3), **known)
    assert changes(fold_batch_norm, model) == 0
    assert [node.op_type for node in model.graph] == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("dynamic", ("w", "cb"))
def test_refuses_a_layer_with_run_time_weights(dynamic):
    """Weight or bias computed at run time cannot be scaled."""
    shape = {"w": "float[3,4,3,3]", "cb": "float[3]"}[dynamic]
    text = f"""g (float[N,4,6,6] x, {shape} {dynamic}) => (float[N,3,4,4] y) {{
        c = Conv(x, w, cb)
        y = BatchNormalization(c, g, b, m, v)
    }}"""
    known = {
        name: array
        for name, array in {"w": rand(3, 4, 3, 3), "cb": rand(3)}.items()
        if name != dynamic
    }
    model = graph(text, **known, **norm(3))
    assert changes(fold_batch_norm, model) == 0


def test_refuses_training_mode():
    """In training mode the statistics are the batch's."""
    text = f"""{CONV} {{
        c = Conv(x, w)
        y, rm, rv = BatchNormalization<training_mode: int = 1>(c, g, b, m, v)
    }}"""
    model = graph(text, opset=15, w=rand(3, 4, 3, 3), **norm(3))
    assert changes(fold_batch_norm, model) == 0
    assert [node.op_type for node in model.graph] == ["Conv", "BatchNormalization"]


def test_refuses_another_operator_in_front():
    """Nothing in front can take it up: it stays, as an operator of the NPU."""
    text = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) {
        c = Relu(x)
        y = BatchNormalization(c, g, b, m, v)
    }"""
    check_pass_leaves_alone(graph(text, **norm(4)), fold_batch_norm)


@pytest.mark.parametrize("fold", ("Flatten<axis = 2>(a)", "Reshape(a, flat)"))
def test_rows_folded_into_the_batch(fold):
    """A linear layer on sequences takes it up as well, and the folding goes with it."""
    text = f"""g (float[N,5,4] x) => (float[N,5,3] y) {{
        a = MatMul(x, w) f = {fold} n = BatchNormalization(f, g, b, m, v) y = Reshape(n, back)
    }}"""
    arrays = {
        "back": np.array([-1, 5, 3]),
        **({"flat": np.array([-1, 3])} if "flat" in fold else {}),
    }
    model = graph(text, w=rand(4, 3), **arrays, **norm(3))
    trace_shapes(model, {"x": np.ones((1, 5, 4), np.float32)})
    fuse_linear(model)
    check_pass_fires(model, fold_batch_norm, 1, ["Linear"], atol=TOLERANCE)
