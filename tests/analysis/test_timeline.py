"""`lo.trace`: the lanes against the cycles they are drawn from, and the rules of the Chrome trace
format.

The rules, from its published definition: an object with a list `traceEvents`; each event has a
phase `ph`, ids `pid` and `tid`, a name; a complete event ("X") has a start `ts` and a length `dur`
of at least 0, in microseconds; in one lane two of them are apart, or one is inside the other;
metadata ("M") name a process or a thread by `args.name`; an instant ("i") has a scope `s`, here its
thread. Times are multiples of 1/1024, so all sums are exact.
"""

import json
import math

import pytest

import lingeronnx as lo
from lingeronnx.analysis.timeline import LANES
from tests import nets
from tests.cli.helpers import GAP, samples, write_model

STEP = 1 / 1024


@pytest.fixture(scope="module")
def graph():
    """An integer graph for arcs."""
    return nets.quantized(nets.plain(), platform="arcs", effort="fast").graph


def check_format(body):
    """Assert the rules; return {lane: [(start, end, name)]} in microseconds."""
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    lanes, names = {}, {}
    for event in body["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= set(event)
        assert event["ph"] in ("M", "X", "i")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[event["tid"]] = event["args"]["name"]
            continue
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        if event["ph"] == "i":
            assert event["s"] == "t"
            continue
        assert event["dur"] > 0
        lanes.setdefault(event["tid"], []).append(
            (event["ts"], event["ts"] + event["dur"], event["name"])
        )
    for slices in lanes.values():
        open_ends = []
        for start, end, _ in slices:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)
    return {names[lane]: slices for lane, slices in lanes.items()}


def test_the_lanes_are_the_cycles_of_latency(graph):
    """A layer begins where it does there, a transfer too, and the last output is taken at the
    end.
    """
    time, drawn = lo.latency(graph, packer_args=""), lo.trace(graph, packer_args="")
    lanes = check_format(drawn.to_dict())
    assert set(lanes) == set(LANES)
    layers = [
        s for s in lanes["NPU"] if s[2] != "wait for constants" and not s[2].startswith("starts of")
    ]
    want = [layer for layer in time.layers if layer.cycles]
    assert [s[2].split()[0] for s in layers] == [layer.operator for layer in want]
    for (start, end, _), layer in zip(layers, want, strict=True):
        assert start == pytest.approx(layer.start + layer.wait + layer.moved, abs=STEP)
        assert end == pytest.approx(layer.start + layer.total_cycles, abs=STEP)
    waits = sum(end - start for start, end, name in lanes["NPU"] if name == "wait for constants")
    assert waits == pytest.approx(time.waits, abs=STEP * len(time.layers))
    transfers = [layer.dma for layer in time.layers if layer.dma]
    assert [end - start for start, end, _ in lanes["DMA"]] == pytest.approx(transfers, abs=STEP)
    assert [start for start, _, _ in lanes["host"]] == pytest.approx([0, time.total], abs=STEP)
    assert max(end for _, end, _ in lanes["NPU"]) == pytest.approx(time.total, abs=STEP)


def test_a_clock_turns_cycles_into_microseconds(graph):
    """At 200 MHz 200 cycles are a microsecond."""
    plain, timed = lo.trace(graph).to_dict(), lo.trace(graph, clock=200).to_dict()
    for before, after in zip(plain["traceEvents"], timed["traceEvents"], strict=True):
        if before["ph"] == "X":
            assert after["ts"] == pytest.approx(before["ts"] / 200, abs=3 * STEP)
            assert after.get("dur", 0) == pytest.approx(before["dur"] / 200, abs=2 * STEP)
    assert "cycles" in plain["otherData"]["unit"]
    assert timed["otherData"]["unit"] == "microseconds"


def test_parts_of_a_program_follow_each_other(tmp_path):
    """Two chip parts and what the host computes between them, which has no length."""
    model = write_model(tmp_path / "gap.onnx", GAP)
    graph = lo.quantize(model, samples(), platform="arcs", effort="fast").graph
    lanes = check_format(lo.trace(graph).to_dict())
    marks = [name for _, _, name in lanes["host"]]
    assert marks == [
        "chip1: 1 inputs to integers",
        "chip1: 1 outputs from integers",
        "host1: Erf",
        "chip2: 1 inputs to integers",
        "chip2: 1 outputs from integers",
    ]
    assert max(end for _, end, _ in lanes["NPU"]) == pytest.approx(
        lo.latency(graph).total, abs=STEP
    )


def test_data_in_external_memory_are_copied_in_the_lane_of_the_npu(graph):
    """Each layer with such data has a slice of copies before it."""
    lanes = check_format(lo.trace(graph, packer_args="--threshold4 1").to_dict())
    copied = sum(
        end - start for start, end, name in lanes["NPU"] if name == "copies from and to psram"
    )
    assert copied == pytest.approx(
        lo.latency(graph, packer_args="--threshold4 1").moved, abs=STEP * 9
    )


def test_what_cannot_be_drawn_is_one_line(graph):
    """A chip without prices, a float model, a clock that is none."""
    with pytest.raises(lo.ConfigError, match="no published timing data for venus"):
        lo.trace(graph, platform="venus")
    for platform in (None, "arcs", "venus", "generic"):
        with pytest.raises(lo.ConfigError, match="no integer operator; quantize it first"):
            lo.trace(nets.plain(), platform=platform)
    with pytest.raises(lo.ConfigError, match="a number above 0"):
        lo.trace(graph, clock=-3)
