"""Angles of Sin and Cos that are computed from inputs of the model stay in float."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.operators.periodic_angles import ANGLE_REASON, is_angle_source
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC
from tests.passes.helpers import feeds, graph

FREQUENCIES = 100 / 100 ** (np.arange(8, dtype=np.float32) / 8)


def first_node(body, **constants):
    """Return the node that computes `a` in a graph from x [N,4] to y."""
    model = graph(f"g (float[N,4] x) => (float[N,M] y) {{ {body} }}", **constants)
    trace_shapes(model, feeds(model))
    return next(node for node in model.graph if node.outputs[0].name == "a")


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, f) y = Sin(a)",
        "a = MatMul(x, w) s = Sin(a) c = Cos(a) y = Concat<axis = 1>(s, c)",
        "b = Mul(x, f) a = MatMul(b, w) c = Concat<axis = 1>(a, a) y = Cos(c)",
        "a = Mul(x, f) b = Add(a, f) y = Sin(b)",
    ],
)
def test_angles_of_model_inputs_stay_in_float(body):
    node = first_node(body, f=FREQUENCIES[:4], w=np.ones((4, 8), np.float32))
    assert find_lowering_rule(node, GENERIC) == (None, ANGLE_REASON)


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, f) y = Tanh(a)",
        "a = Mul(x, f) b = Sin(a) y = Add(a, b)",  # read by another operator as well
        "b = Relu(x) a = Mul(b, f) y = Sin(a)",  # of a layer, and not of an input
        "b = MatMul(x, v) a = MatMul(b, w) y = Sin(a)",
        "b = Concat<axis = 1>(x, x) a = MatMul(b, u) y = Sin(a)",  # of more than coordinates
    ],
)
def test_other_products_are_no_angles(body):
    constants = {
        "f": FREQUENCIES[:4],
        "v": np.eye(4, dtype=np.float32),
        "u": np.ones((8, 8), np.float32),
    }
    assert not is_angle_source(first_node(body, w=np.ones((4, 8), np.float32), **constants))


def test_a_long_chain_is_left_alone():
    chain = " ".join(f"b{i + 1} = Add(b{i}, f)" for i in range(2000))
    node = first_node(f"a = Mul(x, f) b0 = Identity(a) {chain} y = Sin(b2000)", f=FREQUENCIES[:4])
    assert not is_angle_source(node)


@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_a_time_embedding_is_as_accurate_as_its_layer(platform):
    rng = np.random.default_rng(0)
    model = graph(
        """g (float[N,1] t) => (float[N,16] y) {
            a = MatMul(t, f) s = Sin(a) c = Cos(a) e = Concat<axis = 1>(s, c)
            y = MatMul(e, w) }""",
        f=FREQUENCIES[None],
        w=rng.standard_normal((16, 16)).astype(np.float32),
    )
    times = rng.uniform(0, 1, (128, 1)).astype(np.float32)
    report = quantize(model, times, platform=platform, effort="fast").report
    assert report.outputs["y"]["sqnr"] > 30
