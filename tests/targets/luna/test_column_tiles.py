"""Cascades in strips of columns, each in tiles of rows, have the same integers."""

import dataclasses
import itertools

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.luna.backend_passes.packer_view import PackerGraphView
from lingeronnx.luna.backend_passes.tiling import iterative_search
from lingeronnx.luna.backend_passes.tiling.cascades import axis_length, find_cascades
from lingeronnx.luna.backend_passes.tiling.emit import emit_tiles
from lingeronnx.luna.backend_passes.tiling.output_channel_splits import (
    replace_slices_by_convs,
    split_oversized_convs,
)
from lingeronnx.luna.backend_passes.tiling.window_merging import merge_tiled_windows
from lingeronnx.runtime.session import Session
from tests import nets
from tests.packer import judge

ROWS = {"venus": VENUS, "arcs": ARCS, "venusA": VENUSA}


def twin_of(run, graph):
    """Return a copy of a graph, and the run in it."""
    copy = graph.clone()
    twins = dict(zip(graph.graph, copy.graph, strict=True))
    return copy, dataclasses.replace(run, nodes=tuple(twins[node] for node in run.nodes))


def tiles_of(run, bounds):
    """Return the tiles of a run between these rows or columns."""
    return [run.tile(part) for part in itertools.pairwise(bounds)]


def bounds_of(length, rng):
    """Return where one to three parts begin and end."""
    return sorted({0, length, *map(int, rng.integers(1, length, 2))})


def get_op_types(graph):
    return [node.op_type for node in graph.graph]


def windows(rng, seed):
    """Convolutions, pools and sums with kernels, strides and paddings of all kinds."""
    net, x = nets.Net(4, 40, 44, seed=seed, batch=1), "x"
    for _ in range(3):
        high, wide = (int(k) for k in rng.integers(1, 5, 2))
        if rng.random() < 0.2:
            x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[1, int(rng.integers(1, 3))])
            continue
        pads = [int(rng.integers(0, side)) for side in (high, wide, high, wide)]
        strides = [int(rng.integers(1, min(side, 2) + 1)) for side in (high, wide)]
        y = net.conv(x, (4, 4, high, wide), pads=pads, strides=strides)
        x = net.node(
            "Relu",
            net.node("Add", y, net.conv(y, (4, 4, 3, 3), pads=[1] * 4))
            if rng.random() < 0.5
            else y,
        )
    return net.graph(net.conv(x, (4, 4, 1, 1), out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(6))
def test_strips_and_tiles_of_any_size_are_the_whole(seed):
    """Law: a run in any strips of columns, each in any tiles of rows, gives the same integers."""
    rng = np.random.default_rng(seed)
    model = windows(rng, seed)
    feed = nets.samples(model, 2)
    untiled = quantize(model, feed, platform="venusA", effort="fast", fit=False).graph
    sample = {"x": feed["x"][:1]}
    want = Session(untiled).run(None, sample)[0]
    nodes, tiled_strips = list(untiled.graph), 0
    first = next(i for i, node in enumerate(nodes) if node.op_type == "Conv2dInt")
    for run in find_cascades(nodes, first, nodes[first]):
        if run.along_columns is None:
            continue
        copy, twin = twin_of(run, untiled)
        strips = tiles_of(twin.along_columns, bounds_of(axis_length(run.result, 3), rng))
        if None in strips:
            continue
        for strip in emit_tiles(copy, twin.along_columns, strips):
            tiles = tiles_of(strip, bounds_of(axis_length(strip.result, 2), rng))
            if None not in tiles:
                emit_tiles(copy, strip, tiles)
                tiled_strips += 1
        np.testing.assert_array_equal(Session(copy).run(None, sample)[0], want)
    assert tiled_strips


def wide():
    """A map of which few rows fit under a kernel of arcs: --fit puts tiles side by side."""
    net = nets.Net(64, 90, 90, seed=3, batch=1)
    x = net.node("Relu", net.conv("x", (8, 64, 3, 3), pads=[1] * 4))
    return net.graph(net.conv(x, (4, 8, 1, 1), out="y"))


def test_windows_side_by_side_are_whole_again():
    """Windows that legalization tiled are merged, with the same integers."""
    model = wide()
    feed = nets.samples(model, 2)
    tiled = quantize(model, feed, platform="arcs", effort="fast").graph
    merged = merge_tiled_windows(tiled)
    kinds = [get_op_types(graph) for graph in (tiled, merged)]
    assert "iqCat" in kinds[0]
    assert "iqCat" not in kinds[1]
    assert kinds[1].count("Conv2dInt") == 2
    sample = {"x": feed["x"][:1]}
    np.testing.assert_array_equal(
        Session(merged).run(None, sample)[0], Session(tiled).run(None, sample)[0]
    )
    assert merge_tiled_windows(merged) is None


@pytest.mark.sweep
@pytest.mark.parametrize("change", ["pads", "weight", "order"])
def test_what_only_looks_like_tiles_stays(change):
    """Windows with another weight, a padding in between or in another order are no tiles of one."""
    model = wide()
    tiled = quantize(model, nets.samples(model, 2), platform="arcs", effort="fast").graph
    join = next(node for node in tiled.graph if node.op_type == "iqCat")
    tiles = [value.producer() for value in join.inputs]
    if change == "pads":
        ir.set_attr(tiles[1], "pads", [1, 1, 1, 0])
    if change == "weight":
        twice = ir.add_initializer(tiled, "other", 1 - ir.const_value(tiles[1].inputs[1]))
        tiles[1].replace_input_with(1, twice)
    if change == "order":
        first, second = join.inputs[:2]
        join.replace_input_with(0, second)
        join.replace_input_with(1, first)
    assert merge_tiled_windows(tiled) is None


def heavy():
    """A convolution of more weights than venus takes in one piece, with a Relu, and one without."""
    net = nets.Net(64, 10, 8, seed=4, batch=1)
    x = net.node("Relu", net.conv("x", (64, 64, 3, 3), pads=[1] * 4))
    return net.graph(net.conv(x, (62, 64, 3, 3), pads=[1] * 4, out="y"))


@pytest.mark.parametrize("chip", ["venus", "arcs"])
def test_convolutions_in_parts_of_their_outputs(chip):
    """Of parts the packer makes no parts, the integers are the same; a chip that takes the whole
    has no parts.
    """
    model = heavy()
    feed = nets.samples(model, 2)
    quantized = quantize(model, feed, platform=chip, effort="fast").graph
    nodes = list(quantized.graph)
    first = next(i for i, node in enumerate(nodes) if node.op_type == "Conv2dInt")
    run = find_cascades(nodes, first, nodes[first])[-1]
    view = PackerGraphView(quantized, ROWS[chip])
    copy, twin = twin_of(run, quantized)
    parts = split_oversized_convs(copy, twin, view)
    assert len(parts.nodes) == len(run.nodes) + (5 if chip == "venus" else 0)
    sample = {"x": feed["x"][:1]}
    np.testing.assert_array_equal(
        Session(copy).run(None, sample)[0], Session(quantized).run(None, sample)[0]
    )
    assert any(step.created_as == "part" for step in view.prepared.net.steps) == (chip == "venus")
    assert not any(step.created_as == "part" for step in view.for_graph(copy).prepared.net.steps)


@pytest.mark.sweep
@pytest.mark.parametrize(("chip", "memory"), [("venus", 9000), ("arcs", 20000), ("venusA", 14000)])
def test_a_net_of_which_no_row_fits(chip, memory):
    """Three rows of the map are larger than the shared memory: strips make it ready, with the same
    integers.
    """
    net = nets.Net(16, 12, 240, seed=5, batch=1)
    x = net.node("Relu", net.conv("x", (16, 16, 3, 3), pads=[1] * 4))
    x = net.node(
        "MaxPool", net.conv(x, (8, 16, 3, 3), pads=[1] * 4), kernel_shape=[2, 2], strides=[2, 2]
    )
    model = net.graph(
        net.conv(net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), (4, 8, 1, 1), out="y")
    )
    feed = nets.samples(model, 2)
    untiled = quantize(model, feed, platform=chip, effort="fast", fit=False)
    target = dataclasses.replace(ROWS[chip], shared_memory=memory)
    tiled = iterative_search.search_iteratively(PackerGraphView(untiled.graph, target))
    assert tiled is not None
    assert any(schedule.strips for schedule in tiled[1])
    sample = {"x": feed["x"][:1]}
    np.testing.assert_array_equal(
        Session(tiled[0].graph).run(None, sample)[0], Session(untiled.graph).run(None, sample)[0]
    )
    argv = tiled[0].fastest_arguments.argv
    assert judge(tiled[0].proto, chip, [*argv, "-r", str(memory)]).right


def build_sliced_conv(kind):
    """A convolution of which Slices take all outputs, two readers the same ones, or of which a sum
    reads, too.
    """
    net = nets.Net(8, 12, 10, seed=6, batch=1)
    x = net.conv("x", (12, 8, 3, 3), pads=[1] * 4)
    bounds = [(0, 8), (4, 12)] if kind == "twice" else [(0, 8), (8, 12)]
    for number, (first, last) in enumerate(bounds):
        where = [net.const(np.array([at], np.int64)) for at in (first, last, 1)]
        part = net.node("Slice", x, *where)
        net.conv(part, (4, last - first, 3, 3), pads=[1] * 4, out=f"y{number}")
    if kind == "read":
        net.conv(net.node("Relu", x), (4, 12, 1, 1), out="y2")
    return net.graph("y0", "y1", *(["y2"] if kind == "read" else []))


@pytest.mark.parametrize("kind", ["apart", "twice", "read"])
def test_slices_behind_a_convolution_are_convolutions(kind):
    """A convolution for each Slice gives the same integers; none where products would be computed
    twice.
    """
    model = build_sliced_conv(kind)
    feed = nets.samples(model, 2)
    quantized = quantize(model, feed, platform="venusA", effort="fast").graph
    copy = quantized.clone()
    assert [rewrite.node for rewrite in replace_slices_by_convs(copy)] == [
        quantized.graph[1].name
    ] * (kind == "apart")
    counts = [get_op_types(graph).count("Slice") for graph in (quantized, copy)]
    assert counts == [2, 0 if kind == "apart" else 2]
    sample = {"x": feed["x"][:1]}
    wants, gots = Session(quantized).run(None, sample), Session(copy).run(None, sample)
    for want, got in zip(wants, gots, strict=True):
        np.testing.assert_array_equal(got, want)
