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
        ("lingeronnx.api.quantization", UNUSED_IN_A_SESSION[:-1]),
        ("lingeronnx.runtime.runners", (*UNUSED_IN_A_SESSION, "llvmlite")),
        ("lingeronnx.targets.registry", (*HEAVY, "lingeronnx.ir", "lingeronnx.operators")),
    ),
)
def test_import_is_light(module, banned):
    code = f"import sys, {module}; print([m for m in {banned} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


#: What quantizing a network of convolutions for generic can do without.
UNUSED_IN_A_QUANTIZATION = (
    "torch",
    "rich",
    "sympy.core",
    "lingeronnx.analysis",
    "lingeronnx.compat",
    "lingeronnx.deployment",
    "lingeronnx.interchange.convert",
    "lingeronnx.interchange.qdq.import_model",
    "lingeronnx.quantization.report.advice",
    "lingeronnx.quantization.report.describe",
    "lingeronnx.quantization.report.evaluation",
    "lingeronnx.quantization.report.report",
    "lingeronnx.quantization.scales.imported_scales",
    "lingeronnx.quantization.steps.external_plan",
    "lingeronnx.torch",
    "lingeronnx.cli",
    "lingeronnx.luna.backend_passes",
    "lingeronnx.luna.dialects",
    "lingeronnx.luna.packer",
    "lingeronnx.luna.versions",
    "lingeronnx.luna.timing",
    "lingeronnx.operators.exact_nodes",
    "lingeronnx.operators.references",
    "lingeronnx.search.goal",
    "lingeronnx.search.ladder",
    "lingeronnx.search.run",
    "simulator.kernels.conv_transpose",
    "simulator.kernels.layer_norm",
    "simulator.kernels.recurrent",
    "simulator.kernels.softmax",
)


def test_quantize_loads_what_it_runs():
    code = f"""
import sys
import lingeronnx as lo
lo.quantize(
    "models/digits_cnn.onnx", "models/digits_calib.npz", platform="generic", effort="fast", limit=32
)
print([m for m in {UNUSED_IN_A_QUANTIZATION} if m in sys.modules])
print([m for m in sys.modules if m.endswith((".exact_qdq", ".reference"))])
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[]", "[]"]
