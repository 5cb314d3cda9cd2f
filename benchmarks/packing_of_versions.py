"""Compare how two versions of lingeronnx pack the models of the baseline: a table by model and chip.

    PYTHONPATH=OLD python NEW/benchmarks/packing_of_versions.py --save old/
    PYTHONPATH=NEW python NEW/benchmarks/packing_of_versions.py --save new/
    python -m benchmarks.packing_of_versions --compare old/ new/

--save quantizes each case of benchmarks/results/baseline.md for a chip, and stores the part for the
packer, its arguments and whether the report calls it chip-ready; cases that are there already are
left out. With --models FOLDER the cases are its files NAME.onnx, calibrated on NAME.npz, instead.
--compare judges all stored parts with this version: tests/packer says whether a part
packs and is right, the memory plan has the shared memory, and the latency the cycles of a call on
chips with timing data.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx

import lingeronnx as lo

_CHIPS = ("venus", "arcs", "venusA")


class SavedCase(NamedTuple):
    """A quantization to store. options : keyword arguments of `quantize`."""

    model: str
    platform: str
    settings: str
    path: Path
    calib: object
    options: dict[str, Any]

    def __str__(self) -> str:
        return " ".join(part for part in (self.model, self.platform, self.settings) if part)


def iterate_baseline_cases() -> Iterator[SavedCase]:
    """Yield the models of the baseline page for each chip.

    Settings are those of the row of the chip if there is one, else of the row of venus.
    """
    from benchmarks.baselines.measure import _options, find_subject, get_states
    from benchmarks.baselines.table import Case, parse_page

    page = Path(__file__).parent / "results" / "baseline.md"
    rows = parse_page(page.read_text(encoding="utf-8"))
    cases = {(row.case.model, row.case.platform): row.case for row in rows}
    for model, platform in list(cases):
        for chip in _CHIPS if platform == "venus" else ():
            settings = cases[model, platform].settings
            cases.setdefault((model, chip), Case(model, chip, settings))
    for case in sorted(cases.values()):
        subject, options = find_subject(case.model), _options(case.settings)
        options.pop("limit", None)
        if states := get_states(subject):
            options["state"] = states
        if case.platform in _CHIPS:
            yield SavedCase(
                case.model, case.platform, case.settings, subject.model, subject.calib, options
            )


def iterate_folder_cases(folder: Path) -> Iterator[SavedCase]:
    """Yield each NAME.onnx of a folder, calibrated on NAME.npz with --effort fast, for each chip."""
    for path in sorted(folder.glob("*.onnx")):
        for chip in _CHIPS:
            calib = path.with_suffix(".npz")
            yield SavedCase(path.stem, chip, "--effort fast", path, calib, {"effort": "fast"})


def save(folder: Path, cases: Iterable[SavedCase], only: Sequence[str]) -> None:
    """Quantize the cases whose text contains all of `only`, and store one file per case."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(case))
        entry = folder / f"{name}.json"
        if entry.exists() or any(text not in str(case) for text in only):
            continue
        row: dict[str, Any] = {
            "model": case.model,
            "platform": case.platform,
            "settings": case.settings,
        }
        try:
            result = lo.quantize(case.path, case.calib, platform=case.platform, **case.options)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        else:
            row["ready"] = bool(result.report.chip_ready)
            row["arguments"] = result.report.packer_args
            part = result.graph if result.chip is None else result.chip
            ir = importlib.import_module(type(result).__module__).ir
            safe = result.platform.with_safe_names(part)
            onnx.save(ir.to_proto(safe), folder / f"{name}.onnx")
        entry.write_text(json.dumps(row))
        print(case, row.get("ready"), row.get("error", ""), flush=True)


def judge_entry(entry: Path) -> dict[str, Any]:
    """Return the row of a stored case, with the second judge's verdict, shared bytes and cycles."""
    from lingeronnx.luna.evaluation import evaluate_graph
    from lingeronnx.targets import get_target
    from tests.packer import judge

    row: dict[str, Any] = json.loads(entry.read_text())
    row |= {"right": None, "shared": None, "cycles": None}
    if not row.get("arguments"):
        return row
    proto = onnx.load(entry.with_suffix(".onnx"))
    argv = shlex.split(row["arguments"])
    verdict = judge(proto, row["platform"], argv)
    harmful = [text for text in verdict.problems if text not in verdict.past]
    row["right"] = bool(verdict.packs and not harmful)
    row["why"] = next(iter(harmful), "")
    plan = evaluate_graph(proto, get_target(row["platform"]), argv).memory_plan
    row["shared"] = None if plan is None else plan.shared
    with contextlib.suppress(lo.ConfigError):  # no published timing data for this chip
        latency = lo.latency(entry.with_suffix(".onnx"), row["platform"], packer_args=argv)
        row["cycles"] = round(latency.total)
    return row


def _format(value: object) -> str:
    """Return a cell: yes and no, numbers with separators, - for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _pair(before: dict[str, Any], after: dict[str, Any], key: str) -> str:
    """Return a cell with the value of a key, or with both if they differ."""
    old, new = before.get(key), after.get(key)
    return _format(new) if old == new else f"{_format(old)} → {_format(new)}"


def compare(old: Path, new: Path) -> int:
    """Print the table and its totals; return 1 if a part that was right is not chip-ready now."""
    print(
        "| model | chip | settings | chip-ready | right | shared bytes | cycles | arguments | "
        "wrong before for |\n|---|---|---|---|---|---:|---:|---|---|"
    )
    counts = {"cases": 0, "ready before": 0, "right before": 0, "ready now": 0, "right now": 0}
    lost = []
    for entry in sorted(new.glob("*.json")):
        if not (old / entry.name).is_file():
            continue
        before, after = judge_entry(old / entry.name), judge_entry(entry)
        cells = [after["model"], after["platform"], after["settings"]]
        cells += [_pair(before, after, key) for key in ("ready", "right", "shared", "cycles")]
        cells.append(_pair(before, after, "arguments"))
        cells.append(before.get("why", "") if before.get("ready") else "")
        print("| " + " | ".join(cells) + " |", flush=True)
        counts["cases"] += 1
        for when, row in (("before", before), ("now", after)):
            counts[f"ready {when}"] += bool(row.get("ready"))
            counts[f"right {when}"] += bool(row.get("ready") and row["right"])
        if before.get("ready") and before["right"] and not (after.get("ready") and after["right"]):
            lost.append(entry.stem)
    print("\n" + ", ".join(f"{key}: {count}" for key, count in counts.items()))
    print(f"right before, not now: {', '.join(lost) or 'none'}")
    return int(bool(lost))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path, metavar="FOLDER")
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--compare", type=Path, nargs=2, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT")
    options = parser.parse_args()
    if options.save:
        folder = options.models
        cases = iterate_folder_cases(folder) if folder else iterate_baseline_cases()
        save(options.save, cases, options.only)
    return compare(*options.compare) if options.compare else 0


if __name__ == "__main__":
    sys.exit(main())
