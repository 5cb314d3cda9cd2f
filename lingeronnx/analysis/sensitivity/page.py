"""What `sensitivity` found as a section: the advice with its options, and the ranking.

Made of the two files that every run leaves, so that a report can take in what ran before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import given_bytes
from ...pages import PagePart, parts
from ...pages import page as whole_page

__all__ = ["page", "read_part", "sensitivity_part"]

_MOST = 1 << 26  # bytes of a file
_OPTIONS = "add to quantize:"
_WIDTHS = "weight_bits"
_NAMED = 3  # columns in front of the values


def sensitivity_part(text: str, rows: Sequence[Sequence[Any]]) -> PagePart:
    """Return the section; text : that of sensitive_ops.txt, rows : those of sensitive_ops.json."""
    first, *ranked = text.splitlines()[: len(rows) + 1]
    head, lines = first.split(), text.splitlines()[len(rows) + 1 :]
    words = advised(text)
    html = [parts.title("What to add"), parts.command(words)] if words else []
    said = [parts.text(line) for line in lines if line != f"  {words}"]
    html.append(f'<pre tabindex="0">{chr(10).join(said).strip()}</pre>')
    cells = [
        [*map(parts.path, row[:_NAMED]), *("-" if value is None else f"{value:.6g}" for value in row[_NAMED:])]
        for row in rows
    ]
    if head[-1] == _WIDTHS:  # of the table alone, where some are not of 8 bits
        cells = [[*cell, parts.text(line.split()[-1])] for cell, line in zip(cells, ranked, strict=True)]
    html += [parts.title("The ranking"), parts.table("the ranking", head, cells, range(_NAMED), cards=True)]
    return PagePart("sensitivity", "What quantizing each operator alone costs", "\n".join(html), list(rows))


def advised(text: str) -> str:
    """Return the options that the text of sensitive_ops.txt advises; empty where it advises none."""
    _, found, rest = text.partition(_OPTIONS)
    return rest.splitlines()[1].strip() if found else ""


def page(text: str, rows: Sequence[Sequence[Any]]) -> str:
    """Return the page of a run alone."""
    return whole_page("Sensitivity", f"{len(rows)} trials", [sensitivity_part(text, rows)])


def read_part(folder: str | os.PathLike[str]) -> tuple[PagePart, str]:
    """Return the section of an earlier run's folder, and the options it advises; ConfigError where it holds no run."""
    home = Path(folder)
    try:
        text = given_bytes(home / "sensitive_ops.txt", "the ranking", _MOST).decode()
        rows = json.loads(given_bytes(home / "sensitive_ops.json", "the ranking", _MOST))
        return sensitivity_part(text, rows), advised(text)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"{folder} does not hold what sensitivity writes; run it again") from error
