"""docs/explanation/architecture.md points at places that are there, and names every package."""

import re
import tomllib
from pathlib import Path

from tests.each import check_each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (.+?) \| (.+) \|$",
    PAGE.split("## Where to look")[1].split("## The packages")[0],
    re.MULTILINE,
)
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


def test_each_answer_is_one_hop_away():
    """Every file that a row names exists, and has the functions and names that stand beside it."""

    def check(symptom, answer):
        files = list(paths(answer))
        missing = [file for file in files if place(file) is None]
        assert missing == []
        texts = [place(file).read_text("utf-8") for file in files if file.endswith(".py")]
        for word in re.findall(r"`([A-Za-z_]+)`(?= (?:and `[a-z_]+` )?in `)", answer):
            assert any(re.search(rf"\b{word}\b", text) for text in texts), word

    assert len(ROWS) > 10
    check_each(check, ROWS)


def test_every_path_is_there():
    overview = PAGE.split("## How it fits together")[0]
    files = [file for file in paths(overview) if "/" in file.rstrip("/")]
    assert len(files) > 20
    assert [file for file in files if place(file) is None] == []


def test_every_package_is_named():
    unnamed = [p for p in PACKAGES if not re.search(rf"`(?:\S*/)?{Path(p).name}/`", PAGE)]
    assert unnamed == [], "name each package in docs/explanation/architecture.md"


def test_each_package_has_a_layer_and_one_sentence():
    """The layers are those of the import contract, and what a package owns is one sentence."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)/` \| ([^|]+) \|", PAGE, re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    former = ("__main__", "extension | formats | ops | reference | run | schemas")
    by_layer = [set(layer.split(" | ")) for layer in layers if layer not in former]
    expected = [(len(by_layer) - i, name) for i, names in enumerate(by_layer) for name in names]
    assert sorted((int(layer), name) for layer, name, _ in rows if name != "simulator") == sorted(
        expected
    )
    assert len(rows) == 15 + 1
    assert [
        text for _, _, text in rows if re.search(r"[.;:]", text.replace("LISTENAI's", ""))
    ] == []
