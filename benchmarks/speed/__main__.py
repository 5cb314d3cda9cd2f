"""All of it, as one page.

python -m benchmarks.speed [--quick] [--only PART ...] [--write FOLDER]

Parts are "simulator" (beside onnxruntime and OpenVINO), "kernels" (and tiles), "real" (the
simulator on the real models as well), "sets" (the other sets of dot instructions that the processor
has), "quantize" and "first" (first runs). Without --only it is all of them. --quick takes the
models of this repository, one thread and fewer rounds, and 64 samples to quantize, and not the other
sets. --write writes `speed.md` and `speed.json` into a folder: what was not measured stays there.
What became slower is told against the file that the last commit has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.instruction_sets import INSTRUCTION_SETS, is_supported_by_host

from .cold_start import DIGITS, measure_demo, measure_simulation
from .machine import describe_machine, used_row
from .nets import ROOT, SHARED, Net, iterate_nets, iterate_real_nets
from .page import (
    COST_HEAD,
    FIRST_HEAD,
    SPEED_HEAD,
    ColdStartRow,
    Figures,
    KernelRow,
    QuantizeCostRow,
    SpeedRow,
    cost_cells,
    find_regressions,
    first_cells,
    format_page,
    format_table_row,
    merge_sections,
    speed_cells,
)
from .quantize_cost import METHODS, measure_costs
from .simulator_speed import PROCESSORS, Peak, QuantizedNet, measure_net, measure_peaks
from .tiles import measure_kernels, measure_tiles
from .timing import Timing

PARTS = ("simulator", "kernels", "real", "sets", "quantize", "first")
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


def measure_simulator(
    nets: Iterable[Net], quick: bool, peaks: Sequence[Peak], with_kernels: bool
) -> tuple[list[SpeedRow], list[KernelRow], dict[str, str]]:
    """Measure the simulator on nets beside the other engines, and its kernels alone.

    Returns the rows of both, and why engines could not run by net and engine.
    """
    rows, kernels, why_not = [], [], {}
    timing = Timing(3, 0.03) if quick else Timing(5, 0.05)
    print(*SPEED_HEAD, sep="\n", flush=True)
    for net in nets:
        quantized = QuantizedNet.make(net)
        for speed in measure_net(quantized, peaks, timing):
            rows.append(speed)
            print(format_table_row(speed_cells(speed)), flush=True)
            for engine, why in speed.ratios.items():
                if isinstance(why, str):
                    why_not[f"{speed.title}, {speed.platform}, {engine}"] = why
        for batch in net.batches if with_kernels else ():
            kernels += measure_kernels(
                net.title, net.platform, quantized.graph, batch, peaks[0].macs, 5
            )
    return rows, kernels, why_not


def describe_peaks(peaks: Sequence[Peak]) -> list[str]:
    """Format the peak throughputs of instruction and memory for each number of threads."""
    words = []
    for peak in peaks:
        macs = "no dot instruction" if peak.macs is None else f"{peak.macs / 1e9:.1f} G products/s"
        words.append(f"{peak.threads} thread(s): {macs}, {peak.bytes / 1e9:.1f} GB/s")
    return words


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


def measure_parts(parts: Collection[str], quick: bool, machine: Mapping[str, str]) -> Figures:
    """Measure the named parts."""
    peaks = measure_peaks((1,) if quick else (1, 2))
    words = describe_peaks(peaks)
    print(*words, sep="\n", flush=True)
    speed: list[SpeedRow] | None = None
    kernels: list[KernelRow] | None = None
    why_not: dict[str, str] = {}
    if not {"simulator", "kernels", "real"}.isdisjoint(parts):
        nets = itertools.chain(
            iterate_nets(quick), iterate_real_nets() if "real" in parts and not quick else ()
        )
        speed, kernels, why_not = measure_simulator(nets, quick, peaks, "kernels" in parts)
    is_with_kernels = "kernels" in parts
    return Figures(
        machine,
        speed=speed,
        peaks=words,
        why_not=why_not,
        rows=measure_other_instruction_sets() if "sets" in parts and not quick else None,
        tiles=measure_tiles(5) if is_with_kernels else (),
        kernels=kernels if is_with_kernels else None,
        cost=measure_quantize(quick) if "quantize" in parts else None,
        first=measure_cold_starts(quick) if "first" in parts else None,
    )


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands are measured as people run them
    words = ["python -m benchmarks.speed", *(["--quick"] if given.quick else [])]
    if given.only != PARTS:
        words.append(f"--only {' '.join(given.only)}")
    words.append("--write benchmarks/results")
    start, machine = time.perf_counter(), {"command": " ".join(words), **describe_machine()}
    print("; ".join(machine.values()), flush=True)
    sections = measure_parts(given.only, given.quick, machine).to_sections()
    print("", *find_regressions(load_committed_figures(), sections), sep="\n")
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        path = given.write / "speed.json"
        kept = json.loads(path.read_text()) if path.is_file() else None
        merged = merge_sections(kept, sections)
        (given.write / "speed.md").write_text(format_page(merged))
        path.write_text(json.dumps(merged, indent=1) + "\n")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
