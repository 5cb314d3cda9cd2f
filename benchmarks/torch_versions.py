"""Whether the releases of torch that setup.cfg lets people have really do.

Tests/torch with each of them.
    python benchmarks/torch_versions.py [RELEASE ...] [--folder FOLDER] [--slow]

Each release is installed into a folder of its own, which stands before the environment of this
interpreter while the tests run: everything else is what is installed here. RELEASE is by default
the oldest one that setup.cfg names. A release that is already in FOLDER is not installed again. On
Linux PyPI's wheels bring CUDA, some gigabytes; pip's own variables name other indexes. The tests
are those of `make test`, with --slow those of `make test-slow`. The exit code is 1 where tests
failed.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def get_oldest_torch() -> str:
    """Return the oldest release of torch that setup.cfg lets users have."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    (release,) = re.findall(
        r"^torch>=([\d.]+)", settings["options.extras_require"]["torch"], re.MULTILINE
    )
    return release if release.count(".") == 2 else f"{release}.0"


def test_with_torch(release: str, folder: Path, size: str) -> bool:
    """Install torch `release` below `folder`, run the tests of that `size` with it, and return whether they passed."""
    home = folder / f"torch-{release}"
    if not home.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--target", home, f"torch=={release}"],
            check=True,
        )
    path = os.pathsep.join((str(home), str(ROOT)))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "LINGERONNX_TESTS": size,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/torch"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Test each release; return 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "lingeronnx-torch-range"
    )
    parser.add_argument("--slow", action="store_true", help="the tests of `make test-slow`")
    options = parser.parse_args(argv)
    releases = options.releases or [get_oldest_torch()]
    failed = [
        r
        for r in releases
        if not test_with_torch(r, options.folder, "slow" if options.slow else "fast")
    ]
    print(
        f"torch {', '.join(releases)}: "
        f"{'all passed' if not failed else 'failed with ' + ', '.join(failed)}"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
