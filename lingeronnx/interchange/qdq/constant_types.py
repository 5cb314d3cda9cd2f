"""Element types of constants in quantized files: a file may have text where a number belongs."""

from __future__ import annotations

import numpy as np

__all__ = ["format_element_type", "is_number"]


def is_number(array: np.ndarray) -> bool:
    """Whether the elements of `array` are real numbers, not text, booleans or records.

    int4, bfloat16 and similar types, which NumPy does not have, count as numbers.
    """
    return array.dtype.kind in "fiu" or (array.dtype.kind == "V" and array.dtype.names is None)


def format_element_type(array: np.ndarray) -> str:
    """Return the element type of `array` for messages: its dtype, or "text" for strings."""
    return "text" if array.dtype.kind in "OSU" else str(array.dtype)
