"""4-bit weights on the chips.

Accuracy, flash and cycles beside those of 8 bits, as rows of a table.
    python benchmarks/int4_weights.py MODELS LOADERS.py [--only CASE ...] [--platform arcs venusA]
    [--effort normal best]
        [--limit N] [--max-drop POINTS] [--log FILE.jsonl]

Every layer has 4 bits that the chip takes; the others stay at 8. A row has the accuracy of the test
data (top-1, or for a model without classes the SQNR of its output in dB), that of float, the bytes
of all constants as the package stores them, the cycles of one run (known for one chip), and how
many layers stay at 8 bits. With --log what was measured is kept there, and a run that was
interrupted goes on.

With --max-drop the widths are chosen, `--weight-bits auto --max-drop POINTS`: the labels of every
second test sample choose, and the rows have the accuracy of the others.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from model_cases import CASES, add_folder_arguments

import lingeronnx as lo
from lingeronnx.common.errors import ConfigError
from lingeronnx.runtime.data import Data

_FEW, _WHOLE, _MIXED = 4, 8, "auto"


def _labelled(model: str, test: str, limit: int | None) -> tuple[list[Any], str]:
    """Return the test data with labels, and a mark where these are the float model's decisions."""
    session, mark, found = lo.Session(model), "", []
    name = session.get_outputs()[0].name
    for feeds, labels in Data(test, session.inputs, limit=limit).batches(64):
        if labels is None:
            labels, mark = session.run([name], feeds)[0].argmax(axis=-1).astype(np.int64), "*"
        found.append((feeds, labels))
    return found, mark


def _split_samples(data: list[Any]) -> list[list[Any]]:
    """Return every second sample with its label, and the others."""
    return [
        [
            ({name: array[half::2] for name, array in feeds.items()}, labels[half::2])
            for feeds, labels in data
        ]
        for half in (0, 1)
    ]


def _measure_case(
    case: str, args: argparse.Namespace, platform: str, effort: str, bits: int | str
) -> dict[str, Any]:
    """Return the figures of one model, chip, effort and width, or what is chosen for --max-drop."""
    held = CASES[case]
    model, test = held.model(args.models), held.get_test_data(args.loaders)
    data, mark = _labelled(model, test, args.limit) if held.classes else (test, "")
    wish = {}
    if args.max_drop is not None:
        data, chooses = _split_samples(data)
        wish = (
            {"max_drop": args.max_drop, "eval_data": chooses, "metric": "top1"}
            if bits == _MIXED
            else {}
        )
    start = time.process_time()
    made = lo.quantize(
        model,
        held.get_calibration_data(args.loaders),
        platform=platform,
        effort=effort,
        weight_bits=bits,
        **wish,
    )
    took = time.process_time() - start
    found = lo.evaluate(
        made.session(),
        data,
        baseline=model,
        output=None if held.classes else held.output,
        limit=args.limit,
    )
    noise = lo.evaluate(
        made.session(), data, baseline=model, output=held.output, metric="sqnr", limit=args.limit
    )
    try:
        cycles: float | None = lo.latency(made.graph).total if made.report.chip_ready else None
    except ConfigError:  # of this chip nobody has published any
        cycles = None
    return {
        "case": case,
        "platform": platform,
        "effort": effort,
        "bits": bits,
        "float": found.baseline,
        "mark": mark,
        "metric": found.metric,
        "value": found.value,
        "sqnr": noise.value,
        "ready": made.report.chip_ready,
        "flash": made.report.cost.weights if made.report.cost is not None else None,
        "cycles": cycles,
        "kept": [note for note in made.report.notes if f"stay at {_WHOLE} bits" in note],
        "cpu": took,
        "words": made.report.packer_args,
        "drop": args.max_drop,
        "widths": made.report.search["weight_bits"] if made.report.search else None,
    }


def _rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    log: Path | None = args.log
    done = (
        [json.loads(line) for line in log.read_text().splitlines()]
        if log is not None and log.exists()
        else []
    )
    known = {
        (row["case"], row["platform"], row["effort"], row["bits"])
        for row in done
        if _has_equal_request(row, args)
    }
    for effort in args.effort:
        for case in args.only:
            for platform in args.platform:
                for bits in (_WHOLE, _make_int4_rows(args)):
                    if (case, platform, effort, bits) in known:
                        continue
                    done.append(_measure_case(case, args, platform, effort, bits))
                    if log is not None:
                        with log.open("a") as file:
                            file.write(json.dumps(done[-1]) + "\n")
    return done


def _make_int4_rows(args: argparse.Namespace) -> int | str:
    return _FEW if args.max_drop is None else _MIXED


def _has_equal_request(row: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether a row of the log was made for the same wish, or for none."""
    return row["drop"] == args.max_drop


def _format_cell(row: dict[str, Any]) -> str:
    if row["float"] is None or row["metric"] == "sqnr":
        return f"{row['value']:.1f} dB"
    return f"{row['value']:.2f} ({row['sqnr']:.1f} dB)"


def _format_row(whole: dict[str, Any], few: dict[str, Any]) -> str:
    """Return a row of the table: 8 bits and 4 side by side."""
    base = (
        ""
        if whole["float"] is None or whole["metric"] == "sqnr"
        else f"{whole['float']:.2f}{whole['mark']}"
    )
    flash = (
        f"{whole['flash']:,} | {few['flash']:,} "
        f"({100 * (few['flash'] / whole['flash'] - 1):+.0f} %)"
    )
    cycles = " | ".join(
        "" if row["cycles"] is None else f"{row['cycles']:,.0f}" for row in (whole, few)
    )
    ready = "" if few["ready"] else ", not chip-ready"
    return (
        f"| {few['case']} | {few['platform']} | {few['effort']} | {base} | {_format_cell(whole)} | "
        f"{_format_cell(few)}{ready} | "
        f"{flash} | {cycles} |"
    )


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", nargs="*", default=["arcs", "venusA"])
    parser.add_argument("--effort", nargs="*", default=["normal"])
    parser.add_argument("--limit", type=int, help="test samples at most")
    parser.add_argument(
        "--max-drop", type=float, help="points that top-1 may fall by: mixed widths"
    )
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    if args.max_drop is not None and not all(CASES[case].classes for case in args.only):
        parser.error("--max-drop is for models with classes; name these with --only")
    rows = {
        (r["effort"], r["case"], r["platform"], r["bits"]): r
        for r in _rows(args)
        if _has_equal_request(r, args)
    }
    few = (
        f"{_make_int4_rows(args)} bits"
        if args.max_drop is None
        else f"auto, at most {args.max_drop:g} points less"
    )
    print(
        f"| model | chip | effort | float | 8 bits | {few} | flash, 8 | flash, then | cycles, 8 | "
        "cycles, then |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for effort, case, platform, bits in rows:
        if (
            bits == _make_int4_rows(args)
            and case in args.only
            and platform in args.platform
            and effort in args.effort
        ):
            print(
                _format_row(
                    rows[effort, case, platform, _WHOLE], rows[effort, case, platform, bits]
                )
            )


if __name__ == "__main__":
    main()
