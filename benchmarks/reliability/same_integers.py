"""Integers of random nets: all instruction sets, numbers of threads and splits of a batch agree.

    python -m benchmarks.reliability.same_integers -n 500 [--journal FILE] [--seconds S]

Families of nets (`tests.fuzz.families`) and platforms take turns. A net is quantized once. Its
integers by the scalar loops with one thread, the batch at once, are compared with those of every
instruction set that this processor supports, of 1 and 3 threads, and of splits of the batch: the
outputs of `Session.run`, whose programs fuse most (bit by bit, where they are float), and every
integer tensor of `Session.taps`. A journal has one line per net; a second run continues it. Prints a table and
exits with 1 where an integer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lingeronnx.common.errors import LingerOnnxError
from simulator.instruction_sets import INSTRUCTION_SETS, is_supported_by_host
from tests.fuzz.families import FAMILIES
from tests.fuzz.nets import case
from tests.fuzz.quantized_case import PLATFORMS, QuantizedCase, cut

_SAMPLES = 9
_SPLITS = (9, 4, 1)  # samples in a run
_THREADS = ("1", "3")
_SCALAR = "0"

Tensors = dict[str, np.ndarray]


@contextmanager
def set_environment(**values: str) -> Iterator[None]:
    """Set environment variables for the sessions that are opened and run inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def run_split(session: Any, feeds: Mapping[str, np.ndarray], size: int) -> Tensors:
    """Return the outputs of a batch that is run in parts of `size` samples."""
    names = [spec.name for spec in session.get_outputs()]
    runs = [
        session.run(None, cut(feeds, start, start + size)) for start in range(0, _SAMPLES, size)
    ]
    return {
        name: np.concatenate(arrays)
        for name, arrays in zip(names, zip(*runs, strict=True), strict=True)
    }


def run_all(session: Any, feeds: Mapping[str, np.ndarray]) -> Tensors:
    """Return every integer tensor of one run of the whole batch."""
    return {
        name: array.copy() for name, array, _ in session.taps(feeds) if array.dtype.kind in "iu"
    }


def count_differences(want: Tensors, got: Tensors) -> int:
    """Return the number of unequal elements; all elements of a tensor that only one side has."""
    names = {*want, *got}
    different = 0
    for name in names:
        one, other = want.get(name), got.get(name)
        if one is None or other is None or one.shape != other.shape:
            different += max(a.size for a in (one, other) if a is not None)
        else:
            bits = np.dtype(f"u{one.dtype.itemsize}")
            different += int((one.view(bits) != other.view(bits)).sum())
    return different


def compare_net(made: QuantizedCase, instruction_sets: list[str]) -> dict[str, Any]:
    """Run a net in all ways; return the number of integers, of comparisons and what differs."""
    feeds = made.case.feeds(_SAMPLES)
    with set_environment(LINGERONNX_SIMD=_SCALAR, LINGERONNX_THREADS="1"):
        session = made.result.session()
        tensors, outputs = run_all(session, feeds), run_split(session, feeds, _SAMPLES)
    differing: dict[str, int] = {}
    comparisons = 0
    for name in instruction_sets:
        for threads in _THREADS:
            with set_environment(LINGERONNX_SIMD=name, LINGERONNX_THREADS=threads):
                session = made.result.session()
                found = {f"{size}": run_split(session, feeds, size) for size in _SPLITS}
                wrong = {size: count_differences(outputs, got) for size, got in found.items()}
                wrong["tensors"] = count_differences(tensors, run_all(session, feeds))
            comparisons += len(wrong)
            differing.update(
                {f"{name}, {threads}, {way}": count for way, count in wrong.items() if count}
            )
    return {
        "integers": sum(array.size for array in (*tensors.values(), *outputs.values())),
        "comparisons": comparisons,
        "differing": differing,
    }


def read_journal(path: Path | None) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the rows of the nets that were run, by family, seed and platform."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {(row["family"], row["seed"], row["platform"]): row for row in rows}


def main() -> int:
    """Run the nets, print the table, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=500, help="how many nets (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first net of each family")
    parser.add_argument("--journal", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no net after so many"
    )
    asked = parser.parse_args()
    instruction_sets = [_SCALAR, *(s.name for s in INSTRUCTION_SETS if is_supported_by_host(s))]
    rows, start = read_journal(asked.journal), time.perf_counter()
    families = list(FAMILIES)
    done: list[dict[str, Any]] = []
    for number in range(asked.n):
        if time.perf_counter() - start > asked.seconds:
            break
        turn, place = divmod(number, len(families) * len(PLATFORMS))
        family, platform = families[place % len(families)], PLATFORMS[place // len(families)]
        seed = asked.seed + turn
        row = rows.get((family, seed, platform))
        if row is None:
            row = {"family": family, "seed": seed, "platform": platform}
            try:
                row |= compare_net(QuantizedCase(case(family, seed), platform), instruction_sets)
            except LingerOnnxError as error:
                row["refused"] = str(error)
            if asked.journal:
                with asked.journal.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if row.get("differing"):
                print(row, flush=True)
        done.append(row)
    total: Counter[str] = Counter()
    for row in done:
        total.update({name: row.get(name, 0) for name in ("integers", "comparisons")})
        total["refused"] += "refused" in row
        total["differing"] += sum(row.get("differing", {}).values())
    print(f"instruction sets: {', '.join(instruction_sets)}; threads: {', '.join(_THREADS)}")
    print("| nets | refused | comparisons | integers | integers that differ |")
    print("|---" * 5 + "|")
    figures = (len(done), *(total[n] for n in ("refused", "comparisons", "integers", "differing")))
    print("|", " | ".join(f"{figure:,}" for figure in figures), "|")
    return int(total["differing"] > 0)


if __name__ == "__main__":
    sys.exit(main())
