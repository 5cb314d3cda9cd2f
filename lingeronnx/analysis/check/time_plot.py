"""The cycles of each layer as an SVG plot: one bar per layer, in execution order."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from ...common.escaping import escape_html
from ...targets import CallLatency
from ...targets.latency import LayerLatency

__all__ = ["render_time_plot"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 960, 300, 150, 18, 84
_TITLE_WIDTH = 150  # characters per line
#: Segments of a bar: text of the legend, color, and cycles of a layer.
_PHASES: tuple[tuple[str, str, Callable[[LayerLatency], float]], ...] = (
    ("waits for constants", "#c9c7bf", lambda layer: layer.wait),
    ("copies from and to psram", "#e39a3b", lambda layer: layer.moved),
    ("starts of calls", "#d9591f", lambda layer: layer.overhead),
    ("computing", "#2a78d6", lambda layer: layer.cycles - layer.overhead),
)
_MAX_LAYERS = 60


def render_time_plot(time: CallLatency, title: str) -> str:
    """Render the cycles of a call's layers as an SVG bar chart, one bar per layer in graph order.

    Of many layers only the _MAX_LAYERS most expensive are drawn. The latency of `time` must be
    known.
    """
    latency = time.latency
    assert latency is not None
    by_cycles = sorted(latency.layers, key=lambda layer: -layer.total_cycles)
    drawn_ids = {id(layer) for layer in by_cycles[:_MAX_LAYERS]}
    layers = [layer for layer in latency.layers if id(layer) in drawn_ids]
    max_cycles = max((layer.total_cycles for layer in layers), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / max_cycles if layers else 1.0
    omitted = len(latency.layers) - len(layers)
    note = f" ({omitted} cheaper layers are omitted)" if omitted else ""
    elements = [_svg_text(12, 22, title, 'font-size="15"')]
    lines = textwrap.wrap(time.lines()[0] + note, _TITLE_WIDTH)
    elements += [_svg_text(12, 40 + 15 * row, line) for row, line in enumerate(lines)]
    elements += _render_legend()
    for row, layer in enumerate(layers):
        elements += _render_bar(layer, _TOP + 16 + row * _ROW, scale, latency.total)
    height = _TOP + 24 + _ROW * len(layers)
    font = 'font-family="system-ui, sans-serif" font-size="11" fill="#1c1c1a"'
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
    body = "\n".join(elements)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{body}\n</svg>\n'


def _svg_text(x: float, y: float, text: str, attributes: str = "") -> str:
    """Return an SVG text element at (x, y) in pixels; `text` is escaped, `attributes` are not."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape_html(text)}</text>'


def _svg_rect(x: float, y: float, width: float, color: str) -> str:
    """Return an SVG rectangle of fixed height, of this width and fill color.

    (x, y) is its upper left corner in pixels.
    """
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_ROW - 6}" fill="{color}"/>'


def _render_legend() -> Sequence[str]:
    """Render a row of colored squares with the names of the bar's phases, as SVG elements."""
    elements, x = [], 12.0
    for name, color, _ in _PHASES:
        elements += [_svg_rect(x, _TOP - 8, 12, color), _svg_text(x + 17, _TOP + 2, name)]
        x += 40 + 6.2 * len(name)
    return elements


def _render_bar(layer: LayerLatency, y: float, scale: float, total: float) -> Sequence[str]:
    """Render a layer's bar as SVG elements: name, one rectangle per phase, cycles and percentage.

    Long names are cut. A text marks layers with work of unknown cost.

    Parameters
    ----------
    layer
        Cycles of the layer.
    y
        Top of the bar in pixels.
    scale
        Pixels per cycle.
    total
        Cycles of the whole call.
    """
    name = f"{layer.operator} {layer.node or layer.name}"
    shown = name if len(name) <= 46 else f"{name[:45]}\u2026"
    elements, x = [_svg_text(_LEFT - 8, y + 10, shown, 'text-anchor="end"')], float(_LEFT)
    for _, color, cycles in _PHASES:
        width = scale * cycles(layer)
        if width > 0:
            elements.append(_svg_rect(x, y, width, color))
        x += max(width, 0.0)
    percent = 100 * layer.total_cycles / total if total else 0.0
    suffix = "" if layer.priced else " + no price"
    text = f"{layer.total_cycles:,.0f} ({percent:.0f} %){suffix}"
    elements.append(_svg_text(x + 6, y + 10, text))
    return elements
