"""Read samples from .npz and .npy files, large archives in chunks, after checking all headers.

A compressed archive may expand to a hundred times its size. The sizes of its arrays are read from
their headers; the rows of large arrays are then decompressed on demand.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from ...common.errors import DataError
from ...common.files import describe_irregular_file
from .inputs import find_labels

__all__ = ["iter_file_items"]
_CHUNK_BYTES = 64 << 20  # bytes that are decompressed at once; smaller archives are read whole
_ROW_MULTIPLE = 512  # rows of larger chunks are a multiple, so that batches are complete
# Bytes, or multiple of the file's size, that may be decompressed at once.
_MAX_BYTES, _MAX_COMPRESSION_RATIO = 1 << 30, 4


class _Entry(NamedTuple):
    """Header of an array in an archive. data_offset : size of the header in bytes."""

    info: zipfile.ZipInfo
    data_offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    is_fortran_order: bool

    @property
    def data_bytes(self) -> int:
        """Size of the uncompressed data in bytes, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def readable_rows(self) -> int:
        """Size of axis 0 if its rows are stored one after another, else 0.

        0 for scalars and arrays in Fortran order.
        """
        return self.shape[0] if self.shape and not self.is_fortran_order else 0


def iter_file_items(
    path: Path, label: str, names: Collection[str], by_row: Collection[str]
) -> Iterator[tuple[object, object]]:
    """Yield (feeds, labels) of an .npz or .npy file, of a large archive in chunks.

    Labels are the array "labels" or else "label" of an archive; None without one and for .npy.

    Parameters
    ----------
    path
        The file.
    label
        Description of the data, for messages.
    names
        Inputs of the model, which are never labels.
    by_row
        Inputs with one sample after another on axis 0, if that holds for all inputs with samples;
        else empty.

    Raises
    ------
    DataError
        If the file cannot be read, or an archive expands to too many bytes.
    """
    if (file_kind := describe_irregular_file(path)) is not None:
        raise DataError(
            f"{label}: cannot read {path}: it is {file_kind}, not a regular file; save the data to "
            "a file first"
        )
    try:
        # Opened here, because numpy leaves the files of corrupt archives open.
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                with zipfile.ZipFile(file) as archive:
                    yield from _iter_archive(archive, path, label, names, by_row)
                return
            file.seek(0)
            yield _load_npy(file, path.stat().st_size), None
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{label}: cannot read {path}: {error.strerror or error}; check the path"
        ) from error
    # numpy raises ValueError, zipfile.BadZipFile, EOFError, KeyError ... for corrupt files
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        message = first_line.partition(": <")[0]  # without the name of a Python object
        raise DataError(
            f"{label}: {path} is not a readable {path.suffix} file ({message}); write it again"
        ) from error


def _iter_archive(
    archive: zipfile.ZipFile,
    path: Path,
    label: str,
    names: Collection[str],
    by_row: Collection[str],
) -> Iterator[tuple[object, object]]:
    """Yield (feeds, labels) of an .npz archive, whose `path` is for messages and the memory limit.

    `names` are the model's inputs, `by_row` those with samples on axis 0. A small archive is one
    item. Of a large one, the arrays that allow it are read in chunks of rows, one item each. Arrays
    that are not numeric are left out. Raises DataError if more than the limit is needed at once.
    """
    entries = _read_entries(archive)
    labels = find_labels(entries, names)
    entries = {
        name: entry
        for name, entry in entries.items()
        if name == labels or entry.dtype.kind in "fiub"
    }
    total_bytes = sum(entry.data_bytes for entry in entries.values())
    by_row_entries = {}
    if total_bytes > _CHUNK_BYTES:
        by_row_entries = _find_row_readable_entries(entries, labels, names, by_row)
    row_count = next((entry.shape[0] for entry in by_row_entries.values()), 1)
    chunk_rows = _rows_per_chunk(by_row_entries)
    peak_bytes = total_bytes
    for entry in by_row_entries.values():
        peak_bytes -= entry.data_bytes - entry.data_bytes // row_count * chunk_rows
    max_bytes = max(_MAX_BYTES, _MAX_COMPRESSION_RATIO * path.stat().st_size)
    if peak_bytes > max_bytes:
        raise DataError(
            f"{label}: {path} expands to {total_bytes} bytes, of which {peak_bytes} are needed at "
            f"once; the limit is {max_bytes}: write fewer samples into a file, and several files "
            "into a folder"
        )
    complete_arrays = {
        name: _read_entry_array(archive, entry)
        for name, entry in entries.items()
        if name not in by_row_entries
    }
    streams = {name: _open_entry_data(archive, entry) for name, entry in by_row_entries.items()}
    for start in range(0, row_count, chunk_rows):
        count = min(chunk_rows, row_count - start)
        arrays = {}
        for name, entry in entries.items():
            if name in streams:
                arrays[name] = _read_rows(streams[name], entry, count)
            else:
                arrays[name] = complete_arrays[name]
        feeds = {name: array for name, array in arrays.items() if name != labels}
        yield feeds, arrays.get(labels) if labels else None


def _read_entries(archive: zipfile.ZipFile) -> dict[str, _Entry]:
    """Return array name -> header for all .npy files in `archive`; other files are ignored.

    Raises ValueError if an array is shorter than its header says.
    """
    entries = {}
    for info in archive.infolist():
        entry = _read_entry(archive, info)
        if entry is not None:
            entries[info.filename.removesuffix(".npy")] = entry
    return entries


def _find_row_readable_entries(
    entries: Mapping[str, _Entry],
    labels: str | None,
    names: Collection[str],
    by_row: Collection[str],
) -> dict[str, _Entry]:
    """Return name -> header of the arrays to read row by row together, all with equally many rows.

    They are the labels and the inputs in `by_row`, or all arrays if the model has one input and the
    archive one array besides labels (`labels` is their name). Empty if one of them cannot be read
    that way. `names` are the model's inputs.
    """
    # The only array of a file may have any name.
    is_only_array = len(by_row) == len(names) == 1 and len(entries) - (labels is not None) == 1
    selected = {
        name: entry
        for name, entry in entries.items()
        if is_only_array or name == labels or name in by_row
    }
    row_counts = {entry.readable_rows for entry in selected.values()}
    return selected if len(row_counts) == 1 and 0 not in row_counts else {}


def _rows_per_chunk(entries: Mapping[str, _Entry]) -> int:
    """Return the number of rows of all arrays in `entries` to read at once, at least 1.

    About `_CHUNK_BYTES` in all; a multiple of `_ROW_MULTIPLE` if there are more rows than that.
    """
    row_bytes = sum(entry.data_bytes // entry.shape[0] for entry in entries.values())
    count = max(_CHUNK_BYTES // max(row_bytes, 1), 1)
    return count - count % _ROW_MULTIPLE if count > _ROW_MULTIPLE else count


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Entry | None:
    """Read the header of an array in `archive`; None if the file is not an .npy.

    Raises ValueError if the file is too short for its shape and dtype, or holds Python objects.
    """
    if not info.filename.endswith(".npy"):
        return None
    with archive.open(info) as stream:
        shape, is_fortran_order, dtype = _read_header(stream)
        data_offset = stream.tell()
    entry = _Entry(info, data_offset, shape, dtype, is_fortran_order)
    if data_offset + entry.data_bytes > info.file_size:
        raise ValueError(
            f"{info.filename}: {list(shape)} of {dtype} are {entry.data_bytes} bytes; it has "
            f"{info.file_size}"
        )
    return entry


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, whether in Fortran order, dtype) of an .npy stream.

    The stream is then at the first byte of the data. Raises ValueError if its elements are Python
    objects.
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded when allow_pickle=False")
    return shape, fortran, dtype


def _read_entry_array(archive: zipfile.ZipFile, entry: _Entry) -> np.ndarray:
    """Read the complete array of `entry` from `archive`."""
    with archive.open(entry.info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _open_entry_data(archive: zipfile.ZipFile, entry: _Entry) -> IO[bytes]:
    """Open a stream of the data of `entry`, positioned after its header."""
    stream = archive.open(entry.info)
    stream.read(entry.data_offset)
    return stream


def _read_rows(stream: IO[bytes], entry: _Entry, count: int) -> np.ndarray:
    """Read the next `count` rows (axis 0) of array `entry` from `stream`, its uncompressed data.

    Raises EOFError if the stream ends early.
    """
    data = bytearray()
    size = entry.data_bytes // entry.shape[0] * count
    while len(data) < size:
        if not (chunk := stream.read(size - len(data))):
            raise EOFError(f"{entry.info.filename} ends early")
        data += chunk
    return np.frombuffer(data, entry.dtype).reshape(count, *entry.shape[1:])


_NPY_MAGIC = b"\x93NUMPY"


def _load_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Read the array of an .npy file of `size` bytes, which begins at the start of `file`.

    Raises ValueError if the file has no header of numpy, or is too short for the shape and dtype in
    it.
    """
    magic = file.read(len(_NPY_MAGIC))
    if magic != _NPY_MAGIC:  # which np.load would take for a pickle
        kind = "is empty" if not magic else "begins neither as an .npy nor as an .npz file"
        raise ValueError(f"it {kind}")
    file.seek(0)
    shape, _, dtype = _read_header(file)
    if file.tell() + math.prod(shape) * dtype.itemsize > size:
        raise ValueError(
            f"{list(shape)} of {dtype} are {math.prod(shape) * dtype.itemsize} bytes; it has {size}"
        )
    file.seek(0)
    return np.asarray(np.load(file, allow_pickle=False))
