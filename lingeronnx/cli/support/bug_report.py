"""Archive for a bug report, without weights or data.

It is written if a command ends with exit code 70. Writing it must not hide the reported error:
files that cannot be included are listed in its README, and if the archive cannot be written, there
is none.

Weights are replaced by patterns; nodes, names, types and shapes stay the same. Most bugs depend
only on the graph. Each constant is replaced by a pattern of the same type and shape: floats by a
cosine of period 251, divided by the square root of the elements per row, so that sums stay near 1;
integers by -3 ... 3, or 0 ... 6 if unsigned. Scalars (limits, scales, zero points) and integers of
at most 64 elements (shapes, axes, pads) are not replaced, because the structure of the graph
depends on them. Doc strings and foreign metadata are removed.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ...common.command_lines import find_model_paths
from ...common.errors import LingerOnnxError, format_exception
from ...common.escaping import escape_lines, join_shell
from ...common.files import replace_file
from ...ir.onnx_file import iter_tensors

__all__ = ["strip_weights", "write_bug_report"]

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

_MAX_STRUCTURE_ELEMENTS = 64  # integer constants up to this size are shapes, axes and the like
_PATTERN_PERIOD = 251  # prime, so that rows differ; short, so that the file compresses well
_MAX_TOTAL_BYTES = 1 << 28  # of all constants together
_METADATA_PREFIX = "lingeronnx."
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


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
    """Return the traceback `trace` with each message cut to its first line and 200 characters.

    Longer messages may print parts of a model. Lines about frames stay.
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
    """Yield (name in the archive, bytes) of each .onnx file in `arguments`, without weights.

    At most _MAX_MODELS, each once. Messages about models that cannot be included are appended to
    `missing`.
    """
    for index, path in enumerate(find_model_paths(arguments)[:_MAX_MODELS]):
        try:
            stripped = strip_weights(onnx.load(path, load_external_data=False))
            if stripped is None:
                missing.append(f"{path.name}: it has too many constants")
            else:
                name = re.sub(r"[^\w.-]", "_", path.name)
                yield f"models/{index}-{name}", stripped.SerializeToString()
        except Exception as error:  # a corrupt file may be the cause of the bug
            missing.append(f"{path.name}: {format_exception(error)}")


def strip_weights(model: ModelProto) -> ModelProto | None:
    """Return a copy of `model` with patterns in place of weights, and without doc strings.

    None if its constants, at 4 bytes per element, exceed _MAX_TOTAL_BYTES. Constants on which the
    structure may depend (of one element, or small and not float) keep their values; only metadata
    whose key begins with _METADATA_PREFIX is left. External data need not be loaded: of these only
    types and shapes are used.
    """
    tensors = list(iter_tensors(model))
    if sum(math.prod(tensor.dims) * 4 for tensor in tensors) > _MAX_TOTAL_BYTES:
        return None
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    for tensor in iter_tensors(stripped):
        if not _is_structural_constant(tensor):
            tensor.CopyFrom(_make_pattern_tensor(tensor))
        tensor.doc_string = ""
    stripped.doc_string = stripped.graph.doc_string = ""
    for node in stripped.graph.node:
        node.doc_string = ""
    metadata = {
        entry.key: entry.value
        for entry in stripped.metadata_props
        if entry.key.startswith(_METADATA_PREFIX)
    }
    del stripped.metadata_props[:]
    helper.set_model_props(stripped, metadata)
    return stripped


def _is_structural_constant(tensor: TensorProto) -> bool:
    """Whether the graph structure may depend on `tensor`, so that it must keep its values.

    These are tensors of at most one element, and of at most _MAX_STRUCTURE_ELEMENTS if not of a
    float type; none in external data.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        return False
    count = math.prod(tensor.dims)
    return count <= 1 or (count <= _MAX_STRUCTURE_ELEMENTS and tensor.data_type not in _FLOAT_TYPES)


def _make_pattern_tensor(tensor: TensorProto) -> TensorProto:
    """Return a tensor of the name, type and shape of `tensor` with a periodic pattern as data.

    With k = element index mod _PATTERN_PERIOD in C order: floats are cos(2 k) divided by the square
    root of the elements per index of axis 0, integers k mod 7, less 3 if signed, and strings are
    empty.
    """
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        return helper.make_tensor(
            tensor.name, tensor.data_type, list(tensor.dims), np.full(count, b"")
        )
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    phase = np.arange(count) % _PATTERN_PERIOD
    if tensor.data_type in _FLOAT_TYPES:
        rows = max(tensor.dims[0] if tensor.dims else 1, 1)
        row_length = max(count // rows, 1)
        values = np.cos(phase * 2.0) / math.sqrt(row_length)
    else:
        values = phase % 7 - (3 if np.issubdtype(dtype, np.signedinteger) else 0)
    return numpy_helper.from_array(values.astype(dtype).reshape(tensor.dims), tensor.name)
