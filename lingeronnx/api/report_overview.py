"""First screen of the report: four figures, and the actions that may raise the accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.check.report import Check
from ..analysis.compare.comparison import Comparison
from ..analysis.profile.outliers import iter_constants
from ..common.escaping import escape_html
from ..common.pages import PageSection, components
from ..common.text import format_bytes, format_decibels
from ..ir import ir
from ..quantization.report import Report
from .report_actions import Action

__all__ = ["Hint", "Tile", "make_overview", "render_overview"]

_LOW_SQNR_DB = 20.0  # below it the tile is marked


@dataclass(frozen=True)
class Tile:
    """A figure of the first screen.

    Attributes
    ----------
    label, value, remark
        Texts: what it is, the figure, and what it stands on.
    state
        "good", "bad", or "" if it is neither.
    """

    label: str
    value: str
    remark: str
    state: str = ""


@dataclass(frozen=True)
class Hint:
    """A problem, the command that found it, options to add, and the tensor that it is about."""

    source: str
    text: str
    options: str = ""
    tensor: str = ""


def make_overview(
    check: Check, comparison: Comparison, report: Report | None, graph: ir.Model
) -> list[Tile]:
    """Return the four figures: accuracy or SQNR, chip-ready, time of a call, flash and RAM."""
    return [
        _make_accuracy_tile(comparison, report),
        _make_chip_tile(check, report),
        _make_time_tile(check),
        _make_memory_tile(check, graph),
    ]


def _make_accuracy_tile(comparison: Comparison, report: Report | None) -> Tile:
    """Return the accuracy of both models if the data have labels, else the worst output's SQNR."""
    outputs = {name: value for name, value in comparison.outputs.items() if not math.isnan(value)}
    worst = min(outputs, key=outputs.__getitem__, default="")
    worst_text = f"output '{worst}': {format_decibels(outputs[worst])}" if worst else ""
    samples = f"{comparison.join.samples} samples"
    state = "bad" if comparison.warnings or outputs.get(worst, math.inf) < _LOW_SQNR_DB else "good"
    if comparison.accuracy is not None:
        before, after = comparison.accuracy
        value = f"{before:.1f} % \u2192 {after:.1f} %"
        return Tile(
            "top-1 accuracy, float \u2192 integer", value, f"{samples}; {worst_text}", state
        )
    if report is not None and report.accuracy:
        return Tile("accuracy", report.accuracy_text, worst_text, state)
    if not worst:
        return Tile("accuracy", "not known", "no float output to compare")
    return Tile("SQNR, float \u2192 integer", format_decibels(outputs[worst]), samples, state)


def _make_chip_tile(check: Check, report: Report | None) -> Tile:
    """Return whether the graph runs on the chip, with the first reason if not."""
    label = f"runs on {check.platform}"
    if not check.verdicts and not check.violations:
        return Tile(label, "no packer", "the simulator and onnxruntime run the graph")
    if check.sound:
        basis = {"computed": "by measured rules", "assumed": "assumed, not measured"}
        return Tile(label, "yes", basis.get(check.basis, ""), "good")
    if check.program.runs_correctly:
        count = len(check.program.chip)
        return Tile(label, f"in {count} parts", f"{len(check.host_nodes)} operators on the host")
    reasons = [] if report is None else report.why_not
    reasons = reasons or [str(finding) for finding in check.findings] or [check.verdict]
    return Tile(label, "no", reasons[0], "bad")


def _make_time_tile(check: Check) -> Tile:
    """Return the latency of a call, or why it is not known."""
    time, latency = check.time, check.time.latency
    if latency is None:
        return Tile("time per call", "not known", time.unknown_reason)
    value = f"{latency.total:,.0f} cycles"
    if time.clock_mhz is not None:
        value = f"{latency.total / time.clock_mhz / 1000:.3g} ms"
    remark = f"{latency.low:,.0f} to {latency.high:,.0f} cycles on {latency.platform}"
    state = "" if time.budget_ms is None else "bad" if time.findings else "good"
    return Tile("time per call", value, remark, state)


def _make_memory_tile(check: Check, graph: ir.Model) -> Tile:
    """Return the bytes of weights and of RAM, with the chip's limits if it has a plan."""
    cost = check.cost
    if cost is None:
        weights = sum(array.nbytes for _, array in iter_constants(graph))
        return Tile("weights", format_bytes(weights), "no memory plan of a chip")
    remark = (
        f"weights and psram {format_bytes(cost.psram)} of {format_bytes(cost.psram_limit)}; "
        f"shared memory {format_bytes(cost.shared)} of {format_bytes(cost.shared_limit)}"
    )
    fits = cost.shared <= cost.shared_limit and cost.psram <= cost.psram_limit
    value = f"{format_bytes(cost.weights)} + {format_bytes(cost.shared)}"
    return Tile("flash + RAM", value, remark, "good" if fits else "bad")


def render_overview(
    tiles: Sequence[Tile], actions: Sequence[Action], hints: Sequence[Hint], again: str
) -> PageSection:
    """Render tiles, actions and hints as the first section of the report.

    `again` is the command line to which options are appended; empty for the options alone.
    """
    blocks = [components.render_tiles((t.label, t.value, t.remark, t.state) for t in tiles)]
    if hints:
        items = [_render_hint(hint, again) for hint in hints]
        blocks += [components.heading("Problems and warnings"), components.ordered_list(items)]
    blocks.append(components.heading("More accuracy"))
    if actions:
        items = [_render_action(action, again) for action in actions]
        blocks.append(components.ordered_list(items))
    else:
        text = "Nothing that was tried gains accuracy."
        blocks.append(components.paragraph(text if hints else f"{text} No layer is suspicious."))
    data = {
        "tiles": [vars(tile) for tile in tiles],
        "actions": [action.to_dict() for action in actions],
        "hints": [vars(hint) for hint in hints],
    }
    return PageSection("overview", "At a glance", "\n".join(blocks), data)


def _render_hint(hint: Hint, again: str) -> str:
    """Render a problem: who found it, the text, its tensor, and options to copy."""
    command = f"{again} {hint.options}".strip() if hint.options else ""
    return (
        f"<b>{escape_html(hint.source)}</b>: {escape_html(hint.text)}"
        f"{components.select_button(hint.tensor)}"
        f"{components.copyable_command(command) if command else ''}"
    )


def _render_action(action: Action, again: str) -> str:
    """Render an action: its gain and costs, the options to copy, and the reason."""
    if action.gain_db is None:
        gain = action.untried_reason
    else:
        gain = ", ".join([f"{action.gain_db:+.1f} dB", *action.costs])
    command = f"{again} {action.options}".strip()
    return (
        f'<span class="action">{escape_html(gain)}</span> '
        f'<span class="dim">{escape_html(action.reason)}</span>'
        f"{components.select_button(action.tensor)}"
        f"{components.copyable_command(command, action.options)}"
    )
