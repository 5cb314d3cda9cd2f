"""`simulate` and `evaluate` as their users meet them: real files in, exit code and whole outputs
out.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.runtime import dump
from lingeronnx.runtime.session import Session
from tests.cli.helpers import CALIB, DIGITS, TEST, CommandFolder, samples

pytestmark = pytest.mark.smoke


def test_simulate_the_whole_output(quant: CommandFolder) -> None:
    text = quant.run_ok(
        "simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "p", "--limit", "3"
    )
    assert re.sub(r"\d\.\d kB", "x kB", text) == (
        "  tensor   role     type      shape          scale\n"
        "  ────────────────────────────────────────────────\n"
        "  p                 float32   [3, 2, 2, 2]\n"
        "  y        output   float32   [3, 3]\n"
        "\n"
        "  written           tiny_quant_out.npz (3 samples, x kB)\n"
    )
    with np.load("tiny_quant_out.npz") as written:
        assert set(written.files) == {"p", "y"}


def test_simulate_integers_are_the_real_values_times_the_scale(quant: CommandFolder) -> None:
    quant.run_ok(
        "simulate", "tiny_quant.onnx", "--input", "test.npz", "--taps", "p", "-o", "real.npz"
    )
    body = quant.json(
        "simulate",
        "tiny_quant.onnx",
        "--input",
        "test.npz",
        "--taps",
        "p",
        "--integers",
        "-o",
        "int.npz",
    )
    scales = {entry["name"]: entry["scale"] for entry in body["tensors"]}
    assert {entry["name"]: entry["output"] for entry in body["tensors"]} == {"p": None, "y_q": "y"}
    with np.load("real.npz") as real, np.load("int.npz") as integers:
        for name, key in (("p", "p"), ("y", "y_q")):
            assert integers[key].dtype == np.int8
            assert np.array_equal(real[name] * scales[key], integers[key])


@pytest.mark.parametrize("integers", [False, True])
def test_simulate_in_python_is_the_command(quant: CommandFolder, integers: bool) -> None:
    options = ["--integers"] if integers else []
    quant.run_ok(
        "simulate",
        "tiny_quant.onnx",
        "--input",
        "test.npz",
        "--taps",
        "all",
        *options,
        "-o",
        "out.npz",
    )
    result = lo.simulate("tiny_quant.onnx", "test.npz", taps=["all"], integers=integers)
    with np.load("out.npz") as written:
        assert set(written.files) == set(result.arrays)
        assert all(np.array_equal(written[name], array) for name, array in result.arrays.items())
    assert result.samples == len(samples())


def test_simulate_gives_the_same_for_every_batch_size(quant: CommandFolder) -> None:
    for batch in (1, 7, 1000):
        run = (
            "simulate",
            "tiny_quant.onnx",
            "--input",
            "test.npz",
            "--taps",
            "all",
            "--batch",
            batch,
        )
        quant.run_ok(*run, "-o", f"{batch}.npz", "--dump", f"dump{batch}")
    files = quant.files()
    assert files["1.npz"] == files["7.npz"] == files["1000.npz"]
    dumps = [
        {k.partition("/")[2]: v for k, v in files.items() if k.startswith(f"dump{n}/")}
        for n in (1, 7, 1000)
    ]
    assert dumps[0] == dumps[1] == dumps[2]


def test_dump_holds_every_tensor_as_it_is(quant: CommandFolder) -> None:
    quant.run_ok(
        "simulate", "tiny_quant.onnx", "--input", "test.npz", "--dump", "out", "--batch", "6"
    )
    index = json.loads((quant.folder / "out" / "index.json").read_text())
    stream = list(Session("tiny_quant.onnx").taps({"x": samples()}))
    assert [entry["name"] for entry in index] == [name for name, _, _ in stream]
    for entry, (_, array, scale) in zip(index, stream, strict=True):
        read = np.load(quant.folder / "out" / entry["file"])
        assert (str(read.dtype), list(read.shape), entry["scale"]) == (
            entry["dtype"],
            entry["shape"],
            scale,
        )
        assert np.array_equal(read, array)
    assert {p.name for p in (quant.folder / "out").iterdir()} == {
        "index.json",
        *(entry["file"] for entry in index),
    }


def test_dump_of_some_tensors_has_safe_file_names(here: CommandFolder) -> None:
    quantize = ("quantize", DIGITS, "--calib", CALIB, "-o", "d.onnx", "--effort", "fast")
    here.run_ok(*quantize)
    name = "/pool/MaxPool_output_0"
    here.run_ok(
        "simulate", "d.onnx", "--input", TEST, "--limit", "5", "--taps", name, "--dump", "out"
    )
    (entry,) = json.loads((here.folder / "out" / "index.json").read_text())
    assert (entry["name"], entry["file"]) == (name, "0000_pool_MaxPool_output_0.npy")
    assert entry["shape"] == [5, 32, 4, 4]


def test_at_shows_one_tensor(quant: CommandFolder) -> None:
    run = ("simulate", "tiny_quant.onnx", "--input", "test.npz", "--at", "x_q", "--batch", "6")
    at = quant.json(*run)["at"]
    exact = samples() * at["scale"]
    want = np.clip(exact, -128, 127)
    assert (at["name"], at["dtype"], at["shape"]) == ("x_q", "int8", [20, 2, 4, 4])
    assert (at["min"], at["max"], at["first"]) == (
        want.min(),
        want.max(),
        want.reshape(-1)[:8].tolist(),
    )
    assert at["mean"] == pytest.approx(want.mean())
    text = quant.run_ok(*run)
    assert f"  min               {want.min():g}  = {want.min() / at['scale']:g}\n" in text
    assert "  type              int8 [20, 2, 4, 4]\n" in text


def test_simulate_a_float_model(here: CommandFolder) -> None:
    body = here.json(
        "simulate", "tiny.onnx", "--input", "test.npz", "--taps", "all", "--batch", "8"
    )
    assert [entry["name"] for entry in body["tensors"]] == ["x", "c", "r", "p", "f", "y"]
    with np.load("tiny_out.npz") as written:
        assert np.array_equal(written["x"], samples())
        assert written["y"].shape == (20, 3)


def test_npz_takes_any_tensor_name(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "/a/b:0": np.ones((2, 2), np.int8), "": np.zeros(1)}
    dump.write_npz(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as read:
        assert read.files == list(arrays)
        for name, array in arrays.items():
            assert np.array_equal(read[name], array)


def test_evaluate_the_whole_output(here: CommandFolder) -> None:
    shutil.copy(DIGITS, "digits.onnx")
    text = here.run_ok("evaluate", "digits.onnx", "--data", TEST, "--baseline", "digits.onnx")
    assert text == (
        "  top1              99.20 %  digits.onnx\n"
        "  baseline          99.20 %  digits.onnx\n"
        "  drop              0.00 points\n"
        "  samples           500\n"
    )


def test_evaluate_as_json_writes_infinity_as_null(here: CommandFolder) -> None:
    body = here.json("evaluate", "tiny.onnx", "--data", "calib.npz", "--baseline", "tiny.onnx")
    assert body == {
        "model": "tiny.onnx",
        "baseline_model": "tiny.onnx",
        "metric": "sqnr",
        "unit": "dB",
        "value": None,
        "baseline": None,
        "drop": None,
        "samples": 20,
    }
    text = here.run_ok("evaluate", "tiny.onnx", "--data", "calib.npz", "--baseline", "tiny.onnx")
    assert text == (
        "  sqnr              infinite (equal)  tiny.onnx against tiny.onnx\n  samples           "
        "20\n"
    )


def test_evaluate_another_tensor(quant: CommandFolder) -> None:
    data = ("--data", "test.npz", "--baseline", "tiny.onnx", "--metric", "cosine")
    assert quant.json("evaluate", "tiny_quant.onnx", *data, "--output", "y")["value"] > 0.99
