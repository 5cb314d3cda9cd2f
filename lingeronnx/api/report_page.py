"""HTML report on a quantized model.

The first screen has four figures (accuracy, chip-ready, time, memory) and the actions that may
help, with what they gained when tried. The network as a graph follows, then the results of compare,
check, sensitivity and quantize.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..analysis.check.check import check
from ..analysis.check.page import render_check_section
from ..analysis.check.report import Check
from ..analysis.check.schedule import render_schedule_section
from ..analysis.compare.channel_causes import DEAD_CHANNEL
from ..analysis.compare.compare import compare
from ..analysis.compare.comparison import Comparison
from ..analysis.compare.network import sum_layer_costs
from ..analysis.compare.page import render_comparison_section, render_network_section
from ..analysis.sensitivity.page import load_sensitivity_section
from ..common.errors import ConfigError
from ..common.escaping import escape_html
from ..common.files import check_writable_folder, created_folder, write_text
from ..common.json_values import to_json_value
from ..common.pages import PageSection, components, render_page
from ..common.text import format_violations, group_by_key, mask_quotes_and_numbers
from ..ir import ir
from ..quantization import QuantizedModel
from ..quantization.report import Report, format_findings, format_float_nodes, format_rewrites
from ..runtime.accuracy_warnings import remove_search_advice
from ..runtime.data import Progress
from ..runtime.session import is_integer_graph
from ..runtime.streaming import CallCount
from ..search.page import render_search_section
from .quantization import quantize
from .report_actions import DEFAULT_BUDGET_MINUTES, find_actions
from .report_losses import find_losses
from .report_overview import Hint, QuantizeCommand, make_overview, render_overview

__all__ = ["report"]

#: The names of the files.
PAGE_FILE, DATA_FILE = "report.html", "report.json"


def report(
    model: ir.ModelLike,
    quantized: ir.ModelLike,
    data: object,
    folder: str | os.PathLike[str],
    *,
    calib: object = None,
    budget: float | None = None,
    sensitivity: str | os.PathLike[str] | None = None,
    again: str = "",
    clock: float | None = None,
    budget_ms: float | None = None,
    timing: str | os.PathLike[str] | None = None,
    state: Mapping[str, str] | None = None,
    calls: CallCount | None = None,
    batch: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a report on a quantized model, report.html, and its data, report.json.

    Parameters
    ----------
    model
        The float model.
    quantized
        Its integer graph, or the result of `quantize`, whose report is then part of the page.
    data
        Data on which both models are compared.
    folder
        Folder of the files; created if necessary.
    calib
        Calibration data. With it, actions that may raise the accuracy are tried: the model is
        quantized again with each of them.
    budget
        Minutes for these trials together; None: 1.
    sensitivity
        Folder that `sensitivity` wrote; its result is part of the page.
    again
        Command line to which advised options are appended.
    clock, budget_ms, timing
        Parameters of `check`.
    state, calls, batch, limit, progress
        Parameters of `compare`.

    Returns
    -------
    list of Path
        Paths of the HTML and the JSON file.

    Raises
    ------
    ConfigError
        If settings are invalid, `quantized` is a float model, or the folder cannot be written.
    DataError
        If the data do not match the models, or the models have no common tensors.
    """
    check_writable_folder(folder)
    sensitivity_sections = [] if sensitivity is None else [load_sensitivity_section(sensitivity)[0]]
    result = quantized if isinstance(quantized, QuantizedModel) else None
    file = ir.as_model_proto(quantized)  # the rules of the packer apply to the unmodified file
    graph = (
        ir.as_model(quantized)
        if file is None
        else ir.convert_user_model(file, ir.model_label(quantized))
    )
    if not is_integer_graph(graph):
        raise ConfigError(
            "report needs a quantized model: quantize it first, with --report for both at once"
        )
    check_report = check(
        file or graph,
        platform=None if result is None else result.platform,
        clock=clock,
        budget_ms=budget_ms,
        timing=timing,
    )
    names = (_get_file_name(model), _get_file_name(quantized))
    settings: dict[str, Any] = {
        "state": state,
        "calls": calls,
        "batch": batch,
        "limit": limit,
        "progress": progress,
    }

    def compare_again(other: ir.ModelLike) -> Comparison:
        return compare(model, other, data, **settings)

    comparison = replace(compare_again(graph), names=names)
    quantize_report = None if result is None else result.report
    actions = find_actions(
        model,
        result or graph,
        comparison,
        calib,
        quantize,
        lambda other: min(compare_again(other).outputs.values(), default=math.nan),
        budget=budget or DEFAULT_BUDGET_MINUTES,
        **{key: value for key, value in (("state", state), ("calls", calls)) if value},
    )
    shown_options = {action.options for action in actions}
    hints = _list_hints(check_report, comparison, quantize_report, shown_options)
    overview = make_overview(check_report, comparison, quantize_report, graph)
    part_costs = [verdict.cost for verdict in check_report.verdicts]
    costs = sum_layer_costs(part_costs, check_report.time.latency)
    sections = [
        render_overview(
            overview, find_losses(comparison), actions, hints, QuantizeCommand(again, *names)
        ),
        render_network_section(comparison, costs),
        render_comparison_section(comparison, has_summary=False),
        render_check_section(check_report),
    ]
    schedule = render_schedule_section(check_report)
    if schedule is not None:
        sections.append(schedule)
    sections += sensitivity_sections
    if quantize_report is not None:
        sections.append(_render_quantize_section(quantize_report))
        if quantize_report.search is not None:
            sections.append(render_search_section(quantize_report.search))
    title = f"{names[0]} on {check_report.platform}"
    texts = (name if name == "model" else f"model ({name})" for name in names)
    models = "float {} against integer {} on {} samples".format(*texts, comparison.join.samples)
    about = "; ".join([models, *comparison.format_fixed_inputs()])
    return _write_page(folder, render_page(title, about, sections), sections)


def _get_file_name(model: ir.ModelLike) -> str:
    """Return the file name of a path to a model, or "model" for a model in memory."""
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def _write_page(
    folder: str | os.PathLike[str], text: str, sections: Sequence[PageSection]
) -> list[Path]:
    """Write report.html with `text` and report.json with the sections' data; return their paths.

    `folder` is created if necessary.
    """
    data = {section.key: section.data for section in sections}
    body = json.dumps(to_json_value(data), indent=2, allow_nan=False)
    with created_folder(folder, parents=True) as home:
        write_text(home / DATA_FILE, body + "\n")
        write_text(home / PAGE_FILE, text)
    return [Path(folder) / PAGE_FILE, Path(folder) / DATA_FILE]


def _list_hints(
    check: Check, comparison: Comparison, report: Report | None, shown_options: Collection[str]
) -> list[Hint]:
    """Return problems and warnings, and options that quantize suggests; each stands once.

    Options in `shown_options` are left out.
    """
    hints: list[Hint] = []
    if report is not None:
        steps = [(step, " ".join(step.options)) for step in report.next]
        hints += [Hint("quantize", s.effect, o) for s, o in steps if o not in shown_options]
        hints += [Hint("quantize", remove_search_advice(warning)) for warning in report.warnings]
    hints += [Hint("compare", remove_search_advice(warning)) for warning in comparison.warnings]
    dead = [finding for finding in comparison.findings if finding.kind == DEAD_CHANNEL]
    if dead:
        places = [(finding.place, finding.evidence) for finding in dead]
        hints.append(Hint("compare", format_violations(DEAD_CHANNEL, dead[0].remedy, places)))
    violations = check.remaining if check.kind == "float" else check.violations
    for group in group_by_key(violations, lambda v: mask_quotes_and_numbers(v.rule)):
        occurrences = [(v.node, v.value) for v in group]
        text = format_violations(group[0].rule, group[0].remedy, occurrences)
        hints.append(Hint("check", text))
    hints += [Hint("check", line) for line in format_findings(check.findings)]
    hints += [Hint("check", f"fewer parts: {merge}") for merge in check.merges]
    return [group[0] for group in group_by_key(hints, lambda hint: (hint.text, hint.options))]


# ---- report of quantize --------------------------------------------------------------------------


def _list_facts(report: Report) -> list[tuple[str, object]]:
    """Return the facts at the top of the section on `quantize` as (label, value), in order.

    They are platform, whether it runs on the chip, layers, MACs, fidelity of outputs, and the
    accuracy if it is known.
    """
    layers = sorted(report.layers.items(), key=lambda item: -item[1])
    layer_counts = ", ".join(f"{operator} {count}" for operator, count in layers)
    facts: list[tuple[str, object]] = [("platform", f"{report.platform}, {report.mode}")]
    if report.program.runs_correctly:
        facts.append((f"runs on {report.platform}", report.runs_text))
    facts += [
        ("chip-ready", report.chip_ready_text),
        ("integer layers", f"{sum(report.layers.values())}: {layer_counts}"),
        ("integer MACs", report.macs_text),
    ]
    facts += report.versions.format_lists()
    facts += [("fidelity", report.fidelity_text(name)) for name in report.outputs]
    if report.accuracy is not None:
        facts.append(("accuracy", report.accuracy_text))
    return facts


def _render_quantize_section(report: Report) -> PageSection:
    """Render the section with the report of `quantize`; its data are the report as JSON values."""
    html = [components.definition_list(_list_facts(report))]
    if report.packer and report.chip_ready:
        html += [components.heading("Pack it with"), components.copyable_command(report.packer)]
    packer_commands = [part.packer for part in report.program.chip if part.packer]
    if packer_commands:
        html.append(components.heading("Pack each part with"))
        html += map(components.copyable_command, packer_commands)
    for head, lines in (
        ("Why it is not chip-ready", report.why_not),
        ("Fewer parts", list(map(str, report.merges))),
        ("Left in float", format_float_nodes([*report.float_nodes, *report.host_part], True)),
        ("Written otherwise", format_rewrites(report.fitted, True)),
        ("Other versions of packer and executor", report.versions.format_reasons()),
        ("Warnings", report.warnings),
        ("Notes", report.notes),
    ):
        html += _titled_list(head, lines)
    body = components.collapsible("Facts, packer, float nodes, rewrites and notes", "\n".join(html))
    return PageSection("quantize", "What quantize did", body, report.to_dict())


def _titled_list(head: str, lines: Sequence[str]) -> list[str]:
    """Render a heading and a numbered list of lines as HTML fragments; [] without lines."""
    if not lines:
        return []
    items = map(escape_html, lines)
    return [components.heading(head), components.ordered_list(items)]
