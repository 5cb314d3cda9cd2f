"""What decisions by price cost `quantize`.

User seconds with them and without, of one model after the other.
    python benchmarks/cost_model_overhead.py [--platform arcs] [--sets own shared] [--only GLOB ...]
    [--runs 5] [--log FILE]

Three ways to quantize a model take turns in one process: with no price known (nothing is decided by
time, nor is time reported), with arguments chosen by price (--objective plain), and by default
(forms, too). Each is asked `--runs` times, after one run that counts for nothing; the table has
medians, and the median over the rounds of each way's seconds over those without prices. Ends with 1
where the default takes more than 10 % longer. With --log, models that the file names already are
not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from version_models import Entry, iterate_entries

import lingeronnx as lo
from lingeronnx.targets import Target, get_target

_SAMPLES = 64  # of calibration data
_MOST = 1.10  # times as long


def without_kernel_costs(target: Target) -> Target:
    """Return the same chip, of whose time nothing is known."""
    return dataclasses.replace(target, vendor=dataclasses.replace(target.vendor, prices=None))  # type: ignore[type-var]


def measure_user_seconds(entry: Entry, calib: Any, target: Target, objective: str) -> float:
    """Return the user time of quantizing a model once."""
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    lo.quantize(entry.model, calib, platform=target, objective=objective, **entry.settings)
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin


def measure_model(entry: Entry, target: Target, runs: int) -> dict[str, Any]:
    """Return a model's row: medians of seconds without prices, with arguments by price and by default, and ratios."""
    calib, _ = entry.data(_SAMPLES)
    ways = ((without_kernel_costs(target), "plain"), (target, "plain"), (target, "accuracy"))
    try:
        rounds = [
            [measure_user_seconds(entry, calib, *way) for way in ways] for _ in range(runs + 1)
        ][1:]
    except lo.LingerOnnxError as error:
        return {"model": entry.name, "why": str(error)[:120]}
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    ratios = [statistics.median(times[way] / times[0] for times in rounds) for way in (1, 2)]
    return {"model": entry.name, "seconds": medians, "times": ratios}


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", default="arcs")
    parser.add_argument("--sets", nargs="+", default=["own", "shared"])
    parser.add_argument("--only", nargs="*", default=["*"], metavar="GLOB")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--log", type=Path, help="JSON lines; models that are there are not run again"
    )
    asked = parser.parse_args(words)
    lines = (
        asked.log.read_text().splitlines() if asked.log is not None and asked.log.is_file() else []
    )
    known = {row["model"]: row for row in map(json.loads, lines)}
    dear = 0
    print(
        "| model | without prices | arguments | default | arguments | default "
        "|\n|---|---|---|---|---|---|"
    )
    for entry in iterate_entries(asked.sets, 1):
        if not any(fnmatch.fnmatchcase(entry.name, glob) for glob in asked.only):
            continue
        row = known.get(entry.name) or measure_model(entry, get_target(asked.platform), asked.runs)
        if asked.log is not None and entry.name not in known:
            with asked.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
        if "why" in row:
            print(f"Left out: {row['model']}, {row['why']}", file=sys.stderr)
            continue
        told = [
            *(f"{s:.2f} s" for s in row["seconds"]),
            *(f"{times:.2f}" for times in row["times"]),
        ]
        print(f"| {row['model']} | " + " | ".join(told) + " |", flush=True)
        dear += row["times"][-1] > _MOST
    print(f"\n{dear} take more than {_MOST:.2f} times as long by default.")
    return int(dear > 0)


if __name__ == "__main__":
    sys.exit(main())
