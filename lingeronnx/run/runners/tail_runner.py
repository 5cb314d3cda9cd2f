"""Running what has sizes that the data decide.

Never stacked over samples where it is made for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import ModelError
from ...graph import ir
from ...graph.dynamic_tail import DynamicTail
from .float_runner import FloatRunner, Stream

__all__ = ["TailRunner"]


class TailRunner:
    """A tail in onnxruntime.

    One run for each sample where the whole model is made for one, else one for all.
    """

    def __init__(self, tail: DynamicTail) -> None:
        model = ir.clone(tail.model)
        for value in model.graph.inputs:
            value.shape = None
        self._runner = FloatRunner(model)
        self._reads = tail.input_names
        self._names = [
            str(v.name)
            for v in ir.iter_values(model)
            if str(v.name) not in tail.input_names and v.const_value is None
        ]
        self._one = bool(tail.single_sample_shapes)

    def run(
        self, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None, samples: int
    ) -> Stream:
        """Yield `(name, array, None)` of the tensors `names`.

        None: of all that several samples can be joined in.
        feeds : what the tail reads, `samples` samples one after another on axis 0. ModelError where
        a named tensor differs in size from sample to sample.
        """
        wanted = self._names if names is None else list(names)
        count = samples if self._one else 1
        runs = [
            {name: _sample(array, i, count) for name, array in feeds.items()} for i in range(count)
        ]
        found = [
            {name: array for name, array, _ in self._runner.run(feed, wanted)} for feed in runs
        ]
        for name in wanted:
            arrays = [np.atleast_1d(run[name]) if count > 1 else run[name] for run in found]
            if len({array.shape for array in arrays}) > 1:
                if names is None:
                    continue
                raise ModelError(
                    f"tensor '{name}' has sizes that the data decide, another for each of these "
                    f"{count} samples; run "
                    "one sample at a time"
                )
            yield name, np.concatenate(arrays) if count > 1 else arrays[0], None


def _sample(array: np.ndarray, number: int, count: int) -> np.ndarray:
    """Return the rows of sample `number` of `count`."""
    rows = len(array) // count if array.ndim else 0
    return array[number * rows : (number + 1) * rows] if count > 1 and rows else array
