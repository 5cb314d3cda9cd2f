"""Samples in .npz and .npy files.

A large archive comes piece by piece, and no header is believed before it is checked.
A packed archive may unpack to a hundred times its size. What its arrays hold is read off their
headers; the rows of large ones are then unpacked as they are asked for.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import DataError
from ...files import describe_irregular_file

__all__ = ["find_labels", "iter_file_items"]

_LABEL_NAMES = ("labels", "label")
_CHUNK_BYTES = 64 << 20  # bytes that are unpacked at once, beside a small archive
_ROW_MULTIPLE = 512  # a piece has a multiple of it, where it has more: a whole number of batches
_MAX_BYTES, _MAX_COMPRESSION_RATIO = (
    1 << 30,
    4,
)  # bytes, or times the file's size, that an archive may hold which must be read as a whole


@dataclass(frozen=True)
class _Entry:
    """An array of an archive, by its header; start : bytes before its data."""

    info: zipfile.ZipInfo
    data_offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran_order: bool

    @property
    def data_bytes(self) -> int:
        """Of the data."""
        return math.prod(self.shape) * self.dtype.itemsize


def iter_file_items(
    path: Path, what: str, names: Collection[str], by_row: Collection[str]
) -> Iterator[tuple[object, object]]:
    """Yield (feeds, labels) of an .npz or .npy file, a large archive in pieces.

    names : of the model's inputs. by_row : those with one sample after another on axis 0, all
    inputs with samples; or none. Raises DataError for what cannot be read, and for an archive that
    unpacks to too much.
    """
    if (odd := describe_irregular_file(path)) is not None:
        raise DataError(
            f"{what}: cannot read {path}: it is {odd}, no regular file; write the data to a file "
            "first"
        )
    try:
        with path.open(
            "rb"
        ) as file:  # opened here: numpy leaves the files of damaged archives open
            if file.read(2) == b"PK":
                with zipfile.ZipFile(file) as archive:
                    yield from _iter_archive(archive, path, what, names, by_row)
                return
            file.seek(0)
            yield _load_npy(file, path.stat().st_size), None
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{what}: cannot read {path}: {error.strerror or error}; is the path right?"
        ) from error
    # numpy raises ValueError, zipfile.BadZipFile, EOFError, KeyError ... for damaged files
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0].partition(": <")[
            0
        ]  # no name of a Python object
        raise DataError(
            f"{what}: {path} is not a readable {path.suffix} file ({text}); write it again"
        ) from error


def find_labels(arrays: Collection[str], names: Collection[str]) -> str | None:
    """Return which of the `arrays` holds labels; an input of the model, in `names`, does not."""
    return next((key for key in _LABEL_NAMES if key in arrays and key not in names), None)


def _iter_archive(
    archive: zipfile.ZipFile, path: Path, what: str, names: Collection[str], by_row: Collection[str]
) -> Iterator[tuple[object, object]]:
    entries = {
        e.info.filename.removesuffix(".npy"): e
        for i in archive.infolist()
        if (e := _read_entry(archive, i))
    }
    labels = find_labels(entries, names)
    kept = {
        name: entry
        for name, entry in entries.items()
        if name == labels or entry.dtype.kind in "fiub"
    }
    total = sum(entry.data_bytes for entry in kept.values())
    split = {} if total <= _CHUNK_BYTES else _row_readable_entries(kept, labels, names, by_row)
    rows = next((entry.shape[0] for entry in split.values()), 1)
    step = _rows_per_chunk(split)
    most = max(_MAX_BYTES, _MAX_COMPRESSION_RATIO * path.stat().st_size)
    once = total - sum(
        entry.data_bytes - entry.data_bytes // rows * step for entry in split.values()
    )
    if once > most:
        raise DataError(
            f"{what}: {path} unpacks to {total} bytes, of which {once} are needed at once; {most} "
            "are the limit: write "
            "fewer samples into a file, and several files into a folder"
        )
    whole = {
        name: _read_entry_array(archive, entry) for name, entry in kept.items() if name not in split
    }
    streams = {name: _open_entry_data(archive, entry) for name, entry in split.items()}
    for start in range(0, rows, step):
        parts = {
            name: _read_rows(streams[name], entry, min(step, rows - start))
            for name, entry in split.items()
        }
        found = {name: parts[name] if name in parts else whole[name] for name in kept}
        yield (
            {name: array for name, array in found.items() if name != labels},
            found.get(labels) if labels else None,
        )


def _row_readable_entries(
    entries: Mapping[str, _Entry],
    labels: str | None,
    names: Collection[str],
    by_row: Collection[str],
) -> dict[str, _Entry]:
    """Return the arrays that may be read row by row together; none where one of them cannot."""
    alone = (
        len(by_row) == len(names) == 1 and len(entries) - (labels is not None) == 1
    )  # by any name
    found = {
        name: entry for name, entry in entries.items() if alone or name == labels or name in by_row
    }
    sound = all(
        entry.shape and entry.shape[0] and not entry.is_fortran_order for entry in found.values()
    )
    return found if sound and len({entry.shape[0] for entry in found.values()}) == 1 else {}


def _rows_per_chunk(split: Mapping[str, _Entry]) -> int:
    """Return how many rows to read at once."""
    size = sum(entry.data_bytes // entry.shape[0] for entry in split.values())
    step = max(_CHUNK_BYTES // max(size, 1), 1)
    return step - step % _ROW_MULTIPLE if step > _ROW_MULTIPLE else step


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry | None:
    """Return what the header of an array says; None for a file that is none."""
    if not info.filename.endswith(".npy"):
        return None
    with archive.open(info) as stream:
        shape, fortran, dtype = _read_header(stream)
        start = stream.tell()
    found = _Entry(info, start, shape, dtype, fortran)
    if start + found.data_bytes > info.file_size:
        raise ValueError(
            f"{info.filename}: {list(shape)} of {dtype} are {found.data_bytes} bytes; it has "
            f"{info.file_size}"
        )
    return found


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    return shape, fortran, dtype


def _read_entry_array(archive: zipfile.ZipFile, entry: _Entry) -> np.ndarray:
    with archive.open(entry.info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _open_entry_data(archive: zipfile.ZipFile, entry: _Entry) -> IO[bytes]:
    """Return a stream behind the header."""
    stream = archive.open(entry.info)
    stream.read(entry.data_offset)
    return stream


def _read_rows(stream: IO[bytes], entry: _Entry, count: int) -> np.ndarray:
    """Return the next rows of an array."""
    data = bytearray()
    size = entry.data_bytes // entry.shape[0] * count
    while len(data) < size:
        if not (part := stream.read(size - len(data))):
            raise EOFError(f"{entry.info.filename} ends early")
        data += part
    return np.frombuffer(data, entry.dtype).reshape(count, *entry.shape[1:])


def _load_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Return the array of an .npy file of `size` bytes."""
    if file.read(1) == b"\x93":
        file.seek(0)
        shape, _, dtype = _read_header(file)
        if file.tell() + math.prod(shape) * dtype.itemsize > size:
            raise ValueError(
                f"{list(shape)} of {dtype} are {math.prod(shape) * dtype.itemsize} bytes; it has "
                f"{size}"
            )
    file.seek(0)
    return np.asarray(np.load(file, allow_pickle=False))
