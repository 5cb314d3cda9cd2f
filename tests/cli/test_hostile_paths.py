"""Every path of every command is a link to itself, a folder, a pipe, a device, a name that is too
long, or lies in a folder without permission: the answer is a result or one line.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib
import os
import pkgutil
import shutil
import signal
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import lingeronnx
import simulator
from lingeronnx.cli import main
from tests.each import check_each

GOOD = Path(__file__).parent.parent / "files" / "0.1"
_NOBODY = 65534
_QUICK = ["--effort", "fast"]

#: A valid call of each command, as far as its paths go: (argument or option, valid value).
CALLS = {
    "quantize": (["m.onnx", "--calib", "d.npz", *_QUICK], ("m.onnx", "d.npz")),
    "simulate": (["q.onnx", "--input", "d.npz"], ("q.onnx", "d.npz")),
    "evaluate": (["q.onnx", "--data", "d.npz"], ("q.onnx", "d.npz")),
    "check": (["q.onnx"], ("q.onnx",)),
    "try": (["m.onnx", "--calib", "d.npz"], ("m.onnx", "d.npz")),
    "convert": (["q.onnx", "-o", "o.onnx", "--to", "qdq"], ("q.onnx", "o.onnx")),
    "fix-dequant": (["q.onnx"], ("q.onnx",)),
    "export": (["net.py:net", "-o", "e.onnx", "--input-shape", "x=1,3"], ("e.onnx",)),
    "checkpoint": (["a.pt", "-o", "b.pt", "--to", "torch"], ("a.pt", "b.pt")),
    "finetune": (
        ["m.onnx", "--train", "d.npz", "-o", "t.onnx", "--epochs", "1"],
        ("m.onnx", "d.npz", "t.onnx"),
    ),
    "deploy": (["q.onnx", "-o", "out"], ("q.onnx", "out")),
    "verify": (
        ["q.onnx", "--input", "d.npz", "--device-output", "o.bin"],
        ("q.onnx", "d.npz", "o.bin"),
    ),
    "profile": (["m.onnx", "--data", "d.npz", "-o", "p"], ("m.onnx", "d.npz", "p")),
    "compare": (
        ["m.onnx", "q.onnx", "--data", "d.npz", "-o", "c"],
        ("m.onnx", "q.onnx", "d.npz", "c"),
    ),
    "sensitivity": (
        ["m.onnx", "--calib", "d.npz", "-o", "s", "--limit", "1", *_QUICK],
        ("m.onnx", "d.npz", "s"),
    ),
    "diff": (
        ["q.onnx", "q.onnx", "--data", "d.npz", "--baseline", "m.onnx", "--html", "f.html"],
        ("q.onnx", "d.npz", "m.onnx", "f.html"),
    ),
    "badcase": (["m.onnx", "q.onnx", "--data", "d.npz"], ("m.onnx", "q.onnx", "d.npz")),
    "trace": (["q.onnx", "-o", "t.json"], ("q.onnx", "t.json")),
    "profile-board": (["log.txt", "--model", "q.onnx"], ("log.txt", "q.onnx")),
    "report": (
        ["m.onnx", "q.onnx", "--data", "d.npz", "-o", "r"],
        ("m.onnx", "q.onnx", "d.npz", "r"),
    ),
}
#: Commands without a path.
WITHOUT_PATHS = {"platforms", "demo", "warmup", "schema", "completion", "doctor", "analyze"}
#: Text options that take DATA.
_DATA_OPTIONS = {"calib", "eval_data", "data", "train"}


def hostile_paths(folder: Path) -> dict[str, str]:
    """Create hostile files in `folder`; return their paths by kind."""
    for suffix in ("onnx", "npz", "pt"):
        os.symlink(f"loop.{suffix}", folder / f"loop.{suffix}")
        os.mkfifo(folder / f"pipe.{suffix}")
        (folder / f"folder.{suffix}").mkdir()
        (folder / f"empty.{suffix}").write_bytes(b"")
        os.symlink(f"nowhere.{suffix}", folder / f"dangling.{suffix}")
    (folder / "closed").mkdir()
    for name in ("q.onnx", "d.npz", "a.pt"):
        shutil.copy(folder / name, folder / "closed" / name)
    (folder / "closed").chmod(0)
    (folder / "secret.onnx").write_bytes(b"x")
    (folder / "secret.npz").write_bytes(b"x")
    for name in ("secret.onnx", "secret.npz"):
        (folder / name).chmod(0)
    stems = ("loop", "pipe", "folder", "empty", "dangling", "secret", "closed/q", "loop.npz/x")
    return {
        **{f"{stem}.{suffix}": f"{stem}.{suffix}" for stem in stems for suffix in ("onnx", "npz")},
        "loop.pt": "loop.pt",
        "pipe.pt": "pipe.pt",
        "a name of 300 bytes": "x" * 300 + ".npz",
        "a path of 5,000 bytes": "x/" * 2500 + "x.onnx",
        "a file as a folder": "m.onnx/x.npz",
        "nothing": "",
        "the folder itself": ".",
        "the parent": "..",
        "a device": "/dev/null",
        "a full device": "/dev/full",
    }


@pytest.fixture
def here(monkeypatch):
    """A folder with good and hostile files; this process has no more rights than any user."""
    parent = Path(tempfile.mkdtemp(prefix="lingeronnx-paths-"))
    folder = parent / "here"
    folder.mkdir()
    for each in (parent, folder):
        each.chmod(0o777)
    copies = {
        "m.onnx": "conv.onnx",
        "q.onnx": "conv_venus.onnx",
        "d.npz": "conv.npz",
        "a.pt": "one_plain.pt",
    }
    for name, source in copies.items():
        shutil.copy(GOOD / source, folder / name)
    (folder / "net.py").write_text("import torch\nnet = torch.nn.Linear(3, 2)\n")
    (folder / "o.bin").write_bytes(bytes(3))
    (folder / "log.txt").write_text("nothing\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LINGERONNX_CACHE_DIR", str(folder / "cache"))
    try:
        yield folder
    finally:
        if (folder / "closed").exists():
            (folder / "closed").chmod(0o700)
        shutil.rmtree(parent, ignore_errors=True)


@contextlib.contextmanager
def as_ordinary_user():
    """Give up the rights of root for a while, if this process has them."""
    if os.geteuid():
        yield
        return
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def alarm(seconds: int):
    """Raise TimeoutError in a command that waits, as for the writer of a pipe."""

    def stop(*_: object) -> None:
        raise TimeoutError("the command waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def path_parameters(command: click.Command) -> list[str]:
    """Return the spelling of the options that take a path or DATA."""
    return [
        max(param.opts, key=len)
        for param in command.params
        if isinstance(param, click.Option)
        and (isinstance(param.type, click.Path) or param.name in _DATA_OPTIONS)
    ]


def calls_with(name: str, path: str) -> dict[str, list[str]]:
    """Return calls of a command with `path` in place of each of its paths, by that place."""
    words, paths = CALLS[name]
    calls = {
        f"for {valid}": [name, *(path if word == valid else word for word in words)]
        for valid in paths
    }
    for option in path_parameters(main.commands[name]):
        if option not in words:
            count = main_option(name, option).nargs
            calls[option] = [name, *words, option, *[path] * count]
    return calls


def main_option(name: str, option: str) -> click.Parameter:
    return next(param for param in main.commands[name].params if option in param.opts)


def test_every_command_is_covered():
    """A new command needs a call here."""
    assert CALLS.keys() | WITHOUT_PATHS == main.commands.keys()


@functools.cache
def load_everything() -> None:
    """Import all modules that a command may import later."""
    names = ["concurrent.futures.thread", "importlib.resources", "torch"]
    for package in (lingeronnx, simulator):
        names += [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for module in names:
        if not module.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    for encoding in ("ascii", "latin-1", "utf-8"):
        codecs.lookup(encoding)


def fault(words: list[str], is_ordinary_user: bool = True) -> str:
    """Run a command; return what is wrong with its answer, an empty text if nothing is."""
    with as_ordinary_user() if is_ordinary_user else contextlib.nullcontext(), alarm(60):
        result = CliRunner().invoke(main, words)
    error = result.exception
    if result.exit_code in (0, 2):
        return ""
    if result.exit_code != 1 or not (error is None or isinstance(error, SystemExit)):
        return f"exit code {result.exit_code}, {error!r}: {result.stderr[-600:]}"
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return "" if len(lines) == 1 and len(lines[0]) > 20 else result.stderr[-600:]


#: Commands that take little time; the others are in the slow tier.
_QUICK_COMMANDS = ("fix-dequant", "trace")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in _QUICK_COMMANDS else [pytest.mark.slow])
        for name in sorted(CALLS)
    ],
)
def test_paths(name, here, monkeypatch):
    """One command with every hostile path in every place."""
    monkeypatch.delenv("LINGERONNX_STRICT", raising=False)
    # An ordinary user may have no right to read the files of root's Python: they are loaded here.
    load_everything()
    assert not fault([name, *CALLS[name][0]], is_ordinary_user=False)

    def check(kind, path):
        for place, words in calls_with(name, path).items():
            found = fault(words)
            assert not found, f"{place}: {found}"

    check_each(check, hostile_paths(here).items())
