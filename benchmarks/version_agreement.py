"""Compare the simulator with rows measured on versions of the executor.

    python -m benchmarks.version_agreement [--rows FOLDER] [--operator NAME ...] [--list]

FOLDER holds index.json, graphs and arrays, by default tests/golden/versions. Every row that ran is
simulated on its platform in its version. The table counts rows by version and status: "measured",
or "rewritten" where a formula of the text of 2026-08-20 was run. Rows whose first output differs
from the formula on purpose are counted apart. A second table has the verdicts on all rows: sound
ones that are accepted or refused, wrong ones that are called wrong with a rule named, those that do
not pack and are refused, and planned bytes that equal the measured ones. --list names the rows that
differ. The exit code is 1 if a row that follows the formula differs, or another verdict than the
measured one is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lingeronnx.common.errors import LingerOnnxError
from lingeronnx.luna.evaluation import DetailedVerdict, evaluate_graph
from lingeronnx.runtime.session import Session
from lingeronnx.targets import Target, get_target

__all__ = [
    "READ_VERSION",
    "ROWS",
    "explain_difference",
    "find_rows",
    "follows_formula",
    "format_answer",
    "get_expected_answer",
    "get_feeds",
    "get_row_target",
    "has_measured_plan",
    "judge_row",
    "simulate",
]

ROWS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "versions"

#: The version whose rows were measured on rewritten formulas, not on the vendor's program.
READ_VERSION = "2026-08-20"

#: Rows whose recorded difference is that of another version's formula; their integers are right.
_OTHER_FORMULA = ("lstm_venus_v304_square",)

_Counts = Counter[tuple[str, str, str]]


def find_rows(folder: Path, operators: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of `folder` that ran, of `operators` or, if there are none, of all."""
    for row in json.loads((folder / "index.json").read_text()):
        if row.get("runs") and (not operators or row["operator"] in operators):
            yield row


def get_version(row: dict[str, Any]) -> str:
    """Return the version of the executor whose integers a row has."""
    return READ_VERSION if row["status"] == "rewritten" else str(row["executor"])


def get_row_target(row: dict[str, Any]) -> Target:
    """Return the target of a row: its platform in its version."""
    return get_target(f"{row['platform']}@{get_version(row)}")


def follows_formula(row: dict[str, Any]) -> bool:
    """Whether the first output of a row follows the formula of its version.

    Further outputs are states, which hold narrower integers than their declared type says; the
    recorded counts of differences do not consider that.
    """
    return bool(row["differs_from_formula"][0] == 0)


def simulate(folder: Path, row: dict[str, Any]) -> list[np.ndarray]:
    """Return the outputs of the row's graph in the simulator, on its platform and version."""
    session = Session(onnx.load(folder / row["file"]), platform=get_row_target(row))
    return session.run(None, get_feeds(folder, row))


def get_feeds(folder: Path, row: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the row's inputs, integers, by name."""
    arrays = np.load(folder / row["npz"])
    return {name: arrays[f"in{index}"] for index, name in enumerate(row["inputs"])}


def explain_difference(folder: Path, row: dict[str, Any], results: Sequence[np.ndarray]) -> str:
    """Return how `results`, the outputs of a row, differ from the measured ones; "" if equal.

    Outputs after the first are compared by bytes, as far as the executor writes them: not at all if
    they depend on the memory's old contents.
    """
    arrays = np.load(folder / row["npz"])
    for index, result in enumerate(results):
        measured = arrays[f"out{index}"]
        if index and row["depends_on_old_memory"]:
            continue
        if index:
            size = min(result.nbytes, measured.nbytes)
            is_equal = result.tobytes()[:size] == measured.tobytes()[:size]
        else:
            is_equal = np.array_equal(result, measured)
        if not is_equal:
            return f"output {index} is {result.tolist()}, measured {measured.tolist()}"
    return ""


def simulate_and_compare(folder: Path, row: dict[str, Any]) -> str:
    """Return how the simulator differs from a row, or why it refuses the graph; "" if equal."""
    try:
        return explain_difference(folder, row, simulate(folder, row))
    except LingerOnnxError as error:
        return str(error)


def get_expected_answer(row: dict[str, Any]) -> str:
    """Return the verdict that a row deserves: "refused", "wrong" or "right".

    A row is wrong if it does not run, if its outputs depend on old memory, or if they differ from
    the formula.
    """
    if not row["packs"]:
        return "refused"
    if row["name"] in _OTHER_FORMULA:
        return "right"
    differs = not row["runs"] or row["depends_on_old_memory"] or any(row["differs_from_formula"])
    return "wrong" if differs else "right"


def judge_row(folder: Path, row: dict[str, Any]) -> DetailedVerdict:
    """Return the verdict on a row's graph with its arguments, on its platform and version."""
    return evaluate_graph(onnx.load(folder / row["file"]), get_row_target(row), row["arguments"])


def format_answer(verdict: DetailedVerdict) -> str:
    """Return "refused", "wrong" or "right"."""
    if not verdict.is_packable:
        return "refused"
    return "right" if verdict.is_correct else "wrong"


def has_measured_plan(row: dict[str, Any], verdict: DetailedVerdict) -> bool:
    """Whether the planned shared memory is the measured one, which is a multiple of 64 bytes."""
    plan = verdict.memory_plan
    return plan is not None and bool(-(-plan.shared // 64) * 64 == row["plan"][1])


def count_simulated(folder: Path, operators: Collection[str], lists_rows: bool) -> _Counts:
    """Count the rows that ran by (version, status, kind), and those whose outputs are equal."""
    counts: _Counts = Counter()
    for row in find_rows(folder, operators):
        difference = simulate_and_compare(folder, row)
        group = (get_version(row), row["status"])
        kind = "formula" if follows_formula(row) else "other"
        counts[*group, kind] += 1
        counts[*group, f"{kind}, equal"] += not difference
        if difference and lists_rows:
            print(f"{kind}: {row['name']}: {difference[:200]}")
    return counts


def count_verdicts(folder: Path, operators: Collection[str], lists_rows: bool) -> _Counts:
    """Count all rows by (version, status, answer), and verdicts and plans that are as measured.

    A wrong row counts as named only if a rule says why.
    """
    counts: _Counts = Counter()
    for row in json.loads((folder / "index.json").read_text()):
        if operators and row["operator"] not in operators:
            continue
        verdict = judge_row(folder, row)
        group, expected = (get_version(row), row["status"]), get_expected_answer(row)
        names_rule = any(finding.level == "right" for finding in verdict.findings)
        is_as_measured = format_answer(verdict) == expected
        counts[*group, expected] += 1
        counts[*group, f"{expected}, given"] += is_as_measured and (
            expected != "wrong" or names_rule
        )
        if not is_as_measured and lists_rows:
            rules = "; ".join(finding.rule for finding in verdict.findings)
            print(f"{row['name']}: {format_answer(verdict)}, measured {expected}: {rules[:200]}")
        if row.get("plan"):
            counts[*group, "plan"] += 1
            counts[*group, "plan, given"] += has_measured_plan(row, verdict)
    return counts


def print_counts(head: str, counts: _Counts, kinds: Sequence[str]) -> None:
    """Print a Markdown table with a row for each version and status; `head` are its columns."""
    print(f"| version | status | {head} |\n|{'---|' * (len(kinds) + 2)}")
    for version, status in sorted({key[:2] for key in counts}):
        numbers = [str(counts[version, status, kind]) for kind in kinds]
        print(f"| {version} | {status} | {' | '.join(numbers)} |")


def main() -> int:
    """Print the tables; return 1 if a row differs that follows the formula, or a verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--operator", nargs="+", default=())
    parser.add_argument("--list", action="store_true", help="name the rows that differ")
    options = parser.parse_args()
    simulated = count_simulated(options.rows, options.operator, options.list)
    verdicts = count_verdicts(options.rows, options.operator, options.list)
    print_counts(
        "rows by the formula | equal | other rows | equal",
        simulated,
        ("formula", "formula, equal", "other", "other, equal"),
    )
    answers = ("right", "wrong", "refused", "plan")
    print()
    print_counts(
        "sound | accepted | wrong | called wrong | do not pack | refused | plans | equal",
        verdicts,
        [kind for answer in answers for kind in (answer, f"{answer}, given")],
    )
    totals: Counter[str] = Counter()
    for key, count in (simulated + verdicts).items():
        totals[key[2]] += count
    sound = totals["right"]
    refused = sound - totals["right, given"]
    print(f"\nsound rows refused or called wrong: {refused} of {sound}")
    is_equal = totals["formula, equal"] == totals["formula"]
    return int(
        not is_equal or any(totals[f"{answer}, given"] != totals[answer] for answer in answers)
    )


if __name__ == "__main__":
    sys.exit(main())
