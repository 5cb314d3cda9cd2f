"""HTML report on a quantized model.

The page starts with the advice, followed by the results of quantize, check, compare and
sensitivity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..analysis.check.check import check
from ..analysis.check.page import render_check_section
from ..analysis.check.report import Check
from ..analysis.compare.compare import compare
from ..analysis.compare.comparison import Comparison
from ..analysis.compare.page import render_comparison_section
from ..analysis.sensitivity.page import load_sensitivity_section
from ..common.errors import ConfigError
from ..common.escaping import escape_html
from ..common.files import created_folder, write_text
from ..common.json_values import to_json_value
from ..common.pages import PageSection, components, render_page
from ..common.text import format_decibels
from ..ir import ir
from ..quantization import QuantizedModel
from ..quantization.report import Report, format_findings, format_float_nodes, format_rewrites
from ..runtime.session import is_integer_graph
from ..search.page import render_search_section

__all__ = ["report"]

#: The names of the files.
PAGE_FILE, DATA_FILE = "report.html", "report.json"


def report(
    model: ir.ModelLike,
    quantized: ir.ModelLike,
    data: object,
    folder: str | os.PathLike[str],
    *,
    sensitivity: str | os.PathLike[str] | None = None,
    again: str = "",
    clock: float | None = None,
    budget_ms: float | None = None,
    timing: str | os.PathLike[str] | None = None,
    **settings: Any,
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
    sensitivity
        Folder that `sensitivity` wrote; its result is part of the page.
    again
        Command line to which advised options are appended.
    clock, budget_ms, timing
        Parameters of `check`.
    settings
        Parameters of `compare`: state, calls, batch, limit, progress.

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
    quantize_report = quantized.report if isinstance(quantized, QuantizedModel) else None
    platform = quantized.platform if isinstance(quantized, QuantizedModel) else None
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
        file or graph, platform=platform, clock=clock, budget_ms=budget_ms, timing=timing
    )
    names = (_get_file_name(model), _get_file_name(quantized))
    comparison = replace(compare(model, graph, data, **settings), names=names)
    return _write_page(
        folder,
        names[0],
        check_report,
        comparison,
        quantize_report,
        sensitivity=sensitivity,
        again=again,
    )


def _get_file_name(model: ir.ModelLike) -> str:
    """Return the file name of a path to a model, or "model" for a model in memory."""
    return Path(model).name if isinstance(model, str | os.PathLike) else "model"


def _write_page(
    folder: str | os.PathLike[str],
    name: str,
    check: Check,
    comparison: Comparison,
    report: Report | None,
    *,
    sensitivity: str | os.PathLike[str] | None,
    again: str,
) -> list[Path]:
    """Write report.html and report.json into `folder`, and return their paths.

    Parameters
    ----------
    folder
        Folder of the files; created if necessary.
    name
        Name of the model.
    check, comparison
        Results of `check` and `compare`.
    report
        Report of `quantize`, or None if it is unknown.
    sensitivity
        Folder of an earlier `sensitivity` run, or None.
    again
        Command line to which advised options are appended.

    Raises
    ------
    ConfigError
        If the files cannot be written, or `sensitivity` contains no run.
    """
    ranking, sensitivity_options = None, ""
    if sensitivity is not None:
        ranking, sensitivity_options = load_sensitivity_section(sensitivity)
    sections = [_render_advice_section(check, comparison, report, sensitivity_options, again)]
    if report is not None:
        sections.append(_render_quantize_section(report))
        if report.search is not None:
            sections.append(render_search_section(report.search))
    sections += [render_check_section(check), render_comparison_section(comparison)]
    if ranking is not None:
        sections.append(ranking)
    text = render_page(f"{name} on {check.platform}", check.verdict, sections)
    data = json.dumps(
        to_json_value({section.key: section.data for section in sections}),
        indent=2,
        allow_nan=False,
    )
    with created_folder(folder, parents=True) as home:
        write_text(home / DATA_FILE, data + "\n")
        write_text(home / PAGE_FILE, text)
    return [Path(folder) / PAGE_FILE, Path(folder) / DATA_FILE]


# ---- advice --------------------------------------------------------------------------------------


def _make_advice(source: str, reason: str, command: str = "") -> dict[str, str]:
    """Return one entry of advice as {"from", "why", "paste"}.

    `source` is the command that advises, `reason` the text, and `command` a text to paste, or "".
    """
    return {"from": source, "why": reason, "paste": command}


def _render_advice_section(
    check: Check,
    comparison: Comparison,
    report: Report | None,
    sensitivity_options: str,
    again: str,
) -> PageSection:
    """Render the section with the advice of all commands as a numbered list.

    Without any advice, a sentence says that nothing is suspicious.

    Parameters
    ----------
    check, comparison
        Results of `check` and `compare`.
    report
        Report of `quantize`, or None.
    sensitivity_options
        Options that `sensitivity` advises, or an empty string.
    again
        Command line to which advised options are appended.
    """
    steps = []
    if report is not None:
        for step in report.next:
            command = f"{again} {' '.join(step.options)}".strip()
            steps.append(_make_advice("quantize", step.effect, command))
        steps += [_make_advice("quantize", warning) for warning in report.warnings]
    steps += [_make_advice("check", line) for line in _format_check_findings(check)]
    steps += [_make_advice("check", f"fewer parts: {merge}") for merge in check.merges]
    steps += _comparison_advice(comparison)
    if sensitivity_options:
        reason = "layers to quantize with more bits or to leave in float"
        steps.append(_make_advice("sensitivity", reason, sensitivity_options))
    items = []
    for advice in steps:
        source, reason = map(escape_html, (advice["from"], advice["why"]))
        command = components.copyable_command(advice["paste"]) if advice["paste"] else ""
        items.append(f"<b>{source}</b>: {reason}{command}")
    if items:
        html = components.ordered_list(items)
    else:
        html = components.paragraph(
            "No limit is violated, and no layer is suspicious. If the accuracy is still too low, "
            "run sensitivity to see which operators cause the loss."
        )
    return PageSection("advice", "What to do", html, steps)


def _format_check_findings(check: Check) -> list[str]:
    """Format findings and violations of `check`, with their remedies, as lines.

    Of a float model only the violations that remain with --fit.
    """
    return [
        *format_findings(check.findings),
        *map(str, check.remaining if check.kind == "float" else check.violations),
    ]


def _comparison_advice(comparison: Comparison) -> list[dict[str, str]]:
    """Return the warnings of `compare`, then its options, then its findings, as advice entries.

    The options, if any, are one entry with the best SQNR of their trial, if they were tried.
    """
    steps = [_make_advice("compare", warning) for warning in comparison.warnings]
    if comparison.options:
        trial = comparison.option_results
        effect = "not tried"
        if trial is not None:
            best_db = format_decibels(trial.best_sqnr)
            effect = f"tried: {best_db}, without {format_decibels(trial.baseline_sqnr)}"
        steps.append(_make_advice("compare", f"options that help ({effect})", comparison.options))
    for finding in comparison.findings:
        reason = (
            f"{finding.kind}: {finding.place}: {finding.measured} (limit: {finding.limit}); "
            f"{finding.remedy}"
        )
        steps.append(_make_advice("compare", reason))
    return steps


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
        ("Warnings", report.warnings),
        ("Notes", report.notes),
    ):
        html += _titled_list(head, lines)
    return PageSection("quantize", "What quantize did", "\n".join(html), report.to_dict())


def _titled_list(head: str, lines: Sequence[str]) -> list[str]:
    """Render a heading and a numbered list of lines as HTML fragments; [] without lines."""
    if not lines:
        return []
    items = map(escape_html, lines)
    return [components.heading(head), components.ordered_list(items)]
