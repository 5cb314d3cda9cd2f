"""Archive for a bug report, without weights or data.

It is written if a command ends with exit code 70. Writing it must not hide the reported error:
files that cannot be included are listed in its README, and if the archive cannot be written, there
is none.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import LingerOnnxError, format_exception
from ..escaping import escape_lines, join_shell
from ..files import replace_file

__all__ = ["write_bug_report"]

_MAX_MODELS = 5  # no command takes more models
_MAX_MESSAGE_CHARS = 200  # some exceptions print graphs with their constants

_README = """\
A bug in lingeronnx. This archive contains:

command.txt       the command line
traceback.txt     the traceback, with the first 200 characters of each message
environment.json  versions, processor, settings: the output of `lingeronnx doctor --json`
models/           the models of the command line without their weights: constants are replaced by
                  a pattern, except scalars and integers of at most 64 elements (shapes, axes)

It contains no weights, no samples and no other files of yours. It does contain names of tensors,
nodes, files and folders, and lines of your own Python functions in the traceback: please check it
before you send it.
"""


def write_bug_report(arguments: Sequence[str], trace: str) -> Path | None:
    """Write ``lingeronnx-report-DATE-TIME-PID.zip`` to the current or the temporary folder.

    Parameters
    ----------
    arguments
        Command line without the name of the program.
    trace
        Traceback of the error.

    Returns
    -------
    Path or None
        The archive, or None if it could not be written.
    """
    reports = {
        "command.txt": join_shell(["lingeronnx", *arguments]) + "\n",
        "traceback.txt": escape_lines(_truncate_messages(trace)),
    }
    missing = []
    try:
        from .environment import inspect_environment

        reports["environment.json"] = json.dumps(inspect_environment().to_dict(), indent=2) + "\n"
    except Exception as error:  # this may be the bug itself
        missing.append(f"environment.json: {format_exception(error)}")
    models = dict(_iter_stripped_models(arguments, missing))
    readme = _README + "".join(f"\nnot included: {line}" for line in missing)
    contents: dict[str, str | bytes] = {"README.txt": readme, **reports, **models}
    file_name = f"lingeronnx-report-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.zip"
    for get_folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            path = get_folder() / file_name
            with (
                replace_file(path) as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                for name, content in contents.items():
                    archive.writestr(name, content)
        except (OSError, LingerOnnxError):
            continue
        return path
    return None


def _truncate_messages(trace: str) -> str:
    """Return the traceback with each message truncated to its first line and 200 characters.

    Longer messages may print parts of a model.
    """
    lines, is_in_message = [], False
    for line in trace.splitlines():
        is_frame = line.startswith(("  File ", "    ", "Traceback ", "During ", "The above "))
        is_continuation = is_in_message and line.startswith("    ")
        if is_frame and not is_continuation:
            lines.append(line)
        elif line and not is_in_message:
            is_short = len(line) <= _MAX_MESSAGE_CHARS
            lines.append(line if is_short else f"{line[:_MAX_MESSAGE_CHARS]} ...")
        is_in_message = not is_frame or is_continuation
    return "\n".join(lines) + "\n"


def _iter_stripped_models(
    arguments: Sequence[str], missing: list[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, bytes) of each model in the command line, without weights.

    Messages about models that cannot be included are appended to `missing`.
    """
    import onnx

    from ..graph.weight_stripping import strip_weights

    paths = [Path(text.rpartition("=")[2]) for text in arguments if text.endswith(".onnx")]
    model_paths = [path for path in dict.fromkeys(paths) if path.is_file()]
    for index, path in enumerate(model_paths[:_MAX_MODELS]):
        try:
            stripped = strip_weights(onnx.load(path, load_external_data=False))
            if stripped is None:
                missing.append(f"{path.name}: it has too many constants")
            else:
                name = re.sub(r"[^\w.-]", "_", path.name)
                yield f"models/{index}-{name}", stripped.SerializeToString()
        except Exception as error:  # a corrupt file may be the cause of the bug
            missing.append(f"{path.name}: {format_exception(error)}")
