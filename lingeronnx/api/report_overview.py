"""First screen of the report: four figures, where accuracy is lost and why, and what to try."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.check.report import Check
from ..analysis.compare.comparison import Comparison
from ..analysis.profile.outliers import iter_constants
from ..common.command_lines import replace_options
from ..common.escaping import escape_html, quote_shell
from ..common.pages import PageSection, components
from ..common.text import format_bytes, format_decibels, group_by_key
from ..ir import ir
from ..quantization.report import Report
from .report_actions import Action
from .report_losses import Loss

__all__ = ["QuantizeCommand", "Hint", "Tile", "make_overview", "render_overview"]

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
class QuantizeCommand:
    """The command line that quantized a model, to which options are added.

    Attributes
    ----------
    text
        The command line; empty if it is not known.
    model, output
        File names of the float model and of the quantized one; "model" for models in memory.
    """

    text: str
    model: str = "model"
    output: str = "model"

    def add(self, options: str) -> str:
        """Return the command line with `options` of it replaced or added; these alone if unknown.

        Without options it is the command that quantizes the model again, to the same file.
        """
        if options:
            return replace_options(self.text, options) if self.text else options
        if self.text:
            return self.text
        model = "MODEL" if self.model == "model" else quote_shell(self.model)
        output = "" if self.output == "model" else f" -o {quote_shell(self.output)}"
        return f"lingeronnx quantize {model} --calib DATA{output}"


@dataclass(frozen=True)
class Hint:
    """A problem, the command that found it, and options to add."""

    source: str
    text: str
    options: str = ""


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
    if comparison.accuracy is not None:
        state = "bad" if comparison.join.has_lost_accuracy else "good"
        before, after = comparison.accuracy
        value = f"{before:.1f} % \u2192 {after:.1f} %"
        return Tile(
            "top-1 accuracy, float \u2192 integer", value, f"{samples}; {worst_text}", state
        )
    is_low = outputs.get(worst, math.inf) < _LOW_SQNR_DB
    state = "bad" if comparison.warnings or is_low else "good"
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
        reason = time.unknown_reason or f"{check.platform} has no timing of a chip"
        return Tile("time per call", "not known", reason)
    value = f"{latency.total:,.0f} cycles"
    if time.clock_mhz is not None:
        value = f"{latency.total / time.clock_mhz / 1000:.3g} ms"
    remark = f"{latency.low:,.0f} to {latency.high:,.0f} cycles on {latency.platform}"
    state = "" if time.budget_ms is None else "bad" if time.findings else "good"
    return Tile("time per call", value, remark, state)


def _make_memory_tile(check: Check, graph: ir.Model) -> Tile:
    """Return the bytes of weights and of RAM, with the chip's limits if it has a plan."""
    memory = check.memory
    if memory is None:
        weights = sum(array.nbytes for _, array in iter_constants(graph))
        return Tile("weights", format_bytes(weights), "no memory plan of a chip")
    remark = (
        f"weights and psram {format_bytes(memory.psram)} of {format_bytes(memory.psram_limit)}; "
        f"shared memory {format_bytes(memory.shared)} of {format_bytes(memory.shared_limit)}"
    )
    fits = memory.shared <= memory.shared_limit and memory.psram <= memory.psram_limit
    value = f"{format_bytes(memory.weights)} + {format_bytes(memory.shared)}"
    return Tile("flash + RAM", value, remark, "good" if fits else "bad")


def render_overview(
    tiles: Sequence[Tile],
    losses: Sequence[Loss],
    actions: Sequence[Action],
    hints: Sequence[Hint],
    command_line: QuantizeCommand,
) -> PageSection:
    """Render tiles, losses, actions and hints as the first section of the report.

    Options of actions and hints are added to `command_line`.
    """
    blocks = [components.render_tiles((t.label, t.value, t.remark, t.state) for t in tiles)]
    blocks.append(components.heading("Where the error comes from"))
    if losses:
        blocks.append(components.ordered_list(map(_render_loss, losses)))
    else:
        text = "No layer is suspicious: the error is spread over all of them."
        blocks.append(components.paragraph(text))
    blocks += [components.heading("What to try"), *_render_actions(actions, command_line)]
    if hints:
        items = [_render_hint(hint, command_line) for hint in hints]
        blocks += [components.heading("Other problems and notes"), components.ordered_list(items)]
    data = {
        "tiles": [vars(tile) for tile in tiles],
        "losses": [vars(loss) for loss in losses],
        "actions": [action.to_dict() for action in actions],
        "hints": [vars(hint) for hint in hints],
    }
    return PageSection("overview", "At a glance", "\n".join(blocks), data)


def _render_loss(loss: Loss) -> str:
    """Render a layer that loses accuracy: cause, place, measure, remedy and part of the error."""
    cause = escape_html(loss.cause or "large error")
    share, total = f"{loss.share_percent:.3g} %", f"{loss.total_share_percent:.3g} %"
    figures = f"{share} of the error"
    if total != share:
        figures += f"; {total} with the layers that follow from it"
    if not math.isnan(loss.own_db):
        figures += f"; SQNR of the layer alone {format_decibels(loss.own_db)}"
    if loss.also:
        figures += f"; the same scale and problem: {', '.join(loss.also)}"
    remedy = f"; remedy: {loss.remedy}" if loss.remedy else ""
    return (
        f'<b class="bad">{cause}</b> {components.breakable_path(loss.place)}'
        f"{components.select_button(loss.tensor)}"
        f"<br>{escape_html(loss.measured)}{escape_html(remedy)}"
        f'<br><span class="dim">{escape_html(figures)}</span>'
    )


def _render_actions(actions: Sequence[Action], command_line: QuantizeCommand) -> list[str]:
    """Render actions as lists: those with a measured gain, then the others, grouped by the reason.

    Without actions a sentence says that nothing helped.
    """
    if not actions:
        return [components.paragraph("Nothing that was tried gains accuracy.")]
    blocks = []
    for group in group_by_key(actions, lambda action: action.untried_reason):
        if group[0].untried_reason:
            blocks.append(components.paragraph(group[0].untried_reason, "dim"))
        blocks.append(components.ordered_list(_render_action(a, command_line) for a in group))
    return blocks


def _render_hint(hint: Hint, command_line: QuantizeCommand) -> str:
    """Render a problem: who found it, the text, and options to copy."""
    command = command_line.add(hint.options) if hint.options else ""
    return (
        f"<b>{escape_html(hint.source)}</b>: {escape_html(hint.text)}"
        f"{components.copyable_command(command) if command else ''}"
    )


def _render_action(action: Action, command_line: QuantizeCommand) -> str:
    """Render an action: its gain and costs if it was tried, the reason, and the options to copy."""
    gain = ""
    if action.gain_db is not None:
        texts = ", ".join([f"{action.gain_db:+.1f} dB", *action.costs])
        gain = f'<span class="action">{escape_html(texts)}</span> '
    command = command_line.add(action.options)
    return (
        f"{gain}{components.breakable_path(action.reason)}"
        f"{components.select_button(action.tensor)}"
        f"{components.copyable_command(command, action.options or 'the command')}"
    )
