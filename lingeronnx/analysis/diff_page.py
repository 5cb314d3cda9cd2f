"""The page of `diff`: facts about both models side by side, SQNR over the layers, and tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import files

from ..common.escaping import escape_html
from ..common.pages import PageSection, components, render_page
from ..common.text import format_bytes, format_decibels
from .diff import (
    ModelDiff,
    ModelFacts,
    QparamsDifference,
    SqnrDifference,
    format_chip_ready,
    format_scale,
)

__all__ = ["render_diff_page"]


def render_diff_page(difference: ModelDiff) -> str:
    """Render the differences of two models as an HTML page in one file.

    Its data are those of `ModelDiff.to_dict`, with `has_baseline`.
    """
    sections = [
        _render_facts(difference),
        _render_values(difference),
        _render_tensors(difference),
        _render_settings_and_nodes(difference),
    ]
    title = f"{difference.b.name} against {difference.a.name}"
    about = "no differences" if difference.is_equal else "two models compared"
    return render_page(title, about, [section for section in sections if section is not None])


def _render_facts(difference: ModelDiff) -> PageSection:
    """Render tiles with the facts that differ most often, and what became worse."""
    a, b = difference.a, difference.b
    tiles = [
        _make_tile("runs on the chip", a, b, lambda facts: format_chip_ready(facts.chip_ready)),
        _make_tile("parameters", a, b, lambda facts: format_bytes(facts.parameter_bytes)),
        _make_tile("shared memory", a, b, _format_shared_memory),
        _make_tile("cycles of a call", a, b, _format_cycles),
    ]
    worst = min(
        (output for output in difference.outputs if output.gain_db is not None),
        key=lambda output: output.gain_db or 0.0,
        default=None,
    )
    if worst is not None and worst.a_db is not None and worst.b_db is not None:
        value = f"{format_decibels(worst.a_db)} → {format_decibels(worst.b_db)}"
        state = "bad" if (worst.gain_db or 0.0) < 0 else "good"
        tiles.insert(0, ("SQNR against float", value, f"output '{worst.name}'", state))
    blocks = [components.render_tiles(tiles)]
    regressions = difference.find_regressions()
    if regressions:
        blocks.append(components.heading("Worse than before"))
        blocks.append(components.ordered_list(map(escape_html, regressions)))
    for facts in (a, b):
        if facts.problems:
            blocks.append(components.heading(f"Why {facts.name} does not run on the chip"))
            blocks.append(components.ordered_list(map(escape_html, facts.problems)))
    rows = [
        ("platform", a.platform or "(float)", b.platform or "(float)"),
        ("nodes", str(a.node_count), str(b.node_count)),
        ("integer nodes", str(a.integer_nodes), str(b.integer_nodes)),
        ("MACs", _format_optional(a.macs), _format_optional(b.macs)),
    ]
    cells = [[escape_html(cell) for cell in row] for row in rows]
    blocks.append(components.render_table("facts", ("fact", a.name, b.name), cells, (0, 1, 2)))
    blocks += [components.paragraph(f"note: {note}", "dim") for note in difference.notes]
    data = {**difference.to_dict(), "has_baseline": difference.has_baseline}
    return PageSection(
        "diff",
        "Side by side",
        "\n".join(blocks),
        data,
        script=(files(__package__) / "diff_page.js").read_text(encoding="utf-8"),
        charts=("depth",),
    )


def _make_tile(
    label: str, a: ModelFacts, b: ModelFacts, format_fact: Callable[[ModelFacts], str]
) -> tuple[str, str, str, str]:
    """Return (label, value, remark, state) of a tile that shows a fact of both models."""
    first, second = format_fact(a), format_fact(b)
    if first == second:
        return label, first, "equal", ""
    return label, f"{first} → {second}", "A → B", ""


def _format_shared_memory(facts: ModelFacts) -> str:
    """Format the shared memory on the chip; "-" if it is unknown."""
    return "-" if facts.shared_bytes is None else format_bytes(facts.shared_bytes)


def _format_cycles(facts: ModelFacts) -> str:
    """Format the cycles of a call; "-" if they are unknown."""
    return "-" if facts.cycles is None else f"{facts.cycles:,.0f}"


def _format_optional(value: int | None) -> str:
    """Format a count with thousands separators; None is unknown."""
    return "-" if value is None else f"{value:,}"


def _render_values(difference: ModelDiff) -> PageSection | None:
    """Render the SQNR of all tensors as lines over the depth and as a table; None without data."""
    if not difference.layers:
        return None
    has_baseline = difference.has_baseline
    head = ["tensor", "B to A, dB"]
    if has_baseline:
        head += ["A to float, dB", "B to float, dB", "gain, dB"]
    rows = [_render_sqnr_cells(layer, has_baseline) for layer in difference.layers]
    blocks = [
        components.paragraph(f"{difference.samples} samples", "dim"),
        components.chart_host("diff-depth", "sqnr"),
        components.render_table("SQNR of the tensors", head, rows),
    ]
    return PageSection("values", "Layer by layer", "\n".join(blocks))


def _render_sqnr_cells(layer: SqnrDifference, has_baseline: bool) -> list[str]:
    """Return the HTML cells of one tensor's SQNR."""
    values = [layer.b_to_a_db]
    if has_baseline:
        values += [
            math.nan if value is None else value
            for value in (layer.a_db, layer.b_db, layer.gain_db)
        ]
    cells = ["-" if math.isnan(value) else f"{value:.2f}" for value in values]
    return [components.breakable_path(layer.name), *cells]


def _render_tensors(difference: ModelDiff) -> PageSection | None:
    """Render the scales and widths that differ as a table; None if all are equal."""
    if not difference.tensors:
        return None
    rows = [_render_qparams_cells(tensor) for tensor in difference.tensors]
    head = ("tensor", "scale A", "scale B", "octaves", "bits A", "bits B")
    note = f"{difference.same_tensors} tensors have equal scales; an octave is a factor of 2"
    blocks = [
        components.paragraph(note, "dim"),
        components.render_table("changed scales", head, rows),
    ]
    return PageSection("tensors", "Scales and widths", "\n".join(blocks))


def _render_qparams_cells(tensor: QparamsDifference) -> list[str]:
    """Return the HTML cells of a tensor whose scales or widths differ."""
    octaves = tensor.octaves
    return [
        components.breakable_path(tensor.name),
        format_scale(tensor.scale_a),
        format_scale(tensor.scale_b),
        "-" if octaves is None else f"{octaves:+.3g}",
        _format_optional(tensor.bits_a),
        _format_optional(tensor.bits_b),
    ]


def _render_settings_and_nodes(difference: ModelDiff) -> PageSection | None:
    """Render the settings and nodes that differ as tables; None if all are equal."""
    blocks = []
    if difference.settings:
        settings = [
            [escape_html(s.name), *(_render_setting(value) for value in (s.a, s.b))]
            for s in difference.settings
        ]
        blocks.append(components.heading("Settings"))
        blocks.append(
            components.render_table("settings", ("setting", "A", "B"), settings, (0, 1, 2))
        )
    if difference.nodes:
        nodes = [
            [
                components.breakable_path(node.name),
                escape_html(node.operator_a or "-"),
                escape_html(node.operator_b or "-"),
            ]
            for node in difference.nodes
        ]
        blocks.append(components.heading("Nodes"))
        blocks.append(components.render_table("nodes", ("node", "A", "B"), nodes, (0, 1, 2)))
    if difference.changed_nodes:
        changed = [
            [
                components.breakable_path(node.name),
                escape_html(", ".join(node.attributes) or "-"),
                escape_html(", ".join(node.constants) or "-"),
            ]
            for node in difference.changed_nodes
        ]
        head = ("node", "attributes", "constants")
        blocks.append(components.heading("Nodes with other attributes or constants"))
        blocks.append(components.render_table("changed nodes", head, changed, (0, 1, 2)))
    if difference.other_difference:
        blocks.append(components.paragraph(difference.other_difference))
    if not blocks:
        return None
    return PageSection("changes", "Settings and nodes", "\n".join(blocks))


def _render_setting(value: object) -> str:
    """Return the HTML cell of a setting's value; None is the default."""
    return escape_html("(default)" if value is None else value)
