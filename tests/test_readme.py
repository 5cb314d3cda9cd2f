"""README.md names every command and every page of docs/, and its links lead somewhere."""

import re
from pathlib import Path

from lingeronnx.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_is_listed():
    """Each command has its place in the table of commands."""
    table = TEXT.partition("## Commands")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:lingeronnx )?([a-z-]+)[ `]", table))
    assert set(main.commands) - named == set(), "add a line to README's table of commands"


def test_every_page_is_linked():
    """Each page of docs/ is linked, and each link has its file."""
    links = set(re.findall(r"\]\(([^)#]+)\)", TEXT))
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages - links == set(), "link the page in README, section More"
    assert [link for link in links if not (ROOT / link).is_file()] == []
