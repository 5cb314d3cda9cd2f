"""BLAKE2b digests of contents: keys of caches, journals and data files.

Digests that other programs check (SHA-256 of deployed files and of models) are computed where they
are written, with `hashlib`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["hash_concatenation", "hash_framed_parts"]

_DIGEST_BYTES = 16


def hash_framed_parts(parts: Iterable[bytes]) -> bytes:
    """Return a BLAKE2b digest of 16 bytes of the parts in order, each with its length.

    Unlike a digest of the concatenation, it differs if the same bytes are divided in another way.
    """
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def hash_concatenation(parts: Iterable[bytes], digest_bytes: int = _DIGEST_BYTES) -> str:
    """Return the BLAKE2b digest of the concatenation of `parts`, of `digest_bytes`, in hexadecimal.

    Journals and other files contain it, so that bytes and algorithm must not change.
    """
    hasher = hashlib.blake2b(digest_size=digest_bytes)
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()
