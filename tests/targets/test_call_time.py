"""What users are told of time: cycles, milliseconds, the budget, and what is not known."""

from dataclasses import replace

import pytest

from lingeronnx.common.errors import ConfigError
from lingeronnx.targets import PLATFORMS, CallLatency, LatencyOptions, get_target
from lingeronnx.targets.latency import Latency, LayerLatency, UnmodeledWork, concatenate_latencies


def run(*layers, unpriced=()):
    """Return a run of layers, each (name, cycles, high, wait)."""
    made, clock = [], 0.0
    for name, cycles, high, wait in layers:
        made.append(
            LayerLatency(
                name,
                "Conv2dInt",
                cycles,
                cycles,
                high,
                start=clock,
                wait=wait,
                node=name,
                overhead=100,
                calls=2,
            )
        )
        clock += cycles + wait
    return Latency("arcs", tuple(made), tuple(unpriced))


TWO = run(("a", 1000.0, 1100.0, 500.0), ("b", 2500.0, 2600.0, 0.0))


def test_a_call_in_words():
    """4,000 cycles: 3,500 of computing, of which 200 are starts, and 500 of waiting. At 2 MHz 2
    ms.
    """
    (told,) = CallLatency(TWO, clock_mhz=2.0).lines()
    assert told == (
        "4,000 (at most 4,200) cycles per call, 2 (at most 2.1) ms at 2 MHz: 82 % computing, 5 % "
        "start overhead of 4 kernel calls, "
        "12 % waits for constants"
    )
    assert "ms" not in CallLatency(TWO).lines()[0]
    assert CallLatency(TWO, has_host_parts=True).lines()[0].endswith("host time not included")


def test_work_without_a_price_is_told_with_its_bytes_and_bound():
    """What is alike is one; a bound is told where all have one."""
    works = [
        UnmodeledWork("a", "a copy with gaps", 10, 100.0),
        UnmodeledWork("b", "a copy with gaps", 30, 50.0),
        UnmodeledWork("b", "a thing", 7),
    ]
    told = CallLatency(run(("a", 1.0, 2.0, 0.0), unpriced=works)).lines()[1]
    assert told == (
        "no cost model for a copy with gaps (2 layers, 40 bytes, at most 150 cycles), a thing "
        "(1 layer, 7 bytes)"
    )


@pytest.mark.parametrize(
    ("budget", "slow", "doubt"), [(1.9, True, False), (2.0, False, True), (2.2, False, False)]
)
def test_a_budget_is_compared_with_the_total_and_its_upper_end(budget, slow, doubt):
    """2 ms, 2.1 at most: above the budget a finding; below it a line where the upper end is
    above.
    """
    told = CallLatency(TWO, clock_mhz=2.0, budget_ms=budget)
    assert (told.budget_finding is not None) == slow == bool(told.findings)
    assert any("may exceed the" in line for line in told.lines()) == doubt
    if slow:
        assert told.budget_finding.level == "time"
        assert told.budget_finding.node == "b"
        assert "Conv2dInt b 62 %, Conv2dInt a 38 %" in told.budget_finding.value


def test_runs_of_parts_follow_each_other():
    """The second part begins when the first one ends; what has no price stays."""
    both = concatenate_latencies(
        [TWO, run(("c", 10.0, 12.0, 4.0), unpriced=[UnmodeledWork("c", "x", 1)])]
    )
    assert both.total == TWO.total + 14
    assert [layer.start for layer in both.layers] == [0, 1500, 4000]
    assert len(both.unpriced) == 1


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (LatencyOptions(clock_mhz=-1.0), "--clock must be a number above 0; got -1"),
        (LatencyOptions(clock_mhz=float("nan")), "--clock must be a number above 0; got nan"),
        (
            LatencyOptions(clock_mhz=1.0, budget_ms=float("inf")),
            "--budget-ms must be a number above 0; got inf",
        ),
        (LatencyOptions(budget_ms=1.0), "no clock is published"),
        (LatencyOptions(timing_file="nowhere.json"), "cannot read the timing file nowhere.json"),
    ],
)
def test_a_wish_that_cannot_be_is_one_line(wish, told):
    """Before any work."""
    with pytest.raises(ConfigError, match=told) as caught:
        wish.apply_to(get_target("arcs"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", PLATFORMS, ids=str)
def test_every_platform_says_what_is_known_of_its_time(target):
    """A chip without prices says so, and takes no budget; what is no chip says nothing until it is
    asked.
    """
    known = not target.vendor.explain_missing_timing(target)
    assert known == (target.name == "arcs")
    told = LatencyOptions().estimate_call(target, [])
    assert told.latency is None
    assert bool(told.lines()) == (target.has_packer and not known)
    if not known:
        with pytest.raises(ConfigError, match=target.name):
            LatencyOptions(clock_mhz=1.0, budget_ms=1.0).apply_to(target)


def test_json_has_all_of_it():
    """Milliseconds with a clock only."""
    body = CallLatency(TWO, clock_mhz=2.0, budget_ms=1.0).to_dict()
    assert body["milliseconds"] == {"total": 2.0, "low": 2.0, "high": 2.1}
    assert body["too_slow"]["level"] == "time"
    assert body["cycles"]["total"] == 4000
    assert CallLatency(TWO).to_dict()["milliseconds"] is None
    assert (
        replace(CallLatency(TWO), latency=None, unknown_reason="why").to_dict()["unknown"] == "why"
    )
