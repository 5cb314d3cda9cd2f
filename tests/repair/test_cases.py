"""Law: every case of damage is repaired to the one graph that is right, or refused where there is
more than one.

The cases are `tests/golden/dequant`; larger ones are read where they lie beside the repository.
"""

import json
from pathlib import Path

import onnx
import pytest

from lingeronnx.common.errors import RepairError
from lingeronnx.interchange.repair import fix_dequant
from tests.repair.helpers import edges, types

HERE = Path(__file__).resolve()
FOLDER = HERE.parents[1] / "golden" / "dequant"
CASES = json.loads((FOLDER / "cases.json").read_text())
BESIDE = HERE.parents[2].parent / "shared" / "golden" / "dequant"
LARGE = sorted(path.name for path in BESIDE.glob("r50_*"))


def expected(found):
    """Return the edges of a case of the larger set in our form."""
    return {
        f"{reader}[{index}]": [writer, output, scale]
        for reader, index, writer, output, scale in found["edges"]
    }


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case["refused"]])
def test_repaired(name, tmp_path):
    """The edges named carry one Dequant of that scale, all others none; a second repair changes
    nothing.
    """
    case = CASES[name]
    fixed = fix_dequant(FOLDER / f"{name}.onnx")
    assert edges(fixed.model) == case["edges"]
    assert types(fixed.model.graph.input) == case["inputs"]
    assert types(fixed.model.graph.output) == case["outputs"]
    assert fixed.changed
    assert fixed.report.wrong
    path = fixed.save(tmp_path / "fixed.onnx")
    again = fix_dequant(path)
    assert not again.changed
    assert not again.report.wrong
    assert again.save(tmp_path / "again.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["refused"]])
def test_refused(name, tmp_path):
    """What has two answers is told, with all that was found."""
    with pytest.raises(RepairError, match="match equally well") as caught:
        fix_dequant(FOLDER / f"{name}.onnx")
    assert caught.value.report.fatal
    assert "\n" not in str(caught.value)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.right.onnx")), ids=lambda path: path.name.partition(".")[0]
)
def test_right_stays(path, tmp_path):
    """The right graph of each case is written byte for byte."""
    fixed = fix_dequant(path)
    assert not fixed.changed
    assert fixed.save(tmp_path / "same.onnx").read_bytes() == path.read_bytes()


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(CASES))
def test_names_stay(name):
    """Nodes other than Dequant and Identity stay, under their names, with their attributes and
    outputs' readers.
    """
    if CASES[name]["refused"]:
        return
    before = onnx.load(FOLDER / f"{name}.onnx")
    after = fix_dequant(FOLDER / f"{name}.onnx").model
    kept = [
        {n.name: n.op_type for n in model.graph.node if n.op_type not in ("Dequant", "Identity")}
        for model in (before, after)
    ]
    assert kept[0] == kept[1]


@pytest.mark.skipif(not LARGE, reason="the larger cases are not there")
@pytest.mark.parametrize("name", LARGE)
def test_large(name, tmp_path):
    """The same for a whole network."""
    fixed = fix_dequant(BESIDE / name / "broken.onnx")
    want = json.loads((BESIDE / name / "expected.json").read_text())
    assert edges(fixed.model) == expected(want)
    assert not fix_dequant(fixed.save(tmp_path / "fixed.onnx")).changed
    assert not fix_dequant(BESIDE / name / "expected.onnx").changed
