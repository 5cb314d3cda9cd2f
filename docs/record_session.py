"""Record a first session as docs/images/first_session.svg: install, try, quantize, report, deploy.

    python docs/record_session.py

Everything is run as a newcomer would: in an empty folder, with a new virtual environment and empty
caches of compiled kernels. The wall time of each command stands behind it, and is at most
`MAX_SECONDS` for all of them; pip downloads packages or takes them from its cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record_demo import WIDTH, write_picture
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "lingeronnx" / "cli" / "demo_model"
MAX_SECONDS = 180

#: Command -> number of lines of its output that the picture shows; the rest is counted.
COMMANDS = {
    "lingeronnx try digits_cnn.onnx": 20,
    "lingeronnx quantize digits_cnn.onnx --calib digits_calib.npz --platform arcs": 16,
    "lingeronnx report digits_cnn.onnx digits_cnn_quant.onnx --data digits_test.npz -o report": 8,
    "lingeronnx deploy digits_cnn_quant.onnx --input digits_test.npz -o board": 12,
}


def main() -> None:
    """Run the session and write the picture; exit with a message if it takes too long."""
    lines: list[Text] = []
    total = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in ("digits_cnn.onnx", "digits_calib.npz", "digits_test.npz"):
            shutil.copy(DATA / source, folder)
        programs = folder / "venv" / "bin"
        environment = {
            **os.environ,
            "COLUMNS": str(WIDTH),
            "FORCE_COLOR": "1",
            "LINGERONNX_CACHE_DIR": str(folder / "cache"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        environment.pop("PYTHONPATH", None)
        install = f"{sys.executable} -m venv venv && venv/bin/pip install --quiet {ROOT}"
        _, seconds = _run(install, folder, environment)
        total += seconds
        lines.append(
            _format_prompt("python -m venv venv && . venv/bin/activate && pip install .", seconds)
        )
        for command, max_lines in COMMANDS.items():
            output, seconds = _run(command, folder, environment)
            total += seconds
            shown = output.replace(f"{folder}/", "").strip("\n").splitlines()
            lines.append(_format_prompt(command, seconds))
            lines += [Text.from_ansi(line) for line in shown[:max_lines]]
            if len(shown) > max_lines:
                lines.append(Text(f"  ... {len(shown) - max_lines} more lines", style="dim"))
    lines.append(Text(f"all together: {total:.0f} s", style="bold"))
    if total > MAX_SECONDS:
        sys.exit(f"the session took {total:.0f} s, more than {MAX_SECONDS}; nothing is written")
    write_picture(lines, "a first session", ROOT / "docs" / "images" / "first_session.svg")


def _run(command: str, folder: Path, environment: dict[str, str]) -> tuple[str, float]:
    """Run a shell command in `folder`; return what it prints, and its wall time in seconds."""
    start = time.monotonic()
    result = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    if result.returncode != 0:
        sys.exit(f"{command}\n{result.stdout}{result.stderr}")
    seconds = time.monotonic() - start
    print(f"{seconds:6.1f} s  {command}", flush=True)
    return result.stdout, seconds


def _format_prompt(command: str, seconds: float) -> Text:
    """Format a prompt with a command and the time that it took."""
    return Text.assemble((f"\n$ {command}", "bold"), (f"   # {seconds:.0f} s", "dim"))


if __name__ == "__main__":
    main()
