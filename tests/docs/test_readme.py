"""README.md names every command and every page of docs/, its links lead somewhere, and CI runs what
it begins with.
"""

import re
from pathlib import Path

from lingeronnx.cli import main

ROOT = Path(__file__).parents[2]
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


def test_the_first_screen_names_what_to_run():
    """The demo and the tests stand on it, are targets of the Makefile, and run in continuous
    integration.
    """
    screen = "\n".join(TEXT.splitlines()[:40])
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    runs = re.findall(
        r"^run_step make ([a-z-]+)", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE
    )
    for target in ("demo", "test"):
        assert f"make {target} " in screen
        assert target in targets
        assert target in runs
