"""Read and write an executor's dumps: a file per tensor, a log of checksums, or raw outputs.

    NAME##_1_32_4_4.txt     a decimal integer per line in logical (NCHW) order; "/" in NAME is
                            written as "_", and long names are truncated
    NAME##_1_32_4_4.bin     the same as raw little-endian bytes
    crc32_calc = 0x%08x, data = [0x%08x-0x%08x-0x%08x], name = NAME
                            in a log: zlib's CRC-32 of a tensor's bytes, and its first, middle and
                            last 32-bit words

The log format is the one that the executor's sources print; it was never seen from silicon. Knows
nothing of graphs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import DataError
from ..common.files import describe_irregular_file

__all__ = [
    "HOST_TOLERANCE",
    "DumpedTensor",
    "make_dump_name",
    "format_dump",
    "absolute_difference",
    "max_magnitude",
    "to_raw_bytes",
    "read_folder",
    "read_log",
    "read_outputs",
    "truncate_name",
]

#: Tolerance of a host part's floats, as a fraction of their range: exp and tanh of another C
#: library differ in the last bits.
HOST_TOLERANCE = 1e-5
#: Characters of a tensor's name that a dump's name is sure to contain.
MAX_NAME_LENGTH = 64

_LINE = re.compile(
    r"crc32_calc\s*=\s*0x(?P<crc>[0-9a-fA-F]{1,8})\s*,"
    r"\s*data\s*=\s*\[\s*0x(?P<first>[0-9a-fA-F]{1,8})\s*-"
    r"\s*0x(?P<middle>[0-9a-fA-F]{1,8})\s*-\s*0x(?P<last>[0-9a-fA-F]{1,8})\s*\]\s*,"
    r"\s*name\s*=(?P<name>.*)"
)
_DIMS = re.compile(r"(?:_[0-9]{1,12})+")


@dataclass(frozen=True)
class DumpedTensor:
    """One tensor as the device dumped it.

    name : as the device has it. source : file or line, for messages. shape : from the file's name.
    One of: values : flat int64; data : raw bytes of unknown type; crc and words : CRC-32 and the
    first, middle and last word.
    """

    name: str
    source: str
    shape: tuple[int, ...] | None = None
    values: np.ndarray | None = None
    data: bytes | None = None
    crc: int | None = None
    words: tuple[int, int, int] | None = None

    def to_elements(self, dtype: np.dtype) -> np.ndarray | None:
        """Return all elements as flat int64, or None if only a checksum is known.

        Raw bytes are read as little-endian `dtype`.

        Raises
        ------
        DataError
            If the raw bytes are not a multiple of the size of `dtype`.
        """
        if self.data is None:
            return self.values
        if len(self.data) % dtype.itemsize:
            raise DataError(
                f"{self.source}: {len(self.data)} bytes are not a multiple of the {dtype} size; "
                "is the file complete?"
            )
        return np.frombuffer(self.data, dtype.newbyteorder("<")).astype(np.int64)

    def is_equal(self, array: np.ndarray) -> bool:
        """Whether the device's tensor has exactly the integers of `array`, in any shape.

        Of a checksum, whether it is that of the array's bytes; raw bytes must equal those of the
        array.
        """
        if self.crc is not None:
            return zlib.crc32(to_raw_bytes(array)) == self.crc
        if self.data is not None:
            return self.data == to_raw_bytes(array)
        assert self.values is not None
        return self.values.size == array.size and bool(
            np.array_equal(self.values, array.reshape(-1))
        )


def max_magnitude(arrays: Iterable[np.ndarray]) -> float:
    """Return the largest magnitude of a finite float in any of the arrays; 0 if there is none.

    It is the range of a tensor that `HOST_TOLERANCE` is relative to. The arrays are one tensor in
    all known calls, because an output may be nearly 0 in one of them, such as the scores of a
    detector when nothing is to be detected.
    """
    return max(
        (float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays), default=0.0
    )


def absolute_difference(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the absolute difference of each element, float.

    0 where both are NaN or equal (also infinite), infinite where only one of the two is NaN.
    """
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual - expected)
    equal = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    difference = np.where(np.isnan(difference), np.float32(np.inf), difference)
    return np.where(equal, np.float32(0), difference)


def to_raw_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of `array` in the device's layout: C order, little-endian."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def truncate_name(name: str) -> str:
    """Return the beginning of a tensor's name as a dump's name contains it.

    "/" becomes "_", and at most MAX_NAME_LENGTH characters are left.
    """
    return name.replace("/", "_")[:MAX_NAME_LENGTH]


def make_dump_name(name: str, shape: Sequence[int], suffix: str = ".txt") -> str:
    """Return the file name of a tensor's dump: NAME##_1_32_4_4.txt for shape [1, 32, 4, 4].

    "/" in the name becomes "_", and it is cut to 64 characters.
    """
    return f"{truncate_name(name)}##{''.join(f'_{size}' for size in shape)}{suffix}"


def format_dump(array: np.ndarray) -> str:
    """Return an array of integers as the text of a dump: one per line in C order."""
    return "".join(f"{value}\n" for value in array.reshape(-1).tolist())


def read_folder(folder: Path) -> list[DumpedTensor]:
    """Read the dumps in `folder`, or else in its data/ or workspace/data/, sorted by file name.

    The first of these folders with files named NAME##_1_2_3.txt or .bin counts.

    Raises
    ------
    DataError
        If there are none, or one is malformed.
    """
    for dump_folder in (folder, folder / "data", folder / "workspace" / "data"):
        if not dump_folder.is_dir():
            continue
        files = sorted(f for f in dump_folder.glob("*##*") if f.suffix in (".txt", ".bin"))
        if files:
            return [_read_dump(file) for file in files]
    if not folder.is_dir():
        raise DataError(f"--device-dump {folder}: not a directory")
    raise DataError(
        f"--device-dump {folder}: no dumps found; expected files named NAME##_1_16_8_8.txt or .bin"
    )


def _parse_dump_stem(stem: str) -> tuple[str, tuple[int, ...] | None]:
    """Split a dump's file name, without its suffix, into the tensor's name and shape.

    The shape is None, and the name all of `stem`, if it does not end in ##_1_32...
    """
    name, separator, dims = stem.rpartition("##")
    if not separator or not _DIMS.fullmatch(dims):
        return stem, None
    return name, tuple(int(size) for size in dims[1:].split("_"))


def _read_dump(path: Path) -> DumpedTensor:
    """Read a dump file, raw bytes (.bin) or text (others); its file name has name and shape.

    Raises DataError if it cannot be read or is malformed.
    """
    name, dims = _parse_dump_stem(path.stem)
    if path.suffix == ".bin":
        return DumpedTensor(name, path.name, dims, data=_read_bytes(path))
    return DumpedTensor(name, path.name, dims, values=_read_integers(path))


def _read_bytes(path: Path) -> bytes:
    """Read a regular file; raise DataError if it is something else or cannot be read."""
    if (file_kind := describe_irregular_file(path)) is not None:
        raise DataError(
            f"cannot read {path}: it is {file_kind}, not a regular file; save its contents to a "
            "file first"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; pass a file that the board wrote"
        ) from error


def _read_integers(path: Path) -> np.ndarray:
    """Read a text file of integers separated by white space, as int64 [n].

    Raises DataError if it is not that or cannot be read.
    """
    try:
        return np.array([int(word) for word in _read_bytes(path).split()], np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a dump; expected one integer per line") from error


def read_log(path: Path) -> list[DumpedTensor]:
    """Read the tensors whose checksums a device's log prints; of a repeated name, the last.

    They are in the order in which a name is first printed.

    Raises
    ------
    DataError
        If the log cannot be read or has no checksum line.
    """
    tensors: dict[str, DumpedTensor] = {}
    text = _read_bytes(path).decode("utf-8", "replace")
    for line_number, line in enumerate(text.splitlines(), 1):
        match = _LINE.search(line)
        if match is None:
            continue
        title = match["name"].strip()
        name, dims = _parse_dump_stem(title[:-4] if title.endswith((".bin", ".txt")) else title)
        words = (int(match["first"], 16), int(match["middle"], 16), int(match["last"], 16))
        source = f"{path.name}, line {line_number}"
        tensors[name] = DumpedTensor(name, source, dims, crc=int(match["crc"], 16), words=words)
    if not tensors:
        raise DataError(
            f"--device-log {path}: it has no line 'crc32_calc = 0x..., data = [...], name = ...'; "
            "build the executor with these log lines enabled"
        )
    return list(tensors.values())


def read_outputs(path: Path, outputs: Mapping[str, np.ndarray]) -> list[DumpedTensor]:
    """Read all outputs from one file: raw bytes, or text with one integer per line.

    The outputs follow each other in the order of `outputs`.

    Parameters
    ----------
    path
        The file; text if its suffix is .txt.
    outputs
        The simulator's integers by the device's name of the output, in graph order.

    Raises
    ------
    DataError
        If the size of the file is not that of all outputs.
    """
    is_text = path.suffix == ".txt"
    content: Any = _read_integers(path) if is_text else _read_bytes(path)
    sizes = {name: array.size if is_text else array.nbytes for name, array in outputs.items()}
    if len(content) != sum(sizes.values()):
        listed = ", ".join(f"{name} {a.dtype} {list(a.shape)}" for name, a in outputs.items())
        raise DataError(
            f"--device-output {path} has {len(content)} {'integers' if is_text else 'bytes'}; the "
            f"outputs need {sum(sizes.values())}: {listed}"
        )
    tensors, start = [], 0
    for name, size in sizes.items():
        chunk = content[start : start + size]
        if is_text:
            tensors.append(DumpedTensor(name, path.name, values=chunk))
        else:
            tensors.append(DumpedTensor(name, path.name, data=chunk))
        start += size
    return tensors
