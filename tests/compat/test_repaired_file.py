"""`compat.fix_dequant`: the repaired graph beside the legacy one; nothing where it cannot be
repaired or run.
"""

import onnx
import pytest

import lingeronnx as lo
from lingeronnx.compat.repair_file import fix_dequant
from tests.repair.corpus import cyclic, legacy


def test_the_missing_dequant_is_there_beside_the_old_file(tmp_path, capsys):
    old = tmp_path / "old.onnx"
    onnx.save(legacy(), old)
    before = old.read_bytes()
    target = fix_dequant(old, check=True)
    assert target == tmp_path / "old_fix.onnx"
    assert old.read_bytes() == before
    kinds = [[node.op_type for node in onnx.load(path).graph.node] for path in (old, target)]
    assert kinds[0].count("Dequant") == 0
    assert kinds[1].count("Dequant") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "found 1 problem:"
    assert any(line.endswith("applied:") for line in lines)
    assert "check: the model runs; outputs for random inputs:" in lines
    assert lines[-1] == f"written: {target}"
    fix_dequant(target, True)
    assert capsys.readouterr().out.startswith("no problems found\n")


def test_what_cannot_be_repaired_writes_nothing(tmp_path):
    onnx.save(cyclic(), tmp_path / "bad.onnx")
    with pytest.raises(lo.LingerOnnxError):
        fix_dequant(tmp_path / "bad.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.onnx"]
