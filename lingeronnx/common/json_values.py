"""Conversion of results to JSON values, for files, pages and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["to_json_value"]


def to_json_value(value: object, format_text: Callable[[str], str] = str) -> Any:  # noqa: ANN401 - JSON
    """Convert `value` to types of JSON, recursively.

    A float that is not finite becomes None, a dataclass a dict of its fields, an enum member its
    name in lower case, a tuple a list, and a path a string. Values of other types are returned
    unchanged.

    Parameters
    ----------
    value
        Value; mappings, lists, tuples and dataclasses are converted recursively.
    format_text
        Applied to each string and mapping key.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = {format_text(str(key)): item for key, item in value.items()}
    elif hasattr(value, "__dataclass_fields__"):
        items = {name: getattr(value, name) for name in value.__dataclass_fields__}
    elif isinstance(value, list | tuple):
        return [to_json_value(item, format_text) for item in value]
    elif isinstance(value, Enum):
        return value.name.lower()
    else:
        return format_text(str(value)) if isinstance(value, str | Path) else value
    return {key: to_json_value(item, format_text) for key, item in items.items()}
