"""The wheel as its users meet it: installed into a fresh environment, without a checkout beside
it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("lingeronnx", "simulator", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")

PROGRAM = """
from typing import assert_type

import lingeronnx as lo

model = lo.quantize("model.onnx", "calib.npz", platform="venus")
assert_type(model, lo.QuantizedModel)
assert_type(model.plan, lo.Plan)
assert_type(lo.Session("model_quant.onnx"), lo.Session)
assert_type(lo.evaluate(model.session(), "test.npz", metric="top1"), lo.Evaluation)
lo.quantize(1.5)
lo.quantise("model.onnx")
lo.quantize("model.onnx", efort="fast")
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform == "win32", reason="names the programs of an environment as POSIX does"
    ),
]


def run(*command, cwd):
    """Run a command outside of the checkout; return what it printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources(folder):
    """Copy what is installed of the checkout into a folder of `folder`, and return that."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    return source


def test_an_editable_install_is_a_path(tmp_path):
    """Type checkers and editors follow a path of a .pth file, and no hook of setuptools."""
    source = sources(tmp_path)
    build = f"import setuptools.build_meta as b; b.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        (path,) = [name for name in held.namelist() if name.endswith((".pth", ".py"))]
        assert held.read(path).decode().strip() == str(source)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the folder of an environment with our wheel; everything else comes from the one that
    runs the tests.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = sources(folder)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("lingeronnx-*.whl")
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
        ).strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env"


def test_demo_runs(installed, tmp_path):
    """`lingeronnx demo` finds its model and its digits in the package."""
    where = run(
        installed / "bin" / "python",
        "-c",
        "import lingeronnx; print(lingeronnx.__file__)",
        cwd=tmp_path,
    )
    assert Path(where.strip()).is_relative_to(installed)
    text = run(installed / "bin" / "lingeronnx", "demo", cwd=tmp_path)
    assert "float accuracy    99.20 % of 500 held-out digits" in text
    assert "integer accuracy" in text
    assert (tmp_path / "build" / "digits_cnn_quant.onnx").is_file()
    assert Path(where.strip()).with_name("py.typed").is_file()


# mypy reads numpy, onnx and torch without a cache; `make lint` has mypy on the sources
@pytest.mark.deep
def test_types_are_seen(installed, tmp_path):
    """A user's type checker knows what the functions return, and reports wrong arguments and
    misspelt names.
    """
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed / "bin" / "python",
    )
    done = subprocess.run(
        [*map(str, command), "program.py"], cwd=tmp_path, capture_output=True, text=True
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 3, done.stdout + done.stderr
    assert (
        'program.py:11: error: Argument 1 to "quantize" has incompatible type "float"' in errors[0]
    )
    assert 'program.py:12: error: Module has no attribute "quantise"' in errors[1]
    assert 'program.py:13: error: Unexpected keyword argument "efort" for "quantize"' in errors[2]
