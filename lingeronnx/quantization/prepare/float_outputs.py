"""Cache the float model's outputs for calibration samples, as far as the memory budget allows.

After a Softmax or a Sigmoid, a few values dominate the error. So the inputs of these are cached for
the outputs as well.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ...ir import float_ops, ir
from ...runtime.runners import FloatRunner

__all__ = [
    "MAX_MEASURED_SAMPLES",
    "FloatOutputCache",
    "has_too_few_softmax_rows",
    "is_softmax_output",
    "map_outputs_to_logits",
]

#: The largest number of samples that outputs are compared on, except for calls of a model with
#: states; at least that of held-out samples (`runtime.data.Data`).
MAX_MEASURED_SAMPLES = 64
_MIN_SOFTMAX_ROWS = 500  # minimum number of rows of a Softmax output

_FINAL_ACTIVATION_OPS = float_ops.SOFTMAX_OPS | {"Sigmoid"}


def map_outputs_to_logits(model: ir.Model) -> dict[str, str]:
    """Return {output: input of the Softmax or Sigmoid that computes it, else the output itself}.

    LogSoftmax counts as Softmax.
    """
    logits = {}
    for value in model.graph.outputs:
        name = str(value.name)
        producer = value.producer()
        if producer is not None and producer.op_type in _FINAL_ACTIVATION_OPS:
            logits[name] = ir.input_name(producer)
        else:
            logits[name] = name
    return logits


def has_too_few_softmax_rows(model: ir.Model, sample_count: int) -> bool:
    """Whether a Softmax output has too few rows in `sample_count` samples to judge a change by."""
    for value in model.graph.outputs:
        if not is_softmax_output(value):
            continue
        shape = ir.get_shape(value) or ()
        rows = math.prod(dim or 1 for dim in shape[1:-1])
        if rows * sample_count < _MIN_SOFTMAX_ROWS:
            return True
    return False


def is_softmax_output(value: ir.Value) -> bool:
    """Whether a Softmax or LogSoftmax computes `value`."""
    producer = ir.producer(value)
    return producer is not None and producer.op_type in float_ops.SOFTMAX_OPS


class FloatOutputCache:
    """Cached outputs of the user's model for batches of samples.

    Parameters
    ----------
    source
        Runner of the model.
    names
        Names of the tensors.
    max_bytes
        Maximum size of the cache.
    """

    def __init__(self, source: FloatRunner, names: Sequence[str], max_bytes: int) -> None:
        """Start an empty cache of the tensors `names` of `source`; it keeps up to `max_bytes`."""
        self._source, self._names, self._max_bytes = source, names, max_bytes
        self._free_bytes = max_bytes
        self._cache: dict[tuple[Hashable, ...], dict[str, np.ndarray]] = {}

    def make_empty_copy(self) -> FloatOutputCache:
        """Return an empty cache of the same tensors, for other samples."""
        return FloatOutputCache(self._source, self._names, self._max_bytes)

    def outputs(
        self, dataset: str, index: int, feed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return {name: array} for `feed`, which is batch `index` of the samples named `dataset`.

        Names are those of the cache. The model is run once, and results are kept while the memory
        budget lasts; for the same `dataset`, `index` and shapes, `feed` must be the same each time.
        """
        # The shapes are part of the key: the last batch may be smaller.
        key = (dataset, index, *(array.shape for array in feed.values()))
        if key in self._cache:
            return self._cache[key]
        outputs = {name: array for name, array, _ in self._source.run(feed, self._names)}
        size = sum(array.nbytes for array in outputs.values())
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._cache[key] = outputs
        return outputs
