"""Starting, help, and the commands that need no model of the user's: real files in, exit code and
whole outputs out.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import get_args

import click
import pytest

from lingeronnx import __version__, cli
from lingeronnx.cli.terminal import progress_bar
from lingeronnx.common.progress import format_progress
from lingeronnx.interchange.convert import DIALECT_BY_DOMAIN, STANDARD_FORMS
from lingeronnx.runtime.data import pictures
from lingeronnx.targets import PLATFORMS
from tests.cli.helpers import ROOT, CommandFolder
from tests.each import check_each

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "numba", "pydantic", "yaml", "rich", "torch")


def test_help_imports_nothing_heavy() -> None:
    commands = [[], *([name] for name in cli.main.commands)]
    code = (
        "import sys\nfrom lingeronnx.cli import main\n"
        f"for command in {commands!r}:\n"
        "    main([*command, '--help'], standalone_mode=False)\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_python_m_lingeronnx() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lingeronnx", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lingeronnx {__version__}\n", "")


def test_help_of_every_command_has_an_example(here: CommandFolder) -> None:
    def check(name: str) -> None:
        text = here.run_ok(name, "--help")
        assert f"Examples:\n    lingeronnx {name}" in text
        assert max(map(len, text.splitlines())) <= 120

    check_each(check, sorted(cli.main.commands))


def test_choices_are_those_of_formats_and_pictures() -> None:
    # law: the command line offers nothing that does not exist
    choices = {
        str(option.name): {*option.type.choices}
        for option in cli.main.commands["quantize"].params
        if isinstance(option.type, click.Choice)
    }
    assert choices["graph_format"] == {*DIALECT_BY_DOMAIN, *STANDARD_FORMS}
    for name in ("layout", "color", "resize"):
        assert choices[name] == {*get_args(getattr(pictures, name.title()))}


def test_platforms(here: CommandFolder) -> None:
    rows = here.json("platforms")["platforms"]
    assert [row["name"] for row in rows] == [target.name for target in PLATFORMS]
    text = here.run_ok("platforms")
    for target in PLATFORMS:
        assert re.search(rf"^  {target.name} .* {len(target.ops)}$", text, re.M)
        more = here.run_ok("platforms", target.name)
        assert all(word in more for word in (*target.ops, *(fault.key for fault in target.faults)))
        assert set(here.json("platforms", target.name)["ops"]) == set(target.ops)


def test_the_page_of_operators_is_what_the_code_says(here: CommandFolder) -> None:
    # mended by: lingeronnx platforms --markdown > docs/reference/operators.md
    text = here("platforms", "--markdown").stdout
    assert text == (ROOT / "docs" / "reference" / "operators.md").read_text(encoding="utf-8")
    assert "| Conv2dInt | Conv | yes | limits | limits | limits |" in text
    assert "- venus, arcs, venusA: kernel height and width must not exceed 5\n" in text
    assert not set("{}") & set(text)
    for target in PLATFORMS:
        assert all(f"- {fault.text}\n" in text for fault in target.faults)


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as progress:
        assert progress is not None
        progress("calibrating", 64, None)
    assert "calibrating" in stderr.getvalue()
    assert "64 samples" in stderr.getvalue()


def test_how_far_a_piece_of_work_is() -> None:
    """The rate once there is one to speak of; the time left at this rate where the whole is
    known.
    """

    def check(done: int, total: int | None, seconds: float, words: str) -> None:
        assert format_progress(done, total, seconds) == words

    cases = (
        (0, None, 9.0, ""),
        (64, None, 0.5, "64 samples"),
        (64, None, 4.0, "64 samples, 16/s"),
        (3, None, 4.0, "3 samples, 0.75/s"),
        (3, 10, 0.1, "3 of 10"),
        (3, 10, 4.0, "3 of 10, 0.75/s, 10 s left"),
        (10, 10, 4.0, "10 of 10, 2.5/s, 0 s left"),
    )
    check_each(check, cases)


def test_options_of_quantize_are_grouped(here) -> None:
    """Each option stands under one heading of the help; only --config and --help are left over."""
    command = cli.main.commands["quantize"]
    context = click.Context(command, info_name="quantize")
    groups = dict(command.iter_option_groups(context))
    assert [spelling for spelling, _ in groups["Other"]] == ["--config FILE", "-h, --help"]
    assert sum(map(len, groups.values())) == len(command.get_params(context)) - 1  # the argument
    text = here.run_ok("quantize", "--help")
    assert all(f"\n{heading}:\n" in text for heading in groups)
