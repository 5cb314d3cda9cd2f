"""External data as they are read.

The bytes of a model's tensors that lie in files in the model's folder.
No more is read than the files hold, but for tensors that share some.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnx import TensorProto

from ..errors import ModelError
from ..files import describe_irregular_file

__all__ = ["load_external_data"]

# What tensors may take out of the files together: several may share bytes, but a small file must
# not fill the memory.
_MAX_REUSE_FACTOR, _REUSE_SLACK_BYTES = 4, 1 << 28


def load_external_data(tensors: Iterable[TensorProto], model: Path) -> None:
    """Put the external data of `tensors`, those of the file `model`, into memory.

    Raises ModelError for data outside the folder of the model (or of the file that it is a link
    to), for a file that is missing, unreadable, too short, a pipe or a device, and for tensors that
    take some bytes again and again.
    """
    sizes: dict[Path, int] = {}
    taken = 0
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = entries.get("location", "")
        offset, length = _read_offset_and_length(tensor, entries)
        try:
            file = _resolve_data_file(tensor, name, model)
            size = sizes.setdefault(file, file.stat().st_size)
            length = size - offset if length is None else length
            if length < 0 or offset + length > size:
                raise ModelError(
                    f"initializer '{tensor.name}' needs {length} bytes at {offset} of '{name}'; "
                    "the file is short, "
                    f"it has {size}"
                )
            taken += length
            if taken > _MAX_REUSE_FACTOR * sum(sizes.values()) + _REUSE_SLACK_BYTES:
                raise ModelError(
                    f"initializer '{tensor.name}': with those before, it takes {taken} bytes of "
                    "external data out of "
                    f"{sum(sizes.values())}, more than {_MAX_REUSE_FACTOR} times as many; export "
                    "the model again"
                )
            with file.open("rb") as opened:
                opened.seek(offset)
                data = opened.read(length)
        except OSError as error:
            raise ModelError(
                f"initializer '{tensor.name}' keeps its data in '{name}', which cannot be read "
                f"({error.strerror}); "
                "copy that file beside the model"
            ) from error
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT
        tensor.raw_data = data


def _resolve_data_file(tensor: TensorProto, name: object, model: Path) -> Path:
    """Return the file called `name` in the model's folder; a model that is a link has two."""
    if not isinstance(name, str) or "\0" in name:
        raise ModelError(
            f"initializer '{tensor.name}' names no file for its external data; the file is "
            "damaged, export it again"
        )
    candidates = [
        folder / name
        for folder in (model.parent, model.resolve().parent)
        if _is_inside(folder / name, folder)
    ]
    if not name or not candidates:
        raise ModelError(
            f"initializer '{tensor.name}' keeps its data in '{name}', outside the folder of the "
            "model; "
            "move the file beside the model"
        )
    file = next((file for file in candidates if file.exists()), candidates[0])
    if (what := describe_irregular_file(file)) is not None:
        raise ModelError(
            f"initializer '{tensor.name}' keeps its data in '{name}', which is {what}, no regular "
            "file; "
            "copy the data into a file beside the model"
        )
    return file


def _is_inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _read_offset_and_length(tensor: TensorProto, entries: dict[str, str]) -> tuple[int, int | None]:
    """Return offset and length of the data; None where it goes to the end of the file."""
    try:
        offset, length = int(entries.get("offset", 0)), entries.get("length")
        if offset < 0:
            raise ValueError(f"offset {offset}")
        return offset, None if length is None else int(length)
    except ValueError as error:
        text = str(error)[:100]
        raise ModelError(
            f"initializer '{tensor.name}' has damaged external data ({text}); "
            "is the data file the one that was written with the model?"
        ) from error
