"""`deploy --try` through real files."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import lingeronnx
from lingeronnx.cli import main
from lingeronnx.deployment import verify
from lingeronnx.deployment.c_program import host_source
from lingeronnx.ir import ir
from tests import nets

from . import programs

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
needs_generator = pytest.mark.skipif(
    host_source.explain_missing_generator() is not None, reason="emx-onnx-cgen is not installed"
)


def deployed(tmp_path, model, *words):
    ir.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "calib.npz", **nets.samples(model, 16))
    words = [
        "deploy",
        tmp_path / "net.onnx",
        "--calib",
        tmp_path / "calib.npz",
        "-o",
        tmp_path / "board",
        *words,
    ]
    return CliRunner().invoke(main, [str(word) for word in (*words, "--effort", "fast")])


@needs_generator
@pytest.mark.parametrize("packages", ("one", "many"))
def test_try(tmp_path, packages):
    """A model that is not chip-ready gets a program, which is proved; the README says so, and what
    fails means.
    """
    found = deployed(
        tmp_path, programs.make_two_chip_parts(), "--try", "--packages", packages, "--json"
    )
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["proof"]["failed"] == []
    text = (tmp_path / "board" / "README.md").read_text()
    assert "tried on a PC" in text
    assert "2 chip parts, 2 host parts" in text
    script = (tmp_path / "board" / "pack.sh").read_text()
    assert ("cat net_quant_chip1.pkg net_quant_chip2.pkg > net_quant.pkg" in script) == (
        packages == "one"
    )
    for number in range(3):
        for part in ("chip1", "chip2"):
            place = tmp_path / "board/golden" / str(number) / part
            assert verify(
                tmp_path / f"board/net_quant_{part}.onnx", place / "input.npz", dump=place
            ).agrees


@needs_generator
def test_prefix(tmp_path):
    """Files and C names begin with it."""
    found = deployed(tmp_path, programs.make_two_chip_parts(), "--prefix", "kws2_b")
    assert found.exit_code == 0, found.output
    own = [path.name for path in (tmp_path / "board").glob("*.[ch]")]
    assert {name for name in own if not name.startswith("kws2_b")} == {"main.c"}
    assert "int kws2_b_run(" in (tmp_path / "board/kws2_b.h").read_text()


@pytest.mark.parametrize(
    "prefix", ("main", "math", "chip", "all", "Kws", "9x", "a__b", "a.b", "", "a_", "naïve")
)
def test_prefix_that_c_does_not_take(tmp_path, prefix):
    found = deployed(tmp_path, programs.make_single_part(), "--prefix", prefix)
    assert found.exit_code == 1
    assert found.output.startswith(f"error: --prefix {prefix}: not a prefix of C names; use")
    assert not (tmp_path / "board").exists()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name, stem",
    (
        ("main", "main_model"),
        ("Math", "Math_model"),
        ("chip", "chip_model"),
        ("open", "open_model"),
        ("m", "m_model"),
        ("mains", "mains"),
        ("int", "int"),
    ),
)
def test_names_that_c_has_files_for(tmp_path, name, stem):
    """The program builds and is proved; a line tells of the other name."""
    data = nets.samples(programs.make_single_part(), 16)
    lingeronnx.quantize(programs.make_single_part(), data, effort="fast", platform="venus").save(
        tmp_path / f"{name}.onnx"
    )
    np.savez(tmp_path / "in.npz", **data)
    words = [
        "deploy",
        tmp_path / f"{name}.onnx",
        "--input",
        tmp_path / "in.npz",
        "-o",
        tmp_path / "board",
        "--try",
    ]
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "board" / f"{stem}.c").is_file()
    assert (
        f"files and C names begin with {stem}, because {name} is reserved"
        in found.output.replace("\n", " ")
    ) == (name != stem)


def test_parts_1_has_no_program(tmp_path):
    """Nothing is cut, so that a model which is not one part is not deployed; the others are as they
    were.
    """
    found = deployed(tmp_path, programs.make_two_chip_parts(), "--parts", "1")
    assert found.exit_code == 1
    assert found.output.startswith("error: the model is not chip-ready as one part")
    assert not (tmp_path / "board").exists()
    assert deployed(tmp_path, programs.make_single_part(), "--parts", "1").exit_code == 0
    words = [
        "quantize",
        tmp_path / "net.onnx",
        "--calib",
        tmp_path / "calib.npz",
        "-o",
        tmp_path / "q.onnx",
    ]
    words += ["--parts", "1", "--effort", "fast", "--deploy"]
    ir.save(programs.make_two_chip_parts(), tmp_path / "net.onnx")
    found = CliRunner().invoke(main, [str(word) for word in (*words, tmp_path / "third")])
    assert (found.exit_code, (tmp_path / "third").exists(), (tmp_path / "q.onnx").exists()) == (
        1,
        False,
        False,
    )
    found = deployed(tmp_path, programs.make_two_chip_parts(), "--parts", "1", "--max-parts", "4")
    assert (
        found.output
        == "error: the options: max_parts = 4: it cannot be combined with parts 1; pass one of the two\n"
    )


def test_without_the_generator(tmp_path, monkeypatch):
    """A chip-ready model has its program; one with host parts a line that says what is missing, and
    no C.
    """
    monkeypatch.setattr(
        host_source,
        "explain_missing_generator",
        lambda: "host parts in C need emx: pip install 'lingeronnx[c]'",
    )
    found = deployed(tmp_path, programs.make_single_part(), "--try")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "board" / "net_quant.c").is_file()
    found = deployed(tmp_path, programs.make_two_chip_parts())
    assert found.exit_code == 0, found.output
    assert "no C program is written: host parts in C need emx" in found.output.replace("\n", " ")
    assert "no C program is written" in (tmp_path / "board" / "README.md").read_text()
    assert not list((tmp_path / "board").glob("*.c"))
    found = deployed(tmp_path, programs.make_two_chip_parts(), "--try")
    assert (found.exit_code, found.output.count("\n")) == (1, 1)


@needs_generator
def test_no_compiler(tmp_path, monkeypatch):
    """One line, and nothing is written."""
    monkeypatch.setenv("CC", "no-such-compiler")
    found = deployed(tmp_path, programs.make_two_chip_parts(), "--try")
    assert (found.exit_code, found.output.count("\n")) == (1, 1)
    assert "no C compiler 'no-such-compiler'" in found.output
    assert not (tmp_path / "board").exists()
