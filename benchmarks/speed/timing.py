"""Measuring in turn: engines run one after the other, round by round, so that what disturbs one disturbs all.

One engine must not disturb the next: after a run onnxruntime's threads look for work some 40 ms
long, on the processors that the next engine is given. So each waits until they sleep.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Ratio", "Timing", "compute_ratio", "measure_interleaved", "wait_until_idle"]


@dataclass(frozen=True)
class Ratio:
    """How many times as long as another engine.

    The median of the rounds, the least and the largest.
    """

    median: float
    least: float
    largest: float


def compute_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of two engines, each round by itself."""
    each = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


def wait_until_idle(step: float = 0.005, at_most: float = 1.0) -> None:
    """Wait until no thread of this process computes, which `step` seconds show.

    At most so many seconds.
    """
    for _ in range(int(at_most / step)):
        before = time.process_time()
        time.sleep(step)
        if time.process_time() - before < step / 5:
            return


class Timing(NamedTuple):
    """How engines are timed in turn: rounds, shortest time of a round in seconds, and clock."""

    rounds: int
    at_least: float
    clock: Callable[[], float] = time.perf_counter


def measure_interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    at_least: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of one call for every round and engine.

    A round calls every engine in turn, each as often as it takes to last `at_least` seconds; before
    the first each is called once, unmeasured. An engine begins when the threads of the one before
    it have come to rest.
    """
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            wait_until_idle()
            start, calls, took = clock(), 0, 0.0
            while not calls or took < at_least:
                run()
                calls += 1
                took = clock() - start
            seconds[name].append(took / calls)
    return seconds
