"""What the attributes of a node may hold, and how one is read where its kind is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ModelError

__all__ = ["Attribute", "Attributes", "integer", "integers", "number", "numbers", "scales"]

#: What an attribute that is no graph holds; None where a node leaves it out.
Attribute = float | str | Sequence[float] | Sequence[str] | np.ndarray | None

#: Attributes of a node by name.
Attributes = Mapping[str, Attribute]


def number(attrs: Attributes, key: str, default: float | None = None) -> float:
    """Return an attribute that is one number, `default` where it is absent; ModelError for anything else."""
    value = attrs.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float):
        raise ModelError(f"attribute {key} is {value!r}; it must be a number")
    return value


def integer(attrs: Attributes, key: str, default: int | None = None) -> int:
    """Return `number` as an integer."""
    return int(number(attrs, key, default))


def numbers(attrs: Attributes, key: str, default: Sequence[float] | None = None) -> list[float]:
    """Return an attribute that is a list of numbers, `default` where it is absent or empty; ModelError otherwise."""
    value = attrs.get(key)
    if default is not None and (value is None or (isinstance(value, Sequence) and not value)):
        return list(default)
    numerals = [each for each in value if isinstance(each, int | float)] if isinstance(value, Sequence) else None
    if numerals is None or not isinstance(value, Sequence) or len(numerals) != len(value):
        raise ModelError(f"attribute {key} is {value!r}; it must be a list of numbers")
    return numerals


def scales(attrs: Attributes, key: str) -> float | list[float]:
    """Return an attribute that is one number, or a list with one for each channel; ModelError for anything else."""
    return numbers(attrs, key) if isinstance(attrs.get(key), Sequence) else number(attrs, key)


def integers(attrs: Attributes, key: str, default: Sequence[int] | None = None) -> list[int]:
    """Return `numbers` as integers."""
    return [int(value) for value in numbers(attrs, key, default)]
