"""Digests that are written into files never change; framed ones see where parts end."""

import hashlib

from lingeronnx.common.hashing import hash_concatenation, hash_framed_parts


def test_concatenation_is_blake2b():
    assert hash_concatenation([b"ab", b"c"]) == hashlib.blake2b(b"abc", digest_size=16).hexdigest()
    assert hash_concatenation([b"abc"], 8) == hashlib.blake2b(b"abc", digest_size=8).hexdigest()


def test_framed_parts():
    assert hash_framed_parts([b"ab", b"c"]) != hash_framed_parts([b"a", b"bc"])
    framed = b"\x01" + bytes(7) + b"x"
    assert hash_framed_parts([b"x"]) == hashlib.blake2b(framed, digest_size=16).digest()
