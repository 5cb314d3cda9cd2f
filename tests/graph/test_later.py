"""Modules that load when they are first used."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ran(code: str) -> str:
    """Return what a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_module_loads_at_its_first_use(tmp_path):
    """Law: the import runs nothing of it, an attribute all, and after the block imports are as ever."""
    (tmp_path / "slow_one.py").write_text("print('loaded'); value = 3")
    (tmp_path / "slow_two.py").write_text("print('at once')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from lingeronnx.graph._later import later
with later("slow_one", "there_is_none"):
    import slow_one
    try:
        import there_is_none
    except ModuleNotFoundError:
        print("none")
print("imported")
print(slow_one.value)
import slow_two
"""
    assert ran(code).split("\n") == ["none", "imported", "loaded", "3", "at once"]


def test_sums_of_unknown_sizes_are_computed():
    """What waits serves where it is needed: onnx_ir's own arithmetic on names of sizes."""
    code = """
import sys
import lingeronnx.graph.ir as ir
print("sympy.core" in sys.modules)
print(ir.oir.SymbolicDim("N") + 1)
print(ir.oir.SymbolicDim("2 * max(N, 3)") * 2)
"""
    assert ran(code).split("\n") == ["False", "N + 1", "4*Max(3, N)"]
