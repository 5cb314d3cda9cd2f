"""`deploy --try` through real files."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from lingeronnx.cli import main
from lingeronnx.deployment import verify
from lingeronnx.deployment.c import host
from lingeronnx.graph import ir
from tests import nets

from . import programs

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
needs_generator = pytest.mark.skipif(host.available() is not None, reason="emx-onnx-cgen is not installed")


def deployed(tmp_path, model, *words):
    ir.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **nets.samples(model, 16))
    words = ["deploy", tmp_path / "net.onnx", "--calib", tmp_path / "calib.npz", "-o", tmp_path / "board", *words]
    return CliRunner().invoke(main, [str(word) for word in (*words, "--effort", "fast")])


@needs_generator
@pytest.mark.parametrize("packages", ("one", "many"))
def test_try(tmp_path, packages):
    """A model that is not chip-ready gets a program, which is proved; the README says so, and what fails means."""
    found = deployed(tmp_path, programs.gap(), "--try", "--packages", packages, "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["proof"]["failed"] == []
    text = (tmp_path / "board" / "README.md").read_text()
    assert "tried on a PC" in text
    assert "2 chip parts, 2 host parts" in text
    script = (tmp_path / "board" / "pack.sh").read_text()
    assert ("cat net_quant_chip1.pkg net_quant_chip2.pkg > net_quant.pkg" in script) == (packages == "one")
    for number in range(3):
        for part in ("chip1", "chip2"):
            place = tmp_path / "board/golden" / str(number) / part
            assert verify(tmp_path / f"board/net_quant_{part}.onnx", place / "input.npz", dump=place).agrees


def test_without_the_generator(tmp_path, monkeypatch):
    """A chip-ready model has its program; one with host parts a line that says what is missing, and no C."""
    monkeypatch.setattr(host, "available", lambda: "host parts in C need emx: pip install 'lingeronnx[c]'")
    found = deployed(tmp_path, programs.plain(), "--try")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "board" / "net_quant.c").is_file()
    found = deployed(tmp_path, programs.gap())
    assert found.exit_code == 0, found.output
    assert "no C program is written: host parts in C need emx" in found.output.replace("\n", " ")
    assert "no C program is written" in (tmp_path / "board" / "README.md").read_text()
    assert not list((tmp_path / "board").glob("*.c"))
    found = deployed(tmp_path, programs.gap(), "--try")
    assert (found.exit_code, found.output.count("\n")) == (1, 1)


@needs_generator
def test_no_compiler(tmp_path, monkeypatch):
    """One line, and nothing is written."""
    monkeypatch.setenv("CC", "no-such-compiler")
    found = deployed(tmp_path, programs.gap(), "--try")
    assert (found.exit_code, found.output.count("\n")) == (1, 1)
    assert "no C compiler 'no-such-compiler'" in found.output
    assert not (tmp_path / "board").exists()
