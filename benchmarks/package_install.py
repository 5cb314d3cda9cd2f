"""The sdist and the wheel, built as for a release, and each in clean environments outside of the checkout.

    python -m benchmarks.package_install [--python PYTHON ...] [--build-only] [--folder FOLDER]

`build` makes the sdist, and of the sdist the wheel, in environments of its own; both lie in dist/
afterwards. For each PYTHON the wheel is installed, with nothing else, and its commands are run on
real files: demo, quantize, simulate, compare, fix-dequant. Then the sdist is, with the first
PYTHON, and the wheel is run by `uvx` and by `pipx run`. By default PYTHON are this interpreter and
each `python3.N` that starts. The sizes on disk are told, the largest package first. The exit code
is 1 where something failed. Packages come from where pip takes them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = 16  # python3.N that are looked for
LEGACY = ROOT / "tests" / "golden" / "dequant" / "wrong_scale_neighbour.onnx"
PIP = ("-m", "pip", "-q", "--disable-pip-version-check")

#: What is run in each environment, DEMO being the folder of the demo's model and data in the installed package.
COMMANDS = (
    "demo",
    (
        "quantize DEMO/digits_cnn.onnx --calib DEMO/digits_calib.npz --eval DEMO/digits_test.npz "
        "--json -o quant.onnx"
    ),
    "simulate quant.onnx --input DEMO/digits_test.npz --limit 8 -o outputs.npz",
    "compare DEMO/digits_cnn.onnx quant.onnx --data DEMO/digits_test.npz --limit 32 -o compared",
    "fix-dequant legacy.onnx",
)

#: Files that they leave.
FILES = (
    "build/digits_cnn_quant.onnx",
    "quant.onnx",
    "outputs.npz",
    "compared/profiler.html",
    "legacy_fix.onnx",
)

_SIZES = """
import importlib.metadata as m, json

def size(found):
    paths = [found.locate_file(name) for name in found.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())

sizes = {found.name: size(found) for found in m.distributions()}
print(json.dumps(sizes))
"""


class CommandError(Exception):
    """A command failed; its text is what it said."""


def run(*command: object, cwd: Path, **settings: str) -> str:
    """Run a command outside of the checkout and of the environment that this runs in.

    Return what it printed.
    """
    around = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    } | settings
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(
            f"{' '.join(words)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def environment(python: str, folder: Path, *packages: object) -> Path:
    """Return the `bin` of a new environment in `folder` with these packages."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin" / "python", *PIP, "install", *packages, cwd=folder.parent)
    return folder / "bin"


def build_distributions(folder: Path) -> tuple[Path, Path]:
    """Return (sdist, wheel), made in dist/; the wheel is made of the sdist."""
    place = environment(sys.executable, folder / "build", "build")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "dist", "build", "*.egg-info", "__pycache__", "shared")
    shutil.copytree(ROOT, source, ignore=ignored)
    run(place / "python", "-m", "build", "--outdir", folder / "dist", source, cwd=folder)
    (sdist,), (wheel,) = (list((folder / "dist").glob(kind)) for kind in ("*.tar.gz", "*.whl"))
    (ROOT / "dist").mkdir(exist_ok=True)
    for made in (sdist, wheel):
        shutil.copy(made, ROOT / "dist")
    return sdist, wheel


def test_distribution(place: Path, folder: Path) -> float:
    """Run all commands with an environment's programs in an empty folder, an empty cache.

    Return the seconds.
    """
    folder.mkdir()
    shutil.copy(LEGACY, folder / "legacy.onnx")
    began = time.monotonic()
    there = run(place / "python", "-c", "import lingeronnx; print(lingeronnx.__file__)", cwd=folder)
    where = Path(there.strip()).parent
    if not where.is_relative_to(place.parent):
        raise CommandError(f"what was imported lies in {where}, not in {place.parent}")
    for words in COMMANDS:
        filled = words.replace("DEMO", str(where / "demo")).split()
        said = run(
            place / "lingeronnx", *filled, cwd=folder, LINGERONNX_CACHE_DIR=str(folder / "cache")
        )
        if "--json" in filled:
            accuracy = json.loads(said)["accuracy"]
            if accuracy["integer"] < 98:
                raise CommandError(f"quantize: accuracy {accuracy}")
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise CommandError(f"not written: {', '.join(missing)}")
    return time.monotonic() - began


def measure_installed_sizes(place: Path) -> dict[str, int]:
    """Return {distribution: bytes of its files}, the largest first."""
    found = json.loads(run(place / "python", "-c", _SIZES, cwd=place))
    return dict(
        sorted(
            ((n, s) for n, s in found.items() if n not in ("pip", "setuptools")),
            key=lambda each: -each[1],
        )
    )


def iterate_interpreters() -> Iterator[str]:
    """Yield this interpreter, and python3.N of others that start, pyenv's folders among them."""
    yield sys.executable
    for minor in range(11, NEWEST):
        if minor == sys.version_info.minor:
            continue
        known = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        for python in (shutil.which(f"python3.{minor}"), *map(str, known)):
            if (
                python
                and not subprocess.run(
                    [python, "-c", ""], capture_output=True, check=False
                ).returncode
            ):
                yield python
                break


def _with_runners(wheel: Path, folder: Path) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield (what, command): the demo by programs that make their own environments."""
    place = environment(sys.executable, folder / "runners", "uv", "pipx")
    yield "uvx", (place / "uvx", "--python", sys.executable, "--from", wheel, "lingeronnx", "demo")
    yield (
        "pipx run",
        (place / "pipx", "run", "--python", sys.executable, "--spec", wheel, "lingeronnx", "demo"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Build, test, print; return 1 where something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", help="interpreters")
    parser.add_argument("--build-only", action="store_true", help="make dist/, test nothing")
    options = parser.parse_args(argv)
    failed = []
    with tempfile.TemporaryDirectory(prefix="lingeronnx-") as temporary:
        folder = Path(temporary).resolve()
        sdist, wheel = build_distributions(folder)
        for made in (sdist, wheel):
            print(f"dist/{made.name:<40} {made.stat().st_size / 1e6:.2f} MB", flush=True)
        if options.build_only:
            return 0
        pythons = options.python or list(iterate_interpreters())
        for number, (python, package) in enumerate(
            [*((p, wheel) for p in pythons), (pythons[0], sdist)]
        ):
            name = f"{package.suffix} with {run(python, '--version', cwd=folder).strip()}"
            try:
                began = time.monotonic()
                place = environment(python, folder / f"env{number}", package)
                took = time.monotonic() - began
                print(
                    f"{name:<30} installed in {took:.0f} s, {len(COMMANDS)} commands in "
                    f"{test_distribution(place, folder / f'run{number}'):.0f} s",
                    flush=True,
                )
                held = measure_installed_sizes(place)
                print(f"{'':<30} {sum(held.values()) / 1e6:.0f} MB: ", end="")
                print(
                    ", ".join(
                        f"{key} {size / 1e6:.1f}" for key, size in held.items() if size > 1e6
                    ),
                    flush=True,
                )
            except CommandError as error:
                failed.append(name)
                print(f"{name:<30} FAILED: {error}", flush=True)
        for name, command in _with_runners(wheel, folder):
            try:
                (folder / name).mkdir()
                cache = {"UV_CACHE_DIR": str(folder / "uv"), "PIPX_HOME": str(folder / "pipx")}
                said = run(*command, cwd=folder / name, **cache)
                print(
                    (
                        f"{name:<30} "
                        f"{next(line for line in said.splitlines() if 'integer accuracy' in line)}"
                    ),
                    flush=True,
                )
            except CommandError as error:
                failed.append(name)
                print(f"{name:<30} FAILED: {error}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
