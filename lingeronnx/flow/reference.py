"""What the user's model gives for calibration samples: run once, and held as far as the memory goes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

import numpy as np

from ..graph import ir
from ..run.runners import FloatRunner

__all__ = ["Reference"]


class Reference:
    """The outputs of the user's `model`, in pieces of samples.

    most : bytes of outputs that are held.
    """

    def __init__(self, model: ir.Graph, most: int) -> None:
        self._model, self._room = model, most
        self._held: dict[tuple[Hashable, ...], dict[str, np.ndarray]] = {}

    @cached_property
    def _runner(self) -> FloatRunner:
        """What runs the outputs alone: onnxruntime fuses nothing where every tensor is asked for, in twice the time."""
        return FloatRunner(self._model, {str(v.name) for v in self._model.graph.outputs})

    def outputs(self, what: str, number: int, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for `feed`, piece `number` of the samples that are called `what`."""
        key = what, number, *(array.shape for array in feed.values())  # the last piece may be a short one
        if key in self._held:
            return self._held[key]
        found = {name: array for name, array, _ in self._runner.run(feed)}
        size = sum(array.nbytes for array in found.values())
        if size <= self._room:
            self._room -= size
            self._held[key] = found
        return found
