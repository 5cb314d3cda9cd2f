"""What becomes of each model as a C program.

Quantized, deployed, compiled and compared on this machine.
    python -m benchmarks.c_programs [--shared FOLDER] [--only NAME ...] [--chips venus ...]
    [--effort fast]
        [--samples 20] [--stream-calls 200] [--max-parts N] [--sanitize] [--calls N] [--jobs N]
        [--limit SECONDS] [--log FILE] [--write benchmarks/results/programs.md]

The models are those of `benchmarks.packability_agreement` and the two of
`benchmarks.streaming_models`; they are tried on their test data, which calibration has not seen.
One row per model and chip: parts, the chip's share of the multiply-accumulates, how near the
farthest output is to the float model's, float operations of the host per call, memory, what
`deploy --try` found, or the line with which it refused. --sanitize runs the known-answer test of
each program with AddressSanitizer and UBSan. --calls runs a model with states for so many calls in
C, beside two sessions; its data are taken again from the beginning as often as needed, the states
are not. With --jobs or --limit each row is a process of its own with one thread, N side by side, in
the order of --only; one that is not done in time is ended. A row in the log is not made again, but
for one that was ended by a smaller limit. --write makes no row: it puts those of the log, those of
the page that the log has not, and a line for each pair that has none, between the marks of a page.
The exit code is 1 where a proof failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lingeronnx as lo
from benchmarks.packability_agreement import Model, find_models, replace_section
from benchmarks.streaming_models import write_streaming_models
from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.common.files import write_text
from lingeronnx.deployment.c_program.build import SANITIZER_FLAGS
from lingeronnx.deployment.c_program.footprint import (
    ACCEPTED_WARNINGS,
    Footprint,
    count_host_warnings,
    measure_footprint,
)
from lingeronnx.deployment.c_program.host_proof import run_known_answer_test
from lingeronnx.deployment.c_program.object_sizes import CORES
from lingeronnx.deployment.c_program.program_files import describe_program
from lingeronnx.deployment.c_program.stream_test import run_stream_test
from lingeronnx.deployment.c_program.vectors import PartVector, collect_vectors
from lingeronnx.deployment.deploy import Deployment

CHIPS = ("venus", "arcs", "venusA")
START, END = "<!-- written by benchmarks/c_programs.py -->\n", "<!-- up to here -->"
_HEAD = (
    "model",
    "chip",
    "chip parts",
    "MACs on the chip",
    "least dB",
    "host float operations",
    "RAM",
    "flash",
    "psram",
    "stack M4",
    "stack RV32",
    "compared",
    "integers that differ",
    "from the same states",
    "counts from a tie",
    "host parts within",
    "sanitizers",
)
_COMPARED = _HEAD.index("compared")


def find_test_data(calib: Any) -> Any:
    """Return the test data that stand beside calibration data.

    A function or a file of the same name.
    """
    place, mark, name = str(calib).rpartition(":" if ":" in str(calib) else "/")
    return f"{place}{mark}{name.replace('calib', 'test')}"


def measure_row(model: Model, chip: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return one row as a dict."""
    told: dict[str, Any] = {"model": model.name, "chip": chip}
    state = dict(model.settings.get("state", {})) or None
    settings = {
        "effort": asked.effort,
        **({"max_parts": asked.max_parts} if asked.max_parts else {}),
    }
    began = time.process_time()
    try:
        made = lo.quantize(
            str(model.path), model.calib, platform=chip, **{**model.settings, **settings}
        )
        told["runs"] = made.report.runs_text or (
            "1 chip part" if made.report.chip_ready else "not on the chip"
        )
        told["macs"] = made.report.integer_macs
        told["levels"] = {name: found["sqnr"] for name, found in made.report.outputs.items()}
        told["sqnr"] = min(told["levels"].values(), default=None)
        told["quantized_s"] = round(time.process_time() - began, 1)
        with tempfile.TemporaryDirectory() as place:
            many = asked.stream_calls if state else asked.samples
            done = lo.deploy(
                made,
                Path(place) / "board",
                find_test_data(model.calib),
                samples=many,
                state=state,
                stem="model",
                attempt=True,
            )
            if done.proof is None or done.contents.program is None:
                return {
                    **told,
                    "failed": next(
                        (note for note in done.notes if " C " in note), "no C was written"
                    ),
                }
            told |= _sizes(done) | done.proof.to_dict()
            if asked.sanitize:
                told["sanitized"] = _run_sanitized(done, done.proof.seen)
            if asked.calls and state:
                told["stream"] = _run_stream(done, asked.calls)
    except LingerOnnxError as error:
        return {**told, "failed": str(error)}
    except Exception as error:  # a defect of ours has its row, too, and does not end a run of hours
        return {**told, "failed": f"{type(error).__name__}: {error}"}
    return {**told, "cpu_s": round(time.process_time() - began, 1)}


def _sizes(done: Deployment) -> dict[str, Any]:
    """Return parts, operations and bytes of a deployed program."""
    program = done.contents.program
    assert program is not None
    told = describe_program(program)
    constants = sum(
        value.const_value.nbytes
        for part in program.unique_chip_parts
        for value in part.graph.graph.initializers.values()
        if value.const_value is not None
    )
    found: dict[str, Any] = {
        "chip_parts": len(program.chip),
        "packages": len(program.unique_chip_parts),
        "host_parts": len(program.host),
        "functions": len(program.unique_host_parts),
        "operations": told["operations"],
        "psram": told["psram_bytes"],
        "shared": told["shared_bytes"],
        "chip_constants": constants,
        "host_weights": told["host_weights"],
        "large": [
            [p.name, p.source.weight_bytes, p.float_operations]
            for p in program.unique_host_parts
            if p.source.is_large
        ],
        "host_warnings": dict(count_host_warnings(program, done.folder)),
    }
    for core in CORES:
        try:
            found[core] = _figures(measure_footprint(program, done.folder, core))
        except LingerOnnxError as error:
            found[core] = str(error)
    return found


def _figures(footprint: Footprint) -> dict[str, int]:
    """Return the figures of a core that the table shows, in bytes.

    ram : static RAM without shared memory and PSRAM. code, constants : flash without the packages.
    """
    total = footprint.sizes.get_program_total()
    return {
        "ram": total.ram_bytes,
        "code": total.code_bytes or 0,
        "constants": total.rodata_bytes or 0,
        "run": footprint.run,
    }


def _run_sanitized(done: Deployment, seen: Sequence[Sequence[PartVector]]) -> str:
    program = done.contents.program
    assert program is not None
    vectors = [*(collect_vectors(program, call) for call in done.contents.calls), *seen]
    with tempfile.TemporaryDirectory() as place:
        return run_known_answer_test(program, done.folder, Path(place), vectors, SANITIZER_FLAGS)


def _run_stream(done: Deployment, calls: int) -> dict[str, Any]:
    board = done.contents
    assert board.program is not None
    fed = {one.tensor for one, _ in board.program.states}
    items = [
        {name: a for name, a in run.feeds.items() if name not in fed}
        for run in board.sample_runs.values()
    ]
    found = run_stream_test(
        board.program,
        board.partition.parts,
        done.folder,
        itertools.islice(itertools.cycle(items), calls),
    )
    return {**found.to_dict(), "grows": found.is_error_growing}


# ---- side by side ----------------------------------------------------------------------------------------------------


def run_rows_in_parallel(
    wanted: Iterable[tuple[Model, str]], asked: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `wanted` as they come, each made by a process of its own, which a limit ends."""
    waiting, running = list(wanted)[::-1], dict[subprocess.Popen[bytes], tuple[str, str, float]]()
    with tempfile.TemporaryDirectory(prefix="programs-") as place:
        try:
            while waiting or running:
                while waiting and len(running) < asked.jobs:
                    model, chip = waiting.pop()
                    running[_start_row(model.name, chip, asked, Path(place))] = (
                        model.name,
                        chip,
                        time.monotonic(),
                    )
                time.sleep(0.1)
                for process, (name, chip, began) in list(running.items()):
                    late = asked.limit is not None and time.monotonic() - began > asked.limit
                    if process.poll() is None and not late:
                        continue
                    del running[process]
                    _terminate(process)
                    log = Path(place) / f"{name}_{chip}.jsonl"
                    if log.is_file() and (text := log.read_text()):
                        yield json.loads(text)
                        continue
                    told = {
                        "model": name,
                        "chip": chip,
                        "failed": f"the process ended with {process.returncode}",
                    }
                    yield (
                        {**told, "failed": f"not done in {asked.limit} s", "late": asked.limit}
                        if late
                        else told
                    )
        finally:
            for process in running:
                _terminate(process)


def _start_row(
    model: str, chip: str, asked: argparse.Namespace, place: Path
) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.c_programs",
        "--only",
        model,
        "--chips",
        chip,
        "--effort",
        asked.effort,
    ]
    words += [
        "--samples",
        str(asked.samples),
        "--stream-calls",
        str(asked.stream_calls),
        "--calls",
        str(asked.calls),
    ]
    words += ["--log", str(place / f"{model}_{chip}.jsonl"), *["--sanitize"] * asked.sanitize]
    words += ["--max-parts", str(asked.max_parts)] if asked.max_parts else []
    words += ["--shared", str(asked.shared)] if asked.shared else []
    one = {"OMP_NUM_THREADS": "1", "LINGERONNX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with (place / f"{model}_{chip}.txt").open("wb") as said:
        return subprocess.Popen(
            words, stdout=said, stderr=said, env={**os.environ, **one}, process_group=0
        )


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a row's process, with what it has called."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# ---- the table -------------------------------------------------------------------------------------------------------


def _line(told: dict[str, Any]) -> list[str]:
    if "cells" in told:
        return list(told["cells"])
    start = [told["model"], told["chip"]]
    if "calls" not in told:
        return [
            *start,
            f"no: {' '.join(told['failed'].split())[:200]}".replace("|", "/"),
            *["-"] * (len(_HEAD) - 3),
        ]
    outcome = (
        f"{told['calls']} calls" if not told["failed"] else f"FAILED: {told['failed'][0][:120]}"
    )
    packages = f" ({told['packages']} packages)" if told["packages"] != told["chip_parts"] else ""
    cores = [told[core] if isinstance(told[core], dict) else None for core in CORES]
    ram, flash = "-", "-"
    level = "-" if told["sqnr"] is None else f"{told['sqnr']:.1f}"
    if cores[0] is not None:
        ram, flash = (
            f"{cores[0]['ram']:,}",
            f"{cores[0]['code'] + cores[0]['constants'] + told['chip_constants']:,}",
        )
    return [
        *start,
        f"{told['chip_parts']}{packages}",
        f"{told['macs']:.1%}",
        level,
        f"{told['operations']:,}",
        ram,
        flash,
        f"{told['psram']:,}",
        *("-" if core is None else f"{core['run']:,}" for core in cores),
        outcome,
        f"{told['differing']} of {told['integers']:,}",
        f"{told.get('fallen', told['differing'])}",
        f"{told['tie']:.1g}" if told["differing"] else "-",
        f"{told['host']:.1g}",
        told.get("sanitized", "-").partition(":")[0],
    ]


def _streams(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = [
        (
            "| model | chip | calls | equal bit for bit | outputs that differ | first thousand | last "
            "thousand |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for told in rows:
        if (stream := told.get("stream")) is not None:
            equal = "yes" if not stream["failed"] else f"NO: {stream['failed'][0][:120]}"
            errors = [f"{e:.2g}" for e in (stream["errors"] or [float("nan")])]
            found.append(
                f"| {told['model']} | {told['chip']} | {stream['calls']:,} | {equal} | "
                f"{stream['differing']} of "
                f"{stream['outputs']:,} | {errors[0]} | {errors[-1]} |"
            )
    return found if len(found) > 2 else []


def table(rows: Sequence[dict[str, Any]], missing: Sequence[str] = ()) -> str:
    """Return the rows as Markdown tables, and what has none."""
    lines = ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(_line(told)).replace("\n", " ") + " |" for told in rows]
    written = [cells for cells in map(_line, rows) if not cells[2].startswith("no: ")]
    passed = sum(cells[_COMPARED].endswith(" calls") for cells in written)
    lines += [
        "",
        f"{passed} of {len(rows)} programs passed; {len(rows) - len(written)} were not written.",
        "",
    ]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    large = [text for told in rows for text in _format_large_hosts(told)]
    lines += ["Host parts with 100 kB of weights and more:", "", *large, ""] * bool(large)
    counted = [Counter(told["host_warnings"]) for told in rows if "host_warnings" in told]
    if counted:
        which = (
            "" if len(counted) == len(written) else f", of the {len(counted)} programs made last"
        )
        lines += [f"Warnings in generated host parts under the flags of our own C{which}:", ""]
        kinds = sorted(sum(counted, Counter()).items())
        lines += [
            f"- {kind}, {count:,}: {ACCEPTED_WARNINGS.get(kind, 'not judged')}"
            for kind, count in kinds
        ] or ["none"]
        lines += [""]
    streams = _streams(rows)
    return "\n".join([*lines, *streams, ""] if streams else lines)


def _format_large_hosts(told: dict[str, Any]) -> list[str]:
    """Return a line for each large host part of a row."""
    if "cells" in told:
        return list(told["large"])
    return [
        (
            f"- {told['model']} on {told['chip']}: {name}, {weights:,} bytes, {operations:,} float "
            "operations"
        )
        for name, weights, operations in told.get("large", ())
    ]


def parse_rows(page: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows that stand in a page, as they are: {(model, chip).

    Its cells and lines of large host parts}.
    """
    lines = page.partition(START)[2].partition(END)[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in lines
        if line.startswith("| ")
    ]
    return {
        (cells[0], cells[1]): {
            "model": cells[0],
            "chip": cells[1],
            "cells": cells,
            "large": [line for line in lines if line.startswith(f"- {cells[0]} on {cells[1]}: ")],
        }
        for cells in rows
        if len(cells) == len(_HEAD) and cells != list(_HEAD)
    }


def _needs_run(told: dict[str, Any] | None, limit: float | None) -> bool:
    """Whether a row is to be made.

    There is none, or it was ended by a smaller limit than this one.
    """
    return told is None or ("late" in told and (limit is None or told["late"] < limit))


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, metavar="FOLDER", help="more models/ and data/")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=CHIPS)
    parser.add_argument("--effort", choices=["fast", "normal", "best"], default="normal")
    parser.add_argument("--samples", type=int, default=20, help="calls that are tried")
    parser.add_argument(
        "--stream-calls", type=int, default=200, help="the same of models with states"
    )
    parser.add_argument("--max-parts", type=int, help="as for quantize")
    parser.add_argument("--sanitize", action="store_true", help="AddressSanitizer and UBSan")
    parser.add_argument("--calls", type=int, default=0, help="of a stream, beside sessions")
    parser.add_argument("--jobs", type=int, default=1, help="rows side by side")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of a row")
    parser.add_argument(
        "--log", type=Path, help="rows as they come; a run that was interrupted goes on"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE")
    asked = parser.parse_args(words)
    known: dict[tuple[str, str], dict[str, Any]] = {}
    if asked.log and asked.log.is_file():
        known = {
            (told["model"], told["chip"]): told
            for told in map(json.loads, asked.log.read_text().splitlines())
        }
    with tempfile.TemporaryDirectory(prefix="streams-") as place:
        found = {
            model.name: model
            for model in (*find_models(asked.shared), *write_streaming_models(Path(place)))
        }
        return _table(parser, asked, found, known)


def _table(
    parser: argparse.ArgumentParser,
    asked: argparse.Namespace,
    found: Mapping[str, Model],
    known: dict[tuple[str, str], dict[str, Any]],
) -> int:
    """Make the rows that are asked for and not known, print all; return the exit code."""
    if unknown := [name for name in asked.only or () if name not in found]:
        parser.error(f"--only: no model '{unknown[0]}'; there are {', '.join(found)}")
    pairs = [(found[name], chip) for name in asked.only or found for chip in asked.chips]
    if not asked.write:
        again = [
            pair for pair in pairs if _needs_run(known.get((pair[0].name, pair[1])), asked.limit)
        ]
        apart = asked.jobs > 1 or asked.limit is not None
        for told in (
            run_rows_in_parallel(again, asked)
            if apart
            else (measure_row(*pair, asked) for pair in again)
        ):
            known[told["model"], told["chip"]] = told
            if asked.log:
                with asked.log.open("a") as log:
                    log.write(json.dumps(told) + "\n")
            print("| " + " | ".join(_line(told)) + " |", flush=True)
    page = asked.write.read_text(encoding="utf-8") if asked.write else ""
    known = {**parse_rows(page), **known}
    named = [(model.name, chip) for model, chip in pairs]
    rows = [known[at] for at in dict.fromkeys((*named, *(known if page else ()))) if at in known]
    rows.sort(
        key=lambda told: [*found].index(told["model"]) if told["model"] in found else len(found)
    )
    missing = [f"{name} on {chip}" for name, chip in named if (name, chip) not in known]
    print(table(rows, missing))
    if asked.write:
        write_text(asked.write, replace_section(page, table(rows, missing), (START, END)))
    return int(any("calls" in told and bool(told["failed"]) for told in rows))


if __name__ == "__main__":
    sys.exit(main())
