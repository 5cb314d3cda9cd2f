"""`--max-drop` on every model: whether the wish is met, at what cost, and after how many attempts.

    python benchmarks/max_drop_search.py MODELS LOADERS.py [--only CASE ...] [--platform venus
    generic] [--max-drop 0.2]
        [--min-sqnr 42] [--limit N] [--budget MINUTES] [--logs DIR]

One line per model and platform, as a row of a table. Where the test data have no labels, the float
model's own decisions stand in for them (marked *): its accuracy is then 100. A model without
classes is asked for --min-sqnr. With
--logs the attempts are kept there, and a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from model_cases import CASES, Case, add_folder_arguments

import lingeronnx as lo
from lingeronnx.runtime.data import Data


def _labelled(case: Case, model: str, test: str, limit: int | None) -> tuple[list[Any], str]:
    """Return the test data with labels, and a mark where these are the float model's decisions."""
    session = lo.Session(model)
    name = session.get_outputs()[0].name
    found, mark = [], ""
    for feeds, labels in Data(test, session.inputs, limit=limit).batches(64):
        if labels is None:
            labels, mark = session.run([name], feeds)[0].argmax(axis=-1).astype(np.int64), "*"
        found.append((feeds, labels))
    return found, mark


def _row(case: str, args: argparse.Namespace, platform: str) -> str:
    held = CASES[case]
    model, test = held.model(args.models), held.get_test_data(args.loaders)
    wish: dict[str, Any] = {"min_sqnr": args.min_sqnr}
    mark = ""
    if held.classes:
        data, mark = _labelled(held, model, test, args.limit)
        wish = {"max_drop": args.max_drop, "eval_data": data}
    log = args.log2_scales / f"{case}_{platform}.jsonl" if args.log2_scales is not None else None
    start = time.perf_counter()
    made = lo.quantize(
        model,
        held.get_calibration_data(args.loaders),
        platform=platform,
        budget=args.budget,
        log=log,
        resume=log is not None and log.exists(),
        **wish,
    )
    took = time.perf_counter() - start
    found = made.report.search
    assert found is not None
    chosen = next(trial for trial in found["trials"] if trial["chosen"])
    unit = " dB" if found["float"] is None else ""
    base = "" if found["float"] is None else f"{found['float']:.2f}{mark}"
    end = "met" if found["met"] else f"{max(chosen['missing'], 0):.2f} missing: {found['stopped']}"
    return (
        f"| {case} | {platform} | {base} | {found['trials'][0]['value']:.2f}{unit} | "
        f"{chosen['value']:.2f}{unit} | "
        f"{chosen['what']} | {chosen['work']:.2f} | {len(found['trials'])} | {end} | {took:.0f} s |"
    )


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--platform", nargs="*", default=["venus", "generic"])
    parser.add_argument("--max-drop", type=float, default=0.2)
    parser.add_argument("--min-sqnr", type=float, default=42.0)
    parser.add_argument("--limit", type=int, help="test samples at most")
    parser.add_argument("--budget", type=float, help="minutes per search")
    parser.add_argument("--logs", type=Path)
    args = parser.parse_args()
    if args.log2_scales is not None:
        args.log2_scales.mkdir(parents=True, exist_ok=True)
    print(
        "| model | platform | float | asked for | found | chosen | work | attempts | outcome | "
        "time |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for case in args.only:
        for platform in args.platform:
            try:
                print(_row(case, args, platform), flush=True)
            except lo.LingerOnnxError as error:
                print(f"| {case} | {platform} | refused: {error} |", flush=True)


if __name__ == "__main__":
    main()
