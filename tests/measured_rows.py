"""The measured rows that tests name: what a packer and an executor did with a graph."""

import functools
import json
from pathlib import Path

HERE = Path(__file__).resolve()
BESIDE = HERE.parents[2] / "shared" / "golden"
_SETS = (
    *(BESIDE / name for name in ("executor", "packer", "packer/more")),
    *(HERE.parent / "golden" / name for name in ("executor", "packer")),
)
FOLDERS = [folder for folder in _SETS if (folder / "index.json").is_file()]
WHOLE = BESIDE / "executor" in FOLDERS


@functools.cache
def _rows():
    return [
        (folder, row)
        for folder in FOLDERS
        for row in json.loads((folder / "index.json").read_text())
    ]


def get_rows(name, platform):
    """Return the rows of a case on a platform; those of a set that is not here are missing."""
    return [row for _, row in _rows() if (row["id"], row["platform"]) == (name, platform)]


def has_correct_row(name, platform):
    """Whether some row of the case packed, ran and gave the simulator's integers; True where the
    set is not here.
    """
    found = get_rows(name, platform)
    return any(row["equal_to_simulator"] for row in found) or (not found and not WHOLE)


def get_wrong_rows(topic):
    """Return [(case, platform, arguments)] of the rows of a topic that did not pack, did not run or
    came out wrong.
    """
    return [
        (row["id"], row["platform"], row["arguments"])
        for _, row in _rows()
        if row["topic"] == topic and not row["equal_to_simulator"]
    ]
