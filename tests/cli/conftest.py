"""Folders with a tiny model and its data, as a user has them; with the quantized model too."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lingeronnx import api
from tests.cli.helpers import TINY, CommandFolder, samples, write_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandFolder:
    """A current folder with tiny.onnx, calib.npz and test.npz (labels: what the float model
    says).
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_model(tmp_path / "tiny.onnx", TINY)
    np.savez(tmp_path / "calib.npz", x=samples())
    labels = np.argmax(api.simulate("tiny.onnx", {"x": samples()}).arrays["y"], axis=1)
    np.savez(tmp_path / "test.npz", x=samples(), labels=labels)
    return CommandFolder(tmp_path)


@pytest.fixture(scope="session")
def tiny_quant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, quantized."""
    folder = tmp_path_factory.mktemp("tiny")
    api.quantize(write_model(folder / "tiny.onnx", TINY), samples()).save(
        folder / "tiny_quant.onnx"
    )
    return folder / "tiny_quant.onnx"


@pytest.fixture
def quant(here: CommandFolder, tiny_quant: Path) -> CommandFolder:
    """The same folder with tiny_quant.onnx in it."""
    shutil.copy(tiny_quant, here.folder / "tiny_quant.onnx")
    return here
