"""All of it, as one page.

python -m benchmarks.speed [--quick] [--write FOLDER]

--quick takes the models of this repository, one thread and fewer rounds, and 64 samples to quantize, and only the best
row of dot instructions that the processor has. --write writes `speed.md` and `speed.json`
into a folder. What became slower is told against the file that the last commit has in docs/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from simulator.instruction_sets import INSTRUCTION_SETS, is_supported_by_host

from .cold_start import DIGITS, measure_demo, measure_simulation
from .machine import describe_machine, used_row
from .nets import ROOT, SHARED, iterate_nets
from .page import (
    COST_HEAD,
    FIRST_HEAD,
    SPEED_HEAD,
    ColdStartRow,
    Figures,
    QuantizeCostRow,
    SpeedRow,
    cost_cells,
    find_regressions,
    first_cells,
    format_page,
    format_table_row,
    speed_cells,
)
from .quantize_cost import METHODS, measure_costs
from .simulator_speed import PROCESSORS, measure_net, measure_peaks

_KEPT = "benchmarks/results/speed.json"
_LONG = 512  # samples from which on a measurement is not repeated

#: Models of ../shared/models that are quantized, and their data.
_QUANTIZED = (
    ("mlperf_tiny_resnet8", "loaders.py:resnet8_calib"),
    ("cifar_mobilenetv2", "loaders.py:mobilenetv2_calib"),
    ("real/face_rfb320", "real_models.py:face_rfb_calib"),
)


def load_committed_figures() -> dict[str, Any] | None:
    """Return the figures that the last commit holds; None where there is none."""
    done = subprocess.run(
        ["git", "show", f"HEAD:{_KEPT}"], cwd=ROOT, capture_output=True, text=True
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def measure_simulator(quick: bool, why_not: dict[str, str], told: list[str]) -> list[SpeedRow]:
    """Measure the simulator.

    Add to `told` what the machine does at best and to `why_not` what could not run.
    """
    machine = measure_peaks((1,) if quick else (1, 2))
    for peak in machine:
        macs = "no dot instruction" if peak.macs is None else f"{peak.macs / 1e9:.0f} G products/s"
        told.append(f"{peak.threads} thread(s): {macs}, {peak.bytes / 1e9:.1f} GB/s")
    found = []
    for text in (*told, *SPEED_HEAD):
        print(text, flush=True)
    for net in iterate_nets(quick):
        for speed in measure_net(net, machine, 3 if quick else 5, 0.03 if quick else 0.06):
            found.append(speed)
            print(format_table_row(speed_cells(speed)), flush=True)
            for engine, why in speed.ratios.items():
                if isinstance(why, str):
                    why_not[f"{speed.title}, {engine}"] = why
    return found


def measure_other_instruction_sets() -> list[str]:
    """Measure the other rows of dot instructions that run here; return the lines of their table.

    Each has a process of its own, because Numba learns its processor when it is imported.
    """
    found: list[str] = []
    models = [str(path) for path in sorted((SHARED / "models").glob("*.onnx")) or DIGITS]
    for name in (
        row.name
        for row in INSTRUCTION_SETS
        if row.name in PROCESSORS and row.name != used_row() and is_supported_by_host(row)
    ):
        print("", name, sep="\n", flush=True)
        command = [
            sys.executable,
            "-m",
            "benchmarks.speed.simulator_speed",
            *models,
            "--simd",
            name,
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                print(text, end="", flush=True)
                if text.startswith("| ") and text.rstrip() not in SPEED_HEAD:
                    found.append(f"| {name} {text.rstrip()}")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    return found


def measure_quantize(quick: bool) -> list[QuantizeCostRow]:
    """Measure `quantize`; the longest ones once."""
    found: list[QuantizeCostRow] = []
    known = [(ROOT / "models" / "digits_cnn.onnx", str(ROOT / "models" / "digits_calib.npz"))]
    known += [
        (SHARED / "models" / f"{name}.onnx", str(SHARED / "data" / calib))
        for name, calib in _QUANTIZED
    ]
    print("", *COST_HEAD, sep="\n", flush=True)
    for path, calib in known[:1] if quick else known:
        one_by_one = path.parent.name == "real"  # takes a single sample, and long for it
        for samples in (64,) if quick or one_by_one else (64, 512, 2048):
            methods = METHODS[:1] if quick or one_by_one else METHODS
            for cost in measure_costs(
                str(path), calib, samples, methods, 3 if samples < _LONG and not one_by_one else 1
            ):
                found.append(cost)
                print(format_table_row(cost_cells(cost)), flush=True)
    return found


def measure_cold_starts(quick: bool) -> list[ColdStartRow]:
    """Measure first runs."""
    found = []
    print("", *FIRST_HEAD, sep="\n", flush=True)
    for first in itertools.chain(
        measure_demo(), *(measure_simulation(path) for path in (DIGITS[:1] if quick else DIGITS))
    ):
        found.append(first)
        print(format_table_row(first_cells(first)), flush=True)
    return found


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands are measured as people run them
    command = (
        f"python -m benchmarks.speed{' --quick' if given.quick else ''} --write benchmarks/results"
    )
    start, machine = time.perf_counter(), {"command": command, **describe_machine()}
    print("; ".join(machine.values()), flush=True)
    why_not: dict[str, str] = {}
    told: list[str] = []
    found = measure_simulator(given.quick, why_not, told)
    rows = [] if given.quick else measure_other_instruction_sets()
    figures = Figures(
        machine,
        found,
        measure_quantize(given.quick),
        measure_cold_starts(given.quick),
        told,
        why_not,
        rows,
    )
    print("", *find_regressions(load_committed_figures(), figures.to_dict()), sep="\n")
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        (given.write / "speed.md").write_text(format_page(figures))
        (given.write / "speed.json").write_text(json.dumps(figures.to_dict(), indent=1) + "\n")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
