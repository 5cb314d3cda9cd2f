"""What `sensitivity` costs against running the whole model for every trial, and what a second worker brings.

    python benchmarks/bench_sensitivity.py [MODEL.onnx --calib DATA] [--samples 512] [--rounds 3]
    [--workers 2] python benchmarks/bench_sensitivity.py --memory [MODEL.onnx --calib DATA]

Without a model: ../shared/models/cifar_resnet_bn.onnx on its calibration data where they are there,
else models/digits_cnn.onnx. All trials are run: weight, activation and both of every operator, and
those of the advice.

Multiply-accumulates are counted piece by piece as they are run, against (trials x one run of the
whole model). So is time: the blocks' own work, without the plan, against the time of one whole run
of the same blocks in one session of one thread, times the trials. Rounds alternate; the least time
of each counts, wall and processor.

--memory prints the peak memory of a process of its own for 64 and for 2,048 samples, drawn one batch at a time.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SHARED_DIR = ROOT.parent / "shared"
OTHERS = (
    SHARED_DIR / "models" / "cifar_resnet_bn.onnx",
    f"{SHARED_DIR}/data/loaders.py:resnet_bn_calib",
)
OURS = ROOT / "models" / "digits_cnn.onnx", str(ROOT / "models" / "digits_calib.npz")


def measure_best_time(work: Callable[[], Any]) -> tuple[float, float]:
    """Return (wall, processor) seconds of one call."""
    wall, own = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - own


def describe_processor() -> str:
    """Return the name of the processor and how many there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors"


def print_cost(model: Path, calib: str, samples: int, rounds: int, workers: int) -> None:
    """Print the cost in multiply-accumulates and time, and the gain of workers."""
    from lingeronnx.analysis.sensitivity.layers import build_roundable_model, list_rounded_operators
    from lingeronnx.analysis.sensitivity.sensitivity import load_evaluation_data, sensitivity
    from lingeronnx.analysis.sensitivity.trial import RoundedSet
    from lingeronnx.analysis.sensitivity.trial_runs import BlockTrials, choose_block_size
    from lingeronnx.ir import ir
    from lingeronnx.quantization import plan_model, prepare_model
    from lingeronnx.runtime.cluster import map_jobs
    from lingeronnx.runtime.runners import open_ort_session

    settings = {"effort": "fast", "limit": samples}
    planned = plan_model(prepare_model(model, calib, None, settings, hold_out=False))
    every = list_rounded_operators(planned)
    output = str(planned.graph.graph.outputs[0].name)
    given = build_roundable_model(planned, every, [output])
    data = load_evaluation_data(planned, calib, None)
    trials = tuple(setting for layer in every for setting in layer.trial_sets("all").values())
    job = BlockTrials(given, RoundedSet(), trials, ("L1",))
    size = choose_block_size(planned, given.create_engine().segments)
    blocks = list(data.batches(size))
    session = open_ort_session(ir.to_proto(planned.graph), "the model", threads=1)
    work = job.start()

    def ours() -> None:
        for block in blocks:
            work(block)

    def whole() -> None:
        for feeds, _ in blocks:
            session.run([output], feeds)

    count = sum(len(next(iter(feeds.values()))) for feeds, _ in blocks)
    print(
        f"{model.name}: {len(trials)} trials, {count} samples in blocks of {size}; "
        f"{describe_processor()}"
    )
    found = sensitivity(model, calib, what="all", **settings)
    print(f"multiply-accumulates, advice and all: {found.macs / found.whole:.3f} of whole runs")
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "whole": []}
    for _ in range(rounds):
        times["whole"].append(measure_best_time(whole))
        times["ours"].append(measure_best_time(ours))
    for number, name in enumerate(("wall", "processor")):
        single, every_trial = (
            min(t[number] for t in times["whole"]),
            min(t[number] for t in times["ours"]),
        )
        ratio = every_trial / single / len(trials)
        print(
            f"{name:>9} time: {every_trial:.2f} s against {len(trials)} x {single:.3f} s = "
            f"{ratio:.3f}"
        )
    if workers > 1:
        alone, several = (
            min(
                measure_best_time(lambda n=n: list(map_jobs(job, blocks, n)))[0]
                for _ in range(rounds)
            )
            for n in (1, workers)
        )
        print(
            f"{workers} workers: {several:.2f} s against {alone:.2f} s in one, "
            f"{alone / several:.2f} times as fast "
            "(starting the processes counted)"
        )


def make_sampler(model: Path, samples: int) -> Callable[[], Iterator[dict[str, np.ndarray]]]:
    """Return a function that draws samples for `model`, 32 at a time."""
    from lingeronnx.ir import ir
    from lingeronnx.quantization import generate_synthetic_inputs
    from lingeronnx.runtime.runners import get_input_specs

    specs = get_input_specs(ir.load(model))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for seed in range(samples // 32):
            parts = [generate_synthetic_inputs(specs, 2 * seed + part) for part in range(2)]
            yield {
                spec.name: spec.concatenate([part[spec.name] for part in parts]) for spec in specs
            }

    return batches


def print_peak_memory(model: Path) -> None:
    """Print the peak memory at 64 and 2,048 samples."""
    found = []
    for samples in (64, 2048):
        line = [sys.executable, __file__, str(model), "--one", str(samples)]
        found.append(float(subprocess.run(line, check=True, capture_output=True, text=True).stdout))
        print(f"{model.name}, {samples:>4} samples: {found[-1]:.0f} MiB at most")
    print(f"ratio {found[1] / found[0]:.3f}")


def print_own_peak_memory(model: Path, samples: int) -> None:
    """Print this process's peak memory, in MiB, of a run on so many samples."""
    from lingeronnx.analysis.sensitivity.sensitivity import sensitivity

    with tempfile.TemporaryDirectory() as folder:
        sensitivity(
            model,
            make_sampler(model, samples),
            folder=folder,
            metric=["L1", "KL"],
            what="all",
            effort="fast",
        )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Parse the arguments and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--calib")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    model, calib = OTHERS if OTHERS[0].exists() else OURS
    model, calib = args.model or model, args.calib or (None if args.model else calib)
    if args.one:
        print_own_peak_memory(model, args.one)
    elif args.memory:
        print_peak_memory(model)
    elif calib is None:
        parser.error("a model needs --calib DATA")
    else:
        print_cost(model, calib, args.samples, args.rounds, args.workers)


if __name__ == "__main__":
    main()
