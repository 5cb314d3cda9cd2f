"""Element types of constants in quantized files: a file may have text where a number belongs."""

from __future__ import annotations

import numpy as np

__all__ = ["format_element_type", "is_number"]


def is_number(array: np.ndarray) -> bool:
    """Whether the elements of a constant are real numbers.

    int4, bfloat16 and similar types, which NumPy does not have, have the kind V.
    """
    return array.dtype.kind in "fiu" or (array.dtype.kind == "V" and array.dtype.names is None)


def format_element_type(array: np.ndarray) -> str:
    """Return the element type of a constant for messages; "text" for strings."""
    return "text" if array.dtype.kind in "OSU" else str(array.dtype)
