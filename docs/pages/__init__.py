"""Pages of docs/ that the code tells.

Commands from click, calls from docstrings, files from schemas, targets.
`python -m docs.pages` (or `make docs-reference`) writes them; tests/docs/test_pages.py fails where
one is not current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import (
    commands,
    error_messages,
    model_table,
    pipeline,
    python_calls,
    schema_files,
    target_pages,
    version_page,
)

__all__ = ["DOCS", "written"]

DOCS = Path(__file__).parents[1]


def written() -> dict[str, str]:
    """Return the pages, each under its path below docs/."""
    makers: dict[str, Callable[[], str]] = {
        "reference/errors.md": error_messages.page,
        "reference/models.md": model_table.page,
        "reference/commands.md": commands.page,
        "reference/python.md": python_calls.page,
        "reference/json.md": schema_files.page,
        "reference/versions.md": version_page.page,
        "explanation/architecture.md": pipeline.page,
    }
    return {path: make() for path, make in makers.items()} | target_pages.pages()
