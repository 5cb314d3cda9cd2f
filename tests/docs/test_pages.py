"""Pages that the code tells say what they are for, and every page has its place on the site."""

import re

from docs.pages import DOCS, written
from docs.pages.markdown import cell, table
from lingeronnx.cli import main
from lingeronnx.targets import PLATFORMS

WRITTEN = written()
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_page_is_on_the_site():
    """Each page stands in one table of contents, and each entry has its page."""
    listed = []
    for path in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / path).read_text(encoding="utf-8"), re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            folder = path.rpartition("/")[0]
            listed += [f"{folder}/{name}.md".lstrip("/") for name in names]
    assert sorted([*listed, "index.md"]) == PAGES


def test_commands_has_every_option():
    text = WRITTEN["reference/commands.md"]
    for name, command in main.commands.items():
        assert f"## lingeronnx {name}" in text
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("-"))


def test_each_target_has_its_page():
    sections = ("Overview", "Requirements", "Quantization", "Operators and limits", "Troubleshooting")
    for target in PLATFORMS:
        text = WRITTEN[f"targets/{target.name}.md"]
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(sections)
        assert all(f"`{name}`" in text for name in target.ops)
        assert all(fault.key in text for fault in target.faults)


def test_cells_do_not_break_a_table():
    assert cell("a|b <c>\n `x*y|z` *d*") == "a\\|b \\<c> `x*y\\|z` \\*d\\*"
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |", ""]
