"""Keys for the equality of kernels, so that kernels with equal contents are built once.

The steps of an unrolled recurrent layer, for example, share their weights. Owns: `content_key`.
Must not know: any particular operator.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

__all__ = ["content_key"]


def content_key(value: Any) -> Hashable:
    """Return a key that is equal for two values only if they have the same class and contents.

    Arrays are hashed; sequences, mappings and dataclasses are compared by their members, numbers,
    texts, dtypes and classes by their `repr`. Any other object equals only itself, as long as it
    lives.
    """
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).digest()
        return "array", value.dtype.str, value.shape, digest
    if isinstance(value, tuple | list):
        return type(value), tuple(content_key(member) for member in value)
    if isinstance(value, Mapping):
        return type(value), tuple(
            (content_key(name), content_key(member)) for name, member in value.items()
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value), tuple((f.name, content_key(getattr(value, f.name))) for f in fields)
    if isinstance(value, bool | int | float | str | bytes | np.generic | np.dtype | type | None):
        return type(value), repr(value)
    return "object", id(value)
