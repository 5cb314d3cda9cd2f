"""Weights of `generic` with a scale per tensor, per channel and per group of a row, as rows of a table.

    python benchmarks/group_scales.py MODELS LOADERS.py [--only ad attention ...] [--bits 4 8]
    [--limit N]
        [--scales tensor channel group:32] [--mode max-value] [--effort normal] [--log FILE.jsonl]
        [--held-back] [--rule room|error]

A row has one model and width; a column one form of the scales: top-1 where there are labels, and
the SQNR of the output against the float model on test data. Below stand the bits that a weight of a
fully connected layer takes: its own, and its share of the groups' factors. With --log what was
measured is kept, and a run that was interrupted goes on. With --held-back no test data are read:
every second calibration sample is kept from `quantize`, and the SQNR is measured on these; what is
chosen between variants is chosen so. --rule is how the scale of a group is found whose weights are
refined: with room for its largest weight, as `quantize` does, or with the least error of the
weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from model_cases import CASES, Case, add_folder_arguments

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.scales import group_scales
from lingeronnx.runtime.data import Data


def _bits_per_weight(graph: ir.Model) -> float:
    """Return the bits of the weights and factors of all LinearInt over the number of their weights."""
    bits = weights = 0
    for node in graph.graph:
        if node.op_type == "LinearInt":
            size = ir.require_const_value(node.inputs[1]).size
            factors = ir.require_const_value(node.inputs[3]).size if len(node.inputs) > 3 else 0
            bits += size * int(ir.get_attr(node, "parameter_bits")) + 8 * factors
            weights += size
    return bits / max(weights, 1)


def _measure_case(case: str, bits: int, scales: str, args: argparse.Namespace) -> dict[str, Any]:
    held = CASES[case]
    model = held.model(args.models)
    calib, test = _get_data(held, args)
    made = lo.quantize(
        model,
        calib,
        platform="generic",
        mode=args.mode,
        weight_bits=bits,
        weight_scales=scales,
        effort=args.effort,
    )
    session = made.session()
    noise = lo.evaluate(
        session, test, baseline=model, output=held.output, metric="sqnr", limit=args.limit
    )
    known = held.classes and not args.held_back
    top = lo.evaluate(session, test, baseline=model, limit=args.limit) if known else None
    return {
        "case": case,
        "bits": bits,
        "scales": scales,
        "sqnr": noise.value,
        "size": _bits_per_weight(made.graph),
        "top1": None if top is None or top.metric != "top1" else top.value,
        "float": None if top is None or top.metric != "top1" else top.baseline,
    }


def _get_data(held: Case, args: argparse.Namespace) -> tuple[Any, Any]:
    """Return what to calibrate with, and what to measure on."""
    calib = held.get_calibration_data(args.loaders)
    if not args.held_back:
        return calib, held.get_test_data(args.loaders)
    specs = lo.Session(held.model(args.models)).inputs
    feeds, _ = next(Data(calib, specs).batches(1 << 30))
    return tuple({name: array[start::2] for name, array in feeds.items()} for start in (0, 1))


def _cell(row: dict[str, Any]) -> str:
    exact = "" if row["top1"] is None else f"{row['top1']:.2f} %, "
    return f"{exact}{row['sqnr']:.1f} dB ({row['size']:.2f})"


def main() -> None:
    """Parse the arguments, measure what is not in the log yet and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folder_arguments(parser)
    parser.add_argument("--bits", nargs="*", type=int, default=[4, 8])
    parser.add_argument("--scales", nargs="*", default=["tensor", "channel", "group:32"])
    parser.add_argument("--mode", default="max-value")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--limit", type=int, help="test samples at most")
    parser.add_argument("--log", type=Path)
    parser.add_argument(
        "--held-back", action="store_true", help="measure on calibration samples that are kept back"
    )
    parser.add_argument(
        "--rule", choices=("room", "error"), default="room", help="of groups that are refined"
    )
    args = parser.parse_args()
    if args.rule == "error":
        group_scales._REFINED_SCALE_MULTIPLIERS = group_scales._SCALE_MULTIPLIERS
    log: Path | None = args.log
    done = (
        [json.loads(line) for line in log.read_text().splitlines()]
        if log is not None and log.exists()
        else []
    )
    rows = {(row["case"], row["bits"], row["scales"]): row for row in done}
    print("| model | bits | float |", " | ".join(args.scales), "|")
    print("|---" * (3 + len(args.scales)) + "|")
    for case in args.only:
        for bits in args.bits:
            for scales in args.scales:
                if (case, bits, scales) in rows:
                    continue
                rows[case, bits, scales] = _measure_case(case, bits, scales, args)
                if log is not None:
                    with log.open("a") as file:
                        file.write(json.dumps(rows[case, bits, scales]) + "\n")
            found = [rows[case, bits, scales] for scales in args.scales]
            base = "" if found[0]["float"] is None else f"{found[0]['float']:.2f} %"
            print(f"| {case} | {bits} | {base} |", " | ".join(map(_cell, found)), "|", flush=True)


if __name__ == "__main__":
    main()
