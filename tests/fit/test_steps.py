"""Each rewrite of `legalize_graph` by itself.

One step keeps the function and the names, and each rewrite ignores nodes that it is not for.
"""

import numpy as np
import onnx
import pytest

from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize import REWRITES, legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from tests.fit.test_fit import TIGHT, tighten_conv_limits
from tests.nets import Net
from tests.passes.helpers import feeds, graph, interface, ops, outputs

STEPS = {rewrite.name: rewrite.apply for rewrite in REWRITES}


def conv(shape, weight, *, out="y", **attributes):
    net = Net(*shape, seed=sum(weight))
    return net.graph(net.conv("x", weight, out=out, **attributes))


def pool(kind, shape, **attributes):
    net = Net(*shape)
    return net.graph(net.node(kind, "x", out="y", **attributes))


def build_transposed_conv(shape, weight, **attributes):
    net = Net(*shape)
    held = net.const(net.rng.standard_normal(weight).astype(np.float32))
    return net.graph(net.node("ConvTranspose", "x", held, out="y", **attributes))


def build_upsampling(shape):
    net = Net(*shape)
    scales = net.const(np.array([1, 1, 2, 2], np.float32))
    how = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return net.graph(net.node("Resize", "x", "", scales, out="y", **how))


#: Rewrite -> (a model that exceeds its limit, the platform, the operators after one step).
OWN = {
    "padding-taps": (lambda: conv((3, 1), (4, 3, 3), pads=[1, 1]), VENUSA, ["Conv"]),
    "rows-of-phases": (
        lambda: conv((2, 41), (3, 2, 3), dilations=[4], pads=[8, 0]),
        VENUS,
        ["Pad", "Reshape", "Conv", "Reshape", "Slice"],
    ),
    "equal-operands": (
        lambda: graph("g (float[N,6,9] x, float[N,6,1] z) => (float[N,6,9] y) { y = Mul(x, z) }"),
        ARCS,
        ["Reshape", "Reshape", "Mul", "Reshape"],
    ),
    "expand-dilation": (
        lambda: conv((2, 20, 20), (3, 2, 3, 3), dilations=[2, 2], pads=[2] * 4),
        VENUS,
        ["Conv"],
    ),
    "split-depthwise": (
        lambda: conv((4, 9, 8), (12, 1, 3, 3), group=4, pads=[1] * 4),
        VENUS,
        ["Conv", "Conv", "Conv", "Concat", "Reshape", "Transpose", "Reshape"],
    ),
    "other-stride": (
        lambda: conv((2, 9, 8), (3, 2, 4, 3), strides=[3, 1], pads=[1] * 4),
        VENUS,
        ["Reshape", "Transpose", "Reshape", "Conv"],
    ),
    "phases-of-lines": (
        lambda: build_transposed_conv((3, 7), (3, 2, 4), strides=[2], pads=[1, 1]),
        VENUS,
        ["Conv", "Reshape", "Transpose", "Reshape", "Slice"],
    ),
    "separate-groups": (
        lambda: build_transposed_conv(
            (4, 3, 9), (4, 3, 1, 5), strides=[1, 2], pads=[0, 2, 0, 1], group=2
        ),
        VENUS,
        ["Slice", "ConvTranspose"] * 2 + ["Concat"],
    ),
    "merge-groups": (
        lambda: conv((6, 20), (3, 2, 3), group=3, pads=[1, 1]),
        VENUS,
        ["Conv"],
    ),
    "enlarge-kernel": (lambda: conv((3, 9, 9), (4, 3, 1, 1), strides=[2, 2]), VENUS, ["Conv"]),
    "explicit-pad": (
        lambda: conv((3, 9, 9), (4, 3, 3, 2), pads=[4, 3, 0, 0]),
        VENUS,
        ["Pad", "Conv"],
    ),
    "rows-as-channels": (
        lambda: conv((3, 20, 9), (4, 3, 20, 3)),
        VENUS,
        ["Reshape", "Conv"],
    ),
    "split-kernel": (lambda: conv((3, 30, 30), (4, 3, 1, 13)), VENUS, None),
    "split-channels": (
        lambda: conv((24, 5, 33), (4, 24, 1, 5)),
        TIGHT,
        ["Slice", "Conv", "Slice", "Conv", "Add"],
    ),
    "split-map": (
        lambda: conv((24, 40, 33), (4, 24, 5, 5), pads=[2] * 4),
        tighten_conv_limits(VENUS, line_buffer_bytes=2000),
        ["Slice", "Conv"] * 3 + ["Concat"],
    ),
    "split-average": (
        lambda: pool("AveragePool", (3, 30, 20), kernel_shape=[15, 10], strides=[15, 10]),
        VENUS,
        ["AveragePool", "AveragePool"],
    ),
    "split-max-pool": (
        lambda: pool("MaxPool", (3, 24, 26), kernel_shape=[9, 9], pads=[4] * 4),
        VENUS,
        ["MaxPool", "MaxPool"],
    ),
    "curve-in-rows": (
        lambda: graph("g (float[N,6,5,8] x) => (float[N,6,5,8] y) { y = Sigmoid(x) }"),
        VENUSA,
        ["Reshape", "Sigmoid", "Reshape"],
    ),
    "repeat-elements": (lambda: build_upsampling((3, 5, 4)), VENUS, None),
}


def build_and_trace(make):
    model = make()
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    return model, next(iter(model.graph))


def test_every_rewrite_stands_here():
    """Every rewrite is tested here, except those that depend on a node's context.

    These are tested in test_unroll, test_between, test_frames, test_tanh, test_arithmetic and
    test_picked.
    """
    around = {
        "unroll",
        "normalize-constant",
        "smaller-input",
        "distance-to-bound",
        "frames-of-line",
        "tanh-of-sigmoid",
        "absolute",
        "larger",
        "pad-by-copies",
        "slice-apart",
    }
    assert OWN.keys() == STEPS.keys() - around


@pytest.mark.parametrize("name", OWN)
def test_one_step(name):
    """A step returns description and cost, and keeps outputs, validity and interface names."""
    make, row, expected_ops = OWN[name]
    model, node = build_and_trace(make)
    feed, names = feeds(model), interface(model)
    want = outputs(model, feed)["y"]
    description, cost = STEPS[name](model, node, row)
    ir.assign_node_names(model)  # as `legalize_graph` does when it has done with all of them
    assert description
    assert cost == "exact" or "half a step at most" in cost
    if expected_ops is not None:
        assert ops(model) == expected_ops
    assert interface(model) == names
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=2e-5)


#: Rewrites for limits of the packer, which `legalize_graph` looks for before it asks them.
ASKED = ("split-map", "split-channels")


@pytest.mark.parametrize("name", STEPS)
def test_what_is_within_the_limits_stays(name):
    """A small convolution and a small pooling are nobody's work."""
    for make in (
        lambda: conv((3, 8, 8), (4, 3, 3, 3), pads=[1] * 4),
        lambda: pool("MaxPool", (3, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
        lambda: pool("AveragePool", (3, 8, 8), kernel_shape=[2, 2], strides=[2, 2]),
    ):
        model, node = build_and_trace(make)
        before = ir.to_proto(model).SerializeToString()
        assert (
            (legalize_graph(model, VENUS) == [])
            if name in ASKED
            else STEPS[name](model, node, VENUS) is None
        )
        assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("name", STEPS)
def test_another_operator_stays(name):
    """A Relu and a node without inputs are unchanged."""
    net = Net(3, 8, 8)
    model, node = build_and_trace(lambda: net.graph(net.node("Relu", "x", out="y")))
    assert STEPS[name](model, node, VENUS) is None
    bare = ir.make_node("RandomNormal", [], {"shape": [3, 8, 8]}, name="bare", output="noise")
    assert STEPS[name](model, bare, VENUS) is None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in OWN
        if not name.endswith(("average", "pool", "elements", "operands", "rows"))
    ],
)
def test_a_weight_of_the_run_stays(name):
    """Nothing can be taken apart whose numbers are not known."""
    make, row, _ = OWN[name]
    model, node = build_and_trace(make)
    weight = ir.require_input(node, 1)
    same = ir.make_node("Identity", [weight], name="run", output="weight_of_the_run", like=weight)
    model.graph.insert_before(node, same)
    node.replace_input_with(1, same.outputs[0])
    assert STEPS[name](model, node, row) is None


def test_unknown_sizes_stay():
    """A map of open size."""
    make, row, _ = OWN["split-max-pool"]
    model, node = build_and_trace(make)
    for value in (node.inputs[0], node.outputs[0]):
        value.shape = ir.Shape(["N", 3, None, None])
    assert STEPS["split-max-pool"](model, node, row) is None
