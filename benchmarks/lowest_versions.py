"""Whether the lowest versions that setup.cfg allows really do.

An environment of them, and a few tests of each law.
    python -m benchmarks.lowest_versions [--folder FOLDER] [--tests PATH ...] [--size fast|usual]

The versions are those of setup.cfg's `>=`, of what every user installs, of the extras `EXTRAS` and
of what tests need: nothing is written down a second time. What these need in turn comes as pip
chooses it. FOLDER is kept where it is named, and not set up again. torch has a command of its own
(`benchmarks/torch_versions.py`): tests of lingeronnx/torch are skipped here. Warnings are no errors
here: old releases warn of what newer ones have mended. The exit code is that of pytest.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Extras that are taken as well; torch and C have commands of their own, one exact release, or both.
EXTRAS = ("report", "pictures", "cluster")

#: What runs the tests, of the extra `test`.
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "scikit-learn", "setuptools")

#: What the tests below take: each stage, all targets, commands through real files.
TESTS = (
    "tests/passes",
    "tests/flow",
    "tests/ops",
    "tests/simulator",
    "tests/run",
    "tests/qdq",
    "tests/repair",
    "tests/cli",
    "tests/analysis",
    "tests/search",
    "tests/schemas",
)


def get_lowest_versions(
    extras: Sequence[str] = EXTRAS, tools: Sequence[str] = TOOLS
) -> dict[str, str]:
    """Return {distribution: its lowest version} of what users install, of `extras`, and of `tools` for the tests."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    optional = settings["options.extras_require"]
    found = dict(_bounds(settings["options"]["install_requires"]))
    for extra in extras:
        found |= _bounds(optional[extra])
    tests = dict(_bounds(optional["test"]))
    return {**found, **{name: tests[name] for name in tools}}


def _bounds(lines: str) -> Iterator[tuple[str, str]]:
    """Yield (distribution, lowest version) of requirements that do not only exclude a release."""
    for line in lines.splitlines():
        if line and not line.startswith("#") and not re.match(r"[\w-]+!=", line):
            bound = re.fullmatch(r"([\w-]+)(?:>=|==)([\d.]+)(?:,<[\d.]+)?", line)
            if bound is None:
                raise SystemExit(
                    f"setup.cfg: '{line}' names no lowest version; write NAME>=VERSION"
                )
            yield bound[1], bound[2]


def install_environment(folder: Path) -> Path:
    """Return the Python of an environment of the lowest versions and this checkout, made in `folder` once."""
    python, whole = folder / "bin" / "python", folder / ".whole"
    wanted = [f"{name}=={version}" for name, version in get_lowest_versions().items()]
    if not whole.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = (str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install")
        subprocess.run([*pip, *wanted], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
        whole.touch()
    print("\n".join(wanted), flush=True)
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Set up the environment, run the tests in it, and return pytest's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="the environment; a temporary one by default")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--size", default="fast", choices=("fast", "slow"))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        python = install_environment((options.folder or Path(temporary) / "lowest").resolve())
        around = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LINGERONNX_TESTS": options.size,
            "OMP_NUM_THREADS": "1",
        }
        around.setdefault("LINGERONNX_CACHE_DIR", str(python.parents[1] / "cache"))
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "default",
            *options.tests,
        ]
        return subprocess.run(command, cwd=ROOT, env=around, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
