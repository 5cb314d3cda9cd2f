"""The result of a check as an HTML section: verdict, violations, memory, cost by layer, latency."""

from __future__ import annotations

from ...common.escaping import escape_html
from ...common.pages import PageSection, components, render_page
from ...common.text import group_by_key, mask_quotes_and_numbers
from ...operators.lowerings import Violation
from ...quantization.report.report import format_level
from ...targets import VerdictFinding
from .report import Check
from .schedule import render_schedule_section

__all__ = ["render_check_page", "render_check_section"]

_COST_COLUMNS = (
    "layer",
    "operator",
    "MACs",
    "width",
    "weights",
    "activations",
    "work area",
    "DMA",
    "cycles",
)


def render_check_section(check: Check) -> PageSection:
    """Render the result of a check as a page section: verdict, problems, facts, cost and report."""
    blocks = [components.paragraph(check.verdict, "good" if check.sound else "bad")]
    problems = _group_problems(check)
    if problems:
        head = ("rule", "nodes", "first case", "remedy")
        blocks += [
            components.heading("Problems"),
            components.render_table("problems by rule", head, problems, (0, 2, 3), cards=True),
        ]
    facts = [("platform", check.platform), ("judged", f"the {check.kind} graph")]
    blocks.append(components.definition_list([*facts, *_packing_facts(check)]))
    if check.choice is not None and check.choice.command_line:
        blocks += [
            components.heading("Arguments of the packer"),
            components.copyable_command(check.choice.command_line, "arguments of the packer"),
        ]
    blocks += _render_cost(check)
    remarks = check.remarks()
    if remarks:
        html = components.ordered_list(map(escape_html, remarks))
        blocks.append(
            components.collapsible(f"Host operators, rewrites, notes: {len(remarks)}", html)
        )
    return PageSection(
        "check",
        "Limits, memory, cost, time",
        "\n".join(blocks),
        check.to_dict(),
    )


def render_check_page(check: Check, name: str) -> str:
    """Render the result of a check as an HTML page; `name` is the name of the model."""
    sections = [render_check_section(check)]
    schedule = render_schedule_section(check)
    if schedule is not None:
        sections.append(schedule)
    return render_page(f"{name} on {check.platform}", check.verdict, sections)


def _packing_facts(check: Check) -> list[tuple[str, object]]:
    """Return (term, text) pairs that say whether the graph packs, is correct, and its latency.

    Answers are "yes", "no" or "not packed"; those on correctness say if it is only assumed or read
    from sources instead of measured. The latency comes last, with the term "time"; its further
    lines have an empty term.
    """
    answers = {True: "yes", False: "no", None: "not packed"}
    correctness = answers[check.runs_right]
    if check.runs_right:
        outcomes = {"computed": "yes, by measured rules", "assumed": "assumed, not measured"}
        correctness = outcomes.get(check.basis, "not judged")
    elif check.runs_right is False and check.is_wrong_by_reading:
        correctness = "probably not (read, not measured)"
    time = [("time" if i == 0 else "", line) for i, line in enumerate(check.time.lines())]
    return [
        ("packs", answers[check.packs]),
        ("the simulator's integers", correctness),
        *time,
    ]


def _render_cost(check: Check) -> list[str]:
    """Render memory as bars, and the layers as a table.

    Empty if the cost is unknown; without a latency the column of cycles is missing, and of a graph
    in parts the table.
    """
    memory = check.memory
    if memory is None:
        return []
    blocks = [
        components.heading("Memory and cost"),
        components.usage_bar("shared memory", memory.shared, memory.shared_limit),
        components.usage_bar("psram", memory.psram, memory.psram_limit),
    ]
    cost, latency = check.cost, check.time.latency
    if cost is None:
        return blocks
    rows = []
    for layer in cost.layers:
        sizes = (layer.weights, layer.activations, layer.work_area, layer.dma)
        rows.append(
            [
                components.breakable_path(layer.node),
                escape_html(layer.op_type),
                f"{layer.macs:,}",
                escape_html(layer.width),
                *(f"{size:,}" for size in sizes),
            ]
        )
    columns: tuple[str, ...] = _COST_COLUMNS[:-1]
    if latency is not None and rows:
        columns = _COST_COLUMNS
        for row, layer_latency in zip(rows, latency.layers, strict=True):
            row.append(f"{layer_latency.total_cycles:,.0f}")
    table = components.render_table("cost of each layer, in bytes", columns, rows, (0, 1, 3))
    blocks.append(components.collapsible(f"Cost of {len(rows)} layers as a table", table))
    return blocks


def _group_problems(check: Check) -> list[list[str]]:
    """Return a row for each broken rule, as HTML cells: rule, number of nodes, first case, remedy.

    Rules that differ only in names and numbers are one.
    """
    entries: list[tuple[str, Violation | VerdictFinding]] = [
        (violation.rule, violation) for violation in check.violations
    ]
    for finding in check.findings:
        entries.append((f"{format_level(finding)}: {finding.rule}", finding))
    rows = []
    for group in group_by_key(entries, lambda entry: mask_quotes_and_numbers(entry[0])):
        rule, first = group[0]
        case = f"{first.node}: {first.value}" if first.value else first.node
        cells = (rule, str(len(group)), case, first.remedy)
        rows.append([components.breakable_path(cell) for cell in cells])
    return rows
