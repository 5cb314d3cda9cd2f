"""What a graph input takes: its shape and type, and which axis counts the samples.

And what batches of samples are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Batch", "InputSpec", "Progress"]

#: {input: array}, and labels where there are any.
Batch = tuple[dict[str, np.ndarray], np.ndarray | None]

#: Called while data are worked through, with (what is being done, samples done, samples in all or None).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class InputSpec:
    """A graph input: name, shape with None where any size is accepted, dtype, and the axis that counts the samples.

    Of that axis any size is accepted. An axis of None is an input without samples, such as a
    setting (a single number): it is fed as it is.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: np.dtype
    axis: int | None = 0

    @property
    def accepts_any_batch(self) -> bool:
        """Whether any number of samples may be fed.

        Not where the model fixes the axis to a size other than 1.
        """
        return self.axis is not None and (not self.shape or self.shape[self.axis] in (None, 1))

    @property
    def is_single_sample(self) -> bool:
        """Whether the file fixes the number of samples to 1."""
        return self.axis is not None and bool(self.shape) and self.shape[self.axis] == 1  # type: ignore[index]

    def count_samples(self, array: np.ndarray) -> int:
        """Return the number of samples in `array`, 1 where the input has none."""
        return 1 if self.axis is None or array.ndim <= self.axis else int(array.shape[self.axis])

    def slice_samples(self, array: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return the samples start..stop-1 of `array`.

        The array itself where the input has no samples.
        """
        return (
            array
            if self.axis is None
            else array[(slice(None),) * self.axis + (slice(start, stop),)]
        )

    def concatenate(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the samples of all `arrays`, one after another.

        The first array where the input has no samples.
        """
        return arrays[0] if self.axis is None else np.concatenate(arrays, self.axis)

    def kind(self, array: np.ndarray) -> tuple[object, ...]:
        """Return what two arrays must have in common to be `concatenate`.

        The sizes beside the samples, or all values.
        """
        if self.axis is None:
            return array.shape, array.tobytes()
        return tuple(size for axis, size in enumerate(array.shape) if axis != self.axis)
