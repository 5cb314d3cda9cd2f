"""Write the versions on which each model of the baseline gives the same integers: before and after.

    python -m benchmarks.packing_of_versions --save FOLDER        with each of both versions
    python -m benchmarks.version_lists BEFORE AFTER > benchmarks/results/versions.md

BEFORE and AFTER are two such folders. A case has both lists of `check` for the stored file with its
packer arguments, or for its parts: the versions of packer and executor with equal integers, and
those on which the memory plan is known to be safe. Versions in italics are known from reading only.
Cases of BEFORE that AFTER lacks are taken as unchanged.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import lingeronnx as lo
from lingeronnx.targets.version_compatibility import VersionTable

_HEAD = """# Versions of packer and executor

For each model of [the baseline](baseline.md) and each chip: the versions of the vendor's packer and executor on which
the file that `quantize` writes gives the same integers, and those on which its memory plan is known to be safe, before
and after forms were chosen that hold on most versions (LSTMs with `batch_first` 1 where this is exact, layer norms of
venus with `parameter_bits` 16). An arrow separates both where they differ. Versions in *italics* are known from
reading only. The last column has a node that narrows the lists, on a measured version if there is one, and its rule.
Made by `python -m benchmarks.version_lists`; `-` is a model that the chip does not run.
"""


def read_versions(entry: Path) -> VersionTable:
    """Return the versions of a stored case; empty if the chip does not run it."""
    row = json.loads(entry.read_text())
    graph = entry.with_suffix(".onnx")
    if not graph.is_file():
        return VersionTable()
    arguments = row.get("arguments") or None
    return lo.check(graph, platform=row["platform"], packer_args=arguments).versions


def format_versions(table: VersionTable, versions: tuple[str, ...]) -> str:
    """Format versions as a cell, read ones in italics."""
    if not table.rows:
        return "-"
    read = {row.version for row in table.rows if row.basis == "read"}
    names = [f"*{version}*" if version in read else version for version in versions]
    return ", ".join(names) or "none"


def format_pair(old: str, new: str) -> str:
    """Return one cell for both values."""
    return new if old == new else f"{old} → {new}"


def describe_reason(table: VersionTable) -> str:
    """Return the first node that narrows the lists, with version and rule; "" if none does.

    Measured versions come first. Planned memory that was not measured has no node.
    """
    rows = sorted(table.rows, key=lambda row: row.basis == "read")
    for row in rows:
        for finding in row.findings:
            if finding.level != "unmeasured":
                version = f"*{row.version}*" if row.basis == "read" else row.version
                return f"{version}: `{finding.node}`: {finding.rule}".replace("|", "\\|")
    return ""


def format_case(entry: Path, after: Path) -> tuple[list[str], bool]:
    """Return the cells of a case, and whether a list differs between before and after."""
    row: dict[str, Any] = json.loads(entry.read_text())
    old = read_versions(entry)
    new_entry = after / entry.name
    new = read_versions(new_entry) if new_entry.is_file() else old
    equal = [format_versions(table, table.equal_integers) for table in (old, new)]
    safe = [format_versions(table, table.safe_plans) for table in (old, new)]
    cells = [row["model"], row["platform"], format_pair(*equal), format_pair(*safe)]
    return [*cells, describe_reason(new)], equal[0] != equal[1] or safe[0] != safe[1]


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    print(_HEAD)
    print("| model | chip | same integers | safe plan | narrowed by |\n|---|---|---|---|---|")
    count = changed = 0
    for entry in sorted(options.before.glob("*.json")):
        cells, differs = format_case(entry, options.after)
        print(f"| {' | '.join(cells)} |", flush=True)
        count, changed = count + 1, changed + differs
    print(f"\n{count} cases; the lists of {changed} differ between before and after.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
