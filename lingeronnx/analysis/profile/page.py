"""A profile as a page: what each operator reads and writes over the data, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ...pages import PageSection, components
from ...pages import render_page as whole_page
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
_SPREAD = ("min", "max", "mean", "var")


def render_profile_section(
    profile: Profile, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None
) -> PageSection:
    """Return the section; prefixes, types.

    Of the operators that it shows, as `Profile.select` takes them.
    """
    rows = profile.to_dict(prefixes, types)
    cells = [
        [
            *(
                components.breakable_path(row[key])
                for key in ("module", "op", "attr", "tensor", "dtype")
            ),
            components.escape_text(profile.tensors[str(row["tensor"])].scale_text),
            *(f"{row[key]:.6g}" for key in _SPREAD),
            components.escape_text(row["shape"]),
        ]
        for row in rows
    ]
    said = components.paragraph(
        (
            "Integers count as the real values that they stand for. Shapes are those of the first "
            "batch."
        ),
        "dim",
    )
    table = components.render_table("tensors by operator", _HEAD, cells, _TEXT_COLUMNS)
    return PageSection("profile", "What operators read and write", f"{said}\n{table}", rows)


def render_profile_page(
    profile: Profile,
    model: str,
    prefixes: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
) -> str:
    """Return the page of a profile; model : by which its title calls the model."""
    part = render_profile_section(profile, prefixes, types)
    operators = len({entry.module for entry in profile.select(prefixes, types)})
    return whole_page(f"Profile of {PurePath(model).name}", f"{operators} operators", [part])
