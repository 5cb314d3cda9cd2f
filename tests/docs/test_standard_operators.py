"""docs/reference/standard-operators.md: every operator of the standard has a row, and rows are true."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from onnx import defs

from lingeronnx.targets import PLATFORMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "standard-operators.md"


def read_rows():
    """Return {operator: verdicts} of the page."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "operator":
            rows[cells[0]] = tuple(cells[1:])
    return rows


def load_benchmark():
    """Return the script that writes the page, as a module."""
    name = "benchmarks.standard_operators"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks/standard_operators.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_in_opset(operator, opset):
    """Whether the installed onnx has the operator in `opset`, the newest that the page knows."""
    try:
        return bool(defs.get_schema(operator, min(opset, defs.onnx_opset_version())))
    except defs.SchemaError:
        return False


def test_every_operator_has_a_row():
    script, rows = load_benchmark(), read_rows()
    opset = int(re.search(r"up to opset (\d+)", PAGE.read_text(encoding="utf-8"))[1])
    installed = [name for name in script.list_operators() if _is_in_opset(name, opset)]
    assert set(installed) <= set(rows)
    assert list(rows) == sorted(rows)
    assert {verdict for row in rows.values() for verdict in row} <= set(script.RANKS)
    assert {len(row) for row in rows.values()} == {len(PLATFORMS)}


@pytest.mark.slow
def test_rows_are_what_the_platforms_compute():
    """A sample is tried again; all of it: `python -m benchmarks.standard_operators`."""
    script, rows = load_benchmark(), read_rows()
    sample = (
        "Attention",
        "Conv",
        "Dropout",
        "Elu",
        "LayerNormalization",
        "RMSNormalization",
        "Where",
    )
    verdicts = script.classify_operators(sample)
    for operator in sample:
        assert tuple(verdicts[operator].values()) == rows[operator], operator
