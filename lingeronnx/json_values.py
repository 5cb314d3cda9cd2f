"""Values as JSON has them.

What becomes of results before they are written, in files, pages and on the command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["to_json_value"]


def to_json_value(value: object, format_text: Callable[[str], str] = str) -> Any:  # noqa: ANN401 - JSON
    """Return `value` in types JSON has; a number that is not finite becomes null, a row a dict.

    format_text : how every text is written.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            format_text(str(key)): to_json_value(item, format_text) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_json_value(item, format_text) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {
            key: to_json_value(getattr(value, key), format_text)
            for key in value.__dataclass_fields__
        }
    if isinstance(value, Enum):
        return value.name.lower()
    return format_text(str(value)) if isinstance(value, str | Path) else value
