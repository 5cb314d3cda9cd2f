"""Render a quantized model in a notebook: the main facts of its report and its worst layers."""

from __future__ import annotations

from collections.abc import Mapping

from ...escaping import escape_html
from .report import Report

__all__ = ["render_notebook_html"]

_MAX_ROWS = 5  # float nodes and layers that are listed


def render_notebook_html(report: Report, layers: Mapping[str, float]) -> str:
    """Render the main facts of a report and its worst layers as an HTML fragment.

    Parameters
    ----------
    report
        Report of the quantized model. All names are escaped.
    layers
        SQNR in dB by tensor.
    """
    chip = ""
    if report.is_chip:
        chip = ", chip-ready" if report.chip_ready else ", not chip-ready"
    facts = [
        ("platform", f"{report.platform}, {report.mode}{chip}"),
        ("integer MACs", report.macs_text),
    ]
    for name, measures in report.outputs.items():
        text = f"{measures['sqnr']:.1f} dB, cosine {measures['cosine']:.5f} {report.measured_on}"
        if name in report.doubts:
            text += f" ({report.doubts[name]})"
        facts.append((f"output {name}", text))
    if report.accuracy is not None:
        accuracy = report.accuracy
        values = f"{accuracy['float']:.2f} -> {accuracy['integer']:.2f} {accuracy['unit']}"
        facts.append((str(accuracy["metric"]), values))
    for node in report.float_nodes[:_MAX_ROWS]:
        facts.append(("in float", f"{node.op_type} {node.node}: {node.why}"))
    facts += [("warning", warning) for warning in report.warnings]
    worst_layers = sorted(layers.items(), key=lambda item: item[1])[:_MAX_ROWS]
    body = _render_table("", facts)
    if worst_layers:
        rows = [(name, f"{sqnr_db:.1f} dB") for name, sqnr_db in worst_layers]
        body += _render_table("Layers with the lowest SQNR", rows)
    return f"<div><b>Quantized model</b>{body}</div>"


def _render_table(title: str, rows: list[tuple[str, str]]) -> str:
    """Render a table of two columns as HTML, with an optional title."""
    cells = "".join(
        (
            f'<tr><td style="text-align:left">{escape_html(label)}</td><td '
            f'style="text-align:left">{escape_html(text)}</td></tr>'
        )
        for label, text in rows
    )
    return f"{f'<p>{escape_html(title)}</p>' if title else ''}<table>{cells}</table>"
