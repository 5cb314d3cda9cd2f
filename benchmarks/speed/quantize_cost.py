"""What `quantize` costs.

Time, processor time and memory, beside onnxruntime's `quantize_static` on the same samples.
    python -m benchmarks.speed.quantize_cost [MODEL.onnx CALIB] [--samples 64 512] [--methods MinMax
    Percentile Entropy]
        [--rounds 3] [--memory GB] [--cold]

CALIB is what `quantize --calib` takes; without arguments it is the digits model with its data. The
samples begin again where CALIB has fewer. Both engines read them from a folder of files of 32
samples, in processes of their own, imports included, taking turns: `lingeronnx quantize` with its
defaults, and onnxruntime with each method. Printed are the medians of the rounds: seconds,
processor seconds (user and system, all threads), the largest resident memory; and the ratio of the
processor seconds to those of the first method. --cold gives lingeronnx an empty cache of compiled
kernels in every round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .nets import ROOT
from .page import COST_HEAD, QuantizeCostRow, cost_cells, format_table_row

__all__ = ["METHODS", "measure_costs"]

METHODS = ("MinMax", "Percentile", "Entropy")
_FILE = 32  # samples


def write(model: str, calib: str, count: int, folder: str) -> None:
    """Write the first `count` samples of `calib` to files, from the beginning again where there are fewer."""
    import numpy as np

    from lingeronnx.ir import ir
    from lingeronnx.runtime.data import Data
    from lingeronnx.runtime.runners import get_input_specs

    specs, done = get_input_specs(ir.load(model)), 0
    while done < count:
        for feeds, _ in Data(calib, specs, limit=count - done).batches(_FILE):
            np.savez(Path(folder) / f"{done:06}.npz", **feeds)
            done += max(spec.count_samples(feeds[spec.name]) for spec in specs)


class Reader:
    """The samples of a folder as onnxruntime reads them.

    A file at a time, or a sample where a model takes one.
    """

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


def quantize_static(model: str, folder: str, output: str, method: str) -> None:
    """Quantize with onnxruntime."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, quantize_static

    inputs = onnx.load(model, load_external_data=False).graph.input
    # Its histograms need batches of one size.
    single = method != "MinMax" or any(
        value.type.tensor_type.shape.dim[0].dim_value == 1 for value in inputs
    )
    quantize_static(
        model, output, Reader(folder, single), calibrate_method=CalibrationMethod[method]
    )


#: A process takes over the largest memory of the one that started it: this one is small.
_MEASURE = """
import os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
_, status, used = os.wait4(child.pid, 0)
print(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measure_command(command: list[str], cache: str | None = None) -> tuple[float, float, float]:
    """Return seconds, processor seconds and the largest resident MB of one run of a command.

    cache : a folder for the compiled kernels; None: the usual one.
    """
    environment = {**os.environ, **({"LINGERONNX_CACHE_DIR": cache} if cache else {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # commands are measured as people run them
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    wall, cpu, peak = (float(word) for word in done.stdout.split())
    return wall, cpu, peak


def _measured(command: list[str]) -> tuple[float, float, float]:
    """Measure with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        return measure_command(command, cache)


def measure_costs(
    model: str,
    calib: str,
    samples: int,
    methods: Sequence[str] = METHODS,
    rounds: int = 3,
    memory: float | None = None,
    cold: bool = False,
) -> Iterator[QuantizeCostRow]:
    """Yield what every engine costs, lingeronnx first, and the methods of onnxruntime in their order."""
    own = [sys.executable, "-m", __spec__.name, model, calib]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        output = str(Path(results) / "out.onnx")
        subprocess.run([*own, "--samples", str(samples), "--write", folder], check=True)
        ours = [
            sys.executable,
            "-m",
            "lingeronnx",
            "quantize",
            model,
            "--calib",
            folder,
            "-o",
            output,
        ]
        commands = {"lingeronnx": [*ours, *(["--memory", str(memory)] if memory else [])]}
        commands |= {
            name: [*own, "--methods", name, "--static", folder, output] for name in methods
        }
        if not cold:
            measure_command(
                [*commands["lingeronnx"], "--limit", "2"]
            )  # fills the cache of compiled kernels
        runs = [
            {
                name: _measured(command) if cold else measure_command(command)
                for name, command in commands.items()
            }
            for _ in range(rounds)
        ]
    for name in commands:
        wall, cpu, peak = (
            statistics.median(column) for column in zip(*(run[name] for run in runs), strict=True)
        )
        ratio = statistics.median(run[name][1] / run[methods[0]][1] for run in runs)
        yield QuantizeCostRow(Path(model).stem, samples, name, wall, cpu, peak, ratio)


def main() -> None:
    """Print the costs for each number of samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "digits_cnn.onnx"))
    parser.add_argument("calib", nargs="?", default=str(ROOT / "models" / "digits_calib.npz"))
    parser.add_argument("--samples", type=int, nargs="+", default=[64])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["MinMax"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=float)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--write", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--static", nargs=2, metavar=("FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.model, given.calib, given.samples[0], given.write)
    elif given.static:
        quantize_static(given.model, *given.static, given.methods[0])
    else:
        for text in COST_HEAD:
            print(text)
        for count in given.samples:
            rest = (given.methods, given.rounds, given.memory, given.cold)
            for cost in measure_costs(given.model, given.calib, count, *rest):
                print(format_table_row(cost_cells(cost)), flush=True)


if __name__ == "__main__":
    main()
