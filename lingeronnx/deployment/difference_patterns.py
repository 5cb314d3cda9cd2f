"""What the differences of two tensors look like, where no known fault gives them exactly.

Guesses, told as such.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["describe_patterns"]


def describe_patterns(
    expected: np.ndarray, actual: np.ndarray, recurrent: bool = False
) -> list[tuple[str, str]]:
    """Return (kind, text) of the plainest patterns in the integers `actual` that should be `expected`, of one shape.

    recurrent : they are what a recurrent layer writes, a row [H] of one sample after the other.
    """
    found = [
        *(_iterate_step_patterns(expected, actual) if recurrent else ()),
        *_iterate_value_patterns(expected, actual),
        *_iterate_location_patterns(expected, actual),
    ]
    return found[:2] or [
        ("unknown", "no fault that is known gives these integers, and they have no plain pattern")
    ]


def _iterate_step_patterns(want: np.ndarray, have: np.ndarray) -> Iterator[tuple[str, str]]:
    gaps = np.abs(have.astype(np.int64) - want).reshape(-1, want.shape[-1]).mean(axis=1)
    if gaps[0]:
        yield (
            "stale",
            (
                "it is off from the first step on: it began with a state other than zeros, or its "
                "weights differ"
            ),
        )
    else:
        yield (
            "steps",
            (
                f"steps 0 to {int(np.flatnonzero(gaps)[0]) - 1} are right: the state went wrong on "
                "the "
                "way"
            ),
        )


def _iterate_value_patterns(want: np.ndarray, have: np.ndarray) -> Iterator[tuple[str, str]]:
    limits = np.iinfo(want.dtype)
    off = want.astype(np.int64) != have
    gap = have.astype(np.int64) - want
    ends = (want == limits.min) | (want == limits.max)
    if (have == have.reshape(-1)[0]).all():
        yield (
            "not computed",
            f"all values are {have.reshape(-1)[0]}: memory that nothing was written to",
        )
    elif np.abs(gap).max() <= 1:
        which = (
            "one count less"
            if gap.min() < 0 <= -gap.max()
            else "one count more"
            if gap.min() >= 0
            else "one count"
        )
        yield "rounding", f"values are {which} off: another rounding, or a table of another version"
    elif not ends[~off].any() and ends[off].all():
        yield (
            "saturation",
            "only values at the limits differ: sums wrap around or are cut elsewhere",
        )
    elif (have[off] < 0).all() and (want[off] == 0).all():
        yield "relu", "only zeros differ, negative on the device: a Relu that is missing"
    elif (have[off] == 0).all() and (want[off] < 0).all():
        yield "relu", "only negative values differ, 0 on the device: a Relu that the graph has not"


def _iterate_location_patterns(want: np.ndarray, have: np.ndarray) -> Iterator[tuple[str, str]]:
    off = want.astype(np.int64) != have
    where = np.flatnonzero(off.reshape(-1))
    first, last = int(where[0]), int(where[-1])
    channels = off.any(axis=tuple(a for a in range(want.ndim) if a != 1)).sum()
    if channels > 1 and last - first + 1 < want.size // 2 and len(where) > (last - first + 1) // 2:
        start, stop = first * want.itemsize, (last + 1) * want.itemsize
        text = (
            f"only bytes {start} to {stop - 1} of {want.nbytes} differ: overwritten, or not "
            "transferred"
        )
        yield "overwritten", text
        return
    for axis in range(1, want.ndim):
        planes = np.flatnonzero(off.any(axis=tuple(a for a in range(want.ndim) if a != axis)))
        size = want.shape[axis]
        if size < 4 or len(planes) > max(1, size // 4):
            continue
        which = ", ".join(map(str, planes[:8].tolist()))
        if axis == 1 or want.ndim < 3:
            yield (
                "weight",
                (
                    f"only channels {which} of axis {axis} differ: their weights or biases, or a part "
                    "not run"
                ),
            )
        elif planes.min() == 0 or planes.max() == size - 1:
            yield (
                "pads",
                (
                    f"only places {which} of axis {axis} differ, at the border: padding, or tiles "
                    "without a halo"
                ),
            )
        else:
            yield "part", f"only places {which} of axis {axis} differ"
