"""The integer simulator beside onnxruntime, float32 and int8, and OpenVINO on the same models.

    python -m benchmarks.speed.simulator_speed [MODEL.onnx ...] [--platform venus] [--batch 1 64]
    [--threads 1]
        [--rounds 5] [--simd ROW] [--processor-time]

Without models: those of `benchmarks.speed`. They are quantized on random numbers: the time does not
depend on them. Times are microseconds for a sample, ratios those of the medians of the rounds'
times to onnxruntime's float32, with the least and the largest round. The bound is the time of the
multiply-accumulates at the peak of the row's dot instruction, or that of reading inputs and weights
and writing outputs at the speed of memory, whichever is longer.

--simd names a row of dot instructions (`simulator.instruction_sets`); everything else is then
compiled for a processor that has no more than that. onnxruntime always uses what the machine has.

--processor-time counts the time that this process computes, which other processes do not lengthen:
for one thread on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from .engines import (
    RIVALS,
    integer_graph,
    limit_threads,
    make_calls,
    make_onnxruntime_int8,
    make_openvino_call,
    write_qdq,
)
from .machine import describe_machine, measure_memory_bandwidth, measure_peak_macs
from .nets import Net, iterate_nets, iterate_nets_of_file
from .page import SPEED_HEAD, SpeedRow, format_table_row, speed_cells
from .timing import Ratio, Timing, compute_ratio, measure_interleaved

__all__ = ["Peak", "QuantizedNet", "measure_net", "measure_peaks", "measure_thread_speedup"]

#: The processor that has a row and nothing better, as LLVM calls it.
PROCESSORS = {
    "avx512-vnni": "icelake-server",
    "avx-vnni": "alderlake",
    "avx512bw": "skylake-avx512",
    "avx2": "haswell",
}


@dataclass(frozen=True)
class Peak:
    """What so many threads do at best: int8 products a second (None: not known), bytes a second."""

    threads: int
    macs: float | None
    bytes: float

    def bound(self, macs: int, moved: float) -> float:
        """Return the seconds that a sample takes at least."""
        return max(macs / self.macs if self.macs else 0.0, moved / self.bytes)


def measure_peaks(threads: Sequence[int]) -> list[Peak]:
    """Measure the machine."""
    return [
        Peak(count, measure_peak_macs(count), measure_memory_bandwidth(count)) for count in threads
    ]


@dataclass(frozen=True)
class QuantizedNet:
    """A net with its integer graph.

    macs : multiply-accumulates of a sample.
    """

    net: Net
    graph: Any
    macs: int

    @staticmethod
    def make(net: Net) -> QuantizedNet:
        """Quantize a net."""
        return QuantizedNet(net, *integer_graph(net))


def measure_net(
    quantized: QuantizedNet,
    peaks: Sequence[Peak],
    timing: Timing,
) -> Iterator[SpeedRow]:
    """Yield a line for every number of threads and batch; more threads in batches only."""
    net, graph = quantized.net, quantized.graph
    models: dict[str, bytes | str] = {
        "float32": net.model.SerializeToString(),
        **make_onnxruntime_int8(net),
    }
    qdq = write_qdq(graph)
    for peak in peaks:
        with limit_threads(peak.threads):
            engines = make_calls(graph, models, peak.threads)
            for batch in net.batches:
                if peak.threads > 1 and batch == 1 and len(net.batches) > 1:
                    continue
                feed = net.sample(batch)
                runs: dict[str, Callable[[], object]] = {
                    name: partial(run, feed) for name, run in engines.items()
                }
                why_not = {name: why for name, why in models.items() if isinstance(why, str)}
                rival = qdq if isinstance(qdq, str) else make_openvino_call(qdq, peak.threads, feed)
                if isinstance(rival, str):
                    why_not["OpenVINO"] = rival
                else:
                    runs["OpenVINO"] = rival
                yield _measure_row(quantized, peak, batch, runs, why_not, timing)


def _measure_row(
    quantized: QuantizedNet,
    peak: Peak,
    batch: int,
    runs: Mapping[str, Callable[[], object]],
    why_not: Mapping[str, str],
    timing: Timing,
) -> SpeedRow:
    """Measure the engines of `runs` in turn; `why_not` has the reasons of those that cannot run."""
    net, feed = quantized.net, quantized.net.sample(batch)
    gain = None
    if peak.threads > 1:
        gain = measure_thread_speedup(
            quantized.graph, feed, peak.threads, timing.rounds, timing.at_least
        )
    seconds = measure_interleaved(runs, *timing)
    outputs: Any = runs["float32"]()
    weights = sum(  # a byte each
        numpy_helper.to_array(tensor).size for tensor in net.model.graph.initializer
    )
    moved = weights + sum(np.asarray(array).nbytes for array in (*feed.values(), *outputs))
    medians = {name: statistics.median(times) / batch for name, times in seconds.items()}
    return SpeedRow(
        net.title,
        net.platform,
        batch,
        peak.threads,
        {name: 1e6 * time for name, time in medians.items()},
        {
            name: compute_ratio(seconds["simulator"], seconds[name])
            if name in seconds
            else why_not[name]
            for name in RIVALS
        },
        1e6 * peak.bound(quantized.macs, moved / batch),
        gain,
        quantized.macs / medians["simulator"] / peak.macs if peak.macs else None,
    )


def measure_thread_speedup(
    graph: Any, feed: Mapping[str, np.ndarray], threads: int, rounds: int, at_least: float
) -> Ratio:
    """Return how many times as fast the simulator is with `threads` threads as with one, the two in turn."""
    runs: dict[int, Callable[[], object]] = {}
    for count in (1, threads):
        with limit_threads(count):
            run = make_calls(graph, {}, count)["simulator"]
            run(feed)  # now the program is built, for so many threads
        runs[count] = partial(run, feed)
    seconds = measure_interleaved(
        {str(count): run for count, run in runs.items()}, rounds, at_least
    )
    return compute_ratio(seconds["1"], seconds[str(threads)])


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--platform", nargs="*", default=["venus"])
    parser.add_argument("--batch", nargs="*", type=int)
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--simd", help="the row of dot instructions to use")
    parser.add_argument("--processor-time", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.processor_time else time.perf_counter
    timing = Timing(given.rounds, 0.1, clock)
    if given.simd is not None:
        os.environ["LINGERONNX_SIMD"] = given.simd
        if given.simd in PROCESSORS:  # before Numba is imported
            os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = (
                PROCESSORS[given.simd],
                "",
            )
    print("; ".join(describe_machine().values()))
    for text in SPEED_HEAD:
        print(text)
    machine = measure_peaks(given.threads)
    for net in [
        n for path in given.models for n in iterate_nets_of_file(path, given.platform)
    ] or iterate_nets():
        wanted = replace(net, batches=given.batch or net.batches)
        for speed in measure_net(QuantizedNet.make(wanted), machine, timing):
            print(format_table_row(speed_cells(speed)), flush=True)


if __name__ == "__main__":
    main()
