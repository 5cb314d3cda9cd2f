"""Modules that load when they are first used."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ran(code: str) -> str:
    """Return what a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_module_loads_at_its_first_use(tmp_path):
    """Law: the import runs nothing of it, an attribute all; nobody else sees that it was put
    off.
    """
    (tmp_path / "slow_one.py").write_text("print('loaded'); value = 3")
    (tmp_path / "reader.py").write_text("import slow_one\n\ndef read():\n    return slow_one.value")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
hooks = list(sys.meta_path)
from lingeronnx.ir._deferred_import import defer_imports
with defer_imports("slow_one"):
    import reader
print("imported", "slow_one" in sys.modules, sys.meta_path == hooks)
print(reader.read())
import slow_one
with defer_imports("slow_one"):
    import slow_one as again
print(again is slow_one)
"""
    assert ran(code).split("\n") == ["imported False True", "loaded", "3", "True"]


def test_sums_of_unknown_sizes_are_computed():
    """What waits serves where it is needed: onnx_ir's own arithmetic on names of sizes."""
    code = """
import sys
import lingeronnx.ir.ir as ir
print("sympy.core" in sys.modules)
print(ir.SymbolicDim("N") + 1)
print(ir.SymbolicDim("2 * max(N, 3)") * 2)
"""
    assert ran(code).split("\n") == ["False", "N + 1", "4*Max(3, N)"]


def test_sympy_is_whole_for_others():
    """Whoever imports sympy after us, or a part of it, gets what is always there."""
    code = """
import lingeronnx.ir.ir
from sympy.core import Symbol
import sympy
print(sympy.sqrt(4), Symbol("a") + 1)
"""
    assert ran(code) == "2 a + 1"
