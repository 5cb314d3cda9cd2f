"""What training reads: samples in memory, drawn in an order that the seed and the epoch fix, and the float targets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import DataError
from ...graph import ir
from ...run.data import Data
from ...run.runners import FloatRunner

__all__ = ["Samples", "Teacher"]

_MAX_INPUT_BYTES = 8 << 30  # bytes of inputs that are held
_BATCH_SIZE = 64  # of what is read and of what the teacher computes at a time


class Samples:
    """All samples of `data` in memory. Raises DataError where they take more than 8 GiB."""

    def __init__(self, data: Data, device: str = "cpu") -> None:
        parts, labels, size = [], [], 0
        for feeds, own in data.batches(_BATCH_SIZE):
            size += sum(array.nbytes for array in feeds.values())
            if size > _MAX_INPUT_BYTES:
                raise DataError(
                    f"{data.label}: more than {_MAX_INPUT_BYTES >> 30} GiB of inputs; use fewer "
                    "samples with --limit"
                )
            parts.append(feeds)
            labels.append(own)
        self.device = device
        self.arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        known = [np.asarray(own) for own in labels if own is not None]
        self.labels = np.concatenate(known) if len(known) == len(labels) else None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def get_inputs(self, index: Any) -> dict[str, Any]:
        """Return the inputs of some samples as tensors."""
        return {
            name: torch.from_numpy(array[index]).to(self.device)
            for name, array in self.arrays.items()
        }

    def get_labels(self, index: Any) -> Any:
        """Return the labels of some samples as a tensor, None where there are none."""
        return None if self.labels is None else torch.from_numpy(self.labels[index]).to(self.device)

    def iterate_shuffled(self, size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Yield the indices of batches of `size`, a new order every epoch, the same for the same seed."""
        order = np.random.default_rng((seed, epoch)).permutation(len(self))
        last = max(
            len(self) - size + 1, 1
        )  # a short batch at the end would weigh as much as a full one
        for start in range(0, last, size):
            yield order[start : start + size]

    def iterate_slices(self, size: int) -> Iterator[slice]:
        """Yield slices that cover all samples in order."""
        for start in range(0, len(self), size):
            yield slice(start, start + size)


class Teacher:
    """The float model: what the outputs, and some tensors within, should be."""

    def __init__(self, model: ir.Model, names: Sequence[str], samples: Samples) -> None:
        self._runner, self._samples = FloatRunner(model, set(names)), samples

    def compute_targets(self, index: Any) -> dict[str, Any]:
        """Return the tensors of some samples by name."""
        arrays = {name: array[index] for name, array in self._samples.arrays.items()}
        found = {name: array for name, array, _ in self._runner.run(arrays)}
        return {
            name: torch.from_numpy(np.asarray(a)).to(self._samples.device)
            for name, a in found.items()
        }

    def all(self, names: Collection[str]) -> Mapping[str, Any]:
        """Return the tensors `names` of all samples."""
        parts = [self.compute_targets(part) for part in self._samples.iterate_slices(_BATCH_SIZE)]
        return {name: torch.cat([part[name] for part in parts]) for name in names}
