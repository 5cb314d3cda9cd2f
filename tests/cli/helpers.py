"""Tiny models in ONNX text, their data, and a folder to run commands in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from lingeronnx import cli

ROOT = Path(__file__).resolve().parent.parent.parent
DIGITS = ROOT / "models" / "digits_cnn.onnx"
CALIB = ROOT / "models" / "digits_calib.npz"
TEST = ROOT / "models" / "digits_test.npz"

TINY = """
<ir_version: 8, opset_import: ["": 13]>
tiny (float[N, 2, 4, 4] x) => (float[N, 3] y) {
    [conv] c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    [relu] r = Relu(c)
    [pool] p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)
    [flat] f = Flatten(p)
    [fc] y = Gemm<transB=1>(f, v, d)
}
"""

# An operator without an integer form between two convolutions; names that a terminal library could
# misread.
GAP = """
<ir_version: 8, opset_import: ["": 13]>
gap (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) {
    c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b)
    e = Erf(c)
    y = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(e, w, b)
}
"""


def write_model(path: Path, text: str, rename: dict[str, str] | None = None) -> Path:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(7)
    for name, shape in {"w": (2, 2, 3, 3), "b": (2,), "v": (3, 8), "d": (3,)}.items():
        if any(name in node.input for node in model.graph.node):
            array = rng.integers(-8, 8, shape).astype(np.float32) / 16
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for node in model.graph.node:
        node.name = (rename or {}).get(node.output[0], node.name)
    onnx.save(model, path)
    return path


def samples(count: int = 20) -> np.ndarray:
    return np.random.default_rng(3).integers(-16, 17, (count, 2, 4, 4)).astype(np.float32) / 16


class CommandFolder:
    """A folder of its own to run commands in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *args: object) -> Result:
        return CliRunner().invoke(cli.main, [str(a) for a in args])

    def run_ok(self, *args: object) -> str:
        """Run a command that must succeed, and return its output without trailing spaces."""
        result = self(*args)
        assert result.exit_code == 0, result.output
        return plain(result.stdout)

    def json(self, *args: object) -> dict:
        """Run with --json: one object is all of stdout, and the tables are on stderr."""
        result = self(*args, "--json")
        assert result.exit_code == 0, result.output
        assert result.stderr.strip()
        body = json.loads(
            result.stdout, parse_constant=lambda text: pytest.fail(f"{text} is not JSON")
        )
        assert isinstance(body, dict)
        return body

    def files(self) -> dict[str, bytes]:
        """Every file, hidden ones too, with its content."""
        return {
            str(p.relative_to(self.folder)): p.read_bytes()
            for p in self.folder.rglob("*")
            if p.is_file()
        }


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
