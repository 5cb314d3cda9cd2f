"""What benchmarks/house.py counts may not grow: names, sizes and places of files."""

from pathlib import Path

import pytest

from benchmarks.house import ROWS, House

HOUSE = House(Path(__file__).parents[2])

#: The most of each row; a row that is not here has no limit yet.
MOST = {
    "files of the largest package": 19,
    "modules without a test of their name": 281,
    "modules that no test names or imports": 135,
    "names that several classes have": 0,
    "calls with eight positional arguments and more": 1,
    "modules named by adverbs": 0,
    "files above 400 lines": 5,
    "functions above 60 lines": 7,
    "passes that give no reason": 0,
    "dependencies declared and not imported": 0,
    "tests that lie in no folder": 0,
}


@pytest.mark.parametrize("row", MOST)
def test_no_row_grows(row):
    found = list(ROWS[row](HOUSE))
    assert len(found) <= MOST[row], "\n".join(found)


def test_what_is_not_in_order_is_seen(tmp_path):
    """Each row counts what it is for: a tree with one fault of each kind."""
    for folder in ("lingeronnx/passes", "simulator", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "setup.cfg").write_text(
        "[options]\ninstall_requires =\n    never_used\n[options.extras_require]\nmore =\n    numpy\n"
    )
    (tmp_path / "tests" / "test_alone.py").write_text("")
    (tmp_path / "lingeronnx" / "later.py").write_text(
        "import numpy\nclass _Thing: pass\ndef far():\n" + "    x = 1\n" * 61 + "far(1, 2, 3, 4, 5, 6, 7, 8)\n"
    )
    (tmp_path / "simulator" / "long.py").write_text("class Thing: pass\n" + "# line\n" * 401)
    (tmp_path / "lingeronnx" / "passes" / "mute.py").write_text("def mute(m) -> int: ...\nPass('mute', mute)\n")
    (tmp_path / "tests" / "passes").mkdir()
    (tmp_path / "tests" / "passes" / "test_later.py").write_text("from lingeronnx.passes.mute import mute\n")
    house = House(tmp_path)
    counts = {row: len(list(ROWS[row](house))) for row in MOST}
    assert counts.pop("files of the largest package") == 1
    assert counts.pop("modules without a test of their name") == 2
    assert set(counts.values()) == {1}, counts
