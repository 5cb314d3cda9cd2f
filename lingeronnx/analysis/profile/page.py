"""A profile as a page: what each operator reads and writes over the data, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ...pages import PagePart, parts
from ...pages import page as whole_page
from .profile import Profile

__all__ = ["page", "profile_part"]

_HEAD = ("module", "operator", "attr", "tensor", "dtype", "scale", "min", "max", "mean", "variance", "shape")
_TEXTS = range(5)
_SPREAD = ("min", "max", "mean", "var")


def profile_part(found: Profile, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None) -> PagePart:
    """Return the section; prefixes, types : of the operators that it shows, as `Profile.chosen` takes them."""
    rows = found.to_dict(prefixes, types)
    cells = [
        [
            *(parts.path(row[key]) for key in ("module", "op", "attr", "tensor", "dtype")),
            parts.text(found.seen[str(row["tensor"])].scale_text),
            *(f"{row[key]:.6g}" for key in _SPREAD),
            parts.text(row["shape"]),
        ]
        for row in rows
    ]
    said = parts.line(
        "Integers count as the real values that they stand for. Shapes are those of the first batch.", "dim"
    )
    table = parts.table("tensors by operator", _HEAD, cells, _TEXTS)
    return PagePart("profile", "What operators read and write", f"{said}\n{table}", rows)


def page(found: Profile, model: str, prefixes: Sequence[str] | None = None, types: Sequence[str] | None = None) -> str:
    """Return the page of a profile; model : by which its title calls the model."""
    part = profile_part(found, prefixes, types)
    operators = len({entry.module for entry in found.chosen(prefixes, types)})
    return whole_page(f"Profile of {PurePath(model).name}", f"{operators} operators", [part])
