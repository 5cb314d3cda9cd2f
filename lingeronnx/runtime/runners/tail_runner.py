"""Run the part of a model whose tensor shapes depend on input values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from ...ir.dynamic_tail import DynamicTail
from .float_runner import FloatRunner, Stream

__all__ = ["TailRunner"]


class TailRunner:
    """Runs a dynamic tail in onnxruntime.

    There is one run per sample if the model was made for single samples, else one for all.
    """

    def __init__(self, tail: DynamicTail) -> None:
        """Prepare a float runner for a copy of the tail's model whose inputs have no shapes.

        Raises ModelError if onnxruntime does not support the model.
        """
        model = tail.model.clone()
        for value in model.graph.inputs:
            value.shape = None
        self._runner = FloatRunner(model)
        variables = [value for value in ir.iter_values(model) if value.const_value is None]
        names = [str(value.name) for value in variables]
        self._names = [name for name in names if name not in tail.input_names]
        self._is_single_sample = bool(tail.single_sample_shapes)

    def run(
        self, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None, samples: int
    ) -> Stream:
        """Yield `(name, array, None)` of tensors of the tail.

        Parameters
        ----------
        feeds
            Inputs of the tail, with samples one after another on axis 0.
        names
            Tensors to yield; None for all whose shape is the same for all samples.
        samples
            Number of samples in `feeds`.

        Raises
        ------
        ModelError
            If the shape of a named tensor differs between samples.
        """
        outputs = self._names if names is None else list(names)
        count = samples if self._is_single_sample else 1
        runs = [self._run_sample(feeds, outputs, index, count) for index in range(count)]
        for name in outputs:
            arrays = [run[name] for run in runs]
            if count > 1:
                arrays = [np.atleast_1d(array) for array in arrays]
            if len({array.shape for array in arrays}) == 1:
                yield name, np.concatenate(arrays) if count > 1 else arrays[0], None
            elif names is not None:
                raise ModelError(
                    f"the shape of tensor '{name}' depends on the data and differs between these "
                    f"{count} samples; run one sample at a time"
                )

    def _run_sample(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], index: int, count: int
    ) -> dict[str, np.ndarray]:
        """Return the tensors `outputs` by name for sample `index` of `count` in `feeds`."""
        feed = {name: _get_sample(array, index, count) for name, array in feeds.items()}
        return {name: array for name, array, _ in self._runner.run(feed, outputs)}


def _get_sample(array: np.ndarray, index: int, count: int) -> np.ndarray:
    """Return the rows (axis 0) of sample `index` of `count`.

    The complete array for one sample, a scalar, or fewer rows than samples.
    """
    row_count = len(array) // count if array.ndim else 0
    if count == 1 or not row_count:
        return array
    return array[index * row_count : (index + 1) * row_count]
