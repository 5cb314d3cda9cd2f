"""Detect calibration data without information: inputs that have the same value everywhere.

If all inputs are constant, no scale can be determined, which is an error. A single constant input
gets a note: its scale is that of the one value, as of a state that is zero in all samples. An input
whose values are all nearly 0 is an error too: its scale exceeds float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...common.errors import DataError
from ...runtime.data import Batch, InputSpec

__all__ = ["ConstantInputDetector"]


#: Smallest range of an input: the scale of 16 bits, 32767 / range, must fit in float32.
_MIN_RANGE = 2.0**-112


@dataclass
class _ValueRange:
    """Range of the values of one input, number of elements, and whether they are floats."""

    low: float
    high: float
    count: int
    is_float: bool


class ConstantInputDetector:
    """Detects inputs that have the same value in all batches.

    Parameters
    ----------
    inputs
        Inputs of the model.
    fed_back
        Inputs that are states; their values are computed, not data.
    """

    def __init__(self, inputs: Iterable[InputSpec], fed_back: Collection[str]) -> None:
        """Watch the `inputs` that have a batch axis, except those named in `fed_back` (states)."""
        self._names = {
            spec.name for spec in inputs if spec.axis is not None and spec.name not in fed_back
        }
        self._ranges: dict[str, _ValueRange] = {}

    def watch_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches (feeds, labels) unchanged, recording the ranges of the inputs."""
        for feeds, labels in batches:
            for name in self._names & feeds.keys():
                self._add(name, feeds[name])
            yield feeds, labels

    def _add(self, name: str, array: np.ndarray) -> None:
        """Extend the range and the count of input `name` by `array`.

        An empty one does not count.
        """
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        values = self._ranges.setdefault(name, _ValueRange(low, high, 0, True))
        values.low = min(values.low, low)
        values.high = max(values.high, high)
        values.count += array.size
        values.is_float = array.dtype.kind == "f"

    def notes(self) -> list[str]:
        """Return a note on each float input that had the same value everywhere, sorted by name.

        Inputs with one element in all batches together do not count.

        Raises
        ------
        DataError
            If there are inputs with more than one element in all batches and all of them are
            constant, or if the values of a float input are all nearer to 0 than `_MIN_RANGE`, but
            not all 0.
        """
        ranges = {name: values for name, values in sorted(self._ranges.items()) if values.count > 1}
        constant = {name: values for name, values in ranges.items() if values.low == values.high}
        if ranges and len(constant) == len(ranges):
            inputs = ", ".join(
                f"'{name}' is {values.low:g} everywhere" for name, values in constant.items()
            )
            raise DataError(
                f"calibration data: input {inputs}, so no scale can be determined; use "
                "representative samples"
            )
        for name, values in ranges.items():
            largest = max(-values.low, values.high)
            if values.is_float and 0 < largest < _MIN_RANGE:
                raise DataError(
                    f"calibration data: input '{name}' has no value beyond {largest:.2g}, and a "
                    f"scale needs {_MIN_RANGE:.2g}; multiply the data, or check how they are read"
                )
        return [
            f"input '{name}' is {values.low:g} in all calibration samples; its scale is arbitrary"
            for name, values in constant.items()
            if values.is_float
        ]
