"""Law: how many files an extension takes. A patch of each kind is applied to a copy of the sources,
and what it adds is used.

The patches are examples of CONTRIBUTING.md too. One that no longer applies is to be written anew
from a changed checkout, by ``git diff --stat -p -U2 -- lingeronnx``.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent / "patches"

COMPOSITION = """
import numpy as np
import lingeronnx as lo
from tests.nets import Net, samples

net = Net(3, 6, 6, seed=8)
sums = net.node("CumSum", net.conv("x", (6, 3, 3, 3)), net.const(np.array(-1)))
model = net.graph(net.conv(sums, (2, 6, 1, 1), out="y"))
result = lo.quantize(model, samples(model), platform="generic", effort="fast")
print([node.op_type for node in result.graph.graph], result.report.outputs["y"]["sqnr"] > 25)
"""

CHIP_VARIANT = """
import lingeronnx as lo
from tests.nets import plain, samples

model = plain()
result = lo.quantize(model, samples(model), platform="venusA-half", effort="fast")
print(result.report.chip_ready, result.report.cost.shared_limit)
"""

CALIBRATOR = """
import numpy as np
import lingeronnx as lo
from tests.nets import plain, samples

model = plain()
data = np.random.default_rng(0).standard_normal((64, 3, 12, 12)).astype(np.float32)
data[0, 0, 0, 0] = 100
scales = [
    lo.quantize(
        model, {"x": data}, platform="generic", mode="max-value", effort="fast", calibrator=name
    ).plan.tensors["x"].scale
    for name in ("max", "sigma")
]
print([round(float(scale), 1) for scale in scales])
"""


def run(folder, script):
    """Run a script with the sources of a folder; return what it prints, or the error's last line."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return (finished.stdout or finished.stderr).strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="patches are applied by git")
@pytest.mark.parametrize(
    "patch, files, script, before, after",
    (
        (
            "composition",
            2,
            COMPOSITION,
            ("['Quant', 'Conv2dInt', 'Dequant', 'CumSum', 'Quant', 'Conv2dInt', 'Dequant'] True"),
            "['Quant', 'Conv2dInt', 'LinearInt', 'Conv2dInt', 'Dequant'] True",
        ),
        (
            "chip_variant",
            1,
            CHIP_VARIANT,
            (
                "lingeronnx.common.errors.ConfigError: unknown platform 'venusA-half'; did you mean "
                "'venusA'?; known: generic, venus, arcs, venusA"
            ),
            "True 196608",
        ),
        (
            "calibrator",
            2,
            CALIBRATOR,
            (
                "lingeronnx.common.errors.ConfigError: the options: calibrator = 'sigma': expected max, "
                "percentile, mse or kl; did you mean 'max'?"
            ),
            "[1.3, 27.3]",
        ),
    ),
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_files_of_an_extension(tmp_path, patch, files, script, before, after):
    """The patch touches so many files, and the script needs it."""
    path = PATCHES / f"{patch}.patch"
    assert len(re.findall("^diff --git ", path.read_text(), re.MULTILINE)) == files
    for package in ("lingeronnx", "simulator"):
        shutil.copytree(ROOT / package, tmp_path / package)
    assert run(tmp_path, script) == before
    subprocess.run(["git", "apply", str(path)], cwd=tmp_path, check=True, capture_output=True)
    assert run(tmp_path, script) == after
