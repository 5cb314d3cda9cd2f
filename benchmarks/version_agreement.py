"""Compare the simulator with rows measured on versions of the executor.

    python -m benchmarks.version_agreement [--rows FOLDER] [--operator NAME ...] [--list]

FOLDER holds index.json, graphs and arrays, by default tests/golden/versions. Every row that ran is
simulated on its platform in its version. The table counts rows by version and status: "measured",
or "rewritten" where a formula of the text of 2026-08-20 was run. Rows whose first output differs
from the formula on purpose are counted apart. --list names the rows that differ, or are refused.
The exit code is 1 if a row that follows the formula differs.
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
from lingeronnx.runtime.session import Session
from lingeronnx.targets import Target, get_target

__all__ = [
    "READ_VERSION",
    "ROWS",
    "explain_difference",
    "find_rows",
    "follows_formula",
    "get_feeds",
    "get_row_target",
    "simulate",
]

ROWS = Path(__file__).resolve().parents[1] / "tests" / "golden" / "versions"

#: The version whose rows were measured on rewritten formulas, not on the vendor's program.
READ_VERSION = "2026-08-20"


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


def main() -> int:
    """Print the table; return 1 if a row that follows the formula differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--operator", nargs="+", default=())
    parser.add_argument("--list", action="store_true", help="name the rows that differ")
    options = parser.parse_args()
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in find_rows(options.rows, options.operator):
        difference = simulate_and_compare(options.rows, row)
        group = (get_version(row), row["status"])
        kind = "formula" if follows_formula(row) else "other"
        counts[*group, kind] += 1
        counts[*group, f"{kind}, equal"] += not difference
        if difference and options.list:
            print(f"{kind}: {row['name']}: {difference[:200]}")
    print("| version | status | rows by the formula | equal | other rows | equal |")
    print("|---|---|---|---|---|---|")
    for version, status in sorted({key[:2] for key in counts}):
        kinds = ("formula", "formula, equal", "other", "other, equal")
        numbers = [str(counts[version, status, kind]) for kind in kinds]
        print(f"| {version} | {status} | {' | '.join(numbers)} |")
    total = {kind: sum(n for key, n in counts.items() if key[2] == kind) for _, _, kind in counts}
    return int(total.get("formula, equal", 0) < total.get("formula", 0))


if __name__ == "__main__":
    sys.exit(main())
