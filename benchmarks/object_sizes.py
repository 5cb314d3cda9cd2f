"""Compare the sizes that deployed folders state with those that `size` prints.

    python -m benchmarks.object_sizes [--only NAME ...] [--chips venus ...] [--samples 8]
        [--effort fast] [--compiler gcc] [--log FILE] [--budget SECONDS]

Deploys every model of the regression baseline (benchmarks/results/baseline.md) on each chip,
compiles the C files of the folder, and compares object by object what DETAILS.md and manifest.json
state with the sections of the object: `.data` + `.bss` must be equal, and so must the constant
arrays and the symbols of the same name in `.rodata`. One row per model and chip. With --log, rows
of an earlier run are not measured again; --budget starts no further row after these seconds. The
exit code is 1 if a figure differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lingeronnx as lo
from benchmarks.baselines.measure import CHIPS, ROOT, Subject, find_subject, get_states
from benchmarks.baselines.table import Case, parse_page
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.deployment.c_program.build import get_stub_folder

_ROW = re.compile(r"^\| (\S+\.o) \| .+? \| (\d+) \| (\d+) \|", re.MULTILINE)
_TOTAL = re.compile(r"^\| all: `\.data` \+ `\.bss` of the program \| (\d+) \|", re.MULTILINE)
_MEMORY = re.compile(r"^- \*\*Memory\*\*: (\d+) bytes of `\.data` \+ `\.bss`", re.MULTILINE)
_ARRAY = re.compile(
    r"^\w+ (\w+) [rR] (weight\d\w*|twiddle_\w+|loop_\w+|bias|arrays)$", re.MULTILINE
)
_HEAD = (
    "model",
    "chip",
    "objects",
    "`.data` + `.bss` of the program, stated",
    "`size`",
    "self-test, stated",
    "`size`",
    "main.c, stated",
    "`size`",
    "constant arrays of host parts, stated",
    "in `.rodata`",
    "other bytes of `.rodata`",
    "equal",
)


def list_cases(only: Sequence[str], chips: Sequence[str]) -> list[Case]:
    """Return one case per model of the baseline and chip, with the baseline's fixed inputs."""
    rows = parse_page((ROOT / "benchmarks" / "results" / "baseline.md").read_text(encoding="utf-8"))
    settings: dict[str, str] = {}
    for row in rows:
        fixed = re.findall(r"--fix \S+", row.case.settings)
        settings[row.case.model] = settings.get(row.case.model) or " ".join(fixed)
    return [
        Case(model, chip, fixed)
        for model, fixed in settings.items()
        if not only or model in only
        for chip in chips
    ]


def measure_case(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Deploy a model and return the stated and the measured sizes of its objects.

    The result has "failed" instead, if the model cannot be deployed as a C program.
    """
    row: dict[str, Any] = {"model": case.model, "chip": case.platform}
    try:
        subject = find_subject(case.model)
        if subject.find_missing_file:
            return {**row, "failed": subject.find_missing_file}
        with tempfile.TemporaryDirectory(prefix="object-sizes-") as name:
            folder = Path(name) / "board"
            deployment = _deploy(case, subject, folder, args)
            if deployment.contents.program is None:
                return {**row, "failed": deployment.contents.missing_program_reason}
            return {**row, **_compare(deployment, Path(name), args.compiler)}
    except LingerOnnxError as error:
        return {**row, "failed": str(error)}


def _deploy(case: Case, subject: Subject, folder: Path, args: argparse.Namespace) -> lo.Deployment:
    """Deploy a model of the baseline with few samples; their values do not change sizes."""
    fixed = dict(pair.split("=") for pair in re.findall(r"--fix (\S+)", case.settings))
    states = get_states(subject) or None
    data = list(_iterate_samples(subject.calib, fixed)) if fixed else None
    return lo.deploy(
        subject.model,
        folder,
        subject.calib,
        data=data,
        stem="model",
        samples=1,
        state=states,
        platform=case.platform,
        effort=args.effort,
        limit=args.samples,
        fix={key: float(value) for key, value in fixed.items()} or None,
    )


def _iterate_samples(calib: str, fixed: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the first items of "file.py:function" without the inputs whose values are fixed."""
    path, _, function = calib.rpartition(":")
    items = runpy.run_path(path)[function]()
    for item in itertools.islice(items, 2):
        arrays = item[0] if isinstance(item, tuple) else item
        yield {name: array for name, array in arrays.items() if name not in fixed}


def _compare(deployment: lo.Deployment, folder: Path, compiler: str) -> dict[str, Any]:
    """Compile the C files of a deployed folder, and compare sizes by object."""
    text = (deployment.folder / "DETAILS.md").read_text(encoding="utf-8")
    readme = (deployment.folder / "README.md").read_text(encoding="utf-8")
    stated = {name: (int(static), int(arrays)) for name, static, arrays in _ROW.findall(text)}
    manifest = json.loads((deployment.folder / "manifest.json").read_text(encoding="utf-8"))
    measured, rodata = {}, {}
    for source in sorted(deployment.folder.glob("*.c")):
        if source.name == "model_firmware.c":
            continue  # an example, which no build takes
        path = _compile(source, folder, compiler)
        sections = _read_sections(path)
        static_bytes = sum(size for name, size in sections.items() if _is_kind(name, "data", "bss"))
        rodata[path.name] = sum(size for name, size in sections.items() if _is_kind(name, "rodata"))
        symbols = subprocess.run(
            ["nm", "-S", str(path)], capture_output=True, text=True, check=True
        ).stdout
        arrays = sum(int(size, 16) for size, _ in _ARRAY.findall(symbols))
        measured[path.name] = (static_bytes, arrays)
    program = [name for name in measured if name not in ("main.o", "model_selftest.o")]
    host_arrays = sum(measured[name][1] for name in program)
    sizes = manifest["program"]["sizes"]
    total = sum(measured[name][0] for name in program)
    totals = [sizes["static_bytes"], *map(int, _TOTAL.findall(text) + _MEMORY.findall(readme))]
    by_object = {size["object"]: size["static_bytes"] for size in sizes["objects"]}
    is_equal = stated == measured and totals == [total] * 3
    is_equal &= by_object == {name: static for name, (static, _) in measured.items()}
    is_equal &= deployment.to_dict()["sizes"] == sizes
    return {
        "objects": len(measured),
        "program": [totals[-1], total],
        "selftest": [stated["model_selftest.o"][0], measured["model_selftest.o"][0]],
        "main": [stated["main.o"][0], measured["main.o"][0]],
        "arrays": [sum(stated[name][1] for name in program), host_arrays],
        "other_rodata": sum(rodata[name] for name in program) - host_arrays,
        "differences": {
            name: [stated.get(name), measured[name]]
            for name in measured
            if stated.get(name) != measured[name]
        },
        "equal": is_equal,
    }


def _compile(source: Path, folder: Path, compiler: str) -> Path:
    """Compile a C file for size, with the sections of a board: without position independence."""
    path = folder / f"{source.stem}.o"
    flags = ["-std=c99", "-Os", "-fno-pie", "-ffp-contract=off", "-w", f"-I{get_stub_folder()}"]
    subprocess.run([*compiler.split(), *flags, "-c", "-o", str(path), str(source)], check=True)
    return path


def _read_sections(path: Path) -> dict[str, int]:
    """Return the bytes of each section, as `size -A` prints them."""
    process = subprocess.run(["size", "-A", str(path)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in process.stdout.splitlines()]
    return {row[0]: int(row[1]) for row in rows if row and row[0].startswith(".")}


def _is_kind(section: str, *kinds: str) -> bool:
    """Whether a section is one of `kinds`, such as ".data.rel.ro" of "data"."""
    return section.split(".")[1] in kinds


def format_row(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "failed" in row:
        reason = " ".join(row["failed"].split()).replace("|", "/")
        cells = [row["model"], row["chip"], f"no program: {reason[:120]}"]
        return f"| {' | '.join(cells + ['-'] * (len(_HEAD) - len(cells)))} |"
    pairs = [
        f"{value:,}" for key in ("program", "selftest", "main", "arrays") for value in row[key]
    ]
    verdict = "yes" if row["equal"] else f"NO: {row['differences']}"
    cells = [row["model"], row["chip"], str(row["objects"]), *pairs, f"{row['other_rodata']:,}"]
    return f"| {' | '.join([*cells, verdict])} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--samples", type=int, default=8, help="calibration samples")
    parser.add_argument("--effort", choices=["fast", "normal", "best"], default="fast")
    parser.add_argument("--compiler", default="gcc", help="command, with flags")
    parser.add_argument("--log", type=Path, help="one JSON row per line; an earlier run goes on")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    args = parser.parse_args(argv)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if args.log and args.log.is_file():
        for line in args.log.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["model"], row["chip"]] = row
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}", flush=True)
    start = time.monotonic()
    for case in list_cases(args.only, args.chips):
        key = case.model, case.platform
        if key not in rows:
            if time.monotonic() - start > args.budget:
                continue
            rows[key] = measure_case(case, args)
            if args.log:
                with args.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(rows[key]) + "\n")
        print(format_row(rows[key]), flush=True)
    programs = [row for row in rows.values() if "failed" not in row]
    different = [row for row in programs if not row["equal"]]
    print(f"\n{len(programs)} programs, {len(different)} with a figure that differs from `size`.")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
