"""Pages of docs/ that the code tells (commands, calls, files, targets, error messages) say what it says now."""

import subprocess
import sys

from docs.pages import DOCS, written
from docs.pages.commands import page


def test_generated_pages_are_current():
    old = [path for path, text in written().items() if (DOCS / path).read_text(encoding="utf-8") != text]
    assert old == [], "run `make docs-pages` (or `python -m docs.pages`) and commit what it writes"


def test_a_command_that_ran_before_changes_no_page():
    """Click keeps the first help option that it makes of a command."""
    code = "from docs.pages.commands import page\nfrom lingeronnx.cli import main\n"
    code += "main(['quantize', '--help'], standalone_mode=False)\nprint(page())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith(page().rstrip())
