"""README.zh.md has the sections, code, tables, figures and links of README.md, in the same
order.
"""

import re
from pathlib import Path

from tests.each import check_each

ROOT = Path(__file__).parents[2]
EN, ZH = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))


def headings(text):
    return [line.split()[0] for line in text.splitlines() if line.startswith("#")]


def code(text):
    return [line for line in text.splitlines() if line.startswith("    ")]


def bullets(text):
    """Return how many bullets each section has."""
    return [
        len(re.findall(r"^- ", part, re.MULTILINE))
        for part in re.split(r"^## ", text, flags=re.MULTILINE)
    ]


def rows(text):
    """Return of each row of a table its cells of figures, and how many cells it has."""
    found = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [
        (len(cells), [cell.strip() for cell in cells if re.fullmatch(r" *[\d.]+( %| dB)? *", cell)])
        for cells in found
    ]


def links(text):
    return [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("README")]


def options(text):
    """Return every option, command and call in backquotes, in their order."""
    return sorted(set(re.findall(r"`([^`]+)`", text)))


def test_both_have_the_same():
    """README.md and README.zh.md are changed together."""
    parts = {part.__name__: part for part in (headings, code, bullets, rows, links, options)}

    def check(name):
        assert parts[name](ZH) == parts[name](EN)

    check_each(check, parts)


def test_it_is_chinese():
    """Each paragraph but code and tables has been translated."""
    for block in re.split(r"\n\s*\n", ZH):
        prose = not block.startswith(("    ", "|", "![", "#", "[English"))
        assert not prose or re.search(r"[\u4e00-\u9fff]", block) or block == "Apache-2.0.\n", block
