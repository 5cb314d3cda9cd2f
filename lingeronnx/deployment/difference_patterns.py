"""Describe where and by how much two tensors differ when no known fault explains the differences.

The descriptions state facts about the values. They name no cause: several causes would fit each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["describe_patterns"]

_MAX_PATTERNS = 2


def describe_patterns(
    expected: np.ndarray, actual: np.ndarray, recurrent: bool = False
) -> list[str]:
    """Describe the simplest patterns in the differences of two integer tensors.

    Parameters
    ----------
    expected, actual
        The simulator's and the device's integers, of one shape; they must differ.
    recurrent
        Whether they are the output [steps, ..., H] of a recurrent layer for one sample.

    Returns
    -------
    list of str
        At most two patterns, each of which holds for all values that differ.
    """
    patterns = [
        *(_iterate_step_patterns(expected, actual) if recurrent else ()),
        *_iterate_value_patterns(expected, actual),
        *_iterate_location_patterns(expected, actual),
    ]
    return patterns[:_MAX_PATTERNS]


def _iterate_step_patterns(expected: np.ndarray, actual: np.ndarray) -> Iterator[str]:
    """Yield one text: whether a recurrent layer differs from its first step on or from which one.

    Steps are all axes but the last, flattened; some value must differ.
    """
    gap = np.abs(actual.astype(np.int64) - expected)
    step_gaps = gap.reshape(-1, expected.shape[-1]).mean(axis=1)
    if step_gaps[0]:
        yield "it differs from the first step on"
    else:
        first_wrong_step = int(np.flatnonzero(step_gaps)[0])
        yield f"steps 0 to {first_wrong_step - 1} are equal, step {first_wrong_step} differs"


def _iterate_value_patterns(expected: np.ndarray, actual: np.ndarray) -> Iterator[str]:
    """Yield a text on the first pattern that fits all values that differ, or nothing.

    Tried in this order: one constant on the device, off by at most 1, only values at the type's
    limits, only zeros that became negative, only negative values that became 0.
    """
    limits = np.iinfo(expected.dtype)
    gap = actual.astype(np.int64) - expected
    differs = gap != 0
    at_limits = (expected == limits.min) | (expected == limits.max)
    first_value = actual.reshape(-1)[0]
    if (actual == first_value).all():
        yield f"all values are {first_value} on the device"
    elif np.abs(gap).max() <= 1:
        yield f"all differences are {_describe_unit_gap(gap)}"
    elif not at_limits[~differs].any() and at_limits[differs].all():
        yield f"only values at the limits {limits.min} and {limits.max} differ"
    elif (actual[differs] < 0).all() and (expected[differs] == 0).all():
        yield "only zeros differ; they are negative on the device"
    elif (actual[differs] == 0).all() and (expected[differs] < 0).all():
        yield "only negative values differ; they are 0 on the device"


def _describe_unit_gap(gap: np.ndarray) -> str:
    """Describe the sign of differences of which none is larger than 1: "-1", "+1" or "+1 or -1"."""
    if gap.min() < 0 <= -gap.max():
        return "-1"
    if gap.min() >= 0:
        return "+1"
    return "+1 or -1"


def _iterate_location_patterns(expected: np.ndarray, actual: np.ndarray) -> Iterator[str]:
    """Yield texts on the positions that differ: a range of bytes, or few indices of an axis.

    If they are a dense range of less than half of the tensor, over several channels, nothing else
    is tried. Otherwise each axis but the first, of 4 or more indices of which at most a quarter
    differ, is yielded.
    """
    differs = expected.astype(np.int64) != actual
    positions = np.flatnonzero(differs.reshape(-1))
    first, last = int(positions[0]), int(positions[-1])
    span = last - first + 1
    is_dense = span < expected.size // 2 and len(positions) > span // 2
    if is_dense and expected.ndim > 1 and len(_find_differing_indices(differs, 1)) > 1:
        start, stop = first * expected.itemsize, (last + 1) * expected.itemsize
        yield f"all differences are in bytes {start} to {stop - 1} of {expected.nbytes}"
        return
    for axis in range(1, expected.ndim):
        indices = _find_differing_indices(differs, axis)
        size = expected.shape[axis]
        if size < 4 or len(indices) > max(1, size // 4):
            continue
        listed = ", ".join(map(str, indices[:8].tolist()))
        subject = "channels" if axis == 1 or expected.ndim < 3 else "indices"
        yield f"only {subject} {listed}{' ...' if len(indices) > 8 else ''} of axis {axis} differ"


def _find_differing_indices(differs: np.ndarray, axis: int) -> np.ndarray:
    """Return the indices along `axis` at which any element of the mask is set, ascending."""
    other_axes = tuple(a for a in range(differs.ndim) if a != axis)
    return np.flatnonzero(differs.any(axis=other_axes))
