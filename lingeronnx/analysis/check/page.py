"""What a check found as a section: the verdict, what is broken and the remedy, memory, cost by layer, time."""

from __future__ import annotations

from ...pages import PagePart, parts
from ...pages import page as whole_page
from .report import Check
from .time_plot import time_plot

__all__ = ["checked_part", "page"]

_HEAD = ("layer", "operator", "MACs", "width", "weights", "activations", "work area", "DMA", "cycles")


def checked_part(check: Check) -> PagePart:
    """Return what a check found as a section."""
    html = [parts.line(check.verdict, "good" if check.sound else "bad")]
    broken = [*map(str, check.violations), *map(str, check.findings)]
    if broken:
        html += [parts.title("What is wrong"), parts.listed(map(parts.text, broken))]
    html.append(parts.facts([("platform", check.platform), ("judged", f"the {check.kind} graph"), *_packed(check)]))
    if check.choice is not None and check.choice.line:
        html += [parts.title("Arguments of the packer"), parts.command(check.choice.line, "arguments of the packer")]
    html += _cost(check)
    html += [parts.title("In words"), parts.listed(map(parts.text, check.lines(True)[1:]))]
    return PagePart("check", "Limits, memory, cost, time", "\n".join(html), check.to_dict())


def page(check: Check, name: str) -> str:
    """Return the page of a check alone; name : of the model."""
    return whole_page(f"{name} on {check.platform}", check.verdict, [checked_part(check)])


def _packed(check: Check) -> list[tuple[str, object]]:
    answers = {True: "yes", False: "no", None: "not packed"}
    time = [("time" if i == 0 else "", line) for i, line in enumerate(check.time.lines())]
    return [("packs", answers[check.packs]), ("right on the chip", answers[check.runs_right]), *time]


def _cost(check: Check) -> list[str]:
    """Return memory as bars, the layers as a table, their cycles as a picture."""
    cost, latency = check.cost, check.time.latency
    if cost is None:
        return []
    html = [parts.title("Memory and cost"), parts.bar("shared memory", cost.shared, cost.shared_limit)]
    html += [parts.bar("psram", cost.psram, cost.psram_limit), parts.line(cost.text())]
    cycles = [""] * len(cost.layers) if latency is None else [f"{layer.total:,.0f}" for layer in latency.layers]
    rows = [
        [
            parts.path(layer.node),
            parts.text(layer.op_type),
            f"{layer.macs:,}",
            parts.text(layer.width),
            *(f"{size:,}" for size in (layer.weights, layer.activations, layer.work_area, layer.dma)),
            taken,
        ]
        for layer, taken in zip(cost.layers, cycles, strict=True)
    ]
    if latency is None:
        rows = [row[:-1] for row in rows]
    html.append(parts.table("cost of each layer, in bytes", _HEAD[: len(rows[0]) if rows else 8], rows, (0, 1, 3)))
    if latency is not None:
        html.append(parts.picture("cycles of each layer", time_plot(check.time, "Cycles of each layer")))
    return html
