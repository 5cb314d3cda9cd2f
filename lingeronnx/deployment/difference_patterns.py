"""Describe patterns in the differences of two tensors when no known fault reproduces them exactly.

The descriptions are guesses, and are labelled as such.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["describe_patterns"]


def describe_patterns(
    expected: np.ndarray, actual: np.ndarray, recurrent: bool = False
) -> list[tuple[str, str]]:
    """Describe the simplest patterns in the differences of two integer tensors.

    Parameters
    ----------
    expected, actual
        The simulator's and the device's integers, of one shape.
    recurrent
        Whether they are the output [steps, ..., H] of a recurrent layer for one sample.

    Returns
    -------
    list of (kind, text)
        At most two patterns; one of kind "unknown" if none was recognized.
    """
    patterns = [
        *(_iterate_step_patterns(expected, actual) if recurrent else ()),
        *_iterate_value_patterns(expected, actual),
        *_iterate_location_patterns(expected, actual),
    ]
    return patterns[:2] or [
        ("unknown", "no known fault reproduces these integers, and no simple pattern was found")
    ]


def _iterate_step_patterns(expected: np.ndarray, actual: np.ndarray) -> Iterator[tuple[str, str]]:
    """Yield whether a recurrent layer differs from the first step on or from a later one.

    Steps are all axes but the last, flattened; some value must differ.
    """
    gap = np.abs(actual.astype(np.int64) - expected)
    step_gaps = gap.reshape(-1, expected.shape[-1]).mean(axis=1)
    if step_gaps[0]:
        text = (
            "it differs from the first step on: the initial state was not zero, or weights differ"
        )
        yield "stale", text
    else:
        first_wrong_step = int(np.flatnonzero(step_gaps)[0])
        text = f"steps 0 to {first_wrong_step - 1} are correct: the state became wrong after them"
        yield "steps", text


def _iterate_value_patterns(expected: np.ndarray, actual: np.ndarray) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of the first pattern that fits the values that differ, or nothing.

    Tried in this order: one constant ("not computed"), off by at most 1 ("rounding"), only values
    at the type's limits ("saturation"), and only zeros or only negative values ("relu").
    """
    limits = np.iinfo(expected.dtype)
    gap = actual.astype(np.int64) - expected
    differs = gap != 0
    at_limits = (expected == limits.min) | (expected == limits.max)
    first_value = actual.reshape(-1)[0]
    if (actual == first_value).all():
        yield "not computed", f"all values are {first_value}: memory that was never written"
    elif np.abs(gap).max() <= 1:
        text = (
            f"values are off by {_describe_unit_gap(gap)}: another rounding, or a table of another "
            "version"
        )
        yield "rounding", text
    elif not at_limits[~differs].any() and at_limits[differs].all():
        text = "only values at the limits differ: sums wrap around or saturate at other limits"
        yield "saturation", text
    elif (actual[differs] < 0).all() and (expected[differs] == 0).all():
        yield "relu", "only zeros differ, negative on the device: a Relu that is missing"
    elif (actual[differs] == 0).all() and (expected[differs] < 0).all():
        text = "only negative values differ, 0 on the device: a Relu that the graph does not have"
        yield "relu", text


def _describe_unit_gap(gap: np.ndarray) -> str:
    """Describe the sign of differences that are at most 1: "-1", "+1" or "+1 or -1"."""
    if gap.min() < 0 <= -gap.max():
        return "-1"
    if gap.min() >= 0:
        return "+1"
    return "+1 or -1"


def _iterate_location_patterns(
    expected: np.ndarray, actual: np.ndarray
) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of the positions that differ: a byte range, or few indices of an axis.

    A dense range of less than half of the tensor, over several channels, is "overwritten", and
    nothing else is tried. Otherwise each axis but the first, of 4 or more indices of which at most
    a quarter differ, is yielded:
    "weight" for channels, "pads" at the border, else "part".
    """
    differs = expected.astype(np.int64) != actual
    positions = np.flatnonzero(differs.reshape(-1))
    first, last = int(positions[0]), int(positions[-1])
    span = last - first + 1
    is_dense = span < expected.size // 2 and len(positions) > span // 2
    if is_dense and expected.ndim > 1 and len(_find_differing_indices(differs, 1)) > 1:
        start, stop = first * expected.itemsize, (last + 1) * expected.itemsize
        text = (
            f"only bytes {start} to {stop - 1} of {expected.nbytes} differ: overwritten, or not "
            "transferred"
        )
        yield "overwritten", text
        return
    for axis in range(1, expected.ndim):
        indices = _find_differing_indices(differs, axis)
        size = expected.shape[axis]
        if size < 4 or len(indices) > max(1, size // 4):
            continue
        listed = ", ".join(map(str, indices[:8].tolist()))
        if axis == 1 or expected.ndim < 3:
            text = (
                f"only channels {listed} of axis {axis} differ: their weights or biases, or a part "
                "that did not run"
            )
            yield "weight", text
        elif indices.min() == 0 or indices.max() == size - 1:
            text = (
                f"only indices {listed} of axis {axis} differ, at the border: padding, or tiles "
                "without a halo"
            )
            yield "pads", text
        else:
            yield "part", f"only indices {listed} of axis {axis} differ"


def _find_differing_indices(differs: np.ndarray, axis: int) -> np.ndarray:
    """Return the indices along `axis` at which any element of the mask is set, ascending."""
    other_axes = tuple(a for a in range(differs.ndim) if a != axis)
    return np.flatnonzero(differs.any(axis=other_axes))
