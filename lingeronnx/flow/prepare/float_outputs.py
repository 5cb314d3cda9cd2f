"""What the user's model gives for calibration samples.

Run once, and held as far as the memory goes.
Behind a Softmax or a Sigmoid rare values tell nearly all of the error. So what these read at the
outputs is kept, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ...graph import ir, operators
from ...run.runners import FloatRunner

__all__ = ["FloatOutputCache", "map_outputs_to_logits"]

_CURVES = operators.SOFTMAX_OPS | {"Sigmoid"}


def map_outputs_to_logits(model: ir.Model) -> dict[str, str]:
    """Return {output of `model`.

    What a Softmax or a Sigmoid makes it of, else the output itself}.
    """
    found = {}
    for value in model.graph.outputs:
        maker = value.producer()
        behind = maker is not None and maker.op_type in _CURVES
        found[str(value.name)] = (
            ir.input_name(maker) if maker is not None and behind else str(value.name)
        )
    return found


class FloatOutputCache:
    """The outputs `names` of the user's model, which `source` runs, in pieces of samples.

    most : bytes of outputs that are held.
    """

    def __init__(self, source: FloatRunner, names: Sequence[str], most: int) -> None:
        self._source, self._names, self._room = source, names, most
        self._held: dict[tuple[Hashable, ...], dict[str, np.ndarray]] = {}

    def outputs(
        self, what: str, number: int, feed: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the outputs for `feed`, piece `number` of the samples that are called `what`."""
        key = (
            what,
            number,
            *(array.shape for array in feed.values()),
        )  # the last piece may be a short one
        if key in self._held:
            return self._held[key]
        outputs = {name: array for name, array, _ in self._source.run(feed, self._names)}
        size = sum(array.nbytes for array in outputs.values())
        if size <= self._room:
            self._room -= size
            self._held[key] = outputs
        return outputs
