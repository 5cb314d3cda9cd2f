"""Processor time of a first run with an empty kernel cache, and what it compiles.

    python -m benchmarks.speed.compile_times [MODELS LOADERS [--only CASE ...]] [--rounds 3]
        [--before DIR] [--platform venus]

Measured are the models of `models/` on random numbers and, where MODELS and LOADERS are given, the
`model_cases`. A run is one process that quantizes a model with effort fast on 64 samples and runs
the integer graph on them, imports included. It is run twice: with an empty folder for compiled
kernels, and with the one that the first run has filled. ``--before DIR`` measures the version in
that folder too, in turn. Figures are medians of the rounds, in seconds of processor time (user and
system).

The second table has the seconds of each kernel, medians over the models that compile it, without
those that Numba takes at its first compilation: its import and the registration of what it can
compile, in the column "Numba" of the first table. Numba compiles each function that a kernel calls,
too; the number of all is in the column "functions".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from ..model_cases import CASES
from .nets import ROOT, random_feed
from .page import format_table_row

_SAMPLES = 64

#: Quantizes and runs a model, and prints the last line in JSON: processor seconds, those of Numba's
#: start, (name, seconds, functions, seconds of type inference, of lowering) of the kernels.
_RUN = """
import json, sys, time
from simulator import _code_cache, _jit
compile_kernel = _code_cache._compile_and_store
kernels, starts, passes, functions = [], [], {}, []

def start_numba():
    start = time.process_time()
    _jit.import_numba()
    from numba.core import event
    from numba.core.registry import cpu_target
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    starts.append(time.process_time() - start)

    class Listener(event.Listener):
        nested = []

        def on_start(self, record):
            self.nested.append([time.process_time(), 0.0])

        def on_end(self, record):
            begin, inner = self.nested.pop()
            seconds = time.process_time() - begin
            if self.nested:
                self.nested[-1][1] += seconds
            if record.kind == "numba:compile":
                functions.append(1)
                return
            name = record.data["name"].partition(" ")[0]
            kind = next((k for k in ("inference", "lowering") if k in name), "other")
            passes[kind] = passes.get(kind, 0.0) + seconds - inner

    for kind in ("numba:run_pass", "numba:compile"):
        event.register(kind, Listener())

def compile_and_time(function, *arguments):
    if not starts:
        start_numba()
    passes.clear()
    functions.clear()
    start = time.process_time()
    address = compile_kernel(function, *arguments)
    seconds = time.process_time() - start
    name = f"{function.py_func.__module__.rpartition('.')[2]}.{function.py_func.__name__}"
    parts = passes.get("inference", 0.0), passes.get("lowering", 0.0)
    kernels.append((name, seconds, len(functions), *parts))
    return address

_code_cache._compile_and_store = compile_and_time
from lingeronnx.cli import main
model, data, quantized, platform, output = sys.argv[1:]
options = ["--calib", data, "--platform", platform, "--effort", "fast", "-o", quantized]
main(["quantize", model, *options], standalone_mode=False)
main(["simulate", quantized, "--input", data, "-o", output], standalone_mode=False)
print()
print(json.dumps([time.process_time(), sum(starts), kernels]))
"""


@dataclass(frozen=True)
class Kernel:
    """Seconds of one compiled kernel, and the number of functions that Numba compiled for it."""

    name: str
    seconds: float
    functions: int
    inference: float
    lowering: float


@dataclass(frozen=True)
class Run:
    """Processor seconds of a process and of Numba's start in it, and the compiled kernels."""

    cpu: float
    numba: float
    kernels: Sequence[Kernel]


@dataclass(frozen=True)
class Model:
    """A float model and its samples, an npz file."""

    title: str
    path: Path
    data: Path


def iterate_models(arguments: argparse.Namespace, folder: Path) -> Iterator[Model]:
    """Yield the models of `models/` and the chosen cases; their data are written into `folder`."""
    for path in sorted((ROOT / "models").glob("*.onnx")):
        data = folder / f"{path.stem}.npz"
        feeds = [random_feed(onnx.load(path), seed) for seed in range(_SAMPLES)]
        np.savez(data, **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
        yield Model(path.stem, path, data)
    if arguments.models is None:
        return
    from lingeronnx.ir import ir
    from lingeronnx.runtime.data import Data
    from lingeronnx.runtime.runners import get_input_specs

    for name in arguments.only:
        case, data = CASES[name], folder / f"{name}.npz"
        path = Path(case.model(arguments.models.resolve()))
        source = case.get_calibration_data(arguments.loaders.resolve())
        samples = Data(source, get_input_specs(ir.load(str(path))), limit=_SAMPLES)
        feeds, _ = next(iter(samples.batches(_SAMPLES)))
        np.savez(data, **feeds)
        yield Model(name, path, data)


def run_once(model: Model, version: Path, cache: Path, platform: str, folder: Path) -> Run:
    """Quantize and run a model with the code in `version` and the kernels in `cache`."""
    environment = {**os.environ, "LINGERONNX_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [model.path, model.data, folder / "quantized.onnx", platform, folder / "out.npz"]
    command = [sys.executable, "-c", _RUN, *map(str, paths)]
    process = subprocess.run(
        command, cwd=version, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(f"{model.title} failed:\n{process.stderr}")
    cpu, numba, kernels = json.loads(process.stdout.splitlines()[-1])
    return Run(cpu, numba, [Kernel(*values) for values in kernels])


def measure_model(
    model: Model, versions: Sequence[Path], rounds: int, platform: str
) -> Iterator[list[tuple[Run, Run]]]:
    """Yield the first and second runs of each version, which take turns."""
    runs: list[list[tuple[Run, Run]]] = [[] for _ in versions]
    for _ in range(rounds):
        for index, version in enumerate(versions):
            with tempfile.TemporaryDirectory() as name:
                folder, cache = Path(name), Path(name) / "cache"
                given = (model, version, cache, platform, folder)
                runs[index].append((run_once(*given), run_once(*given)))
    yield from runs


def format_runs(title: str, runs: Sequence[tuple[Run, Run]]) -> str:
    """Format a model's row: medians of the rounds."""
    first = [run for run, _ in runs]
    sums: dict[str, list[float]] = {
        "compile": [sum(kernel.seconds for kernel in run.kernels) for run in first],
        "inference": [sum(kernel.inference for kernel in run.kernels) for run in first],
        "lowering": [sum(kernel.lowering for kernel in run.kernels) for run in first],
    }
    cells = [
        title,
        f"{median(run.cpu for run in first):.2f}",
        f"{median(run.cpu for _, run in runs):.2f}",
        str(len(first[0].kernels)),
        str(sum(kernel.functions for kernel in first[0].kernels)),
        f"{median(run.numba for run in first):.2f}",
        *(f"{median(values):.2f}" for values in sums.values()),
    ]
    return format_table_row(cells)


def format_kernels(titles: Sequence[str], seconds: Any) -> Iterator[str]:
    """Yield the table of kernels: seconds by version."""
    yield format_table_row(["kernel", *titles])
    yield "|" + "---|" * (1 + len(titles))
    for name in sorted(seconds, key=lambda key: -max(map(median, seconds[key].values()))):
        by_version = seconds[name]
        cells = [f"{median(by_version[t]):.3f}" if t in by_version else "-" for t in titles]
        yield format_table_row([f"`{name}`", *cells])


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="?", type=Path, help="the folder with the models")
    parser.add_argument("loaders", nargs="?", type=Path, help="the file loaders.py")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, metavar="DIR")
    parser.add_argument("--platform", default="venus")
    arguments = parser.parse_args()
    versions = [ROOT] if arguments.before is None else [arguments.before.resolve(), ROOT]
    suffixes = [""] if arguments.before is None else [" before", " after"]
    head = ["model", "first, s", "second, s", "kernels", "functions", "Numba", "compile"]
    head += ["inference", "lowering"]
    print(format_table_row(head), "|" + "---|" * len(head), sep="\n", flush=True)
    seconds: Any = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        for model in iterate_models(arguments, Path(folder)):
            measured = measure_model(model, versions, arguments.rounds, arguments.platform)
            for suffix, runs in zip(suffixes, measured, strict=True):
                print(format_runs(model.title + suffix, runs), flush=True)
                for run, _ in runs:
                    for kernel in run.kernels:
                        seconds[kernel.name][suffix.strip() or "seconds"].append(kernel.seconds)
    print()
    print(*format_kernels([suffix.strip() or "seconds" for suffix in suffixes], seconds), sep="\n")


if __name__ == "__main__":
    main()
