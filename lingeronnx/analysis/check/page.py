"""What a check found as a section.

The verdict, what is broken and the remedy, memory, cost by layer, time.
"""

from __future__ import annotations

from ...pages import PageSection, components
from ...pages import render_page as whole_page
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
    """Return what a check found as a section."""
    html = [components.paragraph(check.verdict, "good" if check.sound else "bad")]
    broken = [*map(str, check.violations), *map(str, check.findings)]
    if broken:
        html += [
            components.heading("What is wrong"),
            components.ordered_list(map(components.escape_text, broken)),
        ]
    html.append(
        components.definition_list(
            [
                ("platform", check.platform),
                ("judged", f"the {check.kind} graph"),
                *_packing_facts(check),
            ]
        )
    )
    if check.choice is not None and check.choice.command_line:
        html += [
            components.heading("Arguments of the packer"),
            components.copyable_command(check.choice.command_line, "arguments of the packer"),
        ]
    html += _render_cost(check)
    html += [
        components.heading("In words"),
        components.ordered_list(map(components.escape_text, check.lines(True)[1:])),
    ]
    return PageSection("check", "Limits, memory, cost, time", "\n".join(html), check.to_dict())


def render_check_page(check: Check, name: str) -> str:
    """Return the page of a check alone; name : of the model."""
    return whole_page(f"{name} on {check.platform}", check.verdict, [render_check_section(check)])


def _packing_facts(check: Check) -> list[tuple[str, object]]:
    answers = {True: "yes", False: "no", None: "not packed"}
    time = [("time" if i == 0 else "", line) for i, line in enumerate(check.time.lines())]
    return [
        ("packs", answers[check.packs]),
        ("right on the chip", answers[check.runs_right]),
        *time,
    ]


def _render_cost(check: Check) -> list[str]:
    """Return memory as bars, the layers as a table, their cycles as a picture."""
    cost, latency = check.cost, check.time.latency
    if cost is None:
        return []
    html = [
        components.heading("Memory and cost"),
        components.usage_bar("shared memory", cost.shared, cost.shared_limit),
    ]
    html += [
        components.usage_bar("psram", cost.psram, cost.psram_limit),
        components.paragraph(cost.format_totals()),
    ]
    cycles = (
        [""] * len(cost.layers)
        if latency is None
        else [f"{layer.total_cycles:,.0f}" for layer in latency.layers]
    )
    rows = [
        [
            components.breakable_path(layer.node),
            components.escape_text(layer.op_type),
            f"{layer.macs:,}",
            components.escape_text(layer.width),
            *(
                f"{size:,}"
                for size in (layer.weights, layer.activations, layer.work_area, layer.dma)
            ),
            taken,
        ]
        for layer, taken in zip(cost.layers, cycles, strict=True)
    ]
    if latency is None:
        rows = [row[:-1] for row in rows]
    html.append(
        components.render_table(
            "cost of each layer, in bytes",
            _COST_COLUMNS[: len(rows[0]) if rows else 8],
            rows,
            (0, 1, 3),
        )
    )
    if latency is not None:
        html.append(
            components.svg_figure(
                "cycles of each layer", render_time_plot(check.time, "Cycles of each layer")
            )
        )
    return html
