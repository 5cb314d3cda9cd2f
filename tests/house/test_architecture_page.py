"""docs/architecture.md points at places that are there, and names every package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.split("## Where to look")[1].split("## The packages")[0], re.MULTILINE)
PACKAGES = sorted(
    path.parent.relative_to(ROOT / "lingeronnx").as_posix()
    for path in (ROOT / "lingeronnx").rglob("__init__.py")
    if path.parent.name not in ("lingeronnx",)
)


def place(named):
    """Return the file or folder that the page means, or None."""
    places = [root / named for root in (ROOT / "lingeronnx", ROOT)]
    return next((path for path in places if path.exists()), None)


def paths(text):
    """Yield what looks like a path in a text of the page."""
    for named in re.findall(r"`([^`\s]+)`", text):
        if named.endswith((".py", "/")) and "*" not in named:
            yield named


@pytest.mark.parametrize("symptom, answer", ROWS, ids=[row[0][:40] for row in ROWS])
def test_each_answer_is_one_hop_away(symptom, answer):
    """Law: every file that a row names is there, and holds the functions and names that stand beside it."""
    files = list(paths(answer))
    for named in files:
        assert place(named), f"{symptom}: {named} is not there"
    texts = [place(named).read_text(encoding="utf-8") for named in files if named.endswith(".py")]
    for word in re.findall(r"`([A-Za-z_]+)`(?= (?:and `[a-z_]+` )?in `)", answer):
        assert any(re.search(rf"\b{word}\b", text) for text in texts), f"{symptom}: {word} is in none of {files}"


def test_every_path_is_there():
    told = [named for named in paths(PAGE.split("## How it fits together")[0]) if "/" in named.rstrip("/")]
    missing = [named for named in told if place(named) is None]
    assert len(told) > 20
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_named(package):
    assert re.search(rf"`(?:\S*/)?{Path(package).name}/`", PAGE), f"docs/architecture.md does not name {package}/"
