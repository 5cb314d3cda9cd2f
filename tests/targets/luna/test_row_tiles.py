"""Cascades in tiles of rows: equal integers, chip-ready; layers that cannot fit are named."""

import dataclasses
import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.luna.arguments.candidates import iterate_candidates
from lingeronnx.luna.arguments.psram_first import move_back_to_shared
from lingeronnx.luna.arguments.selection import (
    make_base_options,
    select_fastest_arguments,
)
from lingeronnx.luna.backend_passes.tiling.cascades import find_cascades
from lingeronnx.luna.backend_passes.tiling.emit import emit_tiles
from lingeronnx.luna.evaluation import evaluate_plan, prepare_graph
from lingeronnx.luna.packer.limits.limit_tables import TILING_LIMITS
from lingeronnx.luna.packer.memory.lower_bounds import (
    compute_min_constant_bytes,
    compute_min_correct_bytes,
    compute_min_shared_bytes,
)
from lingeronnx.runtime.session import Session
from tests import nets
from tests.packability import evaluate_result
from tests.packer import judge

ROWS = {"venus": VENUS, "arcs": ARCS, "venusA": VENUSA}
HALF = {"kernel_shape": [2, 2], "strides": [2, 2]}
LAST_STAGE = importlib.import_module("lingeronnx.luna.backend_passes.pipeline")
READ = importlib.import_module("lingeronnx.luna.backend_passes.packer_view")


def build_three_convs(size, channels=16):
    """Three 3x3 convolutions on maps of one size."""
    net = nets.Net(channels, size, size, seed=1, batch=1)
    a = net.node("Relu", net.conv("x", (channels, channels, 3, 3), pads=[1] * 4))
    b = net.node("Relu", net.conv(a, (channels, channels, 3, 3), pads=[1] * 4))
    return net.graph(net.conv(b, (channels, channels, 3, 3), pads=[1] * 4, out="y"))


def append_classifier(net, x):
    """Append a pool and a fully connected layer, and return the graph."""
    pooled = net.node("Flatten", net.node("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]))
    return net.graph(net.linear(pooled, (8 * 4 * 4, 5), out="y"))


def build_residual():
    """A block with a shortcut, depthwise and pooled, on a map of 32x32."""
    net = nets.Net(8, 32, 32, seed=2, batch=1)
    a = net.node("Relu", net.conv("x", (8, 8, 3, 3), pads=[1] * 4))
    b = net.node("Relu", net.conv(a, (8, 1, 3, 3), group=8, pads=[1] * 4))
    c = net.node("Add", net.conv(b, (8, 8, 1, 1)), a)
    return append_classifier(
        net, net.node("MaxPool", net.node("Relu", c), kernel_shape=[2, 2], strides=[2, 2])
    )


def build_strided():
    """Strides, uneven pads, an average."""
    net = nets.Net(8, 31, 32, seed=3, batch=1)
    a = net.node("Relu", net.conv("x", (16, 8, 5, 3), pads=[2, 1, 2, 1]))
    b = net.conv(a, (8, 16, 3, 3), strides=[2, 2], pads=[1, 1, 0, 1])
    c = net.node(
        "AveragePool", b, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1
    )
    return net.graph(net.conv(c, (8, 8, 3, 3), dilations=[1, 1], pads=[1] * 4, out="y"))


def quantize_tiled_and_untiled(model, platform, monkeypatch, target=None):
    """Return the samples and the results with and without tiles."""
    feed = nets.samples(model, 2)
    with monkeypatch.context() as patch:
        if target is not None:
            patch.setattr("lingeronnx.targets.registry.PLATFORMS", (target,))
        tiled = quantize(model, feed, platform=platform, effort="fast")
        patch.setattr(LAST_STAGE, "tile_large_layers", lambda read: (read, []))
        untiled = quantize(model, feed, platform=platform, effort="fast")
    return feed, tiled, untiled


def assert_same(feed, tiled, untiled):
    """Assert that both give the same integers."""
    sample = {name: array[:1] for name, array in feed.items()}
    for have, want in zip(
        Session(tiled.graph).run(None, sample),
        Session(untiled.graph).run(None, sample),
        strict=True,
    ):
        np.testing.assert_array_equal(have, want)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ROWS)
def test_three_convolutions_on_160x160(platform, monkeypatch):
    """Chip-ready by tiles, as both judges say, and equal to the layers in one piece, which are
    not.
    """
    feed, tiled, untiled = quantize_tiled_and_untiled(build_three_convs(160), platform, monkeypatch)
    report = tiled.report
    assert report.chip_ready
    assert report.integer_macs == 1
    assert report.findings == ()
    assert report.layers == untiled.report.layers
    kinds = [node.op_type for node in tiled.graph.graph]
    assert (kinds.count("iqCat"), kinds.count("Conv2dInt") // 3) == (1, kinds.count("Slice"))
    assert [f.cost[:5] for f in report.fitted] == ["exact"]
    verdict = judge(ir.to_proto(tiled.graph), platform, report.packer_args)
    assert (verdict.problems, verdict.warnings) == ([], [])
    assert verdict.packs
    assert verdict.right
    assert_same(feed, tiled, untiled)
    assert report.cost.shared <= report.cost.shared_limit


def build_pyramid(size, channels):
    """Two levels of a pyramid: the smaller one's map is enlarged by copies side by side and
    added.
    """
    net = nets.Net(8, size, size, seed=4, batch=1)
    a = net.node("Relu", net.conv("x", (16, 8, 3, 3), pads=[1] * 4))
    a = net.node("Relu", net.conv(a, (16, 1, 3, 3), pads=[1] * 4, group=16))
    b = net.node("Relu", net.conv(net.node("MaxPool", a, **HALF), (channels, 16, 1, 1)))
    b = net.node("Relu", net.conv(b, (channels, 1, 3, 3), pads=[1] * 4, group=channels))
    c = net.node("Relu", net.conv(net.node("MaxPool", b, **HALF), (channels, channels, 1, 1)))
    d = net.node("Relu", net.conv(net.node("MaxPool", c, **HALF), (channels, channels, 1, 1)))
    twice = net.const(np.array([1, 1, 2, 2], np.float32))
    nearest = {
        "coordinate_transformation_mode": "asymmetric",
        "mode": "nearest",
        "nearest_mode": "floor",
    }
    large = net.node("Resize", d, "", twice, **nearest)
    return net.graph(net.conv(net.node("Add", c, large), (8, channels, 1, 1), out="y"))


@pytest.mark.slow
@pytest.mark.parametrize("platform", ("venus",))
def test_copies_in_place_that_are_in_the_way(platform, monkeypatch):
    """A tensor reshaped in place may hold a block that it does not use, and is moved."""
    feed, tiled, untiled = quantize_tiled_and_untiled(build_pyramid(152, 64), platform, monkeypatch)
    report = tiled.report
    assert report.chip_ready
    assert not untiled.report.chip_ready
    verdict = judge(ir.to_proto(tiled.graph), platform, report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    assert_same(feed, tiled, untiled)


def build_leaky():
    """A LeakyRelu, which a chip writes with factors per channel, between a layer and a pool whose
    windows overlap.
    """
    net = nets.Net(8, 32, 32, seed=5, batch=1)
    a = net.node("LeakyRelu", net.conv("x", (8, 8, 3, 3), pads=[1] * 4), alpha=0.1)
    return append_classifier(
        net, net.node("MaxPool", a, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    )


@pytest.mark.parametrize("platform", ROWS)
@pytest.mark.parametrize("net", (build_residual, build_strided, build_leaky))
def test_runs_of_other_layers(net, platform, monkeypatch):
    """On a chip with less memory, tiled graphs are ready and have equal integers."""
    target = dataclasses.replace(ROWS[platform], shared_memory=14000)
    feed, tiled, untiled = quantize_tiled_and_untiled(net(), platform, monkeypatch, target)
    assert tiled.report.chip_ready
    assert any("tiles of" in f.what for f in tiled.report.fitted)
    assert_same(feed, tiled, untiled)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(10))
def test_any_run_in_any_number_of_tiles(seed):
    """Law: whatever kernels, strides, pads and dilations, the tiles together are the whole."""
    rng = np.random.default_rng(seed)
    net = nets.Net(4, int(rng.integers(20, 30)), 12, seed=seed, batch=1)
    x = "x"
    for _ in range(int(rng.integers(2, 5))):
        k = int(rng.integers(1, 5))
        if rng.random() < 0.25:
            x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[1, 1])
            continue
        pads = [int(p) for p in rng.integers(0, k, 4)]
        group = int(rng.choice([1, 4]))
        y = net.conv(
            x,
            (4, 4 // group, k, 1),
            pads=[pads[0], 0, pads[2], 0],
            group=group,
            strides=[int(rng.choice([s for s in (1, 2) if s <= k])), 1],
        )
        x = net.node("Relu", net.node("Add", y, y) if rng.random() < 0.3 else y)
    model = net.graph(net.conv(x, (4, 4, 1, 1), out="y"))
    feed = nets.samples(model)
    untiled = quantize(model, feed, platform="venusA", effort="fast", fit=False)
    sample = {name: array[:1] for name, array in feed.items()}
    want = Session(untiled.graph).run(None, sample)
    nodes = list(untiled.graph.graph)
    layers = [i for i, node in enumerate(nodes) if node.op_type == "Conv2dInt"]
    tiled_cascades = 0
    for run in find_cascades(nodes, layers[0], nodes[layers[0]]):
        height = ir.get_shape(run.result)[2]
        cuts = sorted({0, height, *map(int, rng.integers(1, height, 3))})
        copy = untiled.graph.clone()
        twins = dict(zip(untiled.graph.graph, copy.graph, strict=True))
        twin = dataclasses.replace(run, nodes=tuple(twins[node] for node in run.nodes))
        tiles = [twin.tile(rows) for rows in zip(cuts, cuts[1:], strict=False)]
        if None in tiles:
            continue
        emit_tiles(copy, twin, tiles)
        np.testing.assert_array_equal(Session(copy).run(None, sample)[0], want[0])
        tiled_cascades += 1
    assert tiled_cascades


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(6))
def test_runs_with_factors_per_channel_and_windows_that_overlap(seed):
    """Law: LeakyRelu as chips write it and pools with pads, in any number of tiles, are the
    whole.
    """
    rng = np.random.default_rng(seed)
    net = nets.Net(4, int(rng.integers(20, 30)), 12, seed=seed, batch=1)
    x = net.conv("x", (4, 4, 3, 1), pads=[1, 0, 1, 0], strides=[int(rng.choice([1, 2])), 1])
    for _ in range(2):
        x = net.node("LeakyRelu", x, alpha=float(rng.uniform(0.05, 0.4)))
        kernel, above, below = int(rng.integers(2, 5)), *map(int, rng.integers(0, 2, 2))
        strides = [int(rng.integers(1, kernel + 1)), 1]
        x = net.node(
            "MaxPool", x, kernel_shape=[kernel, 1], strides=strides, pads=[above, 0, below, 0]
        )
    model = net.graph(net.conv(x, (4, 4, 1, 1), out="y"))
    feed = nets.samples(model)
    untiled = quantize(model, feed, platform="venusA", effort="fast", fit=False).graph
    sample = {name: array[:1] for name, array in feed.items()}
    want = Session(untiled).run(None, sample)[0]
    nodes = list(untiled.graph)
    first = next(i for i, node in enumerate(nodes) if node.op_type == "Conv2dInt")
    runs = find_cascades(nodes, first, nodes[first])
    assert {"BatchNorm2dInt", "MaxPool"} <= {node.op_type for node in runs[-1].nodes}
    for run in runs:
        height = ir.get_shape(run.result)[2]
        cuts = sorted({0, height, *map(int, rng.integers(0, height, 2))})
        copy = untiled.clone()
        twins = dict(zip(untiled.graph, copy.graph, strict=True))
        twin = dataclasses.replace(run, nodes=tuple(twins[node] for node in run.nodes))
        tiles = [twin.tile(rows) for rows in zip(cuts, cuts[1:], strict=False)]
        if None not in tiles:
            emit_tiles(copy, twin, tiles)
            np.testing.assert_array_equal(Session(copy).run(None, sample)[0], want)


def build_shuffled(blocks=3, side=32):
    """Blocks on maps of one size, of which each is too large, between shuffles of channels, which
    are not cut.
    """
    net, x = nets.Net(8, side, side, seed=6, batch=1), "x"
    for _ in range(blocks):
        x = net.node("LeakyRelu", net.conv(x, (8, 8, 3, 3), pads=[1] * 4), alpha=0.1)
        x = net.node("LeakyRelu", net.conv(x, (8, 1, 3, 3), group=8, pads=[1] * 4), alpha=0.1)
        x = net.node("Reshape", x, net.const(np.array([1, 2, 4, side, side])))
        x = net.node("Transpose", x, perm=[0, 2, 1, 3, 4])
        x = net.node("Reshape", x, net.const(np.array([1, 8, side, side])))
    pooled = net.node("MaxPool", x, kernel_shape=[side // 4] * 2, strides=[side // 4] * 2)
    return net.graph(net.linear(net.node("Flatten", pooled), (8 * 4 * 4, 5), out="y"))


@pytest.mark.slow
@pytest.mark.parametrize("platform", ("arcs", "venusA"))
def test_a_net_most_layers_of_which_are_too_large(platform, monkeypatch):
    """One cut after the other is not found by arguments that begin with few tensors outside; in
    rounds they are.
    """
    target = dataclasses.replace(ROWS[platform], shared_memory=22500)
    feed, tiled, untiled = quantize_tiled_and_untiled(
        build_shuffled(), platform, monkeypatch, target
    )
    assert tiled.report.chip_ready
    assert sum("tiles of" in f.what for f in tiled.report.fitted) > 2
    assert tiled.report.cost.shared <= 22500
    verdict = judge(ir.to_proto(tiled.graph), platform, tiled.report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    assert_same(feed, tiled, untiled)
    assert not untiled.report.chip_ready


@pytest.fixture
def only_rounds(monkeypatch):
    """Skip the search that precedes the rounds, which takes most of the time and finds nothing for
    these nets.
    """
    choice = importlib.import_module("lingeronnx.luna.backend_passes.tiling.search")
    monkeypatch.setattr(choice, "_find_schedule", lambda read, large: None)


def quantize_small_shuffled(row):
    """Quantize two small shuffled blocks for a chip with 5800 bytes of shared memory; return the
    samples, too.
    """
    model = build_shuffled(2, 16)
    feed = nets.samples(model, 2)
    target = dataclasses.replace(row, shared_memory=5800)
    return feed, quantize(model, feed, platform=target, effort="fast", objective="plain")


@pytest.mark.parametrize(("platform", "tiled_runs"), (("arcs", 2), ("venusA", 2)))
def test_rounds_make_a_small_net_ready(platform, tiled_runs, monkeypatch, only_rounds):
    """Several runs are cut in rounds: chip-ready by both judges within the memory, and equal to the
    whole.
    """
    feed, tiled = quantize_small_shuffled(ROWS[platform])
    assert tiled.report.chip_ready
    assert sum("tiles of" in f.what for f in tiled.report.fitted) == tiled_runs
    assert tiled.report.cost.shared <= 5800
    verdict = judge(ir.to_proto(tiled.graph), platform, tiled.report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    monkeypatch.setattr(LAST_STAGE, "tile_large_layers", lambda read: (read, []))
    _, untiled = quantize_small_shuffled(ROWS[platform])
    assert_same(feed, tiled, untiled)
    assert not untiled.report.chip_ready


def test_what_is_never_cut_does_not_use_up_the_tries(monkeypatch, only_rounds):
    """Whole maps live at the shuffles too, which no run of layers holds: not one try is spent on
    them.
    """
    rounds = importlib.import_module("lingeronnx.luna.backend_passes.tiling.iterative_search")
    tried, best = [], rounds._find_schedule

    def record_layer(now, layer):
        tried.append(layer.op_type)
        return best(now, layer)

    monkeypatch.setattr(rounds, "_find_schedule", record_layer)
    monkeypatch.setattr(rounds, "_MAX_FAILED_LAYERS", 1)
    _, tiled = quantize_small_shuffled(ARCS)
    assert tiled.report.chip_ready
    assert "Transpose" in {node.op_type for node in tiled.graph.graph}
    assert tried
    assert "Transpose" not in tried


@pytest.mark.parametrize("near", [True, False])
def test_rounds_with_less_of_the_memory(near, monkeypatch):
    """Where tiles for most of the shared memory nearly do, all is cut again for less of it."""
    rounds = importlib.import_module("lingeronnx.luna.backend_passes.tiling.iterative_search")
    asked = []

    def cut_down(now):
        asked.append(now.memory_fraction)
        verdict = SimpleNamespace(is_chip_ready=len(asked) == 2)
        return SimpleNamespace(view=now.view, verdict=verdict, is_near_fit=near), []

    monkeypatch.setattr(rounds, "_tile_until_fit", cut_down)
    read = READ.PackerGraphView(
        quantize(
            build_three_convs(8),
            nets.samples(build_three_convs(8), 2),
            platform="arcs",
            effort="fast",
        ).graph,
        ARCS,
    )
    assert rounds.search_iteratively(read) == ((read, [], []) if near else None)
    assert asked == sorted(asked, reverse=True)
    assert len(asked) == 1 + near


def build_large_maps():
    """Three layers that fit and are wrong with their maps in PSRAM, before rows of outputs that may
    not fit.
    """
    net, x = nets.Net(3, 96, 96, seed=5, batch=1), "x"
    for channels in (3, 8, 8):
        x = net.node("Relu", net.conv(x, (8, channels, 3, 3), pads=[1] * 4))
    x = net.node(
        "Reshape",
        net.conv(x, (120, 8, 12, 12), strides=[12, 12]),
        net.const(np.array([1, 120, 64])),
    )
    weight = 0.1 * net.rng.standard_normal((120, 12000)).astype(np.float32)
    net.node("MatMul", net.node("Transpose", x, perm=[0, 2, 1]), net.const(weight), out="y")
    return net.graph("y")


def test_what_has_no_room_is_told_alone():
    """A layer without room does not make others wrong that have it: they are not said to lie in the
    wrong place.
    """
    result = quantize(
        build_large_maps(), nets.samples(build_large_maps(), 2), platform="venus", effort="fast"
    )
    assert result.report.chip_ready
    verdict = select_fastest_arguments(
        result.graph, dataclasses.replace(VENUS, shared_memory=300000)
    ).verdict
    assert {finding.node for finding in verdict.findings} == {"shared memory"}


def test_what_was_ready_before_is_not_searched_in_rounds(monkeypatch):
    """Neither rounds nor their arguments are asked for where the first search has something
    ready.
    """
    searches = [
        ("backend_passes.tiling.search", "search_iteratively"),
        ("arguments.selection", "place_large_tensors_in_psram"),
    ]
    for module, name in searches:
        monkeypatch.setattr(importlib.import_module(f"lingeronnx.luna.{module}"), name, None)
    for build, row in ((build_residual, ARCS), (build_strided, VENUSA)):
        target = dataclasses.replace(row, shared_memory=14000)
        assert quantize(
            build(), nets.samples(build(), 2), platform=target, effort="fast"
        ).report.chip_ready


def test_the_search_in_rounds_has_an_end(monkeypatch, only_rounds):
    """However much there is to try: no graph is judged once so many nodes were."""
    rounds = importlib.import_module("lingeronnx.luna.backend_passes.tiling.iterative_search")
    sizes = []

    def record_size(ready, *args, **kinds):
        sizes.append(len(ready.net.steps))
        return move_back_to_shared(ready, *args, **kinds)

    monkeypatch.setattr(rounds, "move_back_to_shared", record_size)
    monkeypatch.setattr(rounds, "SEARCH_BUDGET_NODES", 100)
    _, result = quantize_small_shuffled(ARCS)
    assert not result.report.chip_ready
    assert sizes
    assert sum(sizes) - sizes[-1] <= 100


def build_uneven():
    """A large first map, and behind it two depthwise layers that need as much as the tiles of the
    first leave.
    """
    net = nets.Net(3, 128, 128, seed=4, batch=1)
    a = net.node("Relu", net.conv("x", (16, 3, 3, 3), pads=[1] * 4))
    b = net.node("Relu", net.conv(a, (16, 16, 3, 3), pads=[1] * 4, strides=[2, 2]))
    c = net.node("Relu", net.conv(b, (32, 16, 1, 1)))
    for _ in range(2):
        c = net.node("Relu", net.conv(c, (32, 1, 3, 3), group=32, pads=[1] * 4))
    return net.graph(net.conv(c, (8, 32, 3, 3), pads=[1] * 4, strides=[2, 2], out="y"))


@pytest.mark.slow
def test_what_the_tiles_leave_crowded_is_cut_too():
    """The fullest node may be a tile, or need no tiles itself: the next layer that is whole is
    looked at then.
    """
    small = dataclasses.replace(VENUS, shared_memory=400000)
    result = quantize(
        build_uneven(), {"x": nets.samples(build_uneven(), 2)["x"]}, platform=small, effort="fast"
    )
    tiled_nodes = [rewrite.node for rewrite in result.report.fitted if "tiles of" in rewrite.what]
    assert result.report.chip_ready, result.report.findings
    assert len(tiled_nodes) > 1


def test_a_graph_that_fits_is_left_alone():
    assert not any(
        "tiles of" in f.what
        for f in nets.quantized(nets.residual(), platform="arcs", effort="fast").report.fitted
    )


def test_where_no_cut_helps_the_layers_and_bytes_are_named():
    """Three rows of 8x16 and the one that is computed from them are 512 bytes."""
    target = dataclasses.replace(VENUS, shared_memory=400)
    model = build_three_convs(8)
    report = quantize(model, nets.samples(model, 2), platform=target, effort="fast").report
    assert not report.chip_ready
    findings = [f for f in report.findings if f.node == "shared memory"]
    assert [f.rule for f in findings] == ["the memory plan must fit in 400 bytes"]
    assert "bytes" in findings[0].value


def test_the_limit_of_large_maps():
    """Venus convolves no maps of more than 507904 bytes, in and out, above 65536 in."""
    (limit,) = TILING_LIMITS
    for side, value in ((176, None), (180, "524160 bytes")):
        net = nets.Net(8, side, side, batch=1)
        graph = net.graph(net.conv("x", (8, 8, 1, 1), out="y"))
        graph.graph.outputs[0].shape = ir.Shape([1, 8, side, side])
        assert limit(next(iter(graph.graph)), VENUS) == value
        assert limit(next(iter(graph.graph)), ARCS) is None


@pytest.mark.parametrize(("height", "value"), ((128, None), (129, "an input of 264192 bytes")))
def test_the_limit_of_large_inputs(height, value):
    """However small the result: venus reads no more than the largest map that was right, 262144
    bytes.
    """
    (limit,) = TILING_LIMITS
    net = nets.Net(8, height, 256, batch=1)
    graph = net.graph(net.conv("x", (1, 8, 4, 4), strides=[4, 4], out="y"))
    graph.graph.outputs[0].shape = ir.Shape([1, 1, height // 4, 64])
    assert limit(next(iter(graph.graph)), VENUS) == value
    assert limit(next(iter(graph.graph)), ARCS) is None


def test_a_large_input_of_a_small_result_is_cut():
    """Input and result fit together, but no map as large was measured: two tiles of rows, by both
    judges right.
    """
    net = nets.Net(8, 146, 288, batch=1)
    model = net.graph(net.conv("x", (4, 8, 4, 4), strides=[4, 4], out="y"))
    result = quantize(model, nets.samples(model, 2), platform="venus", effort="fast")
    assert [node.op_type for node in result.graph.graph].count("Conv2dInt") == 2
    assert result.report.chip_ready
    assert evaluate_result(result, "venus").problems == []


def build_wide_sigmoid():
    """A SiLU whose Sigmoid needs a work area that alone exceeds the shared memory of venus."""
    net = nets.Net(8, 160, 160, seed=4, batch=1)
    a = net.conv("x", (16, 8, 3, 3), pads=[1] * 4)
    return net.graph(
        net.conv(net.node("Mul", a, net.node("Sigmoid", a)), (8, 16, 3, 3), strides=[4, 4], out="y")
    )


def test_what_no_place_helps_is_known_before_any_trial(monkeypatch):
    """Nothing is tried where a node that is never cut has no room, and the verdict is the same with
    all trials.
    """
    trials = []
    monkeypatch.setattr(READ, "select_safest_for", lambda *args: trials.append(args))
    result = quantize(
        build_wide_sigmoid(), nets.samples(build_wide_sigmoid(), 2), platform="venus", effort="fast"
    )
    assert not trials
    assert not result.report.chip_ready
    assert "shared memory" in {
        finding.node for finding in select_fastest_arguments(result.graph, VENUS).verdict.findings
    }


@pytest.mark.parametrize(("external_bytes", "is_tried"), [(4096, False), (16384, True)])
def test_schedules_are_tried_only_if_a_memory_holds_the_weights(
    external_bytes, is_tried, monkeypatch
):
    """Weights of 6912 bytes that fit in no memory do not fit in tiles either."""
    search = importlib.import_module("lingeronnx.luna.backend_passes.tiling.search")
    starts = []

    def record_start(view, start, *rest):
        starts.append(start)

    monkeypatch.setattr(search, "_find_schedule_from", record_start)
    target = dataclasses.replace(VENUS, shared_memory=4096, external_memory=external_bytes)
    model = build_three_convs(32)
    quantize(model, nets.samples(model, 2), platform=target, effort="fast")
    assert bool(starts) == is_tried


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("build", "platform"),
    [
        (build_wide_sigmoid, "venus"),
        *itertools.product((build_residual, build_strided), ROWS),
    ],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_no_plan_needs_less_than_the_bound(build, platform):
    """Law: under any candidate's arguments the plan needs at least the lower bound."""
    row, model = ROWS[platform], build()
    proto = ir.to_proto(
        quantize(model, nets.samples(model, 2), platform=platform, effort="fast").graph
    )
    base = make_base_options(proto, row)
    ready = prepare_graph(proto, row, base)
    assert ready.net is not None
    bound = max(compute_min_shared_bytes(ready.net, row).values())
    assert bound > 0
    bound_of_correct = compute_min_correct_bytes(ready.facts)
    for candidate in iterate_candidates(ready, row):
        verdict = evaluate_plan(ready, row, candidate.to_options(base))
        assert verdict.memory_plan.required_bytes >= bound
        if verdict.is_correct:
            assert verdict.memory_plan.required_bytes >= bound_of_correct
    assert 0 < compute_min_constant_bytes(ready.facts) <= sum(ready.facts.stored_bytes.values())


def build_inverted_blocks():
    """Two blocks of MobileNet: 144 channels between 24, on a map of 56x56."""
    net = nets.Net(24, 56, 56, seed=1, batch=1)
    x = "x"
    for _ in range(2):
        x = net.node("Relu", net.conv(x, (144, 24, 1, 1)))
        x = net.node("Relu", net.conv(x, (144, 1, 3, 3), group=144, pads=[1] * 4))
        x = net.conv(x, (24, 144, 1, 1))
    x = net.node("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4])
    return net.graph(net.conv(x, (8, 24, 1, 1), out="y"))


@pytest.mark.parametrize("build", [lambda: build_pyramid(152, 64), build_inverted_blocks])
def test_what_is_known_not_to_fit_is_not_tried(build, monkeypatch):
    """With the bounds fewer graphs are evaluated under all arguments, and the tiles are equal."""
    model = build()
    monkeypatch.setattr(LAST_STAGE, "tile_large_layers", lambda view: (view, []))
    graph = quantize(model, nets.samples(model, 2), platform="venus", effort="fast").graph
    monkeypatch.undo()
    trials = []
    select = READ.select_safest_for
    monkeypatch.setattr(
        READ, "select_safest_for", lambda *args: trials.append(args) or select(*args)
    )
    view, rewrites = LAST_STAGE.tile_large_layers(READ.PackerGraphView(graph, VENUS))
    trial_count = len(trials)
    trials.clear()
    monkeypatch.setattr(READ.PackerGraphView, "may_be_ready", True)
    monkeypatch.setattr(READ.PackerGraphView, "may_be_ready_without", lambda view, nodes: True)
    expected_view, expected = LAST_STAGE.tile_large_layers(READ.PackerGraphView(graph, VENUS))
    assert trial_count < len(trials)
    assert rewrites == expected
    assert ir.to_proto(view.graph) == ir.to_proto(expected_view.graph)


@pytest.mark.parametrize(
    ("ready", "expected", "tried"),
    [
        ({5}, 5, [5]),
        ({3}, 3, [5, 4, 3]),
        ({2, 3}, 3, [5, 4, 3]),
        (set(), 4, [5, 4, 3, 2, 1]),
        ({0}, 4, [5, 4, 3, 2, 1]),
    ],
)
def test_the_search_begins_further_back_until_something_is_ready(
    ready, expected, tried, monkeypatch
):
    """The search returns the first ready cascade that begins at node 5 or up to four before it.

    Otherwise it returns the first valid one. At node 5 itself only ready ones are valid here, and
    cascades that begin earlier are evaluated once under all arguments.
    """
    choice = importlib.import_module("lingeronnx.luna.backend_passes.tiling.search")
    asked = []

    def begun(read, start, large, max_evaluations):
        asked.append((start, max_evaluations))
        if start == 5 and start not in ready:
            return None
        return SimpleNamespace(view=read, is_ready=start in ready, schedule=start)

    monkeypatch.setattr(choice, "_find_schedule_from", begun)
    cascade = SimpleNamespace(nodes=())
    monkeypatch.setattr(choice, "find_cascades", lambda nodes, start, node: [cascade])
    read = SimpleNamespace(
        graph=SimpleNamespace(graph=list("abcdefg")), may_be_ready_without=lambda nodes: True
    )
    assert choice._find_schedule(read, "f").schedule == expected
    assert asked == [(start, 2 if start == 5 else 1) for start in tried]
    asked.clear()
    read.may_be_ready_without = lambda nodes: False
    assert choice._find_schedule(read, "f").schedule == (5 if 5 in ready else 4)
    assert asked == [(5, 1)] if 5 in ready else [(5, 1), (4, 1)]


def build_narrow():
    """Few channels, then many: the widest layer's input does not fit and is tiled as well."""
    net = nets.Net(4, 32, 32, seed=2, batch=1)
    x = net.node("Relu", net.conv("x", (4, 4, 3, 3), pads=[1] * 4))
    x = net.node("Relu", net.conv(x, (8, 4, 1, 1)))
    x = net.node("Relu", net.conv(x, (8, 8, 3, 3), pads=[1] * 4))
    x = net.node("Relu", net.conv(x, (16, 8, 1, 1)))
    return net.graph(
        net.conv(
            net.node("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]), (8, 16, 1, 1), out="y"
        )
    )


def test_a_net_that_is_ready_only_where_the_run_begins_further_back(monkeypatch):
    """Tiles from the layer that is too large on do not suffice; from the one before it on they
    do.
    """
    choice = importlib.import_module("lingeronnx.luna.backend_passes.tiling.search")
    target, best_from, evaluated = (
        dataclasses.replace(ARCS, shared_memory=13000),
        choice._find_schedule_from,
        [],
    )

    def record_evaluation(read, start, large, max_evaluations):
        result = best_from(read, start, large, max_evaluations)
        back = list(read.graph.graph).index(large) - start
        evaluated.append((back, result is not None and result.is_ready))
        return result

    monkeypatch.setattr(choice, "_find_schedule_from", record_evaluation)
    feed, tiled, untiled = quantize_tiled_and_untiled(build_narrow(), "arcs", monkeypatch, target)
    assert evaluated == [(0, False), (1, True)]
    assert tiled.report.chip_ready
    assert judge(ir.to_proto(tiled.graph), "arcs", tiled.report.packer_args).right
    assert_same(feed, tiled, untiled)
    monkeypatch.setattr(choice, "_MAX_LOOKBACK_NODES", 0)
    monkeypatch.setattr(choice, "search_iteratively", lambda read: None)
    assert not quantize_tiled_and_untiled(build_narrow(), "arcs", monkeypatch, target)[
        1
    ].report.chip_ready


def test_a_run_that_begins_further_back_holds_the_layer_and_gives_the_same():
    """The runs around one layer that begin with an earlier one: each holds both, and in tiles is
    the whole.
    """
    model = build_three_convs(20, 8)
    feed = nets.samples(model)
    untiled = quantize(model, feed, platform="arcs", effort="fast")
    sample = {"x": feed["x"][:1]}
    want = Session(untiled.graph).run(None, sample)[0]
    nodes = list(untiled.graph.graph)
    first, *_, last = [i for i, node in enumerate(nodes) if node.op_type == "Conv2dInt"]
    runs = find_cascades(nodes, first, nodes[last])
    assert runs
    for run in runs:
        assert (run.nodes[0], nodes[last] in run.nodes) == (nodes[first], True)
        copy = untiled.graph.clone()
        twins = dict(zip(untiled.graph.graph, copy.graph, strict=True))
        twin = dataclasses.replace(run, nodes=tuple(twins[node] for node in run.nodes))
        emit_tiles(copy, twin, [twin.tile(rows) for rows in ((0, 7), (7, 20))])
        np.testing.assert_array_equal(Session(copy).run(None, sample)[0], want)
