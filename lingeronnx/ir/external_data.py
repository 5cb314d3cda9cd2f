"""Load external data of a model from files in the model's folder.

No more bytes are read than the files contain, except for tensors that share some.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnx import TensorProto

from ..common.errors import ModelError
from ..common.files import describe_irregular_file, resolve_path

__all__ = ["load_external_data"]

# Limit of bytes read in total: tensors may share bytes, but a small file must not fill the memory.
_MAX_REUSE_FACTOR, _REUSE_SLACK_BYTES = 4, 1 << 28


def load_external_data(tensors: Iterable[TensorProto], model: Path) -> None:
    """Load the external data of `tensors` into memory.

    Parameters
    ----------
    tensors
        Tensors of the model, changed in place.
    model
        Path of the model file. Data files are relative to its folder, or if it is a symbolic link,
        to the folder of the file that it links to.

    Raises
    ------
    ModelError
        A data file is outside the folder, missing, unreadable, too short, a pipe or a device, or
        the tensors read the same bytes again and again.
    """
    file_sizes: dict[Path, int] = {}
    total_bytes = 0
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = entries.get("location", "")
        offset, length = _read_offset_and_length(tensor, entries)
        try:
            file = _resolve_data_file(tensor, name, model)
            size = file_sizes.setdefault(file, file.stat().st_size)
            length = size - offset if length is None else length
            if length < 0 or offset + length > size:
                raise ModelError(
                    f"initializer '{tensor.name}' needs {length} bytes at offset {offset} of "
                    f"'{name}', but the file has only {size} bytes; it is incomplete"
                )
            total_bytes += length
            if total_bytes > _MAX_REUSE_FACTOR * sum(file_sizes.values()) + _REUSE_SLACK_BYTES:
                raise ModelError(
                    f"initializer '{tensor.name}': the tensors up to this one read {total_bytes} "
                    f"bytes from {sum(file_sizes.values())} bytes of external data, more than "
                    f"{_MAX_REUSE_FACTOR} times as many; export the model again"
                )
            with file.open("rb") as stream:
                stream.seek(offset)
                content = stream.read(length)
        except OSError as error:
            raise ModelError(
                f"initializer '{tensor.name}' has its data in '{name}', which cannot be read "
                f"({error.strerror}); copy that file to the folder of the model"
            ) from error
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT
        tensor.raw_data = content


def _resolve_data_file(tensor: TensorProto, name: object, model: Path) -> Path:
    """Return the path of the data file `name` in the folder of the model or of its link's target.

    The first of the two where the file exists, else the first that contains the path: a file that
    does not exist is returned too.

    Raises
    ------
    ModelError
        If it is no file name, lies outside of these folders, or is not a regular file.
    """
    if not isinstance(name, str) or "\0" in name:
        raise ModelError(
            f"initializer '{tensor.name}' names no file for its external data; the file is "
            "malformed, export it again"
        )
    candidates = [
        folder / name
        for folder in (model.parent, resolve_path(model).parent)
        if _is_inside(folder / name, folder)
    ]
    if not name or not candidates:
        raise ModelError(
            f"initializer '{tensor.name}' has its data in '{name}', outside the folder of the "
            "model; move the file to the folder of the model"
        )
    file = next((file for file in candidates if file.exists()), candidates[0])
    file_kind = describe_irregular_file(file)
    if file_kind is not None:
        raise ModelError(
            f"initializer '{tensor.name}' has its data in '{name}', which is {file_kind}, not a "
            "regular file; copy the data to a file in the folder of the model"
        )
    return file


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether `file` lies in `folder` or below, after symbolic links are followed in both."""
    return resolve_path(file).is_relative_to(resolve_path(folder))


def _read_offset_and_length(tensor: TensorProto, entries: dict[str, str]) -> tuple[int, int | None]:
    """Return offset and length of the data in bytes; a length of None: up to the end of the file.

    `entries` are the keys and values of the external data. An absent offset is 0. Raises ModelError
    if one is not an integer or the offset is negative; a negative length is returned as it is.
    """
    try:
        offset, length = int(entries.get("offset", 0)), entries.get("length")
        if offset < 0:
            raise ValueError(f"offset {offset}")
        return offset, None if length is None else int(length)
    except ValueError as error:
        text = str(error)[:100]
        raise ModelError(
            f"initializer '{tensor.name}' has malformed external data ({text}); "
            "check that the data file was written together with the model"
        ) from error
