"""What an executor gives away of a run: files per tensor, a log of checksums, or its raw outputs.

Reading and writing.
    NAME##_1_32_4_4.txt     a decimal integer per line, logical (NCHW) order; "/" in NAME written as
    "_", long names cut NAME##_1_32_4_4.bin     the same as raw little-endian bytes
    crc32_calc = 0x%08x, data = [0x%08x-0x%08x-0x%08x], name = NAME
                            in a log: zlib's CRC-32 of a tensor's bytes and three of its 32-bit
                            words

The log's form is the one that the executor's sources print; it was never seen from silicon. Knows
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

from ..errors import DataError
from ..files import describe_irregular_file

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

#: How far a host part's floats may be off, as a fraction of their range: another C library's exp and tanh differ in the
#: last bits.
HOST_TOLERANCE = 1e-5
#: Characters of a name that are sure to be in a dump's.
MAX_NAME_LENGTH = 64

_LINE = re.compile(
    r"crc32_calc\s*=\s*0x(?P<crc>[0-9a-fA-F]{1,8})\s*,\s*data\s*=\s*\[\s*0x(?P<first>[0-9a-fA-F]{1,8})\s*-"
    r"\s*0x(?P<middle>[0-9a-fA-F]{1,8})\s*-\s*0x(?P<last>[0-9a-fA-F]{1,8})\s*\]\s*,\s*name\s*=(?P<name>.*)"
)
_DIMS = re.compile(r"(?:_[0-9]{1,12})+")


@dataclass(frozen=True)
class DumpedTensor:
    """One tensor as the device gave it.

    name : as the device has it. where : the file or line, for messages. dims : the shape told by
    the file's name. values : int64, flat; or data : raw bytes of a type not told; or crc and words
    alone (first, middle, last).
    """

    name: str
    source: str
    shape: tuple[int, ...] | None = None
    values: np.ndarray | None = None
    data: bytes | None = None
    crc: int | None = None
    words: tuple[int, int, int] | None = None

    def to_elements(self, dtype: np.dtype) -> np.ndarray | None:
        """Return all elements, flat and int64, reading raw bytes as `dtype`.

        None where only a checksum is known.
        Raises DataError for bytes that are no whole number of elements.
        """
        if self.data is None:
            return self.values
        if len(self.data) % dtype.itemsize:
            raise DataError(
                f"{self.source}: {len(self.data)} bytes are no whole number of {dtype} elements; "
                "is the file whole?"
            )
        return np.frombuffer(self.data, dtype.newbyteorder("<")).astype(np.int64)

    def is_equal(self, array: np.ndarray) -> bool:
        """Whether the device's tensor holds the integers `array`, in its order, whatever the shape."""
        if self.crc is not None:
            return zlib.crc32(to_raw_bytes(array)) == self.crc
        if self.data is not None:
            return self.data == to_raw_bytes(array)
        assert self.values is not None
        return self.values.size == array.size and bool(
            np.array_equal(self.values, array.reshape(-1))
        )


def max_magnitude(arrays: Iterable[np.ndarray]) -> float:
    """Return the range of a float tensor from what it was in several calls.

    The largest magnitude of a finite number.
    What a host part may be off, `HOST_TOLERANCE`, is a fraction of it. All calls that are known
    count: an output may be nearly 0 in one of them, as a detector's scores where there is nothing
    to see.
    """
    return max(
        (float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in arrays), default=0.0
    )


def absolute_difference(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return how far each float is from the one it should be.

    Infinite where only one of them is no number.
    """
    with np.errstate(invalid="ignore"):
        apart = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return np.where(same, np.float32(0), np.where(np.isnan(apart), np.float32(np.inf), apart))


def to_raw_bytes(array: np.ndarray) -> bytes:
    """Return the bytes of `array` as a device holds them: C order, little-endian."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def truncate_name(name: str) -> str:
    """Return what of the tensor name `name` is sure to be in a dump's name."""
    return name.replace("/", "_")[:MAX_NAME_LENGTH]


def make_dump_name(name: str, shape: Sequence[int], suffix: str = ".txt") -> str:
    """Return the file name that the executor gives the dump of a tensor."""
    return f"{truncate_name(name)}##{''.join(f'_{size}' for size in shape)}{suffix}"


def format_dump(array: np.ndarray) -> str:
    """Return the integers `array` as the text of a dump."""
    return "".join(f"{value}\n" for value in array.reshape(-1).tolist())


def read_folder(folder: Path) -> list[DumpedTensor]:
    """Return the dumps in `folder`, or in its data/ or workspace/data/.

    DataError where there is none.
    """
    for place in (folder, folder / "data", folder / "workspace" / "data"):
        files = (
            sorted(f for f in place.glob("*##*") if f.suffix in (".txt", ".bin"))
            if place.is_dir()
            else []
        )
        if files:
            return [_read_dump(file) for file in files]
    what = (
        "holds no dump: files called NAME##_1_16_8_8.txt or .bin"
        if folder.is_dir()
        else "is no folder"
    )
    raise DataError(f"--device-dump {folder} {what}")


def _parse_dump_stem(title: str) -> tuple[str, tuple[int, ...] | None]:
    """Split a dump's file name, without its suffix, into the tensor's name and shape."""
    name, mark, dims = title.rpartition("##")
    if not mark or not _DIMS.fullmatch(dims):
        return title, None
    return name, tuple(int(size) for size in dims[1:].split("_"))


def _read_dump(path: Path) -> DumpedTensor:
    name, dims = _parse_dump_stem(path.stem)
    if path.suffix == ".bin":
        return DumpedTensor(name, path.name, dims, data=_read_bytes(path))
    return DumpedTensor(name, path.name, dims, values=_read_integers(path))


def _read_bytes(path: Path) -> bytes:
    if (odd := describe_irregular_file(path)) is not None:
        raise DataError(
            f"cannot read {path}: it is {odd}, no regular file; write what it gives to a file first"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; give what the board wrote"
        ) from error


def _read_integers(path: Path) -> np.ndarray:
    try:
        return np.array([int(word) for word in _read_bytes(path).split()], np.int64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} is no dump; it must hold one integer per line") from error


def read_log(path: Path) -> list[DumpedTensor]:
    """Return the tensors of which a device's log prints checksums.

    Of a name that comes again, the last.
    DataError where there is no such line.
    """
    found: dict[str, DumpedTensor] = {}
    for number, line in enumerate(_read_bytes(path).decode("utf-8", "replace").splitlines(), 1):
        match = _LINE.search(line)
        if match is None:
            continue
        title = match["name"].strip()
        name, dims = _parse_dump_stem(title[:-4] if title.endswith((".bin", ".txt")) else title)
        words = (int(match["first"], 16), int(match["middle"], 16), int(match["last"], 16))
        found[name] = DumpedTensor(
            name, f"{path.name}, line {number}", dims, crc=int(match["crc"], 16), words=words
        )
    if not found:
        raise DataError(
            f"--device-log {path}: no line 'crc32_calc = 0x..., data = [...], name = ...' in it; "
            "build the executor so "
            "that it writes them"
        )
    return list(found.values())


def read_outputs(path: Path, outputs: Mapping[str, np.ndarray]) -> list[DumpedTensor]:
    """Return the outputs in one file.

    All of them one after another, raw, or as text one integer per line.
    outputs : our integers by the device's name of the output, in graph order. DataError where the
    file's size is not theirs together.
    """
    text = path.suffix == ".txt"
    content: Any = _read_integers(path) if text else _read_bytes(path)
    takes = {name: array.size if text else array.nbytes for name, array in outputs.items()}
    if len(content) != sum(takes.values()):
        listed = ", ".join(f"{name} {a.dtype} {list(a.shape)}" for name, a in outputs.items())
        raise DataError(
            f"--device-output {path} holds {len(content)} {'integers' if text else 'bytes'}; the "
            "outputs take "
            f"{sum(takes.values())}: {listed}"
        )
    found, start = [], 0
    for name, size in takes.items():
        part = content[start : start + size]
        found.append(
            DumpedTensor(name, path.name, values=part)
            if text
            else DumpedTensor(name, path.name, data=part)
        )
        start += size
    return found
