"""The lines of other tools' scripts run as they are written there; the pages on them are made of
the tables.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import lingeronnx as lo
from tests.compat.migration_lines import TOOLS, page, written

torch = pytest.importorskip("torch")
nn = torch.nn

RUN = [
    (f"{tool}: {line.there}", line.code)
    for tool, lines in TOOLS.items()
    for line in lines
    if line.code
]


class Net(nn.Module):
    """Two layers with one Relu called behind both, and a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4 * 4 * 4, 5)
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(torch.flatten(self.relu(self.conv2(self.relu(self.bn(self.conv1(x))))), 1))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the net as a file and a legacy graph, the samples, and what `quantize` makes of
    the file.
    """
    home = tmp_path_factory.mktemp("lines")
    torch.manual_seed(0)
    x = torch.randn(16, 3, 8, 8)
    lo.torch.export(Net().eval(), x, home / "float.onnx")
    samples = x.numpy()
    quantized = lo.quantize(home / "float.onnx", samples, platform="venus", effort="fast")
    quantized.save(home / "legacy.onnx")
    return home, samples, quantized


@pytest.fixture
def names(files, tmp_path, monkeypatch):
    """What the lines may call, in a folder of their own."""
    home, samples, quantized = files
    for name in ("float.onnx", "legacy.onnx"):
        shutil.copy(home / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.onnx, "export", torch.onnx.export)  # as it was, behind the test
    torch.manual_seed(0)
    calls: dict[str, object] = {"raises": pytest.raises}
    calls |= {name: getattr(home, name) for home in (lo.torch, lo.compat) for name in home.__all__}
    theirs = {}
    with contextlib.suppress(ModuleNotFoundError):
        from onnxruntime import quantization

        theirs = {
            n: getattr(quantization, n)
            for n in ("CalibrationDataReader", "CalibrationMethod", "QuantFormat", "QuantType")
        }
    ours = {
        "net": Net().eval(),
        "x": torch.from_numpy(samples),
        "samples": samples,
        "quantized": quantized,
    }
    return {
        "lo": lo,
        "np": np,
        "Path": Path,
        "torch": torch,
        "nn": nn,
        "warnings": warnings,
        **ours,
        **theirs,
        **calls,
    }


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for _, code in RUN], ids=[name for name, _ in RUN])
def test_the_line_runs_as_it_is_written_there(names, code) -> None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", UserWarning)
        exec(code, names)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_page_is_made_of_the_table(tool) -> None:
    """`python -m tests.compat.migration_lines` writes it."""
    text = page(tool).read_text(encoding="utf-8")
    assert text == written(tool)
    assert text.count("| there | here |") == 1
