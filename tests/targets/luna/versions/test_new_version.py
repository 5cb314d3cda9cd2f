"""A version with one changed operator is one entry in one file: that of its chip."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import nets
from tests.targets.luna.versions.test_compatibility import make_norm_net

ROOT = Path(__file__).resolve().parents[4]
FILE = "lingeronnx/luna/versions/venus.py"
PACKAGES = ("lingeronnx", "simulator")

#: LayerNormInt with 15 fractional bits, as on venusA in 3.0.10.
ENTRY = """    VersionDelta(
        version="3.0.99",
        arithmetic={
            "LayerNormInt": LayerNormArithmetic(NO_LEFT_SHIFT, factor_bits=16, fraction_bits=15),
        },
    ),
"""

SCRIPT = """
import json, sys
import numpy as np
import lingeronnx as lo
samples = {"x": np.load("samples.npy")}
def quantize(platform):
    return lo.quantize("net.onnx", samples, platform=platform, effort="fast")
new, old = quantize("venus@3.0.99"), quantize("venus@3.0.10")
outputs = [model.session().run(None, samples)[0] for model in (new, old)]
print(json.dumps({
    "differ": bool(np.any(outputs[0] != outputs[1])),
    "equal to old": old.report.versions.equal_integers,
    "equal to new": new.report.versions.equal_integers,
}))
"""


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the package with the new version; one file differs."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    text = (tmp_path / FILE).read_text()
    anchor = '    VersionDelta(\n        version="2026-08-20",'
    assert text.count(anchor) == 1
    (tmp_path / FILE).write_text(text.replace(anchor, ENTRY + anchor))
    return tmp_path


def find_changed_files(folder):
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = [path.relative_to(ROOT) for path in files]
    return [str(name) for name in names if not filecmp.cmp(ROOT / name, folder / name, False)]


@pytest.mark.slow
def test_one_file_adds_a_version(copy):
    model = make_norm_net()
    (copy / "net.onnx").write_bytes(nets.ir.to_bytes(model))
    samples = nets.samples(model, 8)["x"]
    np.save(copy / "samples.npy", samples)
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert find_changed_files(copy) == [FILE]
    assert result["differ"]
    assert "3.0.99" not in result["equal to old"]
    assert "3.0.99" in result["equal to new"]
    assert "3.0.10" not in result["equal to new"]
