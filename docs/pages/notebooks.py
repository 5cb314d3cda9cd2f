"""Notebooks of examples/.

The scripts themselves, cut into cells where they say `# %%`, without results.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["EXAMPLES", "cells", "notebooks"]

EXAMPLES = Path(__file__).parents[2] / "examples"
_SHOWN = ("keyword_spotter", "denoiser")
_KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def cells(script: str) -> list[tuple[str, str]]:
    """Return the cells of a script.

    "markdown" (its comments, without the sign) or "code", and the text.
    """
    found = []
    for part in script.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(("markdown", "\n".join(lines)))
        else:
            found.append(("code", body.strip()))
    return found


def notebooks() -> dict[Path, str]:
    """Return the notebooks, each under its path."""
    return {
        EXAMPLES / f"{name}.ipynb": _notebook((EXAMPLES / f"{name}.py").read_text("utf-8"))
        for name in _SHOWN
    }


def _notebook(script: str) -> str:
    """Return a script as a notebook, version 4.5 of the format."""
    made = []
    for number, (kind, text) in enumerate(cells(script)):
        cell = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text.splitlines(keepends=True),
        }
        made.append(
            cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
        )
    whole = {"cells": made, "metadata": _KERNEL, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
