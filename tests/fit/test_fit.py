"""Rewrites that make a model fit a chip: the same floats, within the limits, and a second run does
nothing.
"""

import dataclasses

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.luna.packer_profile import get_packer_profile
from lingeronnx.luna.vendor import LunaVendor
from lingeronnx.operators.lowerings import find_lowering_rule
from lingeronnx.quantization.legalize import REWRITES, legalize_graph
from lingeronnx.quantization.legalize.windows.kernel_split import move_padding_to_pad
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.targets import GENERIC
from tests import nets
from tests.passes.helpers import feeds, interface, ops, outputs, run_all_tensors


def find_violations(model, target):
    """Return the violations of limits of `target`."""
    violations = []
    for node in model.graph:
        op, _ = find_lowering_rule(node, target)
        if op is not None:
            violations += op.find_violations(node, target)
    return violations


def assert_legalized(model, target, expected_ops, *, atol=2e-5):
    """Legalize `model` and check all guarantees; the operators are then `expected_ops`.

    Returns the rewrites.
    """
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    before, names, tensors = outputs(model, feed), interface(model), run_all_tensors(model, feed)
    assert find_violations(model, target)
    rewrites = legalize_graph(model, target)
    assert ops(model) == expected_ops
    assert find_violations(model, target) == []
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert interface(model) == names
    for name, want in before.items():
        np.testing.assert_allclose(outputs(model, feed)[name], want, rtol=0, atol=atol)
    for name, array in run_all_tensors(model, feed).items():
        if name in tensors:
            np.testing.assert_allclose(array, tensors[name], rtol=0, atol=atol)
    declared = {str(v.name): ir.get_shape(v) for v in ir.iter_values(model)}
    for name, array in run_all_tensors(model, feed).items():
        assert declared[name][1:] == array.shape[1:], name
    assert legalize_graph(model, target) == []
    assert ops(model) == expected_ops
    return rewrites


def assert_rejected(model, target):
    """Assert that legalization changes nothing; return the remaining violations."""
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    before = ir.to_proto(model).SerializeToString()
    assert legalize_graph(model, target) == []
    assert ir.to_proto(model).SerializeToString() == before
    violations = find_violations(model, target)
    assert violations
    return violations


def conv(shape, weight, **attributes):
    """Return a graph of one Conv on x [N, *shape]."""
    net = nets.Net(*shape, seed=sum(weight))
    return net.graph(net.conv("x", weight, out="y", **attributes))


# ---- kernels -----------------------------------------------------------------------------------


def test_the_first_convolution_of_keyword_spotting():
    """64 filters of 10x4 on 49x10, stride 2, padding 4, 1, 5, 1: a Pad for the fifth row, then two
    kernels of 5x4.
    """
    model = conv((1, 49, 10), (64, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    rewrites = assert_legalized(model, VENUS, ["Pad", "Conv", "Slice", "Conv", "Add"])
    assert [d.cost for d in rewrites] == ["exact", "1 more rounding of half a step at most"]
    assert model.graph.node(4).name == "Conv_y"
    model = conv((1, 49, 10), (64, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    assert_legalized(
        model, ARCS, ["Conv", "Slice", "Conv", "Add"]
    )  # which has no Pad, and needs none


@pytest.mark.sweep
@pytest.mark.parametrize(
    "shape, weight, attributes, expected_ops",
    [
        (
            (3, 20, 20),
            (4, 3, 7, 7),
            {"pads": [3] * 4},
            ["Conv", "Slice", "Conv", "Slice", "Conv", "Slice", "Conv", "Add", "Add", "Add"],
        ),
        ((3, 20, 20), (4, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}, None),
        ((3, 35, 35), (4, 3, 11, 11), {"pads": [2] * 4, "strides": [4, 4]}, None),
        ((3, 24, 24), (4, 3, 11, 11), {"pads": [5] * 4, "strides": [1, 2]}, None),
        ((3, 20, 20), (4, 3, 1, 9), {"pads": [0, 4, 0, 4]}, ["Conv", "Slice", "Conv", "Add"]),
        ((3, 20, 20), (4, 3, 6, 1), {}, None),
        ((4, 20, 20), (4, 1, 7, 3), {"group": 4, "pads": [3, 1, 3, 1]}, None),
        ((4, 20, 20), (6, 2, 7, 3), {"group": 2, "pads": [3, 1, 3, 1], "bias": False}, None),
        ((4, 30), (6, 4, 9), {"pads": [4, 4]}, None),
        ((4, 30), (6, 4, 10), {"pads": [2, 3], "strides": [2]}, None),
    ],
)
def test_split_kernel(shape, weight, attributes, expected_ops):
    model = conv(shape, weight, **attributes)
    rewrites = assert_split(model, expected_ops)
    assert any("split into" in d.what for d in rewrites)


def assert_split(model, expected_ops):
    """Legalize for venus; if given, `expected_ops` are the operators in any order."""
    copy = model.clone()
    trace_shapes(copy, {name: array[:1] for name, array in feeds(copy).items()})
    legalize_graph(copy, VENUS)
    assert expected_ops is None or sorted(ops(copy)) == sorted(expected_ops)
    return assert_legalized(model, VENUS, ops(copy))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_split_kernel_of_any_size(seed):
    """Law: for any sizes, split kernels compute the same function and meet the limits."""
    rng = np.random.default_rng(seed)
    kernel = [int(k) for k in rng.integers(1, 13, 2)]
    kernel[seed % 2] = int(rng.integers(6, 13))
    strides = [int(rng.choice([1, 2, 4])) for _ in range(2)]
    pads = [int(rng.integers(0, min(k, 5))) for k in kernel] + [
        int(rng.integers(0, min(k, 5))) for k in kernel
    ]
    model = conv((2, 23, 26), (3, 2, *kernel), strides=strides, pads=pads)
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    want = outputs(model, feed)["y"]
    rewrites = legalize_graph(model, VENUS)
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=2e-5)
    assert (find_violations(model, VENUS) == []) == bool(rewrites)
    assert legalize_graph(model, VENUS) == []
    assert rewrites, (kernel, strides, pads)


def test_only_the_first_part_has_the_bias():
    model = conv((3, 20, 20), (4, 3, 1, 9))
    assert_legalized(model, VENUS, ["Slice", "Conv", "Slice", "Conv", "Add"])
    assert [len(n.inputs) for n in model.graph if n.op_type == "Conv"] == [3, 2]


def test_more_parts_than_are_worth_it_stay():
    assert_rejected(conv((2, 70, 70), (3, 2, 33, 33)), VENUS)


def test_a_stride_that_no_patch_has_stays():
    assert assert_rejected(conv((2, 70, 70), (3, 2, 7, 7), strides=[33, 33]), VENUS)


def test_a_weight_that_is_computed_stays():
    net = nets.Net(3, 20, 20)
    w = net.node("Identity", net.const(np.ones((4, 3, 7, 7), np.float32)))
    model = net.graph(net.node("Conv", "x", w, out="y"))
    trace_shapes(model, {"x": np.ones((1, 3, 20, 20), np.float32)})
    assert legalize_graph(model, VENUS) == []


def test_dilation_is_spread_and_empty_parts_are_left_out():
    """A 3x3 kernel of dilation 2 is a 5x5 one; of dilation 4 a 9x9 one, split in 5 and 4: every
    part has taps.
    """
    assert_legalized(
        conv((2, 20, 20), (3, 2, 3, 3), dilations=[2, 2], pads=[2] * 4), VENUS, ["Conv"]
    )
    model = conv((2, 20, 20), (3, 2, 2, 2), dilations=[11, 1])
    rewrites = assert_legalized(model, VENUS, ["Slice", "Conv", "Slice", "Conv", "Add"])
    assert rewrites[0].what == "kernel 2x2 with dilation 11x1 expanded to 12x2 with zeros"
    assert rewrites[0].cost == "exact"
    assert_rejected(conv((2, 90, 20), (3, 2, 3, 2), dilations=[40, 1]), VENUS)


def test_one_dimensional_dilation_on_a_chip_that_dilates_images():
    """arcs runs the line as an image of height 1, so nothing has to be done."""
    model = conv((2, 40), (3, 2, 3), dilations=[4])
    trace_shapes(model, {"x": np.ones((1, 2, 40), np.float32)})
    assert find_violations(model, ARCS) == []


def test_enlarge_kernel():
    rewrites = assert_legalized(conv((3, 9, 9), (4, 3, 1, 1), strides=[2, 2]), VENUS, ["Conv"])
    assert rewrites[0].what == "kernel 1x1 with stride 2 padded with zeros to 2x2"


# ---- padding -----------------------------------------------------------------------------------


def test_padding_in_a_node_of_its_own():
    rewrites = assert_legalized(
        conv((3, 9, 9), (4, 3, 3, 2), pads=[4, 3, 0, 0]), VENUS, ["Pad", "Conv"]
    )
    assert rewrites[0].what == "pads [4, 3, 0, 0] reduced to [3, 2, 0, 0], the rest moved to a Pad"


def test_padding_is_a_convolution_where_there_is_no_pad():
    assert_legalized(conv((3, 9, 9), (4, 3, 3, 2), pads=[4, 3, 0, 0]), ARCS, ["Pad", "Conv"])
    assert_legalized(conv((3, 9), (4, 3, 3), pads=[4, 0]), VENUS, ["Pad", "Conv"])


def test_padding_stays_where_no_convolution_fits():
    """A map of one row is lower than a kernel of two taps; without the taps that only meet padding
    there is none.
    """
    model = conv((3, 1, 9), (4, 3, 3, 1), pads=[4, 0, 0, 0])
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    assert any(
        "padding must not exceed" in violation.rule for violation in find_violations(model, ARCS)
    )
    assert move_padding_to_pad(model, model.graph.node(0), ARCS) is None


# ---- channels ----------------------------------------------------------------------------------


def tighten_conv_limits(row, **limits):
    """Return `row` with other limits of convolutions."""
    kind = get_packer_profile(row)
    kind = dataclasses.replace(kind, conv=dataclasses.replace(kind.conv, **limits))
    return dataclasses.replace(row, vendor=LunaVendor(kind)).with_op("Conv2dInt", limits=kind.conv)


TIGHT = (
    dataclasses.replace(  # venus with a hundredth of the memory, so that small maps are too large
        tighten_conv_limits(
            VENUS,
            line_buffer_bytes=768,
            depthwise_line_buffer_bytes=384,
            max_depthwise_input_output_bytes=5000,
        ),
        shared_memory=6400,
    )
)


def test_input_channels_are_added_up():
    """The weights of two outputs are 2 * 24 * 9 bytes, of 16 channels 288."""
    row = tighten_conv_limits(VENUS, weight_slice_bytes=300)
    rewrites = assert_legalized(
        conv((24, 9, 9), (4, 24, 3, 3)), row, ["Slice", "Conv", "Slice", "Conv", "Add"]
    )
    assert rewrites[0].what == "24 input channels split into 2 parts that are added"
    assert rewrites[0].cost == "1 more rounding of half a step at most"


def test_groups_side_by_side():
    """Depthwise, 16 channels of 8 columns under 3 rows are 384 bytes."""
    rewrites = assert_legalized(
        conv((40, 8, 8), (40, 1, 3, 3), group=40, pads=[1] * 4),
        TIGHT,
        ["Slice", "Conv", "Slice", "Conv", "Slice", "Conv", "Concat"],
    )
    assert (rewrites[0].what, rewrites[0].cost) == ("40 groups split into 3 parts", "exact")


def test_a_map_that_is_too_large_for_the_memory_breaks_no_limit():
    """Tiles of rows are cut from the integer graph."""
    assert find_violations(conv((40, 8, 8), (130, 40, 1, 1)), TIGHT) == []


# ---- depthwise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", (True, False))
def test_depthwise_multiplier(bias):
    """Output channel c*m + j is filter j of channel c."""
    expected_ops = ["Conv", "Conv", "Conv", "Concat", "Reshape", "Transpose", "Reshape"]
    rewrites = assert_legalized(
        conv((4, 9, 8), (12, 1, 3, 3), group=4, pads=[1] * 4, bias=bias), VENUS, expected_ops
    )
    assert rewrites[0].cost == "exact"
    assert_legalized(
        conv((4, 9, 8), (80, 1, 3, 3), group=4), VENUS, ["Slice", "Conv"] * 4 + ["Concat"]
    )
    assert_rejected(conv((17, 9, 8), (340, 1, 3, 3), group=17), VENUS)
    model = conv((4, 9, 8), (12, 1, 3, 3), group=4)
    trace_shapes(model, {"x": np.ones((1, 4, 9, 8), np.float32)})
    assert legalize_graph(model, ARCS) == []  # which does it right


@pytest.mark.parametrize("bias", (True, False))
def test_depthwise_multiplier_of_a_line(bias):
    """As of an image; the chip takes its parts as maps of height 1."""
    model = conv((4, 20), (12, 1, 3), group=4, pads=[1] * 2, bias=bias)
    operators = ["Conv", "Conv", "Conv", "Concat", "Reshape", "Transpose", "Reshape"]
    rewrites = assert_legalized(model, VENUS, operators)
    assert rewrites[0].cost == "exact"


@pytest.mark.parametrize("target", (VENUS, ARCS))
def test_groups_of_one_output_are_merged(target):
    """No packer takes groups of several channels with one output each; zeros join them."""
    model = conv((6, 20), (3, 2, 3), group=3, pads=[1] * 2)
    rewrites = assert_legalized(model, target, ["Conv"])
    assert rewrites[0].cost == "exact"
    weight = ir.require_const_value(model.graph.node(0).inputs[1])
    assert weight.shape == (3, 6, 3)
    assert np.count_nonzero(weight) == 3 * 2 * 3
    assert_rejected(conv((130, 20), (65, 2, 3), group=65), target)


# ---- pooling -----------------------------------------------------------------------------------


def pool(kind, shape, **attributes):
    net = nets.Net(*shape)
    return net.graph(net.node(kind, "x", out="y", **attributes))


@pytest.mark.parametrize(
    "kernel, attributes, count, first",
    [
        ([6, 6], {"strides": [6, 6]}, 2, ([3, 3], [3, 3])),
        ([7, 2], {"strides": [1, 2], "pads": [3, 0, 3, 1]}, 2, ([5, 1], [1, 1])),
        ([9, 9], {"pads": [4, 4, 4, 4]}, 2, ([5, 5], [1, 1])),
        ([13, 13], {"pads": [6, 6, 6, 6]}, 3, ([5, 5], [1, 1])),
        ([1, 8], {"strides": [1, 3], "pads": [0, 7, 0, 6]}, 2, ([1, 5], [1, 1])),
        ([6, 6], {"strides": [5, 5]}, 2, ([2, 2], [1, 1])),
    ],
)
def test_max_pool(kernel, attributes, count, first):
    model = pool("MaxPool", (3, 24, 26), kernel_shape=kernel, **attributes)
    rewrites = assert_legalized(model, VENUS, ["MaxPool"] * count, atol=0)
    assert {d.cost for d in rewrites} == {"exact"}
    node = model.graph.node(0)
    assert (ir.get_attr(node, "kernel_shape"), ir.get_attr(node, "strides")) == first


def test_average():
    rewrites = assert_legalized(
        pool("AveragePool", (3, 30, 20), kernel_shape=[15, 10], strides=[15, 10]),
        VENUS,
        ["AveragePool"] * 2,
    )
    assert rewrites[0].cost == "half a step at most"
    assert_rejected(pool("AveragePool", (3, 30, 20), kernel_shape=[15, 10], strides=[1, 1]), VENUS)
    assert_rejected(
        pool("AveragePool", (3, 15, 131), kernel_shape=[1, 131], strides=[1, 131]), VENUS
    )


# ---- the whole ---------------------------------------------------------------------------------


def test_every_rewrite_has_a_name_of_its_own():
    assert len({r.name for r in REWRITES}) == len(REWRITES)


def test_nodes_to_keep_are_left_alone():
    model = conv((3, 20, 20), (4, 3, 7, 7))
    trace_shapes(model, {"x": np.ones((1, 3, 20, 20), np.float32)})
    assert legalize_graph(model, VENUS, ["Conv_y"]) == []
    x = np.random.default_rng(0).standard_normal((4, 3, 20, 20)).astype(np.float32)
    report = lo.quantize(conv((3, 20, 20), (4, 3, 7, 7)), x, skip=["Conv_y"], effort="fast").report
    assert (report.fitted, [n.node for n in report.host_part]) == ([], ["Conv_y"])


def test_a_platform_without_limits_needs_nothing():
    model = conv((3, 20, 20), (4, 3, 7, 7), strides=[3, 3])
    trace_shapes(model, {"x": np.ones((1, 3, 20, 20), np.float32)})
    assert legalize_graph(model, GENERIC) == []


@pytest.mark.slow
@pytest.mark.parametrize("target", (VENUS, ARCS, VENUSA), ids=lambda target: target.name)
def test_a_large_kernel_becomes_chip_ready(target):
    """Quantized, the sum of parts is close to the float layer."""
    net = nets.Net(3, 24, 24, seed=5)
    r = net.node("Relu", net.conv("x", (8, 3, 7, 7), pads=[3] * 4, strides=[2, 2]))
    model = net.graph(
        net.linear(
            net.node("Flatten", net.conv(r, (4, 8, 3, 3), strides=[2, 2])), (100, 5), out="y"
        )
    )
    x = np.random.default_rng(0).standard_normal((64, 3, 24, 24)).astype(np.float32)
    report = lo.quantize(model, x, platform=target.name).report
    assert report.chip_ready
    assert report.integer_macs == 1.0
    assert report.outputs["y"]["sqnr"] > 30
    assert (
        lo.quantize(model, x, platform=target.name, fit=False, effort="fast").report.integer_macs
        < 1
    )
