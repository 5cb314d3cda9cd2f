"""A board's log: profile lines are found, matched with the nodes that ran, and calibrate the costs.

The board is invented: its cycles are the formulas times factors that the test chooses, so the
calibration is known.
"""

import random

import pytest

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.luna.board_log import ProfileLine, parse_profile_lines
from lingeronnx.luna.timing import calibration_fit
from lingeronnx.luna.timing.calibration_fit import MeasuredNode, fit_calibration
from lingeronnx.luna.timing.kernels import CallCost
from lingeronnx.targets import get_target
from lingeronnx.targets.timing_calibration import TimingCalibration
from tests import nets

PLANTED = {
    "convolution": {"start": 1.3, "rest": 0.8},
    "depthwise": {"start": 0.7, "rest": 2.0},
    "product": {"start": 2.5, "rest": 1.1},
    "vector": {"start": 1.9, "rest": 0.5},
    "transpose": {"start": 1.2, "rest": 1.6},
    "copy": {"start": 1.1, "rest": 1.4},
}


def make_board_target(platform, node=800.0):
    """Return a chip whose costs are the formulas times the known factors."""
    calibration = TimingCalibration(
        lingeronnx_timing=1,
        platform=platform,
        base="arcs",
        node=node,
        factors=PLANTED,
        spread=0.0,
        nodes=0,
        runs=0,
        median_error=0.0,
    )
    return get_target(platform).with_timing_calibration(calibration)


def board(graph, platform, noise=0.0, seed=0):
    """Return the lines that such a board prints: it names some nodes otherwise, and says other
    things between.
    """
    rng = random.Random(seed)
    chip = make_board_target(platform)
    judged = chip.evaluate_packing(part(graph, chip)).verdict
    lines = ["boot: 12 | ready"]
    for step, layer in zip(judged.graph.steps, judged.latency.layers, strict=True):
        shapes = [
            ",".join(map(str, judged.graph.tensors[names[0]].shape))
            for names in (step.inputs, step.outputs)
        ]
        name = {"AvgPool2dInt": "MeanPool2dInt", "Reshape": "reshape"}.get(step.op, step.op)
        cycles = round((layer.cycles + layer.moved) * (1 + rng.uniform(-noise, noise)))
        lines += [f"[I] {name} | {cycles} | ({shapes[0]}) | ({shapes[1]})", "heap ok (1,2) | 3"]
    return lines


def part(graph, chip):
    """Return the part of a graph for the chip, as its file names it."""
    from lingeronnx.runtime.program_parts import split_into_parts

    (alone,) = split_into_parts(chip.with_safe_names(graph), chip).chip
    return alone.graph


@pytest.fixture(scope="module", params=["arcs", "venus"])
def board_run(request):
    """A quantized net, its platform, and the log of two runs of it."""
    graph = nets.quantized(nets.residual(), platform=request.param, effort="fast").graph
    return graph, request.param, board(graph, request.param) + board(graph, request.param)


@pytest.fixture
def few_folds(monkeypatch):
    """Leave out nodes in 2 turns instead of 10, which takes most of the time and tells the spread
    alone.
    """
    monkeypatch.setattr(calibration_fit, "_FOLDS", 2)


def test_lines_are_found_among_others():
    """Prefixes, more columns, text that only looks like one."""
    text = (
        "hello\n[12:01] Conv2dInt | 5230 | (1,3,32,32) | (1,16,32,32)| (16,3,3,3) | (3,3) | "
        "(1,1,1,1) | (1,1)\n"
        "a | b | (c) | (d)\nprelu|7|(1, 4)|(1, 4)\nConv2dInt | 5230 | (1,3"
    )
    assert list(parse_profile_lines(text)) == [
        ProfileLine(2, "Conv2dInt", 5230, 3072, 16384),
        ProfileLine(4, "prelu", 7, 4, 4),
    ]


def test_what_was_planted_is_foretold_after_the_fit(board_run, tmp_path, few_folds):
    """Without noise each layer's cycles come back within half a percent, from the file that is
    written.
    """
    graph, platform, lines = board_run
    (tmp_path / "board.log").write_text("\n".join(lines))
    profile = lo.profile_board(tmp_path / "board.log", graph, tmp_path / "timing.json", clock=250)
    assert (profile.runs, profile.unmatched_layers) == (2, [])
    assert profile.calibration.median_error < 0.005
    assert profile.median_relative_error > 0.1
    assert profile.calibration.clock_mhz == 250
    time = lo.check(graph, timing=tmp_path / "timing.json", platform=platform).time
    assert time.clock_mhz == 250
    measured = {layer.name: layer.measured for layer in profile.layers}
    for layer in time.latency.layers:
        if layer.priced:
            assert layer.cycles + layer.moved == pytest.approx(
                measured[layer.node], rel=0.01, abs=20
            )


def test_noise_is_told_as_the_range(tmp_path):
    """A board that is 5 % off at random: the fit comes nearer to nodes that it has seen, and the
    range says so.
    """
    graph = nets.quantized(nets.residual(), platform="venus", effort="fast").graph
    (tmp_path / "board.log").write_text("\n".join(board(graph, "venus", noise=0.05)))
    row = lo.profile_board(tmp_path / "board.log", graph).calibration
    assert row.median_error < row.spread
    assert 0.02 < row.spread < 0.15


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: [], "no profile line"),
        (lambda lines: ["\x00\xff" * 1000], "no profile line"),
        (lambda lines: [*lines, "Conv2dInt | 5 | (1,7) | (1,7)"], "matches no layer of the model"),
        (lambda lines: lines[:4], "at least half are required"),
        (lambda lines: [line.replace("Conv2dInt", "FooInt") for line in lines], "FooInt with"),
        (lambda lines: ["Conv2dInt | 99999999999999999999 | (1) | (1)"], "no profile line"),
        (
            lambda lines: [f"Conv2dInt | 5 | ({'9' * 90}) | ({'9' * 90})"],
            "matches no layer of the model",
        ),
        (lambda lines: [" ".join(lines) * 50], "at least half are required"),
    ],
)
def test_a_log_of_something_else_is_one_line(board_run, tmp_path, spoil, message):
    """Nothing is written."""
    graph, platform, lines = board_run
    (tmp_path / "board.log").write_text("\n".join(spoil(lines)), errors="replace")
    with pytest.raises(ConfigError, match=message) as caught:
        lo.profile_board(tmp_path / "board.log", graph, tmp_path / "timing.json", platform=platform)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "timing.json").exists()


def test_a_run_that_was_cut_off_counts_as_far_as_it_goes(board_run, tmp_path, few_folds):
    """The second run lacks its end; a layer's cycles are the median of those in the log."""
    graph, platform, lines = board_run
    (tmp_path / "board.log").write_text("\n".join(lines[: -len(lines) // 4]))
    profile = lo.profile_board(tmp_path / "board.log", graph, platform=platform)
    assert (profile.runs, profile.unmatched_layers) == (2, [])


def test_least_squares_give_what_was_planted_and_never_less_than_nothing():
    """Two families, three unknowns: exact where the nodes decide; a start that would be below 0 is
    0.
    """
    rng = random.Random(3)
    works = [
        {
            "a": CallCost(100.0 * rng.randint(1, 9), float(rng.randint(10, 9000))),
            "b": CallCost(50.0 * rng.randint(1, 9), float(rng.randint(10, 9000))),
        }
        for _ in range(40)
    ]
    nodes = [
        MeasuredNode(
            70
            + 2 * w["a"].start_cycles
            + 3 * w["a"].element_cycles
            + 4 * w["b"].start_cycles
            + 0.5 * w["b"].element_cycles,
            w,
        )
        for w in works
    ]
    row = fit_calibration(nodes, "venus", "arcs", 1, None)
    assert row.factors["a"].start == pytest.approx(2, rel=0.05)
    assert row.factors["a"].rest == pytest.approx(3, rel=0.01)
    assert row.factors["b"].rest == pytest.approx(0.5, rel=0.01)
    assert row.median_error < 1e-3
    less = fit_calibration(
        [
            MeasuredNode(max(w["a"].element_cycles - w["a"].start_cycles, 1.0), {"a": w["a"]})
            for w in works
        ],
        "venus",
        "arcs",
        1,
        None,
    )
    assert less.factors["a"].start == 0
    assert less.node == 0


def test_one_node_gives_one_factor_for_all():
    """Factors that a single node cannot separate are equal."""
    row = fit_calibration(
        [MeasuredNode(3000.0, {"a": CallCost(100.0, 900.0)})], "venus", "arcs", 1, None
    )
    assert row.factors["a"].start == pytest.approx(3, rel=0.02)
    assert row.factors["a"].rest == pytest.approx(3, rel=0.02)
