"""Write tensors to files: one .npz of named arrays, or a folder of .npy files with an index.

Also owns the summary of one tensor. Output is written completely or not at all. A `DumpFolder`
appends batch by batch, so that a dump of all tensors of a long run needs memory for one batch only.
Knows streams of `(name, array, qparams or None)`; knows no model.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from ..common.deprecation import keep_old_members
from ..common.errors import ConfigError
from ..common.files import link_missing_entries, replace_file, replace_folder
from ..ir.plan import Affine

__all__ = [
    "INDEX_FILE",
    "DumpFolder",
    "TensorSummary",
    "qparams_to_json",
    "qparams_from_json",
    "write_npz",
]

#: Name of the index in a dump folder: a list of {name, file, dtype, shape, scale} in graph order.
#: An entry has a zero_point if it is not 0.
INDEX_FILE = "index.json"

_MAX_FIRST_VALUES = 8  # that a summary shows


def qparams_to_json(qparams: Affine | None) -> dict[str, object]:
    """Return {"scale": scale}, None without `qparams`, and "zero_point" if it is not 0."""
    if qparams is None:
        return {"scale": None}
    entries: dict[str, object] = {"scale": qparams.scale}
    if qparams.shifted:
        entries["zero_point"] = qparams.zero_point
    return entries


def qparams_from_json(entry: Mapping[str, Any], dtype: np.dtype) -> Affine | None:
    """Return the quantization parameters stored as `scale` and `zero_point` in `entry`.

    Their width is that of `dtype`. None if the scale is None, which means real values.
    """
    if entry["scale"] is None:
        return None
    return Affine(
        float(entry["scale"]), 8 * dtype.itemsize, zero_point=int(entry.get("zero_point", 0))
    )


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file whose bytes depend only on the arrays.

    Unlike `numpy.savez`, it accepts any tensor name, such as 'file', and stores no time. An
    existing file is replaced; arrays of objects are stored as text.
    """
    with (
        replace_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                stored = np.asarray(array)
                if stored.dtype.hasobject:  # text, as onnxruntime returns it
                    stored = stored.astype(np.str_)
                np.lib.format.write_array(entry, stored, allow_pickle=False)


class DumpFolder:
    """A dump in a folder: one .npy per tensor, with batches appended along axis 0, and an index.

    It is a context manager. All files appear in `path`, whose parent must exist, when the block
    ends without an exception. They replace those of an older dump; other files are preserved.

    Raises
    ------
    ConfigError
        If the folder cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Store the path; the folder is created when the `with` block is entered."""
        self.path = Path(path)
        self._entries: dict[str, dict[str, Any]] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> DumpFolder:
        """Create a temporary folder that replaces the one at `path` when the block ends.

        Raises ConfigError if `path` is a file or the folder cannot be created.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"cannot dump into {self.path}: it is a file; pass a folder")
        try:
            self._new_folder = self._open.enter_context(replace_folder(self.path))
        except OSError as error:
            raise ConfigError(
                f"cannot dump into {self.path}: {error.strerror} ({self.path.parent}); choose "
                "another place"
            ) from error
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the index and replace the folder; after an exception discard the new one.

        Raises ConfigError if the files cannot be written.
        """
        if exception_type is not None:
            self._open.__exit__(exception_type, exception, traceback)
            return
        try:
            with self._open:
                self._write_index()
        except OSError as error:
            raise ConfigError(
                f"cannot dump into {self.path}: {error.strerror or error}; make room, or choose "
                "another place"
            ) from error

    def add(self, name: str, array: np.ndarray, qparams: Affine | None) -> None:
        """Append a batch of tensor `name` to its file, along axis 0; a scalar becomes one row.

        `qparams` are those of integers, else None; those of the first batch enter the index. Raises
        ConfigError if dtype or row shape changes, or the file cannot be written.
        """
        array = np.ascontiguousarray(array)
        array = array.reshape(1) if array.ndim == 0 else array
        entry = self._entries.get(name)
        if entry is None:
            safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")[:100]
            entry = {
                "name": name,
                "file": f"{len(self._entries):04d}_{safe}.npy",
                "dtype": str(array.dtype),
                "shape": [0, *array.shape[1:]],
                **qparams_to_json(qparams),
            }
            self._entries[name] = entry
        if list(array.shape[1:]) != entry["shape"][1:] or str(array.dtype) != entry["dtype"]:
            raise ConfigError(
                f"tensor '{name}' changes from {entry['dtype']} {entry['shape'][1:]} to "
                f"{array.dtype} {list(array.shape[1:])} between batches; dump with --batch "
                "covering all samples"
            )
        is_new = entry["shape"][0] == 0
        entry["shape"][0] += len(array)
        try:
            with (self._new_folder / entry["file"]).open("w+b" if is_new else "r+b") as file:
                _write_npy_header(file, entry["shape"], array.dtype)
                file.seek(0, os.SEEK_END)
                file.write(array.tobytes())
        except OSError as error:
            raise ConfigError(
                f"cannot dump into {self.path}: {error.strerror}; make room, or choose another "
                "place"
            ) from error

    def _write_index(self) -> None:
        """Write the index, and link files of the old folder that belong to no dump into the new.

        So they survive the replacement.
        """
        lines = ",\n".join(json.dumps(entry) for entry in self._entries.values())
        (self._new_folder / INDEX_FILE).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        link_missing_entries(
            self.path, self._new_folder, _dump_file_names(self.path) if self.path.exists() else ()
        )


def _dump_file_names(folder: Path) -> set[str]:
    """Return the names of the files of the dump in `folder`, including its index.

    Empty if there is no readable index.
    """
    try:
        entries = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        return {INDEX_FILE, *(str(entry["file"]) for entry in entries)}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _write_npy_header(file: IO[bytes], shape: list[int], dtype: np.dtype) -> None:
    """Write an .npy header of `shape` and `dtype` at the beginning of `file`.

    It replaces the previous one: a longer axis 0 does not change its size, because numpy pads it.
    """
    file.seek(0)
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(shape),
        },
    )


@keep_old_members("0.3", first="first_values", held="qparams")
class TensorSummary:
    """Shape, range, mean and first values of one tensor over all batches, as stored.

    qparams : quantization parameters if the values are integers, else None.
    """

    def __init__(self, name: str) -> None:
        """Start an empty summary of tensor `name`: shape (), low = infinity, high = -infinity."""
        self.name = name
        self.dtype = ""
        self.qparams: Affine | None = None
        self.shape: tuple[int, ...] = ()
        self.first_values: list[float] = []
        self.low, self.high = math.inf, -math.inf
        self._total, self._count = 0.0, 0

    def add(self, array: np.ndarray, qparams: Affine | None) -> None:
        """Add one batch, whose values are integers with `qparams`, or real if it is None.

        Axis 0 of the batch is added to that of the shape; the other axes, dtype and parameters are
        those of the last batch.
        """
        rows = (self.shape[0] if self.shape else 0) + (len(array) if array.ndim else 1)
        self.shape = (rows, *array.shape[1:])
        self.dtype = str(array.dtype)
        self.qparams = qparams
        if array.size:
            self.low = min(self.low, array.min().item())
            self.high = max(self.high, array.max().item())
            self._total += float(array.sum(dtype=np.float64))
            self._count += array.size
            missing_count = _MAX_FIRST_VALUES - len(self.first_values)
            self.first_values += array.reshape(-1)[:missing_count].tolist()

    @property
    def mean(self) -> float:
        """Mean of all stored values; NaN if there are none."""
        return self._total / self._count if self._count else math.nan

    def real(self, value: float) -> float:
        """Convert the stored `value` to a real one: (value - zero point) / scale.

        Unchanged for a float tensor.
        """
        if self.qparams is None:
            return value
        return (value - self.qparams.zero_point) / self.qparams.scale

    def to_dict(self) -> dict[str, object]:
        """Return the summary as JSON values by name, such as "shape", "scale", "min" and "mean".

        Min, max, mean and first values are as stored; the real values of integers are (integer -
        `zero_point`) / `scale`.
        """
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            **qparams_to_json(self.qparams),
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "first": self.first_values,
        }
