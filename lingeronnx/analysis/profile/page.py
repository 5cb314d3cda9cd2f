"""A profile as an HTML page: one table of the inputs and outputs of each operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ...common.escaping import escape_html
from ...common.pages import PageSection, components, render_page
from .profile import Profile

__all__ = ["render_profile_page", "render_profile_section"]

_HEAD = (
    "module",
    "operator",
    "attr",
    "tensor",
    "dtype",
    "scale",
    "min",
    "max",
    "mean",
    "variance",
    "shape",
)
_TEXT_COLUMNS = range(5)
_PATH_KEYS = ("module", "op", "attr", "tensor", "dtype")
_STATISTIC_KEYS = ("min", "max", "mean", "var")


def render_profile_section(
    profile: Profile, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None
) -> PageSection:
    """Render the selected operators of a profile as a page section with one table.

    A row is a tensor in its role at an operator. `prefixes` (of node or module names) and `types`
    (of operators) select operators; None or empty selects all. Raises ConfigError if none matches.
    """
    rows = profile.to_dict(prefixes, types)
    cells = []
    for row in rows:
        cells.append(
            [
                *(components.breakable_path(row[key]) for key in _PATH_KEYS),
                escape_html(profile.tensors[str(row["tensor"])].scale_text),
                *(f"{row[key]:.6g}" for key in _STATISTIC_KEYS),
                escape_html(row["shape"]),
            ]
        )
    note = components.paragraph(
        "Integers are shown as the float values that they represent. Shapes are those of the first "
        "batch.",
        "dim",
    )
    table = components.render_table("tensors by operator", _HEAD, cells, _TEXT_COLUMNS)
    return PageSection("profile", "Inputs and outputs of operators", f"{note}\n{table}", rows)


def render_profile_page(
    profile: Profile,
    model: str,
    prefixes: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
) -> str:
    """Render a profile as an HTML page with one table, and return the HTML.

    `model` is a path or name, of which the last part stands in the title. `prefixes` (of node or
    module names) and `types` (of operators) select operators; None or empty selects all. Raises
    ConfigError if none matches.
    """
    section = render_profile_section(profile, prefixes, types)
    operators = len({entry.module for entry in profile.select(prefixes, types)})
    return render_page(f"Profile of {PurePath(model).name}", f"{operators} operators", [section])
