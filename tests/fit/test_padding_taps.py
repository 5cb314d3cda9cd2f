"""Taps that only meet padding are cut off: the same function, fewer products, and nothing else is
touched.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.legalize.windows.padding_taps import trim_padding_taps
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC
from tests.case_selection import limit_examples
from tests.nets import Net
from tests.passes.helpers import feeds, interface, ops, outputs


def conv(shape, weight, **attributes):
    """Return a graph of one Conv on x [N, *shape], its sizes known, and the node."""
    net = Net(*shape, seed=sum(weight))
    model = net.graph(net.conv("x", weight, out="y", **attributes))
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    return model, next(iter(model.graph))


def sizes(node):
    """Return kernel, pads, strides and dilations."""
    return tuple(
        list(ir.get_attr(node, name)) for name in ("kernel_shape", "pads", "strides", "dilations")
    )


def reads(place, tap, size, pad, stride, dilation):
    """Whether a tap of an output lies on the line."""
    return 0 <= place * stride + tap * dilation - pad < size


CUT = {
    "one place": ((3, 1), (4, 3, 3), {"pads": [1, 1]}, ([1], [0, 0], [1], [1])),
    "one place, a stride": (
        (3, 1),
        (4, 3, 3),
        {"pads": [1, 1], "strides": [2]},
        ([1], [0, 0], [1], [1]),
    ),
    "one output of two places": (
        (3, 2),
        (4, 3, 3),
        {"pads": [1, 1], "strides": [2]},
        ([2], [0, 0], [1], [1]),
    ),
    "behind the line": ((3, 2), (4, 3, 5), {"pads": [2, 2]}, ([3], [1, 1], [1], [1])),
    "dilated beyond the line": (
        (3, 4),
        (4, 3, 3),
        {"pads": [8, 0], "dilations": [4]},
        ([1], [0, 0], [1], [1]),
    ),
    "dilated": ((3, 4), (4, 3, 3), {"pads": [4, 0], "dilations": [2]}, ([2], [2, 0], [1], [2])),
    "one axis": (
        (3, 1, 9),
        (4, 3, 3, 3),
        {"pads": [1] * 4},
        ([1, 3], [0, 1, 0, 1], [1, 1], [1, 1]),
    ),
    "depthwise": (
        (4, 1, 9),
        (4, 1, 3, 3),
        {"pads": [1] * 4, "group": 4},
        ([1, 3], [0, 1, 0, 1], [1, 1], [1, 1]),
    ),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("bias", (True, False))
def test_what_is_left(name, bias):
    shape, weight, attributes, expected_sizes = CUT[name]
    model, node = conv(shape, weight, bias=bias, **attributes)
    feed, names = feeds(model), interface(model)
    want = outputs(model, feed)["y"]
    description, cost = trim_padding_taps(model, node, ARCS)
    assert "only read padding" in description
    assert cost == "exact"
    assert sizes(node) == expected_sizes
    assert interface(model) == names
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-6)
    assert trim_padding_taps(model, node, ARCS) is None


@limit_examples(60)
@given(
    size=st.integers(1, 7),
    kernel=st.integers(1, 7),
    before=st.integers(0, 9),
    after=st.integers(0, 9),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 4),
    width=st.integers(1, 4),
)
def test_any_sizes(size, kernel, before, after, stride, dilation, width):
    """Law: the same function; a tap that is cut reads the map for no output; those at the ends that
    stay do for one.
    """
    if size + before + after < (kernel - 1) * dilation + 1:
        return
    pads, strides, dilations = [before, 1, after, 1], [stride, 1], [dilation, 1]
    model, node = conv(
        (2, size, width), (3, 2, kernel, 3), pads=pads, strides=strides, dilations=dilations
    )
    feed = feeds(model)
    want = outputs(model, feed)["y"]
    weight = ir.const_value(node.inputs[1])
    rewrite = trim_padding_taps(model, node, VENUS)
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-5)
    if rewrite is None:
        assert ir.const_value(node.inputs[1]) is weight
        return
    trimmed = ir.const_value(node.inputs[1])
    count = want.shape[2]
    live = []
    for tap in range(kernel):
        if any(reads(place, tap, size, before, stride, dilation) for place in range(count)):
            live.append(tap)
    assert trimmed.shape[2] in ((kernel, live[-1] - live[0] + 1) if live else (kernel,))
    first = live[0] if trimmed.shape[2] < kernel else 0
    column = 1 if width == 1 else 0
    taps = weight[:, :, first : first + trimmed.shape[2], column : column + trimmed.shape[3]]
    np.testing.assert_array_equal(trimmed, taps)


@pytest.mark.parametrize(
    "name, shape, weight, attributes",
    [
        ("no padding", (3, 5), (4, 3, 3), {}),
        ("every tap reads the line", (3, 2), (4, 3, 3), {"pads": [1, 1]}),
        ("nothing is read", (3, 1), (4, 3, 1), {"pads": [2, 0], "strides": [9]}),
        (
            "a part of the line would have to be cut off",
            (3, 8),
            (4, 3, 2),
            {"pads": [1, 0], "dilations": [8]},
        ),
        (
            "fewer taps than the stride",
            (3, 2),
            (4, 3, 3),
            {"pads": [4, 4], "strides": [3], "dilations": [3]},
        ),
    ],
)
def test_what_stays(name, shape, weight, attributes):
    model, node = conv(shape, weight, **attributes)
    before = ir.to_proto(model).SerializeToString()
    assert trim_padding_taps(model, node, ARCS) is None, name
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("kernel, size, pads", [(4, 2, (1, 2)), (4, 2, (2, 1)), (4, 2, (3, 1))])
@pytest.mark.parametrize("inside", (True, False))
def test_a_layer_within_the_limits_stays_within(kernel, size, pads, inside):
    """A layer within the limits is not trimmed if it would exceed them afterwards.

    The packer adds the pads of the rows to those of the columns, except for consumers of an input.
    """
    net = Net(3, size, 9, seed=2)
    source = net.node("Relu", "x") if inside else "x"
    begin, end = pads
    model = net.graph(net.conv(source, (4, 3, kernel, 3), pads=[begin, 1, end, 1], out="y"))
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    node = next(node for node in model.graph if node.op_type == "Conv")
    assert _find_violations(model, VENUS) == []
    assert (trim_padding_taps(model, node, VENUS) is None) == inside
    assert _find_violations(model, VENUS) == []
    assert (trim_padding_taps(model, node, ARCS) is not None) == inside
    assert (_find_violations(model, VENUS) != []) == inside


def _find_violations(model, row):
    from lingeronnx.operators.lowerings import find_lowering_rule

    violations = []
    for node in model.graph:
        op, _ = find_lowering_rule(node, row)
        if op is not None:
            violations += op.find_violations(node, row)
    return violations


@pytest.mark.parametrize("row", (VENUS, ARCS, VENUSA), ids=lambda row: row.name)
def test_fit_cuts_them_on_every_chip(row):
    """On venusA the layer was none of the chip's: a map of one place under a kernel of three,
    padded.
    """
    model, node = conv((3, 1), (4, 3, 3), pads=[1, 1])
    assert bool(_find_violations(model, row)) == (row is VENUSA)
    assert [rewrite.cost for rewrite in legalize_graph(model, row)] == ["exact"]
    assert _find_violations(model, row) == []
    assert ops(model) == ["Conv"]
    assert legalize_graph(model, row) == []


def test_a_platform_without_convolutions_of_its_own_limits():
    """`generic` has none: nothing is looked at. Nor is a layer that is to be left alone."""
    model, node = conv((3, 1), (4, 3, 3), pads=[1, 1])
    assert legalize_graph(model, GENERIC) == []
    assert legalize_graph(model, VENUSA, [str(node.name)]) == []
    assert trim_padding_taps(model, node, dataclasses.replace(GENERIC)) is None


def test_a_weight_that_others_read_stays_for_them():
    net = Net(3, 1)
    held = net.const(net.rng.standard_normal((4, 3, 3)).astype(np.float32))
    first = net.node("Conv", "x", held, pads=[1, 1])
    second = net.node("Conv", "x", held, pads=[2, 2])
    model = net.graph(net.node("Concat", first, second, out="y", axis=2))
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    want = outputs(model, feed)["y"]
    assert trim_padding_taps(model, next(iter(model.graph)), ARCS) is not None
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-6)
