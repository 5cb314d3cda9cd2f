"""The second grammar: changes of bytes and of protobuf fields by one who does not know what they
mean.

A protobuf message is cut into its fields; fields are dropped, repeated, exchanged, cut, put into
another message, or taken from the same place of another file. Lengths are written anew, so that the
message around stays readable.
"""

import io
import zipfile

from tests.robustness.case import write_member
from tests.robustness.values import INTS, pick

__all__ = ["damage_bytes", "repacked", "splice_messages"]


def damage_bytes(content, rng):
    """Return bytes that are cut, overwritten, doubled in places, or nothing of what they were."""
    found = bytearray(content)
    way = int(rng.integers(7))
    if way == 0:
        return bytes(found[: int(rng.integers(len(found) + 1))])
    if way == 1 and found:
        for _ in range(int(rng.integers(1, 9))):
            found[int(rng.integers(len(found)))] = int(rng.integers(256))
    elif way == 2 and found:
        found[int(rng.integers(len(found)))] ^= 1 << int(rng.integers(8))
    elif way == 3:
        start = int(rng.integers(len(found) + 1))
        found[start:start] = found[: int(rng.integers(1, 200))]
    elif way == 4:
        start = int(rng.integers(len(found) + 1))
        del found[start : start + int(rng.integers(1, 64))]
    elif way == 5:
        return bytes(rng.integers(0, 256, int(rng.integers(0, 400)), "u1"))
    else:
        found.extend(bytes(int(rng.integers(1, 64))))
    return bytes(found)


def repacked(content, rng):
    """Return a zip file (of torch, of numpy) in which one member is damaged and all checksums are
    right again.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        members = old.namelist()
        hit = pick(rng, members)
        for name in members:
            held = old.read(name)
            if name == hit:
                if not rng.integers(5):
                    continue
                held = damage_bytes(held, rng)
            write_member(new, name, held)
    return out.getvalue()


def splice_messages(content, other, rng, count):
    """Return a message with `count` changes of its fields, some of them taken from the message
    `other`.
    """
    for _ in range(count):
        content = _changed(content, other, rng, 0)
    return damage_bytes(content, rng) if not rng.integers(12) else content


def _changed(content, other, rng, depth):
    fields, theirs = _fields(content), _fields(other) or []
    if not fields:
        return damage_bytes(content, rng)
    index = int(rng.integers(len(fields)))
    number, kind, value = fields[index]
    same = [field for field in theirs if field[0] == number and field[1] == kind]
    deeper = kind == 2 and len(value) > 1 and _fields(value)
    if deeper and rng.integers(10) < (9 if depth < 2 else 5):
        against = pick(rng, same)[2] if same else b""
        fields[index] = number, kind, _changed(value, against, rng, depth + 1)
        return _joined(fields)
    way = int(rng.integers(8))
    if way == 0:
        del fields[index]
    elif way == 1:
        fields.insert(int(rng.integers(len(fields) + 1)), fields[index])
    elif way == 2:
        to = int(rng.integers(len(fields)))
        fields[index], fields[to] = fields[to], fields[index]
    elif way == 3 and same:
        fields[index] = pick(rng, same)
    elif way == 4 and theirs:
        fields.insert(index, pick(rng, theirs))
    elif way == 5:
        to = int(rng.integers(len(fields)))
        if fields[to][1] == kind:
            fields[index] = number, kind, fields[to][2]
    elif way == 6:
        fields[index] = int(rng.integers(1, 30)), kind, value
    elif kind == 0:
        fields[index] = number, kind, pick(rng, INTS) % 2**64
    else:
        fields[index] = (
            number,
            kind,
            damage_bytes(value, rng)
            if kind == 2
            else bytes(rng.integers(0, 256, len(value), "u1")),
        )
    return _joined(fields)


def _varint(content, place):
    value = shift = 0
    while True:
        if place >= len(content) or shift > 63:
            raise ValueError
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _fields(content):
    """Return [(number, wire type, value)] of a message, None where the bytes are none."""
    found, place = [], 0
    try:
        while place < len(content):
            key, place = _varint(content, place)
            number, kind = key >> 3, key & 7
            if number == 0:
                return None
            if kind == 0:
                value, place = _varint(content, place)
            else:
                size = {1: 8, 5: 4}.get(kind)
                if kind == 2:
                    size, place = _varint(content, place)
                if size is None or place + size > len(content):
                    return None
                value, place = content[place : place + size], place + size
            found.append((number, kind, value))
    except ValueError:
        return None
    return found


def _written(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _joined(fields):
    out = bytearray()
    for number, kind, value in fields:
        out += _written(number << 3 | kind)
        out += (
            _written(value) if kind == 0 else _written(len(value)) + value if kind == 2 else value
        )
    return bytes(out)
