"""Compare the strength of two test suites on the same mutants.

    python -m benchmarks.mutants draw --seed 55 --count 60
    python -m benchmarks.mutants probe TREE --hits FOLDER        # then run the tests of TREE once,
    with --junitxml python -m benchmarks.mutants run TREE [TREE] --suite old --hits FOLDER --times
    RESULT.xml --size usual python -m benchmarks.mutants table

TREE is a clone with an environment in `.venv` that imports its packages from there. `probe` changes
the clone, so that a test run in it writes who executes which mutant into FOLDER. `run` applies one
mutant at a time, runs the tests that execute it, those of its module and the shortest first, as
many as take `--budget` seconds, and stops at the first failure; each TREE serves one mutant at a
time. `--all` runs every test of the tier instead, for mutants that survived. The journal has one
line per mutant and suite, and a second `run` continues it.

A mutant is *killed* by a failed assertion or a wrong error of a test that passes without the
mutant. An error while a test file is imported or collected is counted apart (`import`), and so are
a process that ends by a signal (`crash`) and tests that run out of time (`timeout`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .sites import Mutant, apply_mutant, draw_mutants, instrument

HERE = Path(__file__).parent
MUTANTS = HERE / "mutants.json"
JOURNAL = HERE / "journal.jsonl"


def read_mutants() -> list[Mutant]:
    """Read the drawn mutants."""
    return [
        Mutant(**{**row, "position": tuple(row["position"])})
        for row in json.loads(MUTANTS.read_text())
    ]


def read_hits(folder: Path) -> dict[int, set[str]]:
    """Read which tests execute which mutant.

    A place that is executed at import has no tests of its own.
    """
    tests: dict[int, set[str]] = defaultdict(set)
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            number, _, test = line.partition("\t")
            if "::" in test:
                tests[int(number)].add(test)
    return tests


def read_times(path: Path) -> dict[str, float]:
    """Read the seconds of each test from pytest's XML report, by node id."""
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = name_test(case)
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0))
    return seconds


def order_tests(tests: Iterable[str], mutant: Mutant, seconds: Mapping[str, float]) -> list[str]:
    """Sort tests: those of the mutant's module first, then those of folders near it, and the shortest."""
    source = Path(mutant.path)
    folders = source.parts[:-1] if source.parts[0] == "simulator" else source.parts[1:-1]

    def rank(test: str) -> tuple[bool, int, float, str]:
        path = Path(test.partition("::")[0])
        common = os.path.commonprefix([folders, path.parts[1:-1]])
        return path.stem != f"test_{source.stem}", -len(common), seconds.get(test, 1.0), test

    return sorted(tests, key=rank)


def cut_tests(tests: Sequence[str], seconds: Mapping[str, float], budget: float) -> list[str]:
    """Return the first tests that take no more than `budget` seconds together."""
    total, chosen = 0.0, []
    for test in tests:
        total += seconds.get(test, 1.0)
        if total > budget:
            break
        chosen.append(test)
    return chosen


def run_tests(tree: Path, tests: Sequence[str], size: str, seconds: float) -> tuple[str, str, str]:
    """Run tests of a clone until the first failure.

    Return the outcome, the test that failed and its message.
    tests : node ids; none of them means all tests of the tier.
    """
    with tempfile.TemporaryDirectory() as folder:
        names, report = Path(folder) / "tests.txt", Path(folder) / "report.xml"
        names.write_text("\n".join(tests))
        command = [
            ".venv/bin/python",
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        command += [f"@{names}"] if tests else ["-n", "2", "--dist", "loadfile"]
        variables = {
            **os.environ,
            "LINGERONNX_TESTS": size,
            "LINGERONNX_CACHE_DIR": f"{tree}.cache",
        }
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "timeout", "", ""
        last_line = output.strip().splitlines()[-1][:150] if output.strip() else ""
        if process.returncode == 0:
            return "survived", "", ""
        if process.returncode < 0 or "Fatal Python error" in output:
            return "crash", "", f"signal {-process.returncode}"
        if process.returncode != 1:
            return "import", "", last_line
        test, message = read_failure(report)
    return ("killed", test, message) if test else ("import", "", last_line)


def read_failure(report: Path) -> tuple[str, str]:
    """Read the first failed test and its message from pytest's XML report.

    Empty texts if none failed.
    Folders are left out of the message: the journal is kept, and those of a clone are temporary.
    """
    for case in ElementTree.parse(report).iter("testcase"):
        for problem in case:
            if problem.tag in ("failure", "error"):
                message = (problem.get("message") or "").partition("\n")[0]
                return name_test(case), re.sub(r"/(?:[^/\s]+/)+", ".../", message)[:150]
    return "", ""


def name_test(case: ElementTree.Element) -> str:
    """Return the node id of a test of pytest's XML report."""
    return case.get("classname", "").replace(".", "/") + ".py::" + case.get("name", "")


def judge_mutant(
    tree: Path,
    mutant: Mutant,
    tests: list[str],
    seconds: Mapping[str, float],
    options: argparse.Namespace,
) -> dict[str, object]:
    """Apply a mutant to a clone, run its tests, restore the clone; return a row of the journal.

    A kill counts if the test also fails alone with the mutant, and passes alone without it. A test
    that fails for another reason, such as the order of the tests, is left out and the others go on.
    """
    began = time.monotonic()
    limit = options.limit or 120 + 5 * sum(seconds.get(test, 1.0) for test in tests)
    outcome, test, message = (
        ("survived", "", "") if tests else ("survived", "", "no test executes it")
    )
    unsound: list[str] = []
    while options.all or tests:
        outcome, test, message = run_mutated(
            tree, mutant, [] if options.all else tests, options.size, limit
        )
        if outcome != "killed" or is_sound_kill(tree, mutant, test, options.size):
            break
        unsound.append(test)
        tests = [other for other in tests if other != test]
        outcome, test, message = "survived", "", ""
        if options.all:
            break
    return {
        "mutant": mutant.number,
        "suite": options.suite,
        "all": options.all,
        "tests": len(tests),
        "outcome": outcome,
        "test": test,
        "message": message,
        "unsound": unsound,
        "seconds": round(time.monotonic() - began, 1),
    }


def run_mutated(
    tree: Path, mutant: Mutant, tests: Sequence[str], size: str, seconds: float
) -> tuple[str, str, str]:
    """Run tests with the mutant applied, and restore the clone."""
    before = apply_mutant(tree, mutant)
    try:
        return run_tests(tree, tests, size, seconds)
    finally:
        (tree / mutant.path).write_text(before)


def is_sound_kill(tree: Path, mutant: Mutant, test: str, size: str) -> bool:
    """Whether a test fails alone with the mutant and passes alone without it."""
    mutated, _, _ = run_mutated(tree, mutant, [test], size, 300)
    original, _, _ = run_tests(tree, [test], size, 300)
    return mutated == "killed" and original == "survived"


def run_mutants(options: argparse.Namespace) -> None:
    """Judge the mutants that the journal has no row of yet, one per clone at a time."""
    seconds, hits = read_times(options.times), read_hits(options.hits)
    rows = (
        [json.loads(line) for line in JOURNAL.read_text().splitlines()] if JOURNAL.is_file() else []
    )
    known = {
        row["mutant"] for row in rows if row["suite"] == options.suite and row["all"] >= options.all
    }
    waiting: queue.Queue[Mutant] = queue.Queue()
    for mutant in read_mutants():
        if mutant.number not in known and (not options.only or mutant.number in options.only):
            waiting.put(mutant)
    lock = threading.Lock()

    def serve(tree: Path) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            covering = {test for test in hits.get(mutant.number, ()) if test in seconds}
            ordered = order_tests(covering, mutant, seconds)
            tests = cut_tests(ordered, seconds, options.budget)
            row = judge_mutant(tree, mutant, tests, seconds, options)
            row["left_out"] = len(ordered) - len(tests)
            with lock, JOURNAL.open("a") as journal:
                journal.write(json.dumps(row) + "\n")
                print(
                    (
                        f"{mutant.number:3} {row['outcome']:9} {row['seconds']:6} s  {mutant.path} "
                        f"{row['test']}"
                    ),
                    flush=True,
                )

    threads = [threading.Thread(target=serve, args=(tree.resolve(),)) for tree in options.trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def print_table() -> None:
    """Print each mutant with its outcome in each suite, and the kills of each suite."""
    outcomes: dict[int, dict[str, str]] = defaultdict(dict)
    for line in JOURNAL.read_text().splitlines():
        row = json.loads(line)
        outcomes[row["mutant"]][row["suite"]] = row["outcome"]
    suites = sorted({suite for row in outcomes.values() for suite in row})
    print("| mutant | place | rule | " + " | ".join(suites) + " |")
    print("|---|---|---|" + "---|" * len(suites))
    for mutant in read_mutants():
        cells = [outcomes[mutant.number].get(suite, "") for suite in suites]
        print(
            f"| {mutant.number} | {mutant.path}:{mutant.position[0]} | {mutant.rule} | "
            f"{' | '.join(cells)} |"
        )
    for suite in suites:
        killed = sum(row.get(suite) == "killed" for row in outcomes.values())
        print(f"\n{suite}: {killed} killed of {sum(suite in row for row in outcomes.values())}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw")
    draw.add_argument("--seed", type=int, default=55)
    draw.add_argument("--count", type=int, default=60)
    draw.add_argument("--root", type=Path, default=HERE.parents[1])
    probe = commands.add_parser("probe")
    probe.add_argument("tree", type=Path)
    probe.add_argument("--hits", type=Path, required=True)
    run = commands.add_parser("run")
    run.add_argument("trees", type=Path, nargs="+")
    run.add_argument("--suite", required=True)
    run.add_argument("--hits", type=Path, required=True)
    run.add_argument("--times", type=Path, required=True)
    run.add_argument("--size", default="all")
    run.add_argument("--only", type=int, nargs="*")
    run.add_argument("--all", action="store_true")
    run.add_argument(
        "--limit", type=float, help="seconds after which the tests of a mutant are stopped"
    )
    run.add_argument(
        "--budget",
        type=float,
        default=120.0,
        help="seconds of tests for a mutant; the rest is left out",
    )
    commands.add_parser("table")
    options = parser.parse_args(arguments)
    if options.command == "draw":
        drawn = draw_mutants(options.root, options.count, options.seed)
        MUTANTS.write_text(
            json.dumps([dataclasses.asdict(mutant) for mutant in drawn], indent=1) + "\n"
        )
    elif options.command == "probe":
        left_out = instrument(options.tree, read_mutants(), options.hits)
        print(f"without a probe, since Numba compiles them: {left_out or 'none'}")
    elif options.command == "run":
        run_mutants(options)
    else:
        print_table()


if __name__ == "__main__":
    sys.exit(main())
