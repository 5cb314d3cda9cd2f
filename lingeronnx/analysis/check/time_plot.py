"""The cycles of each layer as a picture (SVG): one bar a layer, in the order in which they run."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

from ...targets import CallLatency
from ...targets.latency import LayerLatency

__all__ = ["render_time_plot"]

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 960, 300, 150, 18, 84
_TITLE_WIDTH = 150  # of text
#: What a bar is made of: the key, its color, the cycles of a layer.
_PHASES = (
    ("waits for constants", "#c9c7bf", lambda layer: layer.wait),
    ("copies from and to psram", "#e39a3b", lambda layer: layer.moved),
    ("starts of calls", "#d9591f", lambda layer: layer.overhead),
    ("computing", "#2a78d6", lambda layer: layer.cycles - layer.overhead),
)
_MAX_LAYERS = 60  # layers that are drawn


def render_time_plot(time: CallLatency, title: str) -> str:
    """Return the picture of a call whose cycles are known.

    Of many layers the heaviest are drawn.
    """
    latency = time.latency
    assert latency is not None
    heaviest = {
        id(layer)
        for layer in sorted(latency.layers, key=lambda layer: -layer.total_cycles)[:_MAX_LAYERS]
    }
    layers = [layer for layer in latency.layers if id(layer) in heaviest]
    scale = (
        (_WIDTH - _LEFT - _RIGHT) / max((layer.total_cycles for layer in layers), default=1.0)
        if layers
        else 1.0
    )
    left = len(latency.layers) - len(layers)
    note = f" ({left} lighter layers are left out)" if left else ""
    parts = [_svg_text(12, 22, title, 'font-size="15"')]
    told = textwrap.wrap(time.lines()[0] + note, _TITLE_WIDTH)
    parts += [_svg_text(12, 40 + 15 * row, line) for row, line in enumerate(told)]
    parts += _render_legend()
    for row, layer in enumerate(layers):
        parts += _render_bar(layer, _TOP + 16 + row * _ROW, scale, latency.total)
    height = _TOP + 24 + _ROW * len(layers)
    font = 'font-family="system-ui, sans-serif" font-size="11" fill="#1c1c1a"'
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{body}\n</svg>\n'


def _svg_text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _svg_rect(x: float, y: float, width: float, color: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_ROW - 6}" fill="{color}"/>'


def _render_legend() -> Sequence[str]:
    drawn, x = [], 12.0
    for name, color, _ in _PHASES:
        drawn += [_svg_rect(x, _TOP - 8, 12, color), _svg_text(x + 17, _TOP + 2, name)]
        x += 40 + 6.2 * len(name)
    return drawn


def _render_bar(layer: LayerLatency, y: float, scale: float, total: float) -> Sequence[str]:
    name = f"{layer.operator} {layer.node or layer.name}"
    shown = name if len(name) <= 46 else f"{name[:45]}\u2026"
    drawn, x = [_svg_text(_LEFT - 8, y + 10, shown, 'text-anchor="end"')], float(_LEFT)
    for _, color, cycles in _PHASES:
        width = scale * cycles(layer)
        if width > 0:
            drawn.append(_svg_rect(x, y, width, color))
        x += max(width, 0.0)
    share = 100 * layer.total_cycles / total if total else 0.0
    more = "" if layer.priced else " + no price"
    drawn.append(_svg_text(x + 6, y + 10, f"{layer.total_cycles:,.0f} ({share:.0f} %){more}"))
    return drawn
