"""Calibration data that say nothing: inputs that have one value everywhere.

Where all inputs are so, no scale can be found, and that is an error. One such input beside others
is told in a note: its scale is that of the one value, as of a state that is zero in all samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ...errors import DataError
from ...run.data import Batch, InputSpec

__all__ = ["ConstantInputDetector"]


class ConstantInputDetector:
    """Looks at batches that are read.

    inputs : of the model. fed_back : states, whose values are computed, not given.
    """

    def __init__(self, inputs: Iterable[InputSpec], fed_back: Collection[str]) -> None:
        self._names = {
            spec.name for spec in inputs if spec.axis is not None and spec.name not in fed_back
        }
        self._seen: dict[
            str, tuple[float, float, int, bool]
        ] = {}  # least and largest value, elements, whether float

    def watch_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches."""
        for feeds, labels in batches:
            for name in self._names & feeds.keys():
                self._add(name, feeds[name])
            yield feeds, labels

    def _add(self, name: str, array: np.ndarray) -> None:
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        least, most, size, _ = self._seen.get(name, (low, high, 0, True))
        self._seen[name] = (
            min(least, low),
            max(most, high),
            size + array.size,
            array.dtype.kind == "f",
        )

    def notes(self) -> list[str]:
        """Return a note on each float input that is constant beside others.

        DataError where all inputs are.
        """
        told = {name: watched for name, watched in sorted(self._seen.items()) if watched[2] > 1}
        still = {name: low for name, (low, high, _, _) in told.items() if low == high}
        if told and len(still) == len(told):
            which = ", ".join(f"'{name}' is {value:g} everywhere" for name, value in still.items())
            raise DataError(
                f"calibration data: input {which}, so that no scale can be found; give samples as "
                "the model meets them"
            )
        return [
            f"input '{name}' is {value:g} in all calibration data: its scale is a guess"
            for name, value in still.items()
            if told[name][3]
        ]
