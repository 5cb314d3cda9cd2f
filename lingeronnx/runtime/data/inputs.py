"""Specifications of graph inputs: shape, type, and the axis of the samples; types of batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Batch", "InputSpec", "Progress", "count_divisible_samples", "find_labels"]

#: Names of arrays with labels, among those that are no inputs of the model.
_LABEL_NAMES = ("labels", "label")

#: {input: array}, and labels if there are any.
Batch = tuple[dict[str, np.ndarray], np.ndarray | None]

#: Callback with (description of the work, processed samples, total samples or None).
Progress = Callable[[str, int, int | None], None]


#: (axes of a sample in the order of the model, layout of the data, option for images).
_LAYOUT_CHANGES = (
    ((2, 0, 1), "channels last (NHWC)", ", or --layout nchw for a folder of images"),
    ((1, 2, 0), "channels first (NCHW)", ", or --layout nhwc for a folder of images"),
    ((1, 0), "transposed", ""),
)


class InputSpec(NamedTuple):
    """A graph input.

    name : of the input. shape : None for dimensions of any size; None if not known. dtype : of the
    elements. axis : axis of the samples, of which any number is accepted; None for an input without
    samples, such as a scalar setting, which is fed unchanged.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype
    axis: int | None = 0

    @property
    def accepts_any_batch(self) -> bool:
        """Whether any number of samples may be fed.

        False for an input without samples, and if the model fixes a number above 1.
        """
        return self.axis is not None and (not self.shape or self.shape[self.axis] in (None, 1))

    @property
    def is_single_sample(self) -> bool:
        """Whether the input has a batch axis of fixed size 1; False if the shape is unknown."""
        if self.axis is None or not self.shape:
            return False
        return self.shape[self.axis] == 1

    def matches_shape(self, shape: Sequence[int]) -> bool:
        """Whether `shape` has the declared rank and, apart from the batch axis, the declared sizes.

        A declared size of None allows any; an unknown shape matches () only.
        """
        declared = self.shape or ()
        if len(shape) != len(declared):
            return False
        for axis, (size, expected) in enumerate(zip(shape, declared, strict=True)):
            if axis != self.axis and expected not in (None, size):
                return False
        return True

    def suggest_layout(self, shape: Sequence[int]) -> str:
        """Suggest how to change data of a shape that does not match; "" if unknown.

        Recognized are a missing batch axis, images with channels first instead of last or the
        reverse, and sequences with their two axes exchanged, all with and without a batch axis 0.
        """
        if self.matches_shape(shape):
            return ""
        rank = len(self.shape or ())
        is_single = len(shape) == rank - 1
        batched = list(shape)
        if is_single:
            batched.insert(self.axis or 0, 1)
        if self.matches_shape(batched):
            return "; add the batch axis"
        if self.axis != 0 or len(batched) != rank:
            return ""
        for axes, layout, option in _LAYOUT_CHANGES:
            order = [0, *(axis + 1 for axis in axes)]
            if len(order) != rank or not self.matches_shape([batched[axis] for axis in order]):
                continue
            if is_single:
                call = f"array.transpose({', '.join(map(str, axes))})[None]"
            else:
                call = f"array.transpose({', '.join(map(str, order))}){option}"
            return f"; the data look {layout}: pass {call}"
        return ""

    def count_samples(self, array: np.ndarray) -> int:
        """Return the number of samples in `array`; 1 if the input has no batch axis."""
        return 1 if self.axis is None or array.ndim <= self.axis else int(array.shape[self.axis])

    def slice_samples(self, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return samples `start` to `stop` - 1 of `array` as a view.

        The complete array if the input has no batch axis.
        """
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(start, stop),)]

    def concatenate(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Concatenate the samples of `arrays`; the first array if the input has no batch axis."""
        return arrays[0] if self.axis is None else np.concatenate(arrays, self.axis)

    def kind(self, array: np.ndarray) -> tuple[object, ...]:
        """Return a key that arrays for this input must share to be concatenated.

        It is the shape without the batch axis, or shape and all values if the input has no samples.
        """
        if self.axis is None:
            return array.shape, array.tobytes()
        return tuple(size for axis, size in enumerate(array.shape) if axis != self.axis)


def count_divisible_samples(specs: Mapping[str, InputSpec], feeds: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples that `feeds` can be divided into: those of the longest input.

    Only inputs that accept any batch count; 1 if there are none.
    """
    counts = [
        spec.count_samples(feeds[name])
        for name, spec in specs.items()
        if name in feeds and spec.accepts_any_batch
    ]
    return max(counts, default=1)


def find_labels(arrays: Collection[str], names: Collection[str]) -> str | None:
    """Return the name of the array with labels, "labels" or "label", or None if there is none.

    `names` are the inputs of the model, which are never labels.
    """
    return next((name for name in _LABEL_NAMES if name in arrays and name not in names), None)
