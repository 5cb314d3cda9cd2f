"""Record what `lingeronnx demo` prints as docs/images/demo.svg, the picture in the README.

python docs/record_demo.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def main() -> None:
    """Run the demo in an empty folder and write the picture."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "PYTHONPATH": str(root)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lingeronnx", "demo"]
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    lines = result.stdout.splitlines()
    plain = [Text.from_ansi(line).plain.strip() for line in lines]
    end = next(n for n, line in enumerate(plain) if line.startswith("written "))
    text = "\n".join(lines[:end])  # what follows has paths and a time
    shown = [Text("$ lingeronnx demo", style="bold"), Text.from_ansi(text.rstrip())]
    write_picture(shown, "lingeronnx demo", root / "docs" / "images" / "demo.svg")


def write_picture(lines: Iterable[Text], title: str, path: Path) -> None:
    """Write lines as a picture of a terminal, without fonts of another host."""
    with open(os.devnull, "w", encoding="utf-8") as null_device:
        console = Console(record=True, width=WIDTH, file=null_device)
        for line in lines:
            console.print(line)
        console.print()  # the last line of the picture is cut off below
        svg = console.export_svg(title=title)
    svg = re.sub(r" *@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
