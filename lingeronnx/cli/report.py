"""How the report on a quantization looks in a terminal.

What decides first, and all of it on one screen.
What is alike is one line, with its number and the worst of it. The options `--notes full` and
`--json` leave nothing out. Knows reports, nothing of options, files to write or exit codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..message_grouping import SCREEN_LINES, count_screen_lines, merge_similar_lines, truncate_lines
from ..number_format import difference_unit, format_decibels, format_value
from ..targets import DEFAULT
from .show import (
    print_facts,
    print_line,
    print_notes,
    print_table,
    print_title,
    size_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..demo import Demo
    from ..flow import WrittenFiles
    from ..flow.report import Report

__all__ = ["show_demo", "show_report"]

_MAX_LINES, _UNLIMITED = 4, 1 << 30  # lines of one sort that are shown, in short and in full
_MAX_OP_TYPES = 8  # operators that are counted in a line
_COST_TABLE_MARGIN = 5  # lines that a table of costs takes beside its layers and totals
_MIN_COST_ROWS = 3  # layers that such a table has at least

_PACK_LABEL, _NEXT_LABEL = "pack it with", "try next"

_Row = tuple[str, str, str]  # label, value, style of the value


def show_report(
    console: Console, model: Path, written: WrittenFiles, command_line: str = ""
) -> None:
    """Print what a quantization did of `model`, and what it wrote.

    command_line : the user's command line, which the options to try next are added to; empty where
    there is none.
    """
    report, most, room = written.report, _UNLIMITED if written.report.full else _MAX_LINES, 0
    layers = 0 if report.cost is None else len(report.cost.layers)
    while not report.full:
        with console.capture() as held:
            _print_report(console, model, written, command_line, most, 0)
        room = SCREEN_LINES - _count_screen_lines(held.get())
        if room >= 0 or most == 1:
            break
        most -= 1
    room -= _COST_TABLE_MARGIN + (0 if report.cost is None else max(len(report.cost.macs), 1))
    _print_report(
        console,
        model,
        written,
        command_line,
        most,
        layers if report.full else room if room >= min(_MIN_COST_ROWS, layers) else 0,
    )


def _count_screen_lines(text: str) -> int:
    """Return how many lines of a screen a text takes.

    A call to be copied, which has paths of any length, is one.
    """
    from rich.text import Text

    lines = Text.from_ansi(text).plain.rstrip("\n").split("\n")
    return count_screen_lines(
        "" if line.startswith((f"  {_PACK_LABEL}", f"  {_NEXT_LABEL}")) else line for line in lines
    )


def _print_report(
    console: Console, model: Path, written: WrittenFiles, again: str, most: int, layers: int
) -> None:
    """Print it, with at most so many lines of one sort, and the heaviest `layers` in a table."""
    report = written.report
    print_title(console, f"{model} -> {report.platform}, {report.mode}")
    print_facts(console, _readiness_rows(report, max(most, 2)))
    print_notes(
        console, truncate_lines(merge_similar_lines(report.warnings), most), "WARNING", "bold red"
    )
    for step in report.next if again else ():
        print_line(console, _NEXT_LABEL, f"{again} {' '.join(step.options)}")
        print_facts(console, [("", f"({step.effect})", "")])
    print_facts(console, [*_figure_rows(report, most), *_float_and_rewrite_rows(report, most)])
    print_notes(console, _collect_notes(report, most))
    if report.search is not None:
        _search_table(console, report.search)
    if report.cost is not None and layers:
        console.print(
            "\n  Cost on the chip, the heaviest nodes (all of them with --json)\n", style="bold"
        )
        for line in report.cost.format_table(
            layers, with_totals=False, latency=report.time.latency
        ):
            console.print(line, soft_wrap=True)
        console.print()
    if report.packer and report.chip_ready:
        print_line(console, _PACK_LABEL, report.packer)
    for part in report.program.chip:
        if part.packer:
            print_line(console, _PACK_LABEL, part.packer)
    if written.plan is not None:
        print_line(console, "plan", str(written.plan))
    print_line(console, "written", f"{written.graph} ({size_text(written.graph)})")
    if written.chip is not None:
        print_line(
            console,
            "for the packer",
            f"{written.chip} ({size_text(written.chip)}), without the host part",
        )
    for path in written.chip_parts:
        print_line(console, "for the packer", f"{path} ({size_text(path)})")


def _readiness_rows(report: Report, most: int) -> list[_Row]:
    """Return whether it is chip-ready, and why not."""
    ready, style = ("yes", "bold green") if report.chip_ready else ("no", "bold red")
    if not report.is_chip:
        ready, style = f"no: {report.platform} is no chip", ""
    runs = (
        [(f"runs on {report.platform}", report.runs_text, "bold")]
        if report.program.runs_correctly
        else []
    )
    why = [("why not", line, "red") for line in truncate_lines(report.why_not, most)]
    fewer = [
        ("fewer parts", line, "") for line in truncate_lines(list(map(str, report.merges)), most)
    ]
    slow = [("too slow", str(finding), "red") for finding in report.time.findings]
    return [*runs, ("chip-ready", ready, style), *why, *slow, *fewer]


def _figure_rows(report: Report, most: int) -> list[_Row]:
    """Return the figures."""
    counts = sorted(report.layers.items(), key=lambda item: -item[1])
    layers = f"{sum(report.layers.values())}: " + ", ".join(f"{op}\u00a0{n}" for op, n in counts)
    rows = [
        ("integer layers", layers if counts else "none", ""),
        ("integer MACs", report.macs_text, ""),
    ]
    if report.cost is not None:
        rows.append(("on the chip", report.cost.format_totals(), ""))
    rows += [
        ("time" if index == 0 else "", line, "") for index, line in enumerate(report.time.lines())
    ]
    if report.saved is not None:
        rows.append(("cycles", report.saved.summary, ""))
    rows += [("fidelity", text, "") for text in _format_fidelity(report, most)]
    if report.accuracy:
        rows.append(("accuracy", report.accuracy_text, "bold"))
    return rows


def _format_fidelity(report: Report, most: int) -> list[str]:
    """Return a line for each output; of many the worst, and the range of the others."""
    if len(report.outputs) <= most:
        return [report.fidelity_text(name) for name in report.outputs]
    worst = sorted(report.outputs, key=lambda name: _sqnr_sort_key(report.outputs[name]))
    shown = max(most - 1, 1)
    ends = " to ".join(
        format_decibels(report.outputs[name]["sqnr"])
        for name in dict.fromkeys((worst[shown], worst[-1]))
    )
    lines = [report.fidelity_text(name) for name in worst[:shown]]
    left = f"{len(worst) - shown} more output{'s' if len(worst) > shown + 1 else ''}: {ends}"
    return [*lines, left] if most > 1 else [f"{lines[0]}; {left}"]


def _sqnr_sort_key(seen: Mapping[str, float]) -> float:
    """Return what sorts outputs: what is not finite comes first."""
    return seen["sqnr"] if seen["sqnr"] == seen["sqnr"] else -float("inf")


def _float_and_rewrite_rows(report: Report, most: int) -> list[_Row]:
    """Return what else stays in float, and what is written otherwise."""
    from ..flow.report import format_float_nodes, format_rewrites

    host = format_float_nodes(report.host_part, report.full)
    if len(host) > most:
        kinds = sorted(
            Counter(n.op_type for n in report.host_part).items(), key=lambda item: -item[1]
        )
        counts = ", ".join(f"{op} {n}" for op, n in kinds[:_MAX_OP_TYPES]) + (
            " ..." if len(kinds) > _MAX_OP_TYPES else ""
        )
        work = sum(n.macs for n in report.host_part)
        counts += f"; {work:,} MACs" if work else ""
        host = [
            (
                f"{len(report.host_part)} nodes before the first or after the last integer one: "
                f"{counts}"
            )
        ]
    changed = truncate_lines(format_rewrites(report.fitted, report.full), most)
    return [("host part", line, "") for line in host] + [
        ("written otherwise", line, "") for line in changed
    ]


def _collect_notes(report: Report, most: int) -> list[str]:
    """Return the notes, and what is only a warning of the packer's rules."""
    from ..flow.report import format_findings

    past = format_findings((f for f in report.findings if f.level == "plan"), report.full)
    return truncate_lines(
        [*(report.notes if report.full else merge_similar_lines(report.notes)), *past], most
    )


def _search_table(console: Console, search: Mapping[str, Any]) -> None:
    """Print the attempts of a search, the chosen one marked, its widths, and why it ended."""
    from ..search.page import format_shortfall, format_weight_bits

    unit = search["unit"]
    known = [
        key
        for key in ("flash", "cycles")
        if any(trial[key] is not None for trial in search["trials"])
    ]
    rows = [
        (
            "*" if trial["chosen"] else "",
            trial["what"],
            trial["why"] if trial["value"] is None else format_value(trial["value"], unit),
            ""
            if trial["value"] is None
            else format_shortfall(trial, format_value(trial["missing"], difference_unit(unit))),
            "" if trial["bytes"] is None else f"{trial['bytes']:,}",
            "" if trial["work"] is None else f"{trial['work']:.2f}",
            *("" if trial[key] is None else f"{trial[key]:,.0f}" for key in known),
            f"{trial['seconds']:.0f}",
        )
        for trial in search["trials"]
    ]
    title = f"Attempts: {search['goal']}"
    head = ["", "what", "value", "missing", "bytes", "work", *known, "s"]
    print_table(console, title, head, rows)
    for option in search["options"]:
        print_line(console, "same as", option)
    if widths := format_weight_bits(search["weight_bits"]):
        print_facts(console, [("weights", f"bits: {widths}", "")])
    if search["stopped"] != "met":
        print_facts(console, [("ended", search["stopped"], "")])


def show_demo(console: Console, done: Demo, report: Report) -> None:
    """Print the digits, what the integer graph says of them, and its accuracy."""
    from rich.text import Text

    print_title(console, f"Handwritten digits, as the integers of a {DEFAULT} NPU compute them")
    unicode = console.encoding.lower().startswith("utf")
    ink = " \u2591\u2592\u2593\u2588" if unicode else " .:*#"
    for y in range(done.images.shape[1]):
        row = (
            "".join(2 * ink[round(float(pixel) * 4)] for pixel in image[y, 1:-1])
            for image in done.images
        )
        console.print("  " + "  ".join(row), no_wrap=True, overflow="crop")
    said = "".join(f"{c!s:^12}  " for c in done.classes)
    console.print(Text("  " + said.rstrip(), "bold green"), no_wrap=True, overflow="crop")
    console.print()
    a = done.evaluation.accuracy
    for key in ("float", "integer"):
        print_facts(
            console,
            [(f"{key} accuracy", f"{a[key]:.2f} % of {a['samples']} held-out digits", "bold")],
        )
    print_facts(
        console,
        [
            *_readiness_rows(report, _MAX_LINES),
            *_figure_rows(replace(report, accuracy=None), _MAX_LINES),
        ],
    )
    console.print()
    print_notes(console, report.notes)
    print_line(
        console, "written", f"{done.output} ({size_text(done.output)}) in {done.seconds:.1f} s"
    )
    print_line(
        console,
        "look inside",
        (
            f"lingeronnx simulate {done.output} --input {_relative_path(done.data)} --limit 1 --taps "
            "all"
        ),
    )
    print_line(console, "your turn", "lingeronnx quantize your_model.onnx --calib your_data.npz")


def _relative_path(path: Path) -> str:
    """Return `path` relative to the current folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
