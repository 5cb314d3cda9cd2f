"""Tensors to files: one .npz of named arrays, or a folder of .npy files with an index.

And the summary of one tensor.
Everything is written as a whole or not at all. A `DumpFolder` appends batch by batch, so that a
dump of every tensor of a long run needs no more memory than one batch. Knows streams,
`(name, array, how it is held or None)`; knows no model.
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

from ..errors import ConfigError
from ..files import link_missing_entries, replace_file, replace_folder
from ..plan import Affine

__all__ = [
    "INDEX_FILE",
    "DumpFolder",
    "TensorSummary",
    "qparams_to_json",
    "qparams_from_json",
    "write_npz",
]

#: The name of the index in a dump folder: a list of {name, file, dtype, shape, scale} in graph order. Where another
#: integer than 0 stands for 0, an entry has a zero_point, too.
INDEX_FILE = "index.json"

_FIRST = 8  # values a summary shows


def qparams_to_json(qparams: Affine | None) -> dict[str, object]:
    """Return the JSON entries of a tensor's scale: `scale`, and `zero_point` where it is not 0."""
    if qparams is None:
        return {"scale": None}
    return {
        "scale": qparams.scale,
        **({"zero_point": qparams.zero_point} if qparams.shifted else {}),
    }


def qparams_from_json(entry: Mapping[str, Any], dtype: np.dtype) -> Affine | None:
    """Return what `qparams_to_json` wrote of an array of `dtype`."""
    if entry["scale"] is None:
        return None
    return Affine(
        float(entry["scale"]), 8 * dtype.itemsize, zero_point=int(entry.get("zero_point", 0))
    )


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` under their names, any name a tensor may have ('file' too, which `numpy.savez` cannot take).

    The bytes depend on them alone, not on the clock.
    """
    with (
        replace_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                held = np.asarray(array)
                held = (
                    held.astype(np.str_) if held.dtype.hasobject else held
                )  # text, as onnxruntime hands it over
                np.lib.format.write_array(entry, held, allow_pickle=False)


class DumpFolder:
    """A dump in the folder `path`.

    One .npy per tensor, batches appended along axis 0, and an index.
    A context manager: all files appear in `path` at once (its parent must exist) when the block
    ends well. Those of an older dump go then; other files there stay. Raises ConfigError where the
    folder cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._entries: dict[str, dict[str, Any]] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> DumpFolder:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"cannot dump into {self.path}: it is a file; give a folder")
        try:
            self._made = self._open.enter_context(replace_folder(self.path))
        except OSError as error:
            raise ConfigError(
                f"cannot dump into {self.path}: {error.strerror} ({self.path.parent}); choose "
                "another place"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._open.__exit__(kind, raised, trace)
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
        """Append a batch of tensor `name`; a tensor without axes counts as one row."""
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
                f"{array.dtype} "
                f"{list(array.shape[1:])} between batches; dump with --batch covering all samples"
            )
        first = entry["shape"][0] == 0
        entry["shape"][0] += len(array)
        try:
            with (self._made / entry["file"]).open("w+b" if first else "r+b") as file:
                _write_npy_header(file, entry["shape"], array.dtype)
                file.seek(0, os.SEEK_END)
                file.write(array.tobytes())
        except OSError as error:
            raise ConfigError(
                f"cannot dump into {self.path}: {error.strerror}; make room, or choose another "
                "place"
            ) from error

    def _write_index(self) -> None:
        """Write the index, and take over what else than a dump the old folder holds."""
        lines = ",\n".join(json.dumps(entry) for entry in self._entries.values())
        (self._made / INDEX_FILE).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        link_missing_entries(
            self.path, self._made, _dump_file_names(self.path) if self.path.exists() else ()
        )


def _dump_file_names(folder: Path) -> set[str]:
    """Return the names of the files of the dump in `folder`, its index among them.

    Of none where there is no dump.
    """
    try:
        entries = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        return {INDEX_FILE, *(str(entry["file"]) for entry in entries)}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _write_npy_header(file: IO[bytes], shape: list[int], dtype: np.dtype) -> None:
    """Write the .npy header; numpy pads it so that a longer axis 0 takes the same room."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(shape),
        },
    )


class TensorSummary:
    """Shape, range, mean and first values of one tensor over all batches, as it is stored (integers as integers)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = ""
        self.held: Affine | None = None
        self.shape: tuple[int, ...] = ()
        self.first: list[float] = []
        self.low, self.high = math.inf, -math.inf
        self._total, self._count = 0.0, 0

    def add(self, array: np.ndarray, qparams: Affine | None) -> None:
        """Take in one batch."""
        rows = (self.shape[0] if self.shape else 0) + (len(array) if array.ndim else 1)
        self.shape = (rows, *array.shape[1:])
        self.dtype, self.held = str(array.dtype), qparams
        if array.size:
            self.low, self.high = (
                min(self.low, array.min().item()),
                max(self.high, array.max().item()),
            )
            self._total += float(array.sum(dtype=np.float64))
            self._count += array.size
            self.first += array.reshape(-1)[: _FIRST - len(self.first)].tolist()

    @property
    def mean(self) -> float:
        """Mean of all values; nan where there is none."""
        return self._total / self._count if self._count else math.nan

    def real(self, value: float) -> float:
        """Return what `value` of the tensor stands for, itself in a float tensor."""
        return value if self.held is None else (value - self.held.zero_point) / self.held.scale

    def to_dict(self) -> dict[str, object]:
        """Return JSON-ready values.

        Integers less their `zero_point`, if any, divided by `scale` are real ones.
        """
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            **qparams_to_json(self.held),
            "min": self.low,
            "max": self.high,
            "mean": self.mean,
            "first": self.first,
        }
