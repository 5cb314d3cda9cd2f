"""Histograms in a file that TensorBoard reads; written without TensorBoard and without torch.

The file is a sequence of records: length (uint64), its masked CRC-32C, the bytes, their masked
CRC-32C, little-endian, with mask(c) = rotate right(c, 15) + 0xa282ead8 (TFRecord). Each holds one
`Event` message in protobuf's wire format: wall_time = 1 (double), step = 2 (int64), file_version =
3 (string), summary = 5; a summary's value (1) has tag = 1 and histo = 5; a HistogramProto min, max,
num, sum, sum_squares = 1 to 5 (double), bucket_limit = 6 and bucket = 7 (packed doubles), where
bucket i counts what lies between limits i - 1 and i. Fields as in TensorFlow's event.proto,
summary.proto and histogram.proto. Knows `Distribution`s, no models.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...files import replace_file
from ..stats.distribution import Distribution

__all__ = ["BUCKETS", "EVENTS_VERSION", "crc32c", "write_histograms"]

#: Buckets of a histogram, of equal width over the range of the values.
BUCKETS = 64

#: What an event file begins with.
EVENTS_VERSION = b"brain.Event:2"

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def write_histograms(path: Path, histograms: Iterable[tuple[str, Distribution]]) -> int:
    """Write (tag, values) pairs as histograms of step 0 into the event file `path`.

    Return how many.
    TensorBoard looks at files with "tfevents" in their name. Raises ConfigError where `path` cannot
    be written.
    """
    now, count = time.time(), 0
    with replace_file(path) as temporary, temporary.open("wb") as file:
        file.write(_encode_record(_encode_field(1, now) + _encode_field(3, EVENTS_VERSION)))
        for tag, spread in histograms:
            if spread.count:
                value = _encode_field(1, tag.encode()) + _encode_field(5, _encode_histogram(spread))
                file.write(
                    _encode_record(
                        _encode_field(1, now)
                        + _encode_field(2, 0)
                        + _encode_field(5, _encode_field(1, value))
                    )
                )
                count += 1
    return count


def _encode_histogram(spread: Distribution) -> bytes:
    """Return a HistogramProto."""
    low, high = spread.low, spread.high
    counts = spread.histogram.bins(low, high, BUCKETS)
    below, above = (low, high) if high > low else (low - 0.5, high + 0.5)  # as the bins have it
    limits = np.linspace(below, above, BUCKETS + 1)
    total = spread.mean * spread.count
    squares = (spread.variance + spread.mean**2) * spread.count
    numbers = b"".join(
        _encode_field(k, float(v))
        for k, v in enumerate((low, high, spread.count, total, squares), 1)
    )
    lists = [limits, np.concatenate([[0], counts])]
    return numbers + b"".join(
        _encode_field(k, array.astype("<f8").tobytes()) for k, array in enumerate(lists, 6)
    )


def _encode_field(number: int, value: int | float | bytes) -> bytes:
    """Return one field in protobuf's wire format."""
    if isinstance(value, bytes):
        return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(value)) + value
    if isinstance(value, float):
        return _encode_varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
    return _encode_varint(number << 3 | _VARINT) + _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _encode_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _mask_crc(length)) + data + struct.pack("<I", _mask_crc(data))


def _mask_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table_entry(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE = tuple(_crc_table_entry(byte) for byte in range(256))
