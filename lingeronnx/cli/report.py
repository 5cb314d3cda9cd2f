"""Terminal output of the report on a quantization.

The decisive facts come first, and a short report fits on one screen: similar lines are merged into
one, with their number and the worst value. `--notes full` and `--json` omit nothing. This module
knows reports; it knows no options, files or exit codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.command_lines import replace_options
from ..common.escaping import escape_invisible
from ..common.text import (
    SCREEN_LINES,
    count_screen_lines,
    difference_unit,
    format_decibels,
    format_value,
    merge_similar_lines,
    truncate_lines,
)
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
    from ..quantization import WrittenFiles
    from ..quantization.report import Report
    from .demo_model import Demo
    from .rich_console import EscapingConsole

__all__ = ["show_demo", "show_report"]

_MAX_LINES = 4  # lines of one category in a short report
_UNLIMITED = 1 << 30
_MAX_OP_TYPES = 8  # operator types counted in one line
_COST_TABLE_MARGIN = 5  # lines of a cost table besides its layers and totals
_MIN_COST_ROWS = 3  # minimum number of layers in a cost table

_PACK_LABEL, _NEXT_LABEL = "pack it with", "try next"

_Row = tuple[str, str, str]  # label, value, style of the value


def show_report(
    console: EscapingConsole, model: Path, written: WrittenFiles, command_line: str = ""
) -> None:
    """Print the report of a quantization and the written files.

    A short report (`--notes short`) is shortened until it fits on one screen: first the lines of
    each category, from _MAX_LINES down to 1, and then the cost table, which gets the free lines.

    Parameters
    ----------
    console
        Console to print on.
    model
        Path of the float model.
    written
        The written files, with the report.
    command_line
        Command line of the user, to which suggested options are appended; empty if unknown.
    """
    report = written.report
    layer_count = 0 if report.cost is None else len(report.cost.layers)
    if report.full:
        _print_report(console, model, written, command_line, _UNLIMITED, layer_count)
        return
    max_lines = _MAX_LINES
    while True:
        with console.capture() as captured:
            _print_report(console, model, written, command_line, max_lines, 0)
        free_lines = SCREEN_LINES - _count_screen_lines(captured.get())
        if free_lines >= 0 or max_lines == 1:
            break
        max_lines -= 1
    total_lines = 0 if report.cost is None else max(len(report.cost.macs), 1)
    cost_rows = free_lines - _COST_TABLE_MARGIN - total_lines
    if cost_rows < min(_MIN_COST_ROWS, layer_count):
        cost_rows = 0
    _print_report(console, model, written, command_line, max_lines, cost_rows)


def _count_screen_lines(text: str) -> int:
    """Return the number of screen lines that `text`, with ANSI styles, takes on a terminal.

    Long lines wrap, except a command line to copy (after "pack it with" or "try next"), which
    counts as one line. Trailing empty lines do not count.
    """
    from rich.text import Text

    lines = Text.from_ansi(text).plain.rstrip("\n").split("\n")
    command_prefixes = (f"  {_PACK_LABEL}", f"  {_NEXT_LABEL}")
    return count_screen_lines("" if line.startswith(command_prefixes) else line for line in lines)


def _print_report(
    console: EscapingConsole,
    model: Path,
    written: WrittenFiles,
    command_line: str,
    max_lines: int,
    cost_rows: int,
) -> None:
    """Print the report of a quantization of `model`, and the written files, on `console`.

    At most `max_lines` lines per category are printed, and `cost_rows` layers in the cost table,
    which is omitted for 0. Suggested options are printed only with a `command_line`, where they
    replace those of the same names.
    """
    report = written.report
    print_title(console, f"{model} -> {report.platform}, {report.mode}")
    print_facts(console, _readiness_rows(report, max(max_lines, 2)))
    warnings = truncate_lines(merge_similar_lines(report.warnings), max_lines)
    print_notes(console, warnings, "WARNING", "bold red")
    if command_line:
        for step in report.next:
            print_line(console, _NEXT_LABEL, replace_options(command_line, " ".join(step.options)))
            print_facts(console, [("", f"({step.effect})", "")])
    print_facts(
        console, [*_figure_rows(report, max_lines), *_float_and_rewrite_rows(report, max_lines)]
    )
    print_notes(console, _collect_notes(report, max_lines))
    if report.search is not None:
        _print_search(console, report.search)
    if report.cost is not None and cost_rows:
        _print_cost_table(console, report, cost_rows)
    _print_files(console, written)


def _print_cost_table(console: EscapingConsole, report: Report, max_rows: int) -> None:
    """Print a table of the `max_rows` most expensive layers on the chip.

    The report must have a cost.
    """
    assert report.cost is not None
    console.print("\n  Cost on the chip, most expensive nodes (--json lists all)\n", style="bold")
    lines = report.cost.format_table(max_rows, with_totals=False, latency=report.time.latency)
    for line in lines:
        console.print(escape_invisible(line), soft_wrap=True)
    console.print()


def _print_files(console: EscapingConsole, written: WrittenFiles) -> None:
    """Print the packer's command lines, and the written files with sizes.

    There is one command line if the graph is chip-ready, or one for each part that the chip runs.
    """
    report = written.report
    if report.packer and report.chip_ready:
        print_line(console, _PACK_LABEL, report.packer)
    for part in report.program.chip:
        if part.packer:
            print_line(console, _PACK_LABEL, part.packer)
    if written.plan is not None:
        print_line(console, "plan", str(written.plan))
    print_line(console, "written", f"{written.graph} ({size_text(written.graph)})")
    if written.chip is not None:
        text = f"{written.chip} ({size_text(written.chip)}), without the host part"
        print_line(console, "for the packer", text)
    for path in written.chip_parts:
        print_line(console, "for the packer", f"{path} ({size_text(path)})")


def _readiness_rows(report: Report, max_lines: int) -> list[_Row]:
    """Return the rows (label, value, style) that say whether the graph is chip-ready.

    They include the reasons if it is not, calls that are too slow, and merges that would give fewer
    parts; at most `max_lines` reasons and merges.
    """
    rows: list[_Row] = []
    if report.program.runs_correctly:
        rows.append((f"runs on {report.platform}", report.runs_text, "bold"))
    style = ""
    if report.is_chip:
        style = "bold green" if report.chip_ready_text == "yes" else "bold red"
    rows.append(("chip-ready", report.chip_ready_text, style))
    rows += [("why not", line, "red") for line in truncate_lines(report.why_not, max_lines)]
    rows += [("too slow", str(finding), "red") for finding in report.time.findings]
    merges = truncate_lines(list(map(str, report.merges)), max_lines)
    rows += [("fewer parts", line, "") for line in merges]
    return rows + _format_version_rows(report, max_lines)


def _format_version_rows(report: Report, max_lines: int) -> list[_Row]:
    """Return the rows (label, value, style) on versions of packer and executor.

    A short report has one row with both lists, and a node that narrows them if `max_lines` is above
    2. A full one has a row for each, with versions that
    were not measured, and one for each rule that narrows them.
    """
    versions = report.versions
    if not report.full:
        summary = versions.format_summary(with_nodes=max_lines > 2)
        return [("versions", summary, "")] if summary else []
    rows = [("versions", f"{label} {text}", "") for label, text in versions.format_lists()]
    return rows + [("versions", reason, "") for reason in versions.format_reasons()]


def _figure_rows(report: Report, max_lines: int) -> list[_Row]:
    """Return the rows (label, value, style) with figures of the report.

    These are integer layers and MACs, cost, time, cycles saved, fidelity and accuracy; unknown ones
    are left out. There are at most `max_lines` lines of fidelity.
    """
    counts = sorted(report.layers.items(), key=lambda item: -item[1])
    layers = "none"
    if counts:
        listed = ", ".join(f"{op_type}\u00a0{count}" for op_type, count in counts)
        layers = f"{sum(report.layers.values())}: {listed}"
    rows = [("integer layers", layers, ""), ("integer MACs", report.macs_text, "")]
    if report.cost is not None:
        rows.append(("on the chip", report.cost.format_totals(), ""))
    for index, line in enumerate(report.time.lines()):
        rows.append(("time" if index == 0 else "", line, ""))
    if report.saved is not None:
        rows.append(("cycles", report.saved.summary, ""))
    rows += [("fidelity", text, "") for text in _format_fidelity(report, max_lines)]
    if report.accuracy:
        rows.append(("accuracy", report.accuracy_text, "bold"))
    return rows


def _format_fidelity(report: Report, max_lines: int) -> list[str]:
    """Return lines with the fidelity of each graph output, at most `max_lines` of them.

    Of more outputs, the worst ones by SQNR, and the range of the others in one line.
    """
    if len(report.outputs) <= max_lines:
        return [report.fidelity_text(name) for name in report.outputs]
    ranked = sorted(report.outputs, key=lambda name: _sqnr_sort_key(report.outputs[name]))
    shown = max(max_lines - 1, 1)
    bounds = dict.fromkeys((ranked[shown], ranked[-1]))
    sqnr_range = " to ".join(format_decibels(report.outputs[name]["sqnr"]) for name in bounds)
    lines = [report.fidelity_text(name) for name in ranked[:shown]]
    hidden = len(ranked) - shown
    summary = f"{hidden} more output{'s' if hidden > 1 else ''}: {sqnr_range}"
    return [*lines, summary] if max_lines > 1 else [f"{lines[0]}; {summary}"]


def _sqnr_sort_key(measures: Mapping[str, float]) -> float:
    """Return the SQNR in `measures` as a sort key; NaN becomes minus infinity, the worst."""
    return measures["sqnr"] if measures["sqnr"] == measures["sqnr"] else -float("inf")


def _float_and_rewrite_rows(report: Report, max_lines: int) -> list[_Row]:
    """Return the rows (label, value, style) on nodes in float and on rewritten nodes.

    Float nodes are those between integers, which for a chip are the reasons why it is not ready,
    and those of the host part. If the latter need more than `max_lines` lines, they are summarized
    in one; the others, and rewritten nodes, are cut to `max_lines`.
    """
    from ..quantization.report import format_float_nodes, format_rewrites

    float_lines = [] if report.is_chip else format_float_nodes(report.float_nodes, report.full)
    host_lines = format_float_nodes(report.host_part, report.full)
    if len(host_lines) > max_lines:
        host_lines = [_summarize_host_part(report)]
    rewrites = truncate_lines(format_rewrites(report.fitted, report.full), max_lines)
    return [
        *(("in float", line, "") for line in truncate_lines(float_lines, max_lines)),
        *(("host part", line, "") for line in host_lines),
        *(("rewritten", line, "") for line in rewrites),
    ]


def _summarize_host_part(report: Report) -> str:
    """Summarize the float nodes that run on the host in one line.

    It has their number, how many there are of the _MAX_OP_TYPES most frequent operator types, and
    the MACs unless 0.
    """
    counts = Counter(node.op_type for node in report.host_part).most_common()
    text = ", ".join(f"{op_type} {count}" for op_type, count in counts[:_MAX_OP_TYPES])
    if len(counts) > _MAX_OP_TYPES:
        text += " ..."
    macs = sum(node.macs for node in report.host_part)
    if macs:
        text += f"; {macs:,} MACs"
    return f"{len(report.host_part)} nodes before the first or after the last integer node: {text}"


def _collect_notes(report: Report, max_lines: int) -> list[str]:
    """Return at most `max_lines` notes: those of the report, and warnings about the packer.

    The warnings are the findings of level "plan". Similar lines are merged unless the report is
    full.
    """
    from ..quantization.report import format_findings

    warnings = (finding for finding in report.findings if finding.level == "plan")
    notes = report.notes if report.full else merge_similar_lines(report.notes)
    return truncate_lines([*notes, *format_findings(warnings, report.full)], max_lines)


def _print_search(console: EscapingConsole, search: Mapping[str, Any]) -> None:
    """Print the attempts of a search as a table, the selected one marked by a star.

    Also the options that select it directly, its bit widths, and why the search ended unless the
    goal was met. `search` is the JSON of the search in a report. Columns flash and cycles are
    omitted if no attempt has them.
    """
    from ..search.page import format_weight_bits

    trials = search["trials"]
    cost_keys = [
        key for key in ("flash", "cycles") if any(trial[key] is not None for trial in trials)
    ]
    header = ["", "what", "value", "missing", "bytes", "work", *cost_keys, "s"]
    rows = [_format_attempt(trial, search["unit"], cost_keys) for trial in trials]
    print_table(console, f"Attempts: {search['goal']}", header, rows)
    for option in search["options"]:
        print_line(console, "same as", option)
    if widths := format_weight_bits(search["weight_bits"]):
        print_facts(console, [("weights", f"bits: {widths}", "")])
    if search["stopped"] != "met":
        print_facts(console, [("ended", search["stopped"], "")])


def _format_attempt(
    trial: Mapping[str, Any], unit: str, cost_keys: Sequence[str]
) -> tuple[str, ...]:
    """Return the cells of one attempt of a search in the table of attempts.

    Parameters
    ----------
    trial
        The attempt's JSON.
    unit
        Unit of its value. Without a value, the reason for that is shown.
    cost_keys
        Keys of further columns.
    """
    from ..search.page import format_shortfall

    value, shortfall = trial["why"], ""
    if trial["value"] is not None:
        value = format_value(trial["value"], unit)
        missing = format_value(trial["missing"], difference_unit(unit))
        shortfall = format_shortfall(trial, missing)
    return (
        "*" if trial["chosen"] else "",
        trial["what"],
        value,
        shortfall,
        "" if trial["bytes"] is None else f"{trial['bytes']:,}",
        "" if trial["work"] is None else f"{trial['work']:.2f}",
        *("" if trial[key] is None else f"{trial[key]:,.0f}" for key in cost_keys),
        f"{trial['seconds']:.0f}",
    )


def show_demo(console: EscapingConsole, demo: Demo, report: Report) -> None:
    """Print the digits of the demo as pictures, their predicted classes, accuracies and figures.

    `report` is that of the quantized model. Digits are drawn with ASCII characters if the console
    has no Unicode. The last lines name the written file and suggest commands.
    """
    from rich.text import Text

    print_title(console, f"Handwritten digits, as the integers of a {DEFAULT} NPU compute them")
    unicode = console.encoding.lower().startswith("utf")
    shades = " \u2591\u2592\u2593\u2588" if unicode else " .:*#"
    for y in range(demo.images.shape[1]):
        lines = [_draw_pixels(image[y, 1:-1], shades) for image in demo.images]
        console.print("  " + "  ".join(lines), no_wrap=True, overflow="crop")
    labels = "".join(f"{label!s:^12}  " for label in demo.classes)
    console.print(Text("  " + labels.rstrip(), "bold green"), no_wrap=True, overflow="crop")
    console.print()
    accuracy = demo.evaluation.accuracy
    for key in ("float", "integer"):
        text = f"{accuracy[key]:.2f} % of {accuracy['samples']} held-out digits"
        print_facts(console, [(f"{key} accuracy", text, "bold")])
    figures = _figure_rows(replace(report, accuracy=None), _MAX_LINES)
    print_facts(console, [*_readiness_rows(report, _MAX_LINES), *figures])
    console.print()
    print_notes(console, report.warnings, "WARNING", "bold red")
    print_notes(console, report.notes)
    written = f"{demo.output} ({size_text(demo.output)}) in {demo.seconds:.1f} s"
    print_line(console, "written", written)
    data = _relative_path(demo.data)
    print_line(
        console,
        "look inside",
        f"lingeronnx simulate {demo.output} --input {data} --limit 1 --taps all",
    )
    print_line(console, "your turn", "lingeronnx quantize your_model.onnx --calib your_data.npz")


def _draw_pixels(pixels: Iterable[float], shades: str) -> str:
    """Return a row of pixels (0 to 1) as text, two characters each, from dark to bright `shades`.

    `shades` has five characters, for 0, 0.25, ..., 1.
    """
    return "".join(2 * shades[round(float(pixel) * 4)] for pixel in pixels)


def _relative_path(path: Path) -> str:
    """Return `path` relative to the current folder if it is below it, else as it is."""
    folder = Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
