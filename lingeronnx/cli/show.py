"""How results look in a terminal: tables and facts, printed with rich, which is imported inside the functions.

Knows the values that `api` returns, nothing of options, files to write or exit codes; `cli` calls it.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..platforms import Platform

if TYPE_CHECKING:
    from rich.console import Console

    from ..api import Comparison, Deployment, Evaluation, Simulation, Verification
    from ..demo import Demo
    from ..deployment import Difference
    from ..fit import Fitted
    from ..flow import Written
    from ..flow.report import FloatNode, Report
    from ..run.dump import Summary

__all__ = [
    "console_for",
    "plain",
    "show_comparison",
    "show_demo",
    "show_deployment",
    "show_evaluation",
    "show_platform",
    "show_platforms",
    "show_report",
    "show_simulation",
    "show_verification",
]

_INDENT = 20  # where values begin


def console_for(as_json: bool) -> Console:
    """Return the console for tables: stderr where stdout is left to JSON."""
    from rich.console import Console

    stream = sys.stderr if as_json else sys.stdout
    known = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=as_json, width=None if known else 100, highlight=False, markup=False, emoji=False)


def _facts(console: Console, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print (label, value, style of the value), long values folded under themselves."""
    from rich.text import Text

    for label, value, style in rows:
        for line in textwrap.wrap(value, max(console.width - _INDENT, 20)) or [""]:
            line = line.replace("\u00a0", " ")
            console.print(Text.assemble((f"  {label:<{_INDENT - 2}}", "cyan"), (line, style)), soft_wrap=True)
            label = ""


def _table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print a table under a title; `right` names the column to align on the right."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="cyan")
    for name in head:
        table.add_column(name, overflow="fold", justify="right" if name == right else "left")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n  {title}\n" if title else "", style="bold", soft_wrap=True)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _title(console: Console, text: str) -> None:
    console.print(f"\n{text}\n", style="bold", soft_wrap=True)


def _line(console: Console, label: str, text: str) -> None:
    """Print a value that must stay whole, such as a path or a command."""
    from rich.text import Text

    console.print(Text.assemble((f"  {label:<{_INDENT - 2}}", "cyan"), text), soft_wrap=True)


def _notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"  note: {note}", style="yellow")


def show_report(console: Console, model: Path, done: Written) -> None:
    """Print what a quantization did of `model`, and what it wrote."""
    from ..flow.report import LEVELS

    report = done.report
    _title(console, f"{model} -> {report.platform}, {report.mode}")
    _facts(console, _report_rows(report))
    _float_table(console, "Float nodes between integer ones", report.float_nodes)
    _float_table(console, "Host part: float nodes before the first or after the last integer one", report.host_part)
    if report.fitted:
        _table(console, "Written otherwise", ["node", "what", "cost"], _alike(report.fitted))
    if report.search is not None:
        _search_table(console, report.search)
    if report.cost is not None:
        console.print("\n  Cost on the chip, the heaviest nodes (all of them with --json)\n", style="bold")
        for line in report.cost.table(8, totals=False):
            console.print(line, soft_wrap=True)
    console.print()
    _notes(console, report.notes)
    for warning in report.warnings:
        console.print(f"  WARNING: {warning}", style="bold red")
    _notes(console, [f"{LEVELS[f.level]}: {f}" for f in report.findings])
    if report.packer and report.chip_ready:
        _line(console, "pack it with", report.packer)
    if done.plan is not None:
        _line(console, "plan", str(done.plan))
    _line(console, "written", f"{done.graph} ({_size(done.graph)})")
    if done.chip is not None:
        _line(console, "for the packer", f"{done.chip} ({_size(done.chip)}), without the host part")


def _search_table(console: Console, search: Mapping[str, Any]) -> None:
    """Print the attempts of a search, the chosen one marked, and why it ended."""
    unit = search["unit"]
    rows = [
        (
            "*" if trial["chosen"] else "",
            trial["what"],
            trial["why"] if trial["value"] is None else _number(trial["value"], unit),
            "" if trial["value"] is None else "met" if trial["met"] else _number(trial["missing"], _points(unit)),
            "" if trial["bytes"] is None else f"{trial['bytes']:,}",
            "" if trial["work"] is None else f"{trial['work']:.2f}",
            f"{trial['seconds']:.0f}",
        )
        for trial in search["trials"]
    ]
    title = f"Attempts: {search['goal']}"
    _table(console, title, ["", "what", "value", "missing", "bytes", "work", "s"], rows)
    for option in search["options"]:
        _line(console, "same as", option)
    if search["stopped"] != "met":
        _facts(console, [("ended", search["stopped"], "")])


def _points(unit: str) -> str:
    return unit.replace("%", "points")


def _alike(fitted: Sequence[Fitted]) -> list[tuple[str, str, str]]:
    """Return rows of what was written otherwise; nodes for which the same was done share one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in fitted:
        groups.setdefault((each.what, each.cost), []).append(each.node)
    return [
        (nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more", what, cost)
        for (what, cost), nodes in groups.items()
    ]


def _report_rows(report: Report) -> list[tuple[str, str, str]]:
    counts = sorted(report.layers.items(), key=lambda item: -item[1])
    layers = f"{sum(report.layers.values())}: " + ", ".join(f"{op}\u00a0{n}" for op, n in counts)
    ready, style = ("yes", "bold green") if report.chip_ready else ("no", "bold red")
    if not report.is_chip:
        ready, style = f"no: {report.platform} is no chip", ""
    rows = [
        ("integer layers", layers if counts else "none", ""),
        ("chip-ready", ready, style),
        ("integer MACs", f"{100 * report.integer_macs:.1f} %", ""),
    ]
    if report.cost is not None:
        rows.append(("on the chip", report.cost.text(), ""))
    for name, seen in report.outputs.items():
        text = f"{name}: cosine {seen['cosine']:.6f}, SQNR {_decibel(seen['sqnr'])} {report.measured_on}"
        rows.append(("fidelity", text, ""))
    if report.accuracy:
        rows.append(("accuracy", _accuracy_text(report.accuracy), "bold"))
    return rows


def _accuracy_text(a: Mapping[str, Any]) -> str:
    ends = f"({a['metric']}, {a['samples']} samples)"
    if a["float"] is None:
        return f"{_number(a['integer'], a['unit'])} against the float model {ends}"
    return (
        f"float {_number(a['float'], a['unit'])}, integer {_number(a['integer'], a['unit'])}, "
        f"drop {_number(a['drop'], a['unit'].replace('%', 'points'))} {ends}"
    )


def _float_table(console: Console, title: str, nodes: Sequence[FloatNode], most: int = 20) -> None:
    if nodes:
        rows = [(n.node, n.op_type, n.why) for n in nodes[:most]]
        _table(console, title, ["node", "operator", "why in float"], rows)
        if len(nodes) > most:
            console.print(f"  and {len(nodes) - most} more, listed with --json")


def show_simulation(console: Console, result: Simulation, output: Path, dump: Path | None) -> None:
    """Print the tensors of a run."""
    made_of = {key: name for name, key in result.outputs.items()}
    rows = []
    for name, array in result.arrays.items():
        role = "" if name not in made_of else "output" if made_of[name] == name else f"output {made_of[name]}"
        rows.append((name, role, str(array.dtype), _shape(array.shape), _scale(result.scales[name])))
    _table(console, "", ["tensor", "role", "type", "shape", "scale"], rows, right="scale")
    if result.at is not None:
        _show_at(console, result.at)
    if result.at is None:
        console.print()
    _notes(console, result.notes)
    if dump is not None:
        _line(console, "dumped", str(dump))
    _line(console, "written", f"{output} ({result.samples} samples, {_size(output)})")


def _show_at(console: Console, at: Summary) -> None:
    def both(value: float) -> str:
        return f"{value:g}" if at.scale is None else f"{value:g}  = {real(value)}"

    def real(value: float) -> str:
        return f"{at.real(value):g}"

    console.print()
    rows = [("at", at.name), ("type", f"{at.dtype} {_shape(at.shape)}"), ("scale", _scale(at.scale)),
            ("min", both(at.low)), ("max", both(at.high)), ("mean", both(at.mean)),
            ("first", "  ".join(f"{value:g}" for value in at.first)),
            ("as real", "  ".join(map(real, at.first)))]  # fmt: skip
    _facts(console, [(*row, "") for row in rows if at.scale is not None or row[0] not in ("scale", "as real")])
    console.print()


def show_evaluation(console: Console, found: Evaluation, model: Path, baseline: Path | None) -> None:
    """Print a metric's value."""
    against = f" against {baseline}" if baseline is not None and found.baseline is None else ""
    rows = [(found.metric, f"{_number(found.value, found.unit)}  {model}{against}", "bold")]
    if found.baseline is not None:
        rows += [
            ("baseline", f"{_number(found.baseline, found.unit)}  {baseline}", ""),
            ("drop", _number(found.baseline - found.value, _points(found.unit)), ""),
        ]
    _facts(console, [*rows, ("samples", str(found.samples), "")])


def show_deployment(console: Console, done: Deployment) -> None:
    """Print what was written for a board."""
    rows = [(name, str(size)) for name, size in done.files.items() if not name.startswith("golden/")]
    golden = [size for name, size in done.files.items() if name.startswith("golden/")]
    rows.append((f"golden/ ({len(golden)} files)", str(sum(golden))))
    _table(console, f"{done.folder}, for {done.platform}", ["file", "bytes"], rows, right="bytes")
    console.print()
    _notes(console, done.notes)
    _line(console, "pack it with", f"sh {done.folder / 'pack.sh'}")


def show_verification(console: Console, found: Verification) -> None:
    """Print whether a device agrees, else where it begins to differ and why."""
    count = f"{len(found.compared)} tensors compared"
    if found.agrees:
        _facts(console, [("agrees", f"{count}, every one equal", "bold green")])
    if found.first is not None:
        first = found.first
        nodes = "" if list(first.nodes) == [first.node] else f"; the fault is in one of {_some(first.nodes)}"
        _facts(
            console,
            [
                ("differs", f"{count}, {len(found.different)} differ", "bold red"),
                ("first layer", f"{first.operator} {first.node}{nodes}", "bold"),
                ("tensor", f"{first.tensor} ({first.dump})", ""),
                ("first element", _element(first), ""),
                *(("remark", text, "") for text in first.remarks),
            ],
        )
        for cause in first.causes:
            label = "explained by" if cause.exact else "packer" if cause.kind == "packer" else "perhaps"
            _facts(console, [(label, f"{cause.kind}: {cause.text}", "bold" if cause.exact else "")])
    if found.unknown:
        _facts(console, [("not in the graph", _some(found.unknown), "")])
    if found.unseen:
        _facts(console, [("not shown", _some(found.unseen), "")])
    _notes(console, found.notes)


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more, listed with --json" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _element(first: Difference) -> str:
    if first.index is None:
        return "not known from a checksum"
    text = f"{list(first.index)}: {first.found} on the device, {first.expected} here"
    if first.differing is None:
        return text
    return f"{text}; {first.differing} of {first.size} differ, by {first.largest} counts at most"


def show_platforms(console: Console, rows: Sequence[Platform]) -> None:
    """Print one line per platform."""
    _table(
        console,
        "",
        ["name", "executor", "what it is", "modes", "operators"],
        [(r.name, r.executor or "-", r.title, ", ".join(r.modes), str(len(r.ops))) for r in rows],
        right="operators",
    )
    console.print("\n  lingeronnx platforms NAME tells more about one")


def show_platform(console: Console, row: Platform) -> None:
    """Print limits, operators and known faults of one platform."""
    _title(console, f"{row.name}: {row.title}")
    low, high = row.exponents
    facts = [("executor", row.executor or "-"), ("chip", "yes" if row.packing is not None else "no"),
             ("modes", ", ".join(row.modes)), ("bits", ", ".join(map(str, row.bits))),
             ("scales", f"activations 2^{low} to 2^{high}"),
             *([("packer", f"tpacker -p {row.packing.name}")] if row.packing is not None else [])]  # fmt: skip
    _facts(console, [(*fact, "") for fact in facts])
    limits: dict[str, Any] = {"shared_memory": row.shared_memory, "external_memory": row.external_memory}
    limits |= {f"conv {key}": value for key, value in (plain(row.conv) or {}).items()}
    limits |= {f"pool {key}": value for key, value in (plain(row.pool) or {}).items()}
    shown = [
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in limits.items()
        if v is not None
    ]
    if shown:
        _table(console, "Limits (elements; memory and slabs in bytes)", ["limit", "value"], shown)
    _table(
        console,
        "Operators",
        ["operator", "arithmetic"],
        [(name, str(entry.arithmetic)) for name, entry in row.ops.items()],
    )
    if row.faults:
        _table(
            console,
            "Known faults of the executor, worked around",
            ["about", "what"],
            [(fault.key, fault.text) for fault in row.faults],
        )


def show_demo(console: Console, done: Demo, report: Report) -> None:
    """Print the digits, what the integer graph says of them, and its accuracy."""
    from rich.text import Text

    _title(console, "Handwritten digits, as the integers of a venus NPU compute them")
    unicode = console.encoding.lower().startswith("utf")
    ink = " \u2591\u2592\u2593\u2588" if unicode else " .:*#"
    for y in range(done.images.shape[1]):
        row = ("".join(2 * ink[round(float(pixel) * 4)] for pixel in image[y, 1:-1]) for image in done.images)
        console.print("  " + "  ".join(row), no_wrap=True, overflow="crop")
    said = "".join(f"{c!s:^12}  " for c in done.classes)
    console.print(Text("  " + said.rstrip(), "bold green"), no_wrap=True, overflow="crop")
    console.print()
    a = done.evaluation.accuracy
    for key in ("float", "integer"):
        _facts(console, [(f"{key} accuracy", f"{a[key]:.2f} % of {a['samples']} held-out digits", "bold")])
    _facts(console, _report_rows(replace(report, accuracy=None)))
    console.print()
    _notes(console, report.notes)
    _line(console, "written", f"{done.output} ({_size(done.output)}) in {done.seconds:.1f} s")
    _line(console, "look inside", f"lingeronnx simulate {done.output} --input {_near(done.data)} --limit 1 --taps all")
    _line(console, "your turn", "lingeronnx quantize your_model.onnx --calib your_data.npz")


def _near(path: Path) -> str:
    """Return `path` relative to the current folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _number(value: float, unit: str) -> str:
    return _decibel(value) if unit == "dB" else f"{value:.2f} {unit}" if unit else f"{value:.6g}"


def _decibel(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else "infinite (equal)" if value > 0 else "-infinite"


def _scale(scale: float | None) -> str:
    if scale is None:
        return ""
    mantissa, exponent = math.frexp(scale)
    text = f"2^{exponent - 1}" if mantissa == 0.5 else f"{float(scale):.6g}"
    zero = getattr(scale, "zero_point", 0)
    return f"{text} from {zero}" if zero else text


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def plain(value: Any) -> Any:
    """Return `value` in types JSON has; a number that is not finite becomes null, a row a dict."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {key: plain(getattr(value, key)) for key in value.__dataclass_fields__}
    if isinstance(value, Enum):
        return value.name.lower()
    return str(value) if isinstance(value, Path) else value


_FINDINGS = 5  # that are printed


def show_comparison(console: Console, found: Comparison, folder: Path) -> None:
    """Print the summary, the worst layers and the first findings of a comparison."""
    rows = [("models", f"{found.names[1]} against {found.names[0]}, {found.join.samples} samples", "")]
    if found.accuracy is not None:
        rows.append(("accuracy", f"{found.accuracy[0]:.2f} % -> {found.accuracy[1]:.2f} %", "bold"))
    rows += [("output", f"'{name}' {value:.1f} dB", "") for name, value in found.outputs.items()]
    _facts(console, rows)
    _table(
        console,
        "layers that cost most",
        ("tensor", "operator", "own error, dB", "as it arrives, dB", "finding"),
        [
            (row.name, row.kinds[0], f"{row.judged.sqnr:.1f}", f"{row.pair.sqnr:.1f}", found.why(row))
            for row in found.worst
        ],
    )
    lines = []
    for finding in found.findings[:_FINDINGS]:
        lines.append((finding.kind, f"'{finding.layer}': {finding.measured} (limit: {finding.limit})", ""))
        lines.append(("", f"{finding.remedy}{''.join(': ' + option for option in finding.options)}", "green"))
    more = len(found.findings) - _FINDINGS
    lines += [("", f"and {more} more in abnormal_layer_advisor.txt", "")] if more > 0 else []
    lines.append(
        ("written", f"{folder}: profiler.html, abnormal_layer_advisor.txt, compare_per_layer_out.txt, .csv", "")
    )
    console.print()
    _facts(console, lines)
