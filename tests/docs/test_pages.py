"""Generated pages are current and complete, and every page has its place on the site."""

import re
import subprocess
import sys

import pytest

from docs.pages import DOCS, written
from docs.pages.commands import page as commands_page
from docs.pages.markdown import cell, table
from lingeronnx.cli import main
from lingeronnx.targets import PLATFORMS

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def generated():
    """Return the generated pages, each under its path below docs/."""
    return written()


def test_generated_pages_are_current(generated):
    stale = [path for path, text in generated.items() if (DOCS / path).read_text("utf-8") != text]
    assert stale == [], (
        "run `make docs-reference` (or `python -m docs.pages`) and commit the result"
    )


def test_a_command_that_ran_before_changes_no_page():
    """Click keeps the first help option that it makes of a command."""
    code = "from docs.pages.commands import page\nfrom lingeronnx.cli import main\n"
    code += "main(['quantize', '--help'], standalone_mode=False)\nprint(page())"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.rstrip().endswith(commands_page().rstrip())


def test_every_page_is_on_the_site():
    """Each page stands in one table of contents, and each entry has its page."""
    listed = []
    for path in PAGES:
        for block in re.findall(
            r"```\{toctree\}\n(.*?)```", (DOCS / path).read_text(encoding="utf-8"), re.DOTALL
        ):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            folder = path.rpartition("/")[0]
            listed += [f"{folder}/{name}.md".lstrip("/") for name in names]
    assert sorted([*listed, "index.md"]) == PAGES


def test_no_page_is_lost_behind_one_of_the_generator():
    """The generator writes pages of its own under these names, over ours, and says nothing."""
    assert not {"search.md", "genindex.md", "py-modindex.md"} & set(PAGES)


def test_commands_has_every_option(generated):
    text = generated["reference/commands.md"]
    for name, command in main.commands.items():
        assert f"## lingeronnx {name}" in text
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("-"))


def test_each_target_has_its_page(generated):
    sections = (
        "Overview",
        "Requirements",
        "Quantization",
        "Operators and limits",
        "Troubleshooting",
    )
    for target in PLATFORMS:
        text = generated[f"reference/targets/{target.name}.md"]
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(sections)
        assert all(f"`{name}`" in text for name in target.ops)
        assert all(fault.key in text for fault in target.faults)


def test_cells_do_not_break_a_table():
    assert cell("a|b <c>\n `x*y|z` *d*") == "a\\|b \\<c> `x*y\\|z` \\*d\\*"
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |", ""]
