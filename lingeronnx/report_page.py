"""One page on one quantization.

The advice first, then what quantize, check, compare and sensitivity say.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .analysis.check.check import check
from .analysis.check.page import render_check_section
from .analysis.check.report import Check
from .analysis.compare.compare import compare
from .analysis.compare.comparison import Comparison
from .analysis.compare.page import render_comparison_section
from .analysis.sensitivity.page import load_sensitivity_section
from .errors import ConfigError
from .files import created_folder, write_text
from .flow import QuantizedModel
from .flow.report import Report, format_findings, format_float_nodes, format_rewrites
from .graph import ir
from .json_values import to_json_value
from .number_format import format_decibels
from .pages import PageSection, components, render_page
from .run.session import is_integer_graph
from .search.page import render_search_section

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
    """Write one page on a quantized model, report.html, and its data, report.json.

    Return their paths.

    Parameters
    ----------
    model, quantized
        The float model; its integer graph, or what `quantize` returned, whose report is on the page
        then.
    data
        What both are compared on; as everywhere.
    folder
        Made where need be.
    sensitivity
        A folder that `sensitivity` wrote, to be shown.
    again
        The command line that options to try next are added to.
    clock, budget_ms, timing
        As for `check`.
    settings
        Those of `compare`: state, batch, limit, progress.

    Raises
    ------
    ConfigError
        For wrong settings, for a float `quantized`, and where the folder cannot be written.
    DataError
        Where the data do not fit, or the models have nothing in common.
    """
    made = quantized.report if isinstance(quantized, QuantizedModel) else None
    platform = quantized.platform if isinstance(quantized, QuantizedModel) else None
    file = ir.as_model_proto(quantized)  # the packer's rules are about the file as it is
    graph = (
        ir.as_model(quantized) if file is None else ir.from_proto(file, ir.model_label(quantized))
    )
    if not is_integer_graph(graph):
        raise ConfigError(
            "report needs a quantized model: quantize it first, with --report for both at once"
        )
    checked = check(
        file or graph, platform=platform, clock=clock, budget_ms=budget_ms, timing=timing
    )
    found = compare(model, graph, data, **settings)
    names = [
        Path(given).name if isinstance(given, str | os.PathLike) else "model"
        for given in (model, quantized)
    ]
    found = replace(found, names=(names[0], names[1]))
    return _write_page(folder, names[0], checked, found, made, sensitivity=sensitivity, again=again)


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
    """Write report.html and report.json into `folder`, which is made where need be.

    Return their paths.
    name : of the model. report : quantize's, where it is known. sensitivity : the folder of an
    earlier run. again : the command line that options are added to. ConfigError where that cannot
    be written, or the folder holds no run.
    """
    ranked, advised = (None, "") if sensitivity is None else load_sensitivity_section(sensitivity)
    shown = [render_check_section(check), render_comparison_section(comparison), ranked]
    if report is not None:
        shown = [
            _render_quantize_section(report),
            None if report.search is None else render_search_section(report.search),
            *shown,
        ]
    found = [part for part in shown if part is not None]
    first = _render_advice_section(check, comparison, report, advised, again)
    text = render_page(f"{name} on {check.platform}", check.verdict, [first, *found])
    data = json.dumps(
        to_json_value({part.key: part.data for part in [first, *found]}), indent=2, allow_nan=False
    )
    with created_folder(folder, parents=True) as home:
        write_text(home / DATA_FILE, data + "\n")
        write_text(home / PAGE_FILE, text)
    return [Path(folder) / PAGE_FILE, Path(folder) / DATA_FILE]


# ---- the advice ----------------------------------------------------------------------------------------------------


def _render_advice_section(
    check: Check, comparison: Comparison, report: Report | None, advised: str, again: str
) -> PageSection:
    """Return what to do, as data and as a list.

    Each with why, and what to paste where there is something.
    """
    found = [
        {
            "from": "quantize",
            "why": step.effect,
            "paste": f"{again} {' '.join(step.options)}".strip(),
        }
        for step in (() if report is None else report.next)
    ]
    found += [
        {"from": "quantize", "why": warning, "paste": ""}
        for warning in (() if report is None else report.warnings)
    ]
    found += [{"from": "check", "why": line, "paste": ""} for line in _format_check_findings(check)]
    found += [
        {"from": "check", "why": f"fewer parts: {merge}", "paste": ""} for merge in check.merges
    ]
    found += _comparison_advice(comparison)
    if advised:
        found.append(
            {
                "from": "sensitivity",
                "why": "layers that are quantized wider or left in float",
                "paste": advised,
            }
        )
    items = [
        f"<b>{components.escape_text(step['from'])}</b>: {components.escape_text(step['why'])}"
        + (components.copyable_command(step["paste"]) if step["paste"] else "")
        for step in found
    ]
    html = (
        components.ordered_list(items)
        if items
        else components.paragraph(
            "No limit is broken, and no layer is out of the ordinary. Is the accuracy too little "
            "all the same, "
            "sensitivity says which operators cost it."
        )
    )
    return PageSection("advice", "What to do", html, found)


def _format_check_findings(check: Check) -> list[str]:
    """Return what speaks against the graph, with the remedy, a line for each rule."""
    return [
        *format_findings(check.findings),
        *map(str, check.remaining if check.kind == "float" else check.violations),
    ]


def _comparison_advice(comparison: Comparison) -> list[dict[str, str]]:
    """Return the options that help, and after them the findings."""
    found = []
    if comparison.options:
        tried = comparison.option_results
        gives = "not tried"
        if tried is not None:
            gives = f"tried: {format_decibels(tried.value)}, without {format_decibels(tried.now)}"
        found.append(
            {"from": "compare", "why": f"options that help ({gives})", "paste": comparison.options}
        )
    return found + [
        {
            "from": "compare",
            "why": f"{f.kind}: {f.place}: {f.measured} (limit: {f.limit}); {f.remedy}",
            "paste": "",
        }
        for f in comparison.findings
    ]


# ---- quantize's report ---------------------------------------------------------------------------------------------


def _render_quantize_section(report: Report) -> PageSection:
    """Return quantize's report as a section."""
    ready = (
        "yes"
        if report.chip_ready
        else "no"
        if report.is_chip
        else f"no: {report.platform} is no chip"
    )
    counts = ", ".join(
        f"{kind} {count}"
        for kind, count in sorted(report.layers.items(), key=lambda item: -item[1])
    )
    facts: list[tuple[str, object]] = [
        ("platform", f"{report.platform}, {report.mode}"),
        *(
            [(f"runs on {report.platform}", report.runs_text)]
            if report.program.runs_correctly
            else []
        ),
        ("chip-ready", ready),
        ("integer layers", f"{sum(report.layers.values())}: {counts}"),
        ("integer MACs", report.macs_text),
        *(("fidelity", report.fidelity_text(name)) for name in report.outputs),
    ]
    if report.accuracy is not None:
        facts.append(("accuracy", report.accuracy_text))
    html = [components.definition_list(facts)]
    if report.packer and report.chip_ready:
        html += [components.heading("Pack it with"), components.copyable_command(report.packer)]
    html += (
        [components.heading("Pack each part with")]
        if any(part.packer for part in report.program.chip)
        else []
    )
    html += [
        components.copyable_command(part.packer) for part in report.program.chip if part.packer
    ]
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
    return (
        [components.heading(head), components.ordered_list(map(components.escape_text, lines))]
        if lines
        else []
    )
