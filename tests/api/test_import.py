"""Importing the package, the command line, or what runs a graph loads nothing heavy before it is
needed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "numba",
    "onnxruntime",
    "onnx",
    "onnx_ir",
    "llvmlite",
    "pydantic",
    "yaml",
    "rich",
    "click",
)
#: What a session on an integer graph can do without. "sympy.core" stands for all of sympy, whose
#: import `lingeronnx.ir` delays.
UNUSED_IN_A_SESSION = (
    "torch",
    "onnxruntime",
    "numba",
    "pydantic",
    "yaml",
    "sympy.core",
    "lingeronnx.quantization",
)


@pytest.mark.parametrize(
    "module, banned",
    (
        ("lingeronnx", HEAVY),
        ("lingeronnx.cli", HEAVY[:6]),
        ("lingeronnx.runtime.simulation", UNUSED_IN_A_SESSION),
        ("lingeronnx.targets.registry", (*HEAVY, "lingeronnx.ir", "lingeronnx.operators")),
    ),
)
def test_import_is_light(module, banned):
    code = f"import sys, {module}; print([m for m in {banned} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
