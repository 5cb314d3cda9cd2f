"""Histograms in a TensorBoard event file, written without TensorBoard and torch.

The file is a sequence of records: length (uint64), its masked CRC-32C, the bytes, their masked
CRC-32C, little-endian, with mask(c) = rotate right(c, 15) + 0xa282ead8 (TFRecord). Each record is
one `Event` message in protobuf's wire format: wall_time = 1 (double), step = 2 (int64),
file_version = 3 (string), summary = 5. A value (1) of a summary has tag = 1 and histo = 5. A
HistogramProto has min, max, num, sum, sum_squares = 1 to 5 (double), bucket_limit = 6 and bucket =
7 (packed doubles), where bucket i counts the values between limits i - 1 and i. The fields are
those of TensorFlow's event.proto, summary.proto and histogram.proto. This module knows
`Distribution`s but no models.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...common.files import replace_file
from ..stats.distribution import Distribution

__all__ = ["BUCKETS", "EVENTS_VERSION", "crc32c", "write_histograms"]

#: Buckets of a histogram, of equal width over the range of the values.
BUCKETS = 64

#: File version in the first record of an event file.
EVENTS_VERSION = b"brain.Event:2"

_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def write_histograms(path: Path, histograms: Iterable[tuple[str, Distribution]]) -> int:
    """Write (tag, distribution) pairs as histograms of step 0 into an event file.

    Parameters
    ----------
    path
        The event file, which is replaced. TensorBoard reads files with "tfevents" in their name.
    histograms
        Tags and distributions; empty distributions are skipped.

    Returns
    -------
    int
        Number of histograms written.

    Raises
    ------
    ConfigError
        If `path` cannot be written.
    """
    now, count = time.time(), 0
    with replace_file(path) as temporary, temporary.open("wb") as file:
        file.write(_encode_record(_encode_field(1, now) + _encode_field(3, EVENTS_VERSION)))
        for tag, distribution in histograms:
            if not distribution.count:
                continue
            histogram = _encode_histogram(distribution)
            value = _encode_field(1, tag.encode()) + _encode_field(5, histogram)
            summary = _encode_field(1, value)
            event = _encode_field(1, now) + _encode_field(2, 0) + _encode_field(5, summary)
            file.write(_encode_record(event))
            count += 1
    return count


def _encode_histogram(distribution: Distribution) -> bytes:
    """Encode a distribution that is not empty as TensorBoard's HistogramProto message.

    Contains minimum, maximum, count, sum, sum of squares, the limits and the counts of 64 buckets
    of equal width from the lowest to the highest value (widened by 0.5 if these are equal).
    """
    low, high, count = distribution.low, distribution.high, distribution.count
    counts = distribution.histogram.bins(low, high, BUCKETS)
    # an empty range is widened as by `Histogram.bins`
    first, last = (low, high) if high > low else (low - 0.5, high + 0.5)
    limits = np.linspace(first, last, BUCKETS + 1)
    total = distribution.mean * count
    squares = (distribution.variance + distribution.mean**2) * count
    message = b""
    for number, value in enumerate((low, high, count, total, squares), 1):
        message += _encode_field(number, float(value))
    for number, array in enumerate((limits, np.concatenate([[0], counts])), 6):
        message += _encode_field(number, array.astype("<f8").tobytes())
    return message


def _encode_field(number: int, value: int | float | bytes) -> bytes:
    """Encode field `number` in protobuf's wire format: bytes, double (float) or varint (int).

    `value` is not negative if it is an int.
    """
    if isinstance(value, bytes):
        return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(value)) + value
    if isinstance(value, float):
        return _encode_varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
    return _encode_varint(number << 3 | _VARINT) + _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    """Encode a nonnegative integer as a base-128 varint, low bits first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _encode_record(data: bytes) -> bytes:
    """Encode a TFRecord: length and data, each followed by its masked CRC."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _mask_crc(length)) + data + struct.pack("<I", _mask_crc(data))


def _mask_crc(data: bytes) -> int:
    """Return the masked CRC-32C of `data`.

    It is rotated right by 15 bits, plus 0xA282EAD8, modulo 2^32.
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Compute the CRC-32C (Castagnoli) of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table_entry(crc: int) -> int:
    """Compute the entry of the CRC-32C lookup table for the byte `crc`, 0 to 255."""
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE = tuple(_crc_table_entry(byte) for byte in range(256))
