"""The steps of the Dockerfile without Docker, each below a folder that stands for the container's root.

    python -m benchmarks.container_steps [--python PYTHON]

COPY takes what .dockerignore lets through. RUN lines run in a shell, with the container's folders
replaced by ours and `python` by PYTHON, by default the first Python 3.11 or newer of the system,
else this one. What needs the container's system (useradd) is named as not run. The entry point then
runs `demo` with the settings of ENV, as user 1000 where this is started by root. Images, layers and
the base image itself are not shown by this.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = 1000
_FOLDERS = ("/opt", "/cache", "/work", "/source")
_SYSTEM = ("useradd",)  # programs that change the system that they run on


def iterate_steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, the rest) of each line of a Dockerfile, comments apart.

    A line goes on behind a backslash.
    """
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word.upper(), rest.strip()


def is_included(path: str, rules: str) -> bool:
    """Whether .dockerignore lets a file through.

    The last rule that names it, or a folder above it, decides.
    """
    kept, parts = True, path.split("/")
    for rule in rules.splitlines():
        pattern = rule.strip().lstrip("!").rstrip("/")
        if not pattern or pattern.startswith("#"):
            continue
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        deep = pattern.removeprefix("**/")
        names = above if deep == pattern else parts
        if any(fnmatch.fnmatchcase(name, deep) for name in names):
            kept = rule.strip().startswith("!")
    return kept


def copy_context(root: Path, target: Path) -> list[str]:
    """Copy what `.dockerignore` of `root` lets through; return the paths."""
    rules, found = (root / ".dockerignore").read_text(), []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith((".git/", ".venv/")) and is_included(name, rules):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)
            found.append(name)
    return found


def _rebase_command(words: str, root: Path, python: str) -> str:
    """Return a command with the container's folders below `root`, and `python` as this system calls it."""
    moved = re.sub(rf"(?<![\w./])({'|'.join(_FOLDERS)})(?=[/:\s]|$)", rf"{root}\1", words)
    return re.sub(r"^python ", f"{python} ", moved)


def run_build_steps(root: Path, python: str) -> dict[str, str]:
    """Run the steps below `root`; return what ENV set."""
    around, place = {}, root
    for word, rest in iterate_steps((ROOT / "Dockerfile").read_text()):
        if word == "WORKDIR":
            place = Path(_rebase_command(rest, root, python))
            place.mkdir(parents=True, exist_ok=True)
        elif word == "COPY" and not rest.startswith("--from"):
            print(f"COPY {rest}: {len(copy_context(ROOT, place))} files", flush=True)
        elif word == "ENV":
            around |= dict(
                each.split("=", 1) for each in _rebase_command(rest, root, python).split()
            )
        elif word == "RUN":
            for part in rest.split(" && "):
                if part.split()[0] in _SYSTEM:
                    print(f"not run: {part}")
                    continue
                command = _rebase_command(part, root, python)
                print(f"RUN {part}", flush=True)
                subprocess.run(command, shell=True, check=True, cwd=place)
    return around


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, then the entry point; return 1 where it did not say what the demo says."""
    system = "/usr/bin/python3"
    able = subprocess.run(
        [system, "-c", "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"], check=False
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable if able.returncode else system)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="lingeronnx-") as temporary:
        root = Path(temporary).resolve()
        root.chmod(0o755)
        around = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            **run_build_steps(root, options.python),
        }
        around = {key: value.replace("$PATH", os.environ["PATH"]) for key, value in around.items()}
        other = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        command = [str(root / "opt/lingeronnx/bin/lingeronnx"), "demo"]
        done = subprocess.run(
            command, env=around, cwd=root / "work", capture_output=True, text=True, **other
        )  # type: ignore[call-overload]
        print(
            "ENTRYPOINT demo as user "
            f"{USER if other else os.geteuid()}:\n{done.stdout}{done.stderr}"
        )
        return int(done.returncode != 0 or "integer accuracy" not in done.stdout)


if __name__ == "__main__":
    sys.exit(main())
