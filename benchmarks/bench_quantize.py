"""What `quantize` costs: time, processor time and memory, beside onnxruntime's `quantize_static` on the same samples.

    python benchmarks/bench_quantize.py [MODEL.onnx CALIB] [--samples 64 512] [--rounds 3] [--memory GB]

CALIB is what `quantize --calib` takes, a function for instance; without arguments it is the digits model with its data.
The samples begin again where CALIB has fewer. Each round runs both engines, alternating, each in a process of its own,
imports included: lingeronnx with its defaults, onnxruntime with MinMax. Printed are the medians of the rounds: seconds,
processor seconds (of user and system, all threads), the largest resident memory in MB; and the ratio of the processor
seconds. `--cold` gives lingeronnx an empty cache of compiled kernels in every round.
"""

from __future__ import annotations

import argparse
import os
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
_BATCH = 32


def samples(model: str, calib: str, count: int) -> Iterator[tuple[dict[str, Any], None]]:
    """Yield the first `count` samples of `calib`, from the beginning again where there are fewer."""
    from lingeronnx.graph import ir
    from lingeronnx.run.data import Data
    from lingeronnx.run.runners import input_specs

    specs = input_specs(ir.load(model))
    size = _BATCH if all(spec.batched and not spec.single for spec in specs) else 1
    while count > 0:
        for feeds, _ in Data(calib, specs, limit=count).batches(size):
            yield feeds, None
            count -= max(spec.count(feeds[spec.name]) for spec in specs)


class Reader:
    """The samples as onnxruntime reads them."""

    def __init__(self, items: Iterator[tuple[dict[str, Any], None]]) -> None:
        self._items = items

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch, None after the last."""
        return next((feeds for feeds, _ in self._items), None)


def quantize(engine: str, model: str, calib: str, count: int, memory: float) -> None:
    """Quantize once and write the result to a file that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out.onnx")
        if engine == "lingeronnx":
            import lingeronnx

            lingeronnx.quantize(model, lambda: samples(model, calib, count), memory=memory).save(output)
            return
        from onnxruntime.quantization import CalibrationMethod, quantize_static

        reader = Reader(samples(model, calib, count))
        quantize_static(model, output, reader, calibrate_method=CalibrationMethod.MinMax)


def measure(engine: str, given: argparse.Namespace, count: int) -> tuple[float, float, float]:
    """Return seconds, processor seconds and the largest resident MB of one run in a process of its own."""
    command = [sys.executable, __file__, given.model, given.calib, "--child", engine, "--samples", str(count)]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"LINGERONNX_CACHE_DIR": folder} if given.cold else {}
        start = time.perf_counter()
        with subprocess.Popen(
            [*command, "--memory", str(given.memory)], env={**os.environ, **cache}, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            assert child.stderr is not None
            said = child.stderr.read().decode()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
    if child.returncode:
        raise SystemExit(f"{engine} failed on {given.model}:\n{said}")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def main() -> None:
    """Print a line for each engine and number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "digits_cnn.onnx"))
    parser.add_argument("calib", nargs="?", default=str(ROOT / "models" / "digits_calib.npz"))
    parser.add_argument("--samples", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        quantize(given.child, given.model, given.calib, given.samples[0], given.memory)
        return
    print(f"{Path(given.model).stem}, {'cold' if given.cold else 'warm'}, {os.cpu_count()} processors")
    if not given.cold:
        measure(ENGINES[0], given, given.samples[0])  # fills the cache of compiled kernels
    for count in given.samples:
        runs = [[measure(engine, given, count) for engine in ENGINES] for _ in range(given.rounds)]
        for which, engine in enumerate(ENGINES):
            wall, cpu, peak = (statistics.median(column) for column in zip(*(r[which] for r in runs), strict=True))
            ratio = statistics.median(r[which][1] / r[-1][1] for r in runs)
            costs = f"{wall:8.1f} s{cpu:8.1f} CPU s{peak:8.0f} MB{ratio:7.1f} x"
            print(f"{count:6} samples  {engine:12}{costs}", flush=True)


if __name__ == "__main__":
    main()
