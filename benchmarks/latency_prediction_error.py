"""How near the cycles that `check` tells of a float model are to those that `quantize` then tells, on one chip.

    python benchmarks/latency_prediction_error.py [--platform arcs] [--sets own shared real] [--only
    GLOB ...] [--log FILE]

Each model is checked before any calibration: of its data only the sizes of inputs are looked at,
where the file leaves them open. Then it is quantized on a few samples with little effort: scales
hardly matter for time. Prints cycles, and the difference in percent of what quantize tells; ends
with 1 where one is above 10 %, or where only one of them has a figure. With --log, models that the
file names already are not run again.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from version_models import Entry, iterate_entries

import lingeronnx as lo

_NEAR = 10.0  # percent


def compare_predictions(entry: Entry, platform: str) -> dict[str, Any]:
    """Return {model, check, quantize, why}.

    Cycles of a call, None where a model has none, and why.
    """
    try:
        calib, _ = entry.data(4)
        sizes: dict[str, Any] = {"calib": calib}
        if "state" in entry.settings:  # of a stream one call, and states that begin with one sample
            sizes = {"input_shape": {name: array.shape for name, array in calib[0].items()}}
        checked = lo.check(entry.model, platform=platform, fix=entry.settings.get("fix"), **sizes)
        made = lo.quantize(
            entry.model, calib, platform=platform, effort="fast", **entry.settings
        ).report
    except lo.LingerOnnxError as error:
        return {"model": entry.name, "check": None, "quantize": None, "why": str(error)[:160]}
    cycles = [
        None if time.latency is None else time.latency.total for time in (checked.time, made.time)
    ]
    why = "" if None not in cycles else f"{checked.verdict}; chip-ready: {made.chip_ready}"
    return {"model": entry.name, "check": cycles[0], "quantize": cycles[1], "why": why[:160]}


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", default="arcs")
    parser.add_argument("--sets", nargs="+", default=["own", "shared", "real"])
    parser.add_argument("--only", nargs="*", default=["*"], metavar="GLOB")
    parser.add_argument(
        "--log", type=Path, help="JSON lines; those that are there are not run again"
    )
    asked = parser.parse_args(words)
    lines = (
        asked.log.read_text().splitlines() if asked.log is not None and asked.log.is_file() else []
    )
    rows = {row["model"]: row for row in map(json.loads, lines)}
    far = both = 0
    print(f"{'model':32} {'check':>14} {'quantize':>14} {'off':>8}")
    for entry in iterate_entries(asked.sets, 1):
        if not any(fnmatch.fnmatchcase(entry.name, glob) for glob in asked.only):
            continue
        row = rows.get(entry.name) or compare_predictions(entry, asked.platform)
        if asked.log is not None and entry.name not in rows:
            with asked.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
        check, made = row["check"], row["quantize"]
        texts = ["-" if count is None else f"{count:,.0f}" for count in (check, made)]
        off = None if check is None or made is None else 100 * (check - made) / made
        both += off is not None
        far += abs(off) > _NEAR if off is not None else check is not made
        end = f"{off:+7.2f}%" if off is not None else row["why"]
        print(f"{row['model']:32} {texts[0]:>14} {texts[1]:>14} {end}", flush=True)
    print(
        f"{both} models have both figures; {far} are more than {_NEAR:g} % off, or have one of "
        "them alone"
    )
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(main())
