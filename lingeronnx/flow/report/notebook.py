"""How a quantized model shows itself in a notebook.

The report's main facts and the layers that lose most, as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from .report import Report

__all__ = ["render_notebook_html"]

_WORST = 5


def render_notebook_html(report: Report, layers: Mapping[str, float]) -> str:
    """Return an HTML fragment; layers : {tensor: SQNR in dB}. All names are escaped."""
    chip = "" if not report.is_chip else ", chip-ready" if report.chip_ready else ", not chip-ready"
    facts = [
        ("platform", f"{report.platform}, {report.mode}{chip}"),
        ("integer MACs", report.macs_text),
        *(
            (
                f"output {name}",
                f"{measures['sqnr']:.1f} dB, cosine {measures['cosine']:.5f} {report.measured_on}"
                + (f" ({report.doubts[name]})" if name in report.doubts else ""),
            )
            for name, measures in report.outputs.items()
        ),
    ]
    if report.accuracy is not None:
        value = report.accuracy
        facts.append(
            (
                str(value["metric"]),
                f"{value['float']:.2f} -> {value['integer']:.2f} {value['unit']}",
            )
        )
    facts += [
        ("in float", f"{node.op_type} {node.node}: {node.why}")
        for node in report.float_nodes[:_WORST]
    ]
    facts += [("warning", warning) for warning in report.warnings]
    worst = sorted(layers.items(), key=lambda item: item[1])[:_WORST]
    body = _render_table("", facts)
    if worst:
        body += _render_table(
            "Layers farthest from the float model",
            [(name, f"{level:.1f} dB") for name, level in worst],
        )
    return f"<div><b>Quantized model</b>{body}</div>"


def _render_table(title: str, rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        (
            f'<tr><td style="text-align:left">{escape(a)}</td><td '
            f'style="text-align:left">{escape(b)}</td></tr>'
        )
        for a, b in rows
    )
    return f"{f'<p>{escape(title)}</p>' if title else ''}<table>{cells}</table>"
