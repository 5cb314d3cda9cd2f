"""The runner for models in the wild: data, rows and the table. It is a script: loaded from its file."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.passes.helpers import proto

_FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "models_in_the_wild.py"
MODEL = "g (float[N,3] x, int64[1,4] ids, float[1,2,4] mask) => (float[N,3] y) { y = Relu(x) }"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("models_in_the_wild", _FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_samples_have_the_sizes_of_the_inputs(script, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(proto(MODEL), path)
    arrays = script.draw_samples(path, (), 1, 6)
    assert {name: array.shape for name, array in arrays.items()} == {
        "x": (6, 3),
        "ids": (6, 4),
        "mask": (6, 2, 4),
    }
    assert arrays["ids"].dtype == np.int64
    assert set(np.unique(arrays["mask"])) == {0, 1}
    assert (np.diff(arrays["mask"], axis=-1) <= 0).all()
    again = script.draw_samples(path, ("--fix", "ids=1"), 1, 6)
    np.testing.assert_array_equal(again["x"], arrays["x"])
    assert "ids" not in again


def test_open_sizes_need_an_option(script, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(proto("g (float[N,T] x) => (float[N,T] y) { y = Relu(x) }"), path)
    assert script.draw_samples(path, (), 1, 6) is None
    options = ("--input-shape", "x=1,5")
    assert script.draw_samples(path, options, 1, 6)["x"].shape == (6, 5)


def test_data_beside_the_model_are_used(script, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(proto(MODEL), path)
    drawn = script.find_data(path, (), tmp_path / "data")
    assert drawn["calib"].parent == drawn["eval"].parent == tmp_path / "data"
    np.savez(tmp_path / "m_calib.npz", x=np.zeros((2, 3), np.float32))
    given = script.find_data(path, (), tmp_path / "data")
    assert given == {"calib": tmp_path / "m_calib.npz", "eval": None}


def test_a_row_has_the_better_calibration_and_the_whole_message(script):
    peer = {"MinMax,tensor": 10.0, "Percentile,tensor": 12.0, "MinMax,channel": "it failed"}
    row = {"error": "error: a | b", "seconds": 1.0, "MB": 100.0}
    assert script.format_row("m", "venus", row, peer) == (
        "| m | venus | - | - | - | 12.0 | - | 1.0 | 100 | error: a \\| b |"
    )
    row = {"integer MACs": 0.5, "chip-ready": True, "SQNR": 20.0, "reason": "Exp e: no"} | row
    del row["error"]
    assert "| 50.0 % | yes | 20.0 | 12.0 | - |" in script.format_row("m", "venus", row, peer)
