"""The result of a check as an HTML section: verdict, violations, memory, cost by layer, latency."""

from __future__ import annotations

from ...common.escaping import escape_html
from ...common.pages import PageSection, components, render_page
from .report import Check
from .time_plot import render_time_plot

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
    problems = [*map(str, check.violations), *map(str, check.findings)]
    if problems:
        blocks += [
            components.heading("Problems"),
            components.ordered_list(map(escape_html, problems)),
        ]
    facts = [("platform", check.platform), ("judged", f"the {check.kind} graph")]
    blocks.append(components.definition_list([*facts, *_packing_facts(check)]))
    if check.choice is not None and check.choice.command_line:
        blocks += [
            components.heading("Arguments of the packer"),
            components.copyable_command(check.choice.command_line, "arguments of the packer"),
        ]
    blocks += _render_cost(check)
    blocks += [
        components.heading("Report"),
        components.ordered_list(map(escape_html, check.lines(True)[1:])),
    ]
    return PageSection("check", "Limits, memory, cost, time", "\n".join(blocks), check.to_dict())


def render_check_page(check: Check, name: str) -> str:
    """Render the result of a check as an HTML page; `name` is the name of the model."""
    return render_page(f"{name} on {check.platform}", check.verdict, [render_check_section(check)])


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
    """Render memory as bars, the layers as a table, and their cycles as a plot.

    Empty if the cost is unknown; without a latency the column of cycles and the plot are missing.
    """
    cost, latency = check.cost, check.time.latency
    if cost is None:
        return []
    blocks = [
        components.heading("Memory and cost"),
        components.usage_bar("shared memory", cost.shared, cost.shared_limit),
        components.usage_bar("psram", cost.psram, cost.psram_limit),
        components.paragraph(cost.format_totals()),
    ]
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
    blocks.append(components.render_table("cost of each layer, in bytes", columns, rows, (0, 1, 3)))
    if latency is not None:
        plot = render_time_plot(check.time, "Cycles of each layer")
        blocks.append(components.svg_figure("cycles of each layer", plot))
    return blocks
