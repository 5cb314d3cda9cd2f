"""Maps cut into tiles, pools by channels, and the other forms that keep every integer."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from tests import nets
from tests.fit.test_fit import (
    assert_legalized,
    assert_rejected,
    conv,
    find_violations,
    pool,
    tighten_conv_limits,
)
from tests.passes.helpers import feeds

# ---- convolutions ------------------------------------------------------------------------------


def test_a_wide_map_in_columns():
    """24 channels of 33 columns under 5 rows are 4800 bytes; of 8 columns 960."""
    row = tighten_conv_limits(VENUS, line_buffer_bytes=2000)
    rewrites = assert_legalized(
        conv((24, 40, 33), (4, 24, 5, 5), pads=[2] * 4), row, ["Slice", "Conv"] * 3 + ["Concat"]
    )
    assert (rewrites[0].what, rewrites[0].cost) == (
        "Conv on a map of 24x40x33 split into 3 tiles",
        "exact",
    )


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_tiles_of_any_size(seed):
    """Law: whatever kernel, stride and padding, the tiles together are the whole."""
    rng = np.random.default_rng(seed)
    kernel = [int(k) for k in rng.integers(1, 6, 2)]
    strides = [int(rng.choice([s for s in (1, 2, 4) if s <= k])) for k in kernel]
    pads = [int(rng.integers(0, k + 1)) for k in kernel] * 2
    model = conv(
        (8, int(rng.integers(40, 60)), int(rng.integers(40, 60))),
        (3, 8, *kernel),
        strides=strides,
        pads=[min(p, 4) for p in pads],
    )
    row = tighten_conv_limits(
        VENUS,
        line_buffer_bytes=64 * max(strides) * max(kernel),
        max_input_output_bytes=9000 if seed % 2 else 90000,
    )
    trace_shapes(model, {name: array[:1] for name, array in feeds(model).items()})
    assert find_violations(model, row)
    kinds = [n.op_type for n in model.clone().graph]
    assert kinds == ["Conv"]
    copy = model.clone()
    trace_shapes(copy, {name: array[:1] for name, array in feeds(copy).items()})
    legalize_graph(copy, row)
    assert_legalized(model, row, [n.op_type for n in copy.graph])


def test_stride_2_on_arcs_is_cut_where_axes_would_be_swapped():
    model = conv((8, 8, 1000), (8, 8, 3, 3), strides=[2, 2], pads=[1] * 4)
    rewrites = assert_legalized(model, ARCS, ["Slice", "Conv"] * 2 + ["Concat"])
    assert "2 tiles" in rewrites[0].what
    stays = conv((8, 8, 1000), (8, 8, 3, 3), pads=[1] * 4)
    trace_shapes(stays, {"x": np.ones((1, 8, 8, 1000), np.float32)})
    assert legalize_graph(stays, ARCS) == []


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
def test_tiles_keep_every_integer(platform, monkeypatch):
    """Quantized with and without the cut, all integers of the output are the same."""
    net = nets.Net(6, 20, 30, seed=3)
    a = net.node("Relu", net.conv("x", (8, 6, 3, 3), pads=[1] * 4))
    model = net.graph(net.conv(a, (5, 8, 3, 3), pads=[1, 0, 1, 2], strides=[2, 1], out="y"))
    row = {"venus": VENUS, "arcs": ARCS, "venusA": VENUSA}[platform]
    feed = nets.samples(model)
    untiled = quantize(model, feed, platform=platform, effort="fast")
    small = tighten_conv_limits(
        row, line_buffer_bytes=8 * 16 * 3, second_line_buffer_bytes=8 * 16 * 3
    )
    monkeypatch.setattr("lingeronnx.targets.registry.PLATFORMS", (small,))
    tiled = quantize(model, feed, platform=platform, effort="fast")
    assert tiled.report.chip_ready
    assert [n.op_type for n in tiled.graph.graph].count("iqCat") == 2
    for graph in (untiled, tiled):
        assert graph.report.integer_macs == 1
    want, have = (Session(q.graph).run(None, feed)[0] for q in (untiled, tiled))
    np.testing.assert_array_equal(want, have)


def test_groups_that_the_packer_would_pad_ahead():
    """Two groups of two channels under 3x3 are wrong on venus; each by itself is right."""
    rewrites = assert_legalized(
        conv((4, 9, 9), (6, 2, 3, 3), group=2, pads=[1] * 4),
        VENUS,
        ["Slice", "Conv", "Slice", "Conv", "Concat"],
    )
    assert rewrites[0].cost == "exact"
    model = conv((4, 9, 9), (6, 2, 3, 3), group=2, pads=[1] * 4)
    trace_shapes(model, {"x": np.ones((1, 4, 9, 9), np.float32)})
    assert legalize_graph(model, ARCS) == []


@pytest.mark.parametrize("target", (VENUS, ARCS, VENUSA), ids=lambda target: target.name)
def test_groups_of_one_output_each(target):
    assert_legalized(
        conv((4, 9, 9), (2, 2, 1, 1), group=2), target, ["Slice", "Conv", "Slice", "Conv", "Concat"]
    )


def test_a_map_below_the_kernel_is_padded_before():
    """2x2 under 3x3: the packer forgets the padding where it puts it before."""
    net = nets.Net(4, 4, 4, seed=1)
    a = net.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    model = net.graph(net.conv(a, (4, 4, 3, 3), pads=[1] * 4, out="y"))
    rewrites = assert_legalized(model, VENUS, ["MaxPool", "Pad", "Conv"])
    assert rewrites[0].what == "pads [1, 1, 1, 1] reduced to [0, 0, 0, 0], the rest moved to a Pad"


def test_shares_of_the_weights():
    """On arcs the weights of two outputs have 8192 bytes: 512 channels under 3x3 are 9216."""
    rewrites = assert_legalized(
        conv((512, 5, 5), (4, 512, 3, 3), pads=[1] * 4),
        ARCS,
        ["Slice", "Conv", "Slice", "Conv", "Add"],
        atol=1e-4,
    )
    assert rewrites[0].what == "512 input channels split into 2 parts that are added"


def test_many_shares_of_the_weights():
    """On arcs 43 shares are the most that ran; those of 256 channels under 3x3 have two outputs
    each, 88 are 44.
    """
    rewrites = assert_legalized(
        conv((256, 6, 6), (88, 256, 3, 3), pads=[1] * 4),
        ARCS,
        ["Conv", "Conv", "Concat"],
        atol=1e-4,
    )
    assert (rewrites[0].what, rewrites[0].cost) == (
        "88 output channels split into 2 parts",
        "exact",
    )


# ---- pools -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, shape, window, row, parts",
    [
        ("AveragePool", (2560, 7, 7), {"kernel_shape": [7, 7]}, VENUS, 2),
        ("AveragePool", (2560, 7, 7), {"kernel_shape": [7, 7]}, ARCS, 2),
        (
            "MaxPool",
            (72, 16, 56),
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
            ARCS,
            2,
        ),
        (
            "MaxPool",
            (8, 112, 112),
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
            ARCS,
            2,
        ),
        ("AveragePool", (8, 112, 112), {"kernel_shape": [2, 2], "strides": [2, 2]}, VENUSA, 2),
    ],
)
def test_pools_in_parts(kind, shape, window, row, parts):
    """By channels where that is enough, else by rows."""
    rewrites = assert_legalized(
        pool(kind, shape, **window), row, ["Slice", kind] * parts + ["Concat"]
    )
    assert (rewrites[0].what, rewrites[0].cost) == (
        f"{kind} on a map of {'x'.join(map(str, shape))} split into {parts} tiles",
        "exact",
    )


def test_a_window_with_no_next_does_not_move():
    net = nets.Net(8, 6, 5, seed=2)
    a = net.conv("x", (8, 8, 1, 1))
    model = net.graph(net.node("MaxPool", a, kernel_shape=[6, 5], strides=[6, 5], out="y"))
    pools = [
        n for n in nets.quantized(model, platform="venusA").graph.graph if n.op_type == "MaxPool"
    ]
    assert [ir.get_attr(n, "strides") for n in pools] == [[1, 1]]


def test_a_whole_map_with_steps_of_another_size():
    """A stride smaller than the window, and one window only: the average is taken in two steps all
    the same.
    """
    assert_legalized(
        pool("AveragePool", (17, 64, 64), kernel_shape=[64, 64]), VENUS, ["AveragePool"] * 2
    )
    assert_rejected(pool("AveragePool", (3, 30, 20), kernel_shape=[15, 10], strides=[1, 1]), VENUS)


# ---- moves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
def test_a_linear_layer_of_four_axes_reads_three(platform):
    net = nets.Net(2, 3, 8, seed=4)
    model = net.graph(
        net.node(
            "MatMul", "x", net.const(net.rng.standard_normal((8, 5)).astype(np.float32)), out="y"
        )
    )
    result = nets.quantized(model, platform=platform)
    (layer,) = [n for n in result.graph.graph if n.op_type == "LinearInt"]
    assert (ir.get_shape(layer.inputs[0]), ir.get_shape(layer.outputs[0])) == ((1, 6, 8), (1, 6, 5))
    assert result.report.chip_ready
    assert result.report.outputs["y"]["sqnr"] > 25


@pytest.mark.parametrize(
    "platform, perm, steps",
    [
        ("venus", (0, 1, 3, 2), [(0, 3, 1, 2), (0, 2, 1, 3)]),
        ("venusA", (0, 2, 1, 3), [(0, 2, 3, 1), (0, 1, 3, 2)]),
        ("venusA", (0, 3, 2, 1), [(0, 3, 1, 2), (0, 1, 3, 2)]),
        ("arcs", (0, 1, 3, 2), [(1, 0)] * 4),  # matrices, which cost less there
    ],
)
def test_a_transpose_that_comes_out_wrong_is_made_by_two(platform, perm, steps):
    net = nets.Net(4, 5, 6, seed=5)
    t = net.node("Transpose", net.conv("x", (4, 4, 1, 1)), perm=list(perm))
    channels = (4, 5, 6)[perm[1] - 1]
    model = net.graph(net.conv(t, (3, channels, 1, 1), out="y"))
    result = nets.quantized(model, platform=platform)
    assert [
        tuple(ir.get_attr(n, "perm")) for n in result.graph.graph if n.op_type == "Transpose"
    ] == steps
    assert result.report.outputs["y"]["sqnr"] > 25
