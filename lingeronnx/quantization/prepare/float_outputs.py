"""Cache the float model's outputs for calibration samples, as far as the memory budget allows.

After a Softmax or a Sigmoid, a few values dominate the error. So the inputs of these are cached for
the outputs as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.hashing import hash_framed_parts
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


@dataclass(eq=False)
class FloatOutputCache:
    """Cached outputs of the user's model for batches of samples.

    Attributes
    ----------
    source
        Runner of the model.
    names
        Names of the tensors.
    free_bytes
        Bytes by which the cache may still grow.
    """

    source: FloatRunner
    names: Sequence[str]
    free_bytes: int
    _cache: dict[bytes, dict[str, np.ndarray]] = field(default_factory=dict)

    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return {name: array} for the batch `feed`. Names are those of the cache.

        The model is run once for equal batches, and results are kept while the memory budget lasts.
        """
        key = _hash_feed(feed)
        if key in self._cache:
            return self._cache[key]
        outputs = {name: array for name, array, _ in self.source.run(feed, self.names)}
        size = sum(array.nbytes for array in outputs.values())
        if size <= self.free_bytes:
            self.free_bytes -= size
            self._cache[key] = outputs
        return outputs


def _hash_feed(feed: Mapping[str, np.ndarray]) -> bytes:
    """Return a digest of the names, types, shapes and elements of the arrays of `feed`."""
    parts = []
    for name, array in feed.items():
        parts.append(f"{name} {array.dtype.str} {array.shape}".encode())
        is_text = array.dtype.hasobject
        parts.append(repr(array.tolist()).encode() if is_text else array.tobytes())
    return hash_framed_parts(parts)
