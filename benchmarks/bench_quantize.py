"""What `quantize` costs: time, processor time and memory, beside onnxruntime's `quantize_static` on the same samples.

    python benchmarks/bench_quantize.py [MODEL.onnx CALIB] [--samples 64 512] [--rounds 3] [--memory GB] [--cold]

CALIB is what `quantize --calib` takes; without arguments it is the digits model with its data. The samples begin again
where CALIB has fewer. Both engines read them from a folder of files of 32 samples, in processes of their own, imports
included, taking turns: `lingeronnx quantize` with its defaults, and onnxruntime with MinMax. Printed are the medians of
the rounds: seconds, processor seconds (user and system, all threads), the largest resident memory in MB; and the ratio
of the processor seconds. --cold gives lingeronnx an empty cache of compiled kernels in every round.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("lingeronnx", "onnxruntime")
_FILE = 32  # samples


def write(model: str, calib: str, count: int, folder: str) -> None:
    """Write the first `count` samples of `calib` to files, from the beginning again where there are fewer."""
    import numpy as np

    from lingeronnx.graph import ir
    from lingeronnx.run.data import Data
    from lingeronnx.run.runners import input_specs

    specs, done = input_specs(ir.load(model)), 0
    while done < count:
        for feeds, _ in Data(calib, specs, limit=count - done).batches(_FILE):
            np.savez(Path(folder) / f"{done:06}.npz", **feeds)
            done += max(spec.count(feeds[spec.name]) for spec in specs)


class Reader:
    """The samples of a folder as onnxruntime reads them: a file at a time, or a sample where a model takes one."""

    def __init__(self, folder: str, one_by_one: bool) -> None:
        self._items = self._read(folder, one_by_one)

    @staticmethod
    def _read(folder: str, one_by_one: bool) -> Iterator[dict[str, Any]]:
        import numpy as np

        for path in sorted(Path(folder).iterdir()):
            with np.load(path) as file:
                feeds = dict(file)
            count = len(next(iter(feeds.values())))
            size = 1 if one_by_one else count
            for start in range(0, count, size):
                yield {name: array[start : start + size] for name, array in feeds.items()}

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch, None after the last."""
        return next(self._items, None)


def quantize_static(model: str, folder: str, output: str) -> None:
    """Quantize with onnxruntime."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, quantize_static

    inputs = onnx.load(model, load_external_data=False).graph.input
    single = any(value.type.tensor_type.shape.dim[0].dim_value == 1 for value in inputs)
    quantize_static(model, output, Reader(folder, single), calibrate_method=CalibrationMethod.MinMax)


def measure(command: list[str], cold: bool) -> tuple[float, float, float]:
    """Return seconds, processor seconds and the largest resident MB of one run of a command."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+") as log:
        cache = {"LINGERONNX_CACHE_DIR": folder} if cold else {}
        start = time.perf_counter()
        child = subprocess.Popen(command, env={**os.environ, **cache}, stdout=log, stderr=log)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def compare(given: argparse.Namespace, count: int) -> None:
    """Print a line for each engine."""
    own = [sys.executable, __file__, given.model, given.calib, "--samples", str(count)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        output = str(Path(results) / "out.onnx")
        subprocess.run([*own, "--write", folder], check=True)
        ours = [sys.executable, "-m", "lingeronnx", "quantize", given.model, "--calib", folder, "-o", output]
        commands = [[*ours, "--memory", str(given.memory)], [*own, "--static", folder, output]]
        if not given.cold:
            measure(commands[0], False)  # fills the cache of compiled kernels
        runs = [[measure(command, given.cold) for command in commands] for _ in range(given.rounds)]
    for which, engine in enumerate(ENGINES):
        wall, cpu, peak = (statistics.median(column) for column in zip(*(r[which] for r in runs), strict=True))
        ratio = statistics.median(r[which][1] / r[-1][1] for r in runs)
        costs = f"{wall:8.1f} s{cpu:8.1f} CPU s{peak:8.0f} MB{ratio:7.1f} x"
        print(f"{count:6} samples  {engine:12}{costs}", flush=True)


def main() -> None:
    """Print the costs for each number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "digits_cnn.onnx"))
    parser.add_argument("calib", nargs="?", default=str(ROOT / "models" / "digits_calib.npz"))
    parser.add_argument("--samples", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--write", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--static", nargs=2, metavar=("FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.calib, given.samples[0], given.write)
    elif given.static:
        quantize_static(given.model, *given.static)
    else:
        kernels = "cold" if given.cold else "warm"
        print(f"{Path(given.model).stem}, {kernels}, {os.cpu_count()} x {platform.machine()}", flush=True)
        for count in given.samples:
            compare(given, count)


if __name__ == "__main__":
    main()
