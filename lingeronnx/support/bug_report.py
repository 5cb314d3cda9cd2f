"""A report of a bug as one file: what a maintainer needs, without weights or data.

Written where a command ends with exit code 70. Nothing in here may hide the bug that it reports:
what cannot be put into the archive is told in its README, and where no file can be written at all
there is none.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import LingerOnnxError, format_exception
from ..files import replace_file

__all__ = ["write_bug_report"]

_MAX_MODELS = 5  # of a command line; no command takes more
_MAX_MESSAGE_CHARS = (
    200  # characters of an exception's message; some print whole graphs with their constants
)

_README = """\
A bug in lingeronnx. In this archive are:

command.txt       the command line
traceback.txt     where it ended; of messages the first 200 characters
environment.json  versions, processor, settings; what `lingeronnx doctor --json` prints
models/           the models of the command line without their weights: a pattern stands for every constant but single
                  numbers and integers of at most 64 elements (shapes, axes)

No weight, no sample and no other file of yours is in it. Names of tensors and nodes, of files and folders in the
command line, and lines of your own Python functions in the traceback are: look into it before you send it.
"""


def write_bug_report(arguments: Sequence[str], trace: str) -> Path | None:
    """Write ``lingeronnx-report-DATE-TIME.zip``, in this folder or else in the system's for temporary files.

    arguments : the command line behind the program's name. trace : the traceback. Returns the file,
    None where none could be written.
    """
    parts = {
        "command.txt": shlex.join(["lingeronnx", *arguments]) + "\n",
        "traceback.txt": _truncate_messages(trace),
    }
    missing = []
    try:
        from .environment import inspect_environment

        parts["environment.json"] = json.dumps(inspect_environment().to_dict(), indent=2) + "\n"
    except Exception as error:  # the bug may be there
        missing.append(f"environment.json: {format_exception(error)}")
    models = dict(_iter_stripped_models(arguments, missing))
    readme = _README + "".join(f"\nnot in it: {line}" for line in missing)
    contents: dict[str, str | bytes] = {"README.txt": readme, **parts, **models}
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            path = (
                folder() / f"lingeronnx-report-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.zip"
            )
            with (
                replace_file(path) as made,
                zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                for name, content in contents.items():
                    archive.writestr(name, content)
        except (OSError, LingerOnnxError):
            continue
        return path
    return None


def _truncate_messages(trace: str) -> str:
    """Return a traceback without what its messages may print of a model.

    Of each the first 200 characters.
    """
    kept, message = [], False
    for line in trace.splitlines():
        frame = line.startswith(("  File ", "    ", "Traceback ", "During ", "The above "))
        if frame and not (message and line.startswith("    ")):
            kept.append(line)
        elif line and not message:
            kept.append(
                line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]} ..."
            )
        message = not frame or (message and line.startswith("    "))
    return "\n".join(kept) + "\n"


def _iter_stripped_models(words: Sequence[str], missing: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, bytes) of each model among the words, without its weights."""
    import onnx

    from ..graph.weight_stripping import strip_weights

    named = [Path(word.rpartition("=")[2]) for word in words if word.endswith(".onnx")]
    for number, path in enumerate(
        [each for each in dict.fromkeys(named) if each.is_file()][:_MAX_MODELS]
    ):
        try:
            bare = strip_weights(onnx.load(path, load_external_data=False))
            if bare is None:
                missing.append(f"{path.name}: its constants are too many")
            else:
                yield f"models/{number}-{path.name}", bare.SerializeToString()
        except Exception as error:  # a damaged file may be the reason for the bug
            missing.append(f"{path.name}: {format_exception(error)}")
