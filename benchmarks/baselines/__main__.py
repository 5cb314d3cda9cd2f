"""Measure the figures of benchmarks/results/baseline.md and report regressions.

python -m benchmarks.baselines [--write] [--complete] [--only TEXT ...] [--table FILE] [--processes
N]

Every row of benchmarks/results/baseline.md is measured. A row is a regression if its value is lower
than before by more than its tolerance; the exit code is then 1, as it is if a row fails. --write
updates the table with better values, new ones (a value of ? in the table) and accepted regressions,
whose reason the last column must give. With --complete a row that cannot run because its model or
data are missing is a failure. --only selects the cases whose line contains all these texts, such as
yunet arcs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from .gate import Result, run_gate
from .gate import measure_case as attempt
from .table import Case

TABLE = Path(__file__).resolve().parents[1] / "results" / "baseline.md"


def main(words: Sequence[str] | None = None) -> int:
    """Run the gate; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(words)
    began = time.monotonic()
    os.environ |= {"OMP_NUM_THREADS": "1", "LINGERONNX_THREADS": "1"}  # each process has one core
    from .measure import find_subject, measure_case

    with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as pool:

        def run(cases: Sequence[Case]) -> Iterator[Result]:
            waiting = {pool.submit(attempt, measure_case, case): case for case in cases}
            for done in as_completed(waiting):
                try:
                    yield done.result()
                except BrokenProcessPool:
                    yield waiting[done], "a process died; run it alone with --only", 0.0

        try:
            code = run_gate(
                args.table,
                run,
                lambda case: find_subject(case.model).find_missing_file,
                args.only,
                args.write,
                args.complete,
            )
        except (OSError, ValueError) as error:
            sys.exit(f"error: {error}")
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")
    return code


if __name__ == "__main__":
    sys.exit(main())
