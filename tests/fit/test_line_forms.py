"""Lines and permutations in forms that chips run right: the same function, ready by both judges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.runtime.session import Session
from tests import nets
from tests.case_selection import limit_examples
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")


def assert_ready(result, platform):
    """Assert that the graph is whole and ready, by both judges."""
    report = result.report
    assert not report.float_nodes
    assert not report.host_part
    assert report.chip_ready
    verdict = judge(ir.to_proto(result.graph), platform, report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)


def outputs(model, result, feed):
    """Return the outputs of the float and the integer graph, computed sample by sample."""
    return _run_samples(model, feed), _run_samples(result.graph, feed)


def _run_samples(model, feed):
    session = Session(model)
    results = []
    for i in range(len(next(iter(feed.values())))):
        sample = {name: array[i : i + 1] for name, array in feed.items()}
        results.append(session.run(["y"], sample)[0])
    return np.concatenate(results)


def decibels(want, have):
    return 10 * np.log10(np.square(want).sum() / np.square(want - have).sum())


# ---- transposed convolutions of lines ----------------------------------------------------------


def build_transposed_conv(
    kernel, stride, pads, output_padding=0, dilation=1, *, size=9, bias=True, group=1
):
    net = nets.Net(4, size, seed=3)
    a = net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]))
    weight = net.rng.standard_normal((6, 4 // group, kernel)) * np.sqrt(stride / (6 * kernel))
    constants = [net.const(weight.astype(np.float32))]
    if bias:
        constants.append(net.const((0.1 * net.rng.standard_normal(4)).astype(np.float32)))
    sizes = {
        "strides": [stride],
        "pads": list(pads),
        "output_padding": [output_padding],
        "dilations": [dilation],
    }
    b = net.node("Relu", net.node("ConvTranspose", a, *constants, group=group, **sizes))
    return net.graph(net.conv(b, (3, 4, 1), out="y"))


@limit_examples(30)
@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 5),
    pads=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    extra=st.integers(0, 4),
    dilation=st.integers(1, 3),
    size=st.integers(3, 9),
    bias=st.booleans(),
)
def test_phases_are_the_transposed_convolution(kernel, stride, pads, extra, dilation, size, bias):
    """Law: the same real function, whatever the sizes."""
    extra = min(extra, stride - 1)
    length = (size - 1) * stride - sum(pads) + (kernel - 1) * dilation + 1 + extra
    if length < 1:
        return
    model = build_transposed_conv(kernel, stride, pads, extra, dilation, size=size, bias=bias)
    feed = nets.samples(model, 2)
    trace_shapes(model, {"x": feed["x"][:1]})
    before = model.clone()
    fitted = legalize_graph(model, VENUSA)
    assert any("phases" in entry.what for entry in fitted)
    assert "ConvTranspose" not in {node.op_type for node in model.graph}
    (_, want, _), (_, have, _) = (next(FloatRunner(m, {"y"}).run(feed)) for m in (before, model))
    assert want.shape == have.shape
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-5)


def test_groups_of_transposed_convolutions_stay():
    """As those of images do, which chips do not take."""
    model = build_transposed_conv(3, 2, (1, 1), group=2)
    trace_shapes(model, {"x": nets.samples(model, 1)["x"]})
    assert not any("phases" in entry.what for entry in legalize_graph(model, ARCS))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
@pytest.mark.parametrize(
    "sizes", ((4, 2, (1, 1)), (3, 2, (1, 1), 1), (2, 2, (0, 0)), (16, 8, (4, 4)), (3, 1, (1, 1)))
)
def test_transposed_convolutions_of_lines(sizes, platform):
    """Whole, and as near as eight bits are."""
    model = build_transposed_conv(*sizes)
    feed = nets.samples(model, 8)
    result = quantize(model, feed, platform=platform, effort="fast")
    assert decibels(*outputs(model, result, feed)) > 24
    assert not result.report.float_nodes
    if platform in CHIPS:
        assert_ready(result, platform)
        assert "ConvTranspose2dInt" not in result.report.layers


# ---- long kernels of lines ---------------------------------------------------------------------


def long_kernel(kernel, *, group=1, stride=1):
    net = nets.Net(4, 24, seed=3)
    a = net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]))
    pads = [kernel // 2] * 2
    b = net.node(
        "Relu", net.conv(a, (6, 6 // group, kernel), pads=pads, group=group, strides=[stride])
    )
    return net.graph(net.conv(b, (3, 6, 1), out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize("kernel, group, stride", ((7, 1, 1), (9, 1, 1), (9, 6, 1), (9, 1, 2)))
def test_long_kernels_of_lines(kernel, group, stride, platform):
    """On venusA, too, where a line is an image of height 1 and its kernel one of an image."""
    model = long_kernel(kernel, group=group, stride=stride)
    feed = nets.samples(model, 8)
    result = quantize(model, feed, platform=platform, effort="fast")
    assert_ready(result, platform)
    assert decibels(*outputs(model, result, feed)) > 24


@pytest.mark.parametrize("target", (VENUS, VENUSA), ids=lambda target: target.name)
def test_the_sum_is_the_long_kernel(target):
    """The same real function; one more rounding is told."""
    model = long_kernel(9)
    feed = nets.samples(model, 2)
    trace_shapes(model, {"x": feed["x"][:1]})
    before = model.clone()
    (entry,) = legalize_graph(model, target)
    assert entry.what == "kernel 9 split into 2 that are added (5, 4)"
    assert entry.cost == "1 more rounding of half a step at most"
    (_, want, _), (_, have, _) = (next(FloatRunner(m, {"y"}).run(feed)) for m in (before, model))
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-5)


# ---- permutations of large tensors -------------------------------------------------------------


def build_permutation(perm, width=200):
    """A convolution, a Transpose of 76,800 bytes, a layer over its last axis."""
    net = nets.Net(3, 8, width, seed=3)
    a = net.node("Relu", net.conv("x", (48, 3, 3, 3), pads=[1] * 4))
    sizes = [(1, 48, 8, width)[axis] for axis in perm]
    rows = net.node(
        "Reshape",
        net.node("Transpose", a, perm=perm),
        net.const(np.array([0, sizes[1], sizes[2] * sizes[3]])),
    )
    size = sizes[2] * sizes[3]
    weight = net.const((net.rng.standard_normal((size, 2)) / np.sqrt(size)).astype(np.float32))
    return net.graph(net.node("Relu", net.node("MatMul", rows, weight), out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "perm", ([0, 2, 3, 1], [0, 3, 1, 2], [0, 3, 2, 1], [0, 1, 3, 2], [0, 2, 1, 3])
)
def test_large_permutations_on_venus(perm, monkeypatch):
    """In parts of 65,536 bytes at most, with the integers of the permutation in one piece."""
    model = build_permutation(perm)
    feed = nets.samples(model, 4)
    result = quantize(model, feed, platform="venus", effort="fast")
    assert_ready(result, "venus")
    moved = [node for node in result.graph.graph if node.op_type == "Transpose"]
    assert len(moved) >= 2
    assert all(np.prod(ir.get_shape(node.inputs[0])) <= 65536 for node in moved)
    entry = next(f for f in result.report.fitted if "Transpose" in f.what)
    assert "iqCat" in entry.what
    assert entry.cost == "exact"
    monkeypatch.setattr(
        "lingeronnx.operators.reshape.lowering._plan_transpose_parts", lambda *_: None
    )
    unsplit = quantize(model, feed, platform="venus", effort="fast")
    assert "iqCat" not in unsplit.report.layers
    _, have = outputs(model, result, feed)
    _, want = outputs(model, unsplit, feed)
    np.testing.assert_array_equal(have, want)


def test_small_permutations_stay_in_one_piece():
    """65,536 bytes are measured to be right."""
    result = quantize(
        build_permutation([0, 2, 3, 1], width=170),
        nets.samples(build_permutation([0, 2, 3, 1], width=170), 2),
        effort="fast",
    )
    assert "iqCat" not in result.report.layers
    assert_ready(result, "venus")


@pytest.mark.parametrize("platform", CHIPS)
def test_convolutions_before_a_recurrent_layer(platform):
    """Maps of 76,800 bytes whose columns become the steps of an LSTM."""
    width, hidden = 200, 6
    net = nets.Net(3, 8, width, seed=3)
    a = net.node("Relu", net.conv("x", (48, 3, 3, 3), pads=[1] * 4))
    b = net.node("MaxPool", a, kernel_shape=[1, 4], strides=[1, 4]) if platform != "venus" else a
    steps = width // 4 if platform != "venus" else width
    t = net.node(
        "Reshape",
        net.node("Transpose", b, perm=[0, 3, 1, 2]),
        net.const(np.array([0, steps, 48 * 8])),
    )

    def weight(*shape):
        return net.const((net.rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    t = net.node("Transpose", net.node("MatMul", t, weight(48 * 8, 16)), perm=[1, 0, 2])
    weights = (weight(1, 4 * hidden, 16), weight(1, 4 * hidden, hidden), weight(1, 8 * hidden))
    net.node("LSTM", t, *weights, hidden_size=hidden, out="all")
    net.nodes[-1].output.append("last")
    model = net.graph(
        net.linear(net.node("Squeeze", "last", net.const(np.array([0]))), (hidden, 5), out="y")
    )
    feed = nets.samples(model, 4)
    result = quantize(model, feed, platform=platform, effort="fast")
    assert_ready(result, platform)
    assert decibels(*outputs(model, result, feed)) > 17
