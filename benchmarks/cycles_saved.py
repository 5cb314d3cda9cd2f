"""Cycles of all models on one chip before and after forms and arguments are chosen by price, as a table.

    python benchmarks/cycles_saved.py [--platform arcs] [--sets own shared real] [--only GLOB ...]
    [--log F] [--write]

Each model is quantized with little effort on a few samples: scales hardly matter for time. Before:
the form that the packer wants, under the first arguments that are right. Plain: the same form under
the arguments that are written. Default: what is written when nothing is asked for. Time: what is
written with --objective time. All are compared at the upper end of the range, unpriced work at its
bound; of a model in parts all parts for the chip that run there together. Outputs of all forms of
these are compared on random inputs; a part that the simulator refuses is left out, with a line. The
bound is one cycle for 64 multiply-accumulates, and used says how near to it the time afterwards
comes. --write puts the table into benchmarks/results/cycles.md; with --log, models that the file
holds are not run again. Ends with 1 where a model becomes slower, an output differs, or more bytes
have no price.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from version_models import Entry, iterate_entries

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.ir.name_mapping import apply_file_names
from lingeronnx.luna.arguments.selection import (
    select_fastest_arguments,
    select_safest_arguments,
)
from lingeronnx.luna.backend_passes import cost_rewrites as stage
from lingeronnx.luna.backend_passes.packer_view import PackerGraphView
from lingeronnx.luna.evaluation import DetailedVerdict
from lingeronnx.luna.packer.names import build_safe_names
from lingeronnx.operators.chip_part import extract_chip_part
from lingeronnx.runtime.program_parts import split_into_parts
from lingeronnx.targets import Target, get_target
from lingeronnx.targets.objective import OBJECTIVE_KEY

PAGE = Path(__file__).resolve().parent / "results" / "cycles.md"
BEGIN, END = "<!-- cycles -->\n", "<!-- end of cycles -->\n"
_PRODUCTS = (
    "Conv1dInt",
    "Conv2dInt",
    "ConvTranspose2dInt",
    "LinearInt",
    "BmmInt",
    "LSTMInt",
    "GRUInt",
)
_MAX_OTHER_SHARE = 0.2  # of the cycles, where the rest counts


def quantize_without_cost_rewrites(
    entry: Entry, target: Target
) -> list[tuple[ir.Model, ir.Model, ir.Model]]:
    """Quantize a model; return its parts for the chip before their forms were chosen, by default, and for time."""
    seen: list[tuple[ir.Model, ir.Model, ir.Model]] = []
    choice = stage.apply_cost_rewrites

    def recorded(read: PackerGraphView) -> Any:
        before = read.graph.clone()
        default, _, _ = choice(read.for_graph(drop_objective(read.graph)))
        made = choice(read)
        seen.append((before, default, made[0]))
        return made

    stage.apply_cost_rewrites = recorded
    try:
        calib, _ = entry.data(4)
        result = lo.quantize(
            entry.model, calib, platform=target, effort="fast", objective="time", **entry.settings
        )
        single = [forms for forms in seen if _names(forms[-1]) == _names(result.graph)]
        if single:
            return single[-1:]
        seen.clear()
        split_into_parts(target.with_safe_names(result.graph), target)
        for some in zip(*seen, strict=True):
            target.vendor.assign_resident_constants(some, target)
        return seen
    finally:
        stage.apply_cost_rewrites = choice


def _names(graph: ir.Model) -> list[str]:
    return [str(node.name) for node in graph.graph]


def drop_objective(graph: ir.Model) -> ir.Model:
    """Return a copy of the graph that says nothing of what decides."""
    graph = graph.clone()
    graph.metadata_props.pop(OBJECTIVE_KEY, None)
    return graph


def evaluate(graph: ir.Model, target: Target, first: bool = False) -> DetailedVerdict | None:
    """Return the verdict on a graph under the first arguments that are right, or under those that are written."""
    part = extract_chip_part(apply_file_names(graph, build_safe_names(graph)), target)
    said = (select_safest_arguments if first else select_fastest_arguments)(part, target).verdict
    return said if said.is_chip_ready and said.comparison_latency is not None else None


def have_equal_outputs(graphs: Sequence[ir.Model]) -> bool:
    """Whether graphs give the same outputs on random inputs."""
    sessions = [lo.Session(graph) for graph in graphs]
    rng = np.random.default_rng(0)
    for gain in (0.3, 1.0, 4.0):
        feed = {}
        for value in sessions[0].get_inputs():
            shape = [d if isinstance(d, int) else 1 for d in value.shape]
            real = (gain * rng.standard_normal(shape)).astype(np.float32)
            feed[value.name] = (
                real if "float" in value.type else rng.integers(-128, 128, shape).astype(np.int8)
            )
        one, *others = (session.run(None, feed) for session in sessions)
        for other in others:
            if not all(
                np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)
            ):
                return False
    return True


def measure_model(entry: Entry, target: Target) -> dict[str, Any]:
    """Return a model's row, or why it has none."""
    try:
        parts = quantize_without_cost_rewrites(entry, target)
    except lo.LingerOnnxError as error:
        return {"model": entry.name, "why": str(error)[:120]}
    ready: list[list[DetailedVerdict]] = []
    equal, left = [], []
    for number, forms in enumerate(parts, start=1):
        before, default, after = forms
        sides = (
            *(evaluate(drop_objective(before), target, first) for first in (True, False)),
            evaluate(default, target),
            evaluate(after, target),
        )
        told = [said for said in sides if said is not None]
        if len(told) < len(sides):
            continue
        try:
            equal.append(have_equal_outputs(forms))
            ready.append(told)
        except lo.LingerOnnxError as error:
            left.append(
                f"part {number} of {entry.name} does not run in the simulator: {error}"[:200]
            )
    if not ready:
        return {
            "model": entry.name,
            "why": next(iter(left), "nothing of it runs right on the chip"),
        }
    row: dict[str, Any] = {
        "model": entry.name,
        "parts": len(parts),
        "ready": len(ready),
        "left": left,
    }
    for index, key in enumerate(("before", "plain", "default", "after")):
        times = [time for told in ready if (time := told[index].comparison_latency) is not None]
        row[key] = sum(time.high for time in times)
        row[f"{key}_open"] = sum(work.bytes for time in times for work in time.unpriced)
        products = [
            layer.high for time in times for layer in time.layers if layer.operator in _PRODUCTS
        ]
        row[f"{key}_products"] = sum(products) / row[key]
    row["macs"] = sum(sum(told[0].cost.macs.values()) for told in ready)
    row["same"] = all(equal)
    return row


def format_table(rows: list[dict[str, Any]], platform: str) -> list[str]:
    """Return the rows as a table, and the geometric means; nothing where there is no row."""
    if not rows:
        return []
    lines = [
        (
            "| model | before | not products | plain | default | time | times fewer | bytes without "
            "price | bound | used |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bound = row["macs"] / 64
        name = row["model"] + (
            "" if row["parts"] == 1 else f" ({row['ready']} of {row['parts']} parts)"
        )
        lines.append(
            f"| {name} | {row['before']:,.0f} | {1 - row['before_products']:.0%} | "
            f"{row['plain']:,.0f} | {row['default']:,.0f} | {row['after']:,.0f} | "
            f"{row['before'] / row['default']:.2f} / {row['before'] / row['after']:.2f} | "
            f"{row['before_open']:,} / {row['after_open']:,} | {bound:,.0f} | "
            f"{bound / row['after']:.0%} |"
        )
    ratios = {row["model"]: row["before"] / row["after"] for row in rows}
    plainly = {row["model"]: row["before"] / row["default"] for row in rows}
    moving = [row["model"] for row in rows if 1 - row["before_products"] > _MAX_OTHER_SHARE]
    means = [
        (_mean(list(each.values())), _mean([each[name] for name in moving]))
        for each in (ratios, plainly)
    ]
    told = (
        f"Geometric means on {platform}, by default {means[1][0]:.2f} and for time "
        f"{means[0][0]:.2f} over {len(rows)} "
        f"models; {means[1][1]:.2f} and {means[0][1]:.2f} over the {len(moving)} of which more "
        "than a fifth of the "
        f"cycles are no products. Least: {min(plainly.values()):.3f} and "
        f"{min(ratios.values()):.3f}. Outputs are the "
        f"same in {sum(row['same'] for row in rows)} of {len(rows)}."
    )
    return [*lines, "", told]


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", default="arcs")
    parser.add_argument("--sets", nargs="+", default=["own", "shared", "real"])
    parser.add_argument("--only", nargs="*", default=["*"], metavar="GLOB")
    parser.add_argument(
        "--log", type=Path, help="JSON lines; models that are there are not run again"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the table into benchmarks/results/cycles.md"
    )
    asked = parser.parse_args()
    target = get_target(asked.platform)
    known: dict[str, dict[str, Any]] = {}
    if asked.log is not None and asked.log.is_file():
        known = {row["model"]: row for row in map(json.loads, asked.log.read_text().splitlines())}
    rows = []
    for entry in iterate_entries(asked.sets, 1):
        if not any(fnmatch.fnmatchcase(entry.name, glob) for glob in asked.only):
            continue
        row = known.get(entry.name) or measure_model(entry, target)
        if asked.log is not None and entry.name not in known:
            with asked.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
        rows.append(row)
        print(
            f"{entry.name}: {row.get('why') or row['before'] / row['after']}",
            file=sys.stderr,
            flush=True,
        )
    told = [row for row in rows if "why" not in row]
    lines = format_table(told, asked.platform)
    lines += ["", *(f"Left out: {row['model']}, {row['why']}." for row in rows if "why" in row)]
    lines += [f"Left out: {why}." for row in told for why in row.get("left", ())]
    print("\n".join(lines))
    if asked.write:
        text = PAGE.read_text()
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        PAGE.write_text(text[:start] + "\n".join(lines).strip() + "\n" + text[end:])
    slower = [
        row
        for row in told
        if max(row[key] for key in ("plain", "default", "after")) > row["before"]
        or max(row["default_open"], row["after_open"]) > row["before_open"]
    ]
    return int(bool(slower) or not all(row["same"] for row in told))


if __name__ == "__main__":
    sys.exit(main())
