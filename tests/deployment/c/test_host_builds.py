"""Programs as users build them: the vendor's header as a system header, strict warnings, C++."""

import shutil
import subprocess

import pytest

from lingeronnx.deployment.c_program.build import get_stub_folder
from lingeronnx.deployment.c_program.packages import NO_PACKER, PACKER_ENVIRONMENT
from tests import nets

from . import programs

STRICT = ("-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    model = programs.make_single_part()
    folder = tmp_path_factory.mktemp("single") / "board"
    return programs.deploy_case(folder, model, nets.samples(model, 8), "single", samples=2)


@pytest.fixture(scope="module")
def noisy_include(tmp_path_factory):
    """Return a folder with a header of the executor that warns."""
    folder = tmp_path_factory.mktemp("vendor")
    shutil.copytree(get_stub_folder() / "thinker", folder / "thinker")
    header = folder / "thinker" / "thinker.h"
    header.write_text(
        header.read_text() + "\nstatic inline int noisy(int unused) { int other; return 0; }\n"
    )
    return folder


@pytest.mark.parametrize("compiler", ("gcc", "clang"))
def test_strict_warnings_with_a_header_that_warns(case, noisy_include, tmp_path, compiler):
    """-isystem keeps the vendor's warnings out; with -I they are errors."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    source, output = str(case.folder / "single.c"), str(tmp_path / "single.o")
    command = [compiler, "-std=c99", *STRICT, f"-I{case.folder}", "-c", source, "-o", output]
    subprocess.run([*command, "-isystem", str(noisy_include)], check=True)
    assert subprocess.run([*command, f"-I{noisy_include}"], capture_output=True).returncode
    assert "-isystem $(THINKER)/include" in (case.folder / "Makefile").read_text()
    assert "SYSTEM PRIVATE" in (case.folder / "CMakeLists.txt").read_text()


@pytest.mark.parametrize("compiler", ("gcc", "clang"))
def test_a_long_prefix(tmp_path, compiler):
    """All files compile without warnings: no array of the program is too short for its name."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    model, prefix = programs.make_single_part(), "a_long_name_" * 8
    case = programs.deploy_case(tmp_path / "board", model, nets.samples(model, 8), prefix)
    for source in case.folder.glob("*.c"):
        if not source.stem.endswith("_firmware"):  # an example for a board
            include = f"-I{get_stub_folder()}"
            command = [compiler, "-std=c99", *STRICT, include, "-fsyntax-only", str(source)]
            subprocess.run(command, check=True)


@pytest.mark.parametrize("compiler", ("g++", "clang++"))
def test_the_header_in_cpp(case, tmp_path, compiler):
    """It compiles without warnings, and its functions have C linkage."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    source = tmp_path / "use.cpp"
    source.write_text(
        '#include "single.h"\n'
        "int start(const single_package *packages) { return single_init(packages); }\n"
    )
    output = tmp_path / "use.o"
    command = [compiler, "-std=c++11", *STRICT, f"-I{case.folder}", "-c", str(source)]
    subprocess.run([*command, "-o", str(output)], check=True)
    symbols = subprocess.run(["nm", "-u", str(output)], capture_output=True, text=True, check=True)
    assert "single_init" in symbols.stdout.split()


def test_a_packer_that_fails_is_explained(case, tmp_path):
    """pack.sh says which environment the packer needs, and ends with an error."""
    folder = tmp_path / "board"
    shutil.copytree(case.folder, folder)
    packer = tmp_path / "bin" / "tpacker"
    packer.parent.mkdir()
    packer.write_text("#!/bin/sh\necho \"No module named 'onnx.mapping'\" >&2\nexit 1\n")
    packer.chmod(0o755)
    done = subprocess.run(
        ["sh", "pack.sh"],
        cwd=folder,
        env={"PATH": f"{packer.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == PACKER_ENVIRONMENT
    packer.unlink()
    done = subprocess.run(
        ["sh", "pack.sh"],
        cwd=folder,
        env={"PATH": f"{packer.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (1, NO_PACKER)
