"""The benchmarks' own arithmetic: rounds and ratios, the tables, what became slower, the nets.
Nothing is timed.
"""

import json
import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from benchmarks.speed import engines, machine, simulator_speed, tiles, timing
from benchmarks.speed.nets import ROOT, iterate_nets, iterate_nets_of_file, random_feed
from benchmarks.speed.page import (
    ColdStartRow,
    Figures,
    KernelRow,
    QuantizeCostRow,
    SpeedRow,
    TileRow,
    find_regressions,
    format_page,
    format_table_row,
    merge_sections,
    speed_cells,
)
from benchmarks.speed.quantize_cost import measure_command
from benchmarks.speed.simulator_speed import Peak
from benchmarks.speed.timing import Ratio, compute_ratio, measure_interleaved
from models.random_nets import mobilenet_v2, resnet
from simulator import _llvm
from simulator.instruction_sets import INSTRUCTION_SETS

MACHINE = {
    "command": "make bench",
    "cpu": "a processor",
    "row": "avx2",
    "date": "2026-01-02",
    "versions": "numpy 2",
}


def speed(median=0.5, title="net", batch=64):
    """Return a line with a ratio to float32; u8s8 could not run."""
    ratios = {
        "float32": Ratio(median, median - 0.1, median + 0.1),
        "u8s8": "no such node",
        "s8s8": Ratio(1, 1, 1),
        "OpenVINO": Ratio(2, 1, 3),
    }
    return SpeedRow(
        title,
        "venus",
        batch,
        1,
        {"simulator": 1234.5, "float32": 20.25, "s8s8": 0.5, "OpenVINO": 600.0},
        ratios,
        0.125,
        utilization=0.504,
    )


def figures(*speeds, cost=3.0, **machine):
    """Return the figures of a run."""
    costs = [
        QuantizeCostRow("net", 64, "lingeronnx", 2, 3, 100, cost),
        QuantizeCostRow("net", 64, "MinMax", 1, 1, 50, 1.0),
    ]
    return Figures(
        {**MACHINE, **machine},
        speed=speeds,
        peaks=["1 thread: much"],
        cost=costs,
        first=[ColdStartRow("demo", "first", 9, 8, 20, 10)],
    )


def sections(*speeds, cost=3.0, **machine):
    """Return the sections of such a run, as they are read from a file."""
    return json.loads(json.dumps(figures(*speeds, cost=cost, **machine).to_sections()))


# --- rounds ---------------------------------------------------------------------------------------


def test_engines_run_in_turn():
    """Law: one unmeasured call each, then round by round, each as often as it takes to last long
    enough.
    """
    now, calls = [0.0], []

    def engine(name, seconds):
        def run():
            calls.append(name)
            now[0] += seconds

        return run

    found = measure_interleaved(
        {"a": engine("a", 1.0), "b": engine("b", 0.25)}, 2, 0.5, lambda: now[0]
    )
    assert calls == ["a", "b", "a", "b", "b", "a", "b", "b"]
    assert found == {"a": [1.0, 1.0], "b": [0.25, 0.25]}


@pytest.mark.parametrize(
    "shares, steps",
    (([0.0], 1), ([1.0, 1.0, 0.3, 0.1, 1.0], 4), ([1.0] * 50, 20)),
    ids=("asleep", "soon", "never"),
)
def test_an_engine_begins_when_other_threads_rest(monkeypatch, shares, steps):
    """Law: who computes for a fifth of a step or more is waited for, but not for ever."""
    now, slept = [0.0], []

    def sleep(seconds):
        now[0] += shares[len(slept)] * seconds
        slept.append(seconds)

    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=lambda: now[0], sleep=sleep))
    timing.wait_until_idle(step=0.5, at_most=10.0)
    assert slept == [0.5] * steps


def test_more_threads_are_measured_alone(monkeypatch):
    """Law: each of the two programs is built for its number of threads, and the gain is that of
    each round.
    """
    built, took = [], {"1": 6.0, "2": 4.0}

    def engines(graph, models, threads):
        assert not models
        built.append((graph, os.environ["LINGERONNX_THREADS"]))
        return {"simulator": lambda feed: None}

    monkeypatch.setattr(simulator_speed, "make_calls", engines)
    monkeypatch.setattr(
        simulator_speed,
        "measure_interleaved",
        lambda runs, rounds, at_least: {name: [took[name]] * rounds for name in runs},
    )
    assert simulator_speed.measure_thread_speedup("graph", {}, 2, 3, 0.1) == Ratio(1.5, 1.5, 1.5)
    assert built == [("graph", "1"), ("graph", "2")]


def test_a_ratio_is_that_of_each_round():
    """Law: a disturbed round disturbs both; the median of the quotients, not the quotient of the
    medians.
    """
    assert compute_ratio([1.0, 20.0, 3.0], [2.0, 40.0, 3.0]) == Ratio(0.5, 0.5, 1.0)


@pytest.mark.parametrize("macs, moved, seconds", ((200, 10, 2.0), (200, 50, 5.0), (0, 10, 1.0)))
def test_the_bound_is_the_longer_of_two(macs, moved, seconds):
    """Products at the peak, or bytes at the speed of memory; without a peak the bytes alone."""
    assert Peak(1, 100.0, 10.0).bound(macs, moved) == seconds
    assert Peak(1, None, 10.0).bound(macs, moved) == moved / 10


# --- tables ---------------------------------------------------------------------------------------


def test_a_line_of_the_table():
    """Every figure stands in its column, a dash where an engine could not run."""
    cells = speed_cells(speed())
    assert cells[:4] == ["net", "venus", "64", "1"]
    assert cells[4:9] == ["1234", "20.2", "-", "0.5", "600"]
    assert cells[9:11] == ["0.125", "50 %"]
    assert cells[11:] == ["0.50 (0.40-0.60)", "-", "1.00 (1.00-1.00)", "2.00 (1.00-3.00)", "-"]
    two = speed_cells(replace(speed(), threads=2, gain=Ratio(1.75, 1.5, 2.0)))
    assert two[15] == "1.75 (1.50-2.00)"
    assert format_table_row(cells[:2]) == "| net | venus |"


def test_the_page_has_well_formed_tables():
    """Law: as many cells in every line as in its head, and the machine, the bound and reasons are
    told.
    """
    rows = [f"| avx2 {format_table_row(speed_cells(speed()))}"]
    run = replace(
        figures(speed()),
        why_not={"net, u8s8": "no such node"},
        rows=rows,
        kernels=[KernelRow("net", "venus", 64, "Conv 3x3", 2, 4_000_000, 100.0, None)],
        tiles=[TileRow(1, [2e9, None], [False, False]), TileRow(2, [3e9, 4e9], [True, False])],
    )
    page = format_page(merge_sections(sections(speed(), row="neon"), run.to_sections()))
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    assert [len(table.splitlines()) for table in tables] == [3, 3, 3, 3, 4, 4, 3]
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1
    for text in (
        *MACHINE.values(),
        "1 thread: much",
        "- net, u8s8: no such node",
        "| net | 64 | MinMax | 1.0 | 1.0 |",
        "| net | venus | 64 | Conv 3x3 | 2 | 4.00 | 100 | 40.0 | - |",
        "| 1 | 2.0 | - |",
        "| 2 | **3.0** | 4.0 |",
        "### Earlier: a processor, neon",
        rows[0],
    ):
        assert text in page


def test_figures_of_another_machine_are_kept_with_their_date():
    """Law: a section replaces that of its machine; what was not measured stays."""
    old = sections(speed(0.5), row="avx512-vnni", date="2025-01-01")
    new = {"simulator": sections(speed(0.9))["simulator"]}
    merged = merge_sections(old, new)
    assert merged["simulator"] == new["simulator"]
    assert merged["earlier"] == [old["simulator"]]
    assert merged["quantize"] == old["quantize"]
    again = merge_sections(merged, {"simulator": sections(speed(0.8))["simulator"]})
    assert again["earlier"] == merged["earlier"]
    back = merge_sections(again, {"simulator": old["simulator"]})
    assert back["earlier"] == [again["simulator"]]
    assert merge_sections(None, new)["earlier"] == []
    assert "2025-01-01" in format_page(merged)


# --- what became slower ---------------------------------------------------------------------------


def test_what_became_slower_is_told():
    """Law: worse by more than a tenth is told by name with both figures; less is not, nor what only
    one run has.
    """
    before = sections(speed(0.5), speed(1.0, batch=1), cost=3.0)
    now = sections(speed(0.56), speed(1.09, batch=1), speed(9.0, "new"), cost=3.4)
    assert find_regressions(before, now) == [
        "slower than at the last commit: net, venus, batch 64, 1 thread(s): 0.56, was 0.50",
        "slower than at the last commit: net, lingeronnx, 64 samples: 3.40, was 3.00",
    ]
    assert find_regressions(before, before) == [
        "none of 3 ratios is worse than at the last commit by more than a tenth"
    ]


def test_an_earlier_run_on_this_machine_is_compared():
    before = merge_sections(sections(speed(0.5)), sections(speed(0.1), row="portable"))
    assert find_regressions(before, {"simulator": sections(speed(0.7))["simulator"]}) == [
        "slower than at the last commit: net, venus, batch 64, 1 thread(s): 0.70, was 0.50"
    ]


@pytest.mark.parametrize("what, other", (("cpu", "another"), ("row", "portable")))
def test_other_machines_are_not_compared(what, other):
    """Law: another processor or instruction set gives no verdict, and says so."""
    assert find_regressions(sections(speed(0.1)), sections(speed(9.0), **{what: other})) == [
        "not compared with the last commit: it has no figures of this machine"
    ]
    assert find_regressions(None, sections()) == [
        "nothing to compare with: the last commit has no figures"
    ]


# --- nets and machine -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, convolutions, parameters",
    ((mobilenet_v2(), 25, 176_354 - 3 * 2944), (resnet((16, 32, 64), 3), 21, 274_042 - 3 * 784)),
)
def test_random_nets_are_sound(model, convolutions, parameters):
    """They pass onnx's full check, with logits at the end and the trained nets' parameters.

    Those have four numbers of batch normalisation for each channel, here is a bias.
    """
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    sizes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output]
    assert sizes == [[0, 10]]
    assert sum(node.op_type == "Conv" for node in model.graph.node) == convolutions
    assert (
        sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer if tensor.dims)
        == parameters
    )


def test_the_models_of_this_repository_are_always_measured():
    """For a quick look they and two with random weights; what has another form on generic is
    measured there too.
    """
    titles = [net.title for net in iterate_nets(quick=True)]
    assert titles[:5] == [
        "digits_attention",
        "digits_cnn",
        "digits_gru",
        "digits_lstm",
        "shapes_detector",
    ]
    assert len(titles) == 7
    found = {
        name: [
            net.platform for net in iterate_nets_of_file(ROOT / "models" / f"digits_{name}.onnx")
        ]
        for name in ("cnn", "gru")
    }
    assert found == {"cnn": ["venus"], "gru": ["venus", "generic"]}


def test_samples_fit_the_model():
    """One sample with open sizes as 1, and a batch of equal ones."""
    (net,) = iterate_nets_of_file(ROOT / "models" / "digits_cnn.onnx")
    assert net.batches == (1, 64)
    assert {k: v.shape for k, v in net.sample(1).items()} == {"input": (1, 1, 8, 8)}
    assert net.sample(64)["input"].shape == (64, 1, 8, 8)
    assert np.array_equal(random_feed(net.model)["input"][0], net.sample(64)["input"][63])


@pytest.mark.parametrize(
    "target",
    [row for row in INSTRUCTION_SETS if row.int8_operands in row.dot_intrinsics],
    ids=lambda target: target.name,
)
def test_the_peak_is_that_of_the_instruction(target):
    """The loop holds as many dot instructions as it has chains, and no more than its counter between."""
    assembly = _llvm.emit_assembly(machine._loop(target), target.triple, target.features)
    names = {"quads": "vpdpbusd", "pairs": "vpmaddwd", "signed": "sdot"}
    dots = [
        index
        for index, line in enumerate(assembly.splitlines())
        if re.search(rf"\b{names[target.int8_operands]}\b", line)
    ]
    assert len(dots) == machine._CHAINS
    assert dots[-1] - dots[0] <= machine._CHAINS


def test_all_tiles_that_fit_are_measured():
    """Law: a throughput for every tile whose sums fit the registers, and some are chosen."""
    rows = tiles.measure_tiles(1)
    used = tiles.get_instruction_set()
    assert [row.rows for row in rows] == list(range(1, 9))
    for row in rows:
        for vectors, macs in enumerate(row.macs, 1):
            assert (macs is not None) == (row.rows * vectors <= used.registers)
    assert any(any(row.chosen) for row in rows)


@pytest.mark.parametrize("name, kernel", (("cnn", "Conv 3x3"), ("lstm", "Lstm")))
def test_products_of_kernels_are_those_of_the_model(name, kernel):
    """The steps' multiply-accumulates are all that the normalized model has."""
    (net, *_) = iterate_nets_of_file(ROOT / "models" / f"digits_{name}.onnx", ("generic",))
    graph, macs = engines.integer_graph(net)
    rows = tiles.measure_kernels(net.title, net.platform, graph, 1, 1e9, 1)
    assert kernel in {row.kernel for row in rows}
    assert sum(row.macs for row in rows) == macs


def test_openvino_runs_the_same_graph():
    pytest.importorskip("openvino")
    (net,) = iterate_nets_of_file(ROOT / "models" / "digits_cnn.onnx")
    graph, _ = engines.integer_graph(net)
    feed = net.sample(4)
    found = engines.make_openvino_call(engines.write_qdq(graph), 1, feed)()
    expected = lo.Session(graph).run(None, feed)[0]
    assert np.abs(next(iter(found.values())) - expected).max() < 0.2 * np.abs(expected).max()


def test_without_openvino_it_says_so(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.write_qdq(None).startswith("openvino is not installed")


def test_memory_is_that_of_the_measured_process():
    """Law: what this process holds does not count; another one's memory does, and its failure ends
    the run.
    """
    held = np.ones(1 << 28, np.uint8)
    small, large = ([sys.executable, "-c", f"x = b'x' * {size}"] for size in (1, 1 << 27))
    _, cpu, peak = measure_command(small)
    assert cpu > 0
    assert peak < 100 < 268 < held.nbytes / 1e6 + 1
    assert measure_command(large)[2] > 134
    with pytest.raises(SystemExit, match="failed:\n.*no such thing"):
        measure_command([sys.executable, "-c", "raise SystemExit('no such thing')"])
