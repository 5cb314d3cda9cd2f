"""Training data: samples in memory, in a reproducible order, and targets of the float model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...common.errors import DataError
from ...ir import ir
from ...runtime.data import Data
from ...runtime.runners import FloatRunner

__all__ = ["Samples", "Teacher"]

#: Limit of the inputs in memory.
_MAX_INPUT_BYTES = 8 << 30
#: Batch size for reading data and for computing targets.
_BATCH_SIZE = 64


class Samples:
    """All samples of `data` in memory. Raises DataError if they take more than 8 GiB."""

    def __init__(self, data: Data, device: str = "cpu") -> None:
        """Read all samples of `data` into one array per input.

        `labels` is None unless every batch has labels. Raises DataError if the inputs take more
        than `_MAX_INPUT_BYTES`.
        """
        batches, label_batches, byte_count = [], [], 0
        for feeds, batch_labels in data.batches(_BATCH_SIZE):
            byte_count += sum(array.nbytes for array in feeds.values())
            if byte_count > _MAX_INPUT_BYTES:
                raise DataError(
                    f"{data.label}: more than {_MAX_INPUT_BYTES >> 30} GiB of inputs; use fewer "
                    "samples with --limit"
                )
            batches.append(feeds)
            if batch_labels is not None:
                label_batches.append(np.asarray(batch_labels))
        self.device = device
        self.arrays = {}
        for name in batches[0]:
            self.arrays[name] = np.concatenate([feeds[name] for feeds in batches])
        has_labels = len(label_batches) == len(batches)
        self.labels = np.concatenate(label_batches) if has_labels else None

    def __len__(self) -> int:
        """Number of samples: the length of axis 0 of the inputs."""
        return len(next(iter(self.arrays.values())))

    def get_inputs(self, index: Any) -> dict[str, Any]:
        """Return {input: tensor on the device} of samples `index` (indices or slice of axis 0)."""
        return {
            name: torch.from_numpy(array[index]).to(self.device)
            for name, array in self.arrays.items()
        }

    def get_labels(self, index: Any) -> Any:
        """Return the labels of samples `index` as a tensor on the device, or None without any."""
        return None if self.labels is None else torch.from_numpy(self.labels[index]).to(self.device)

    def iterate_shuffled(self, size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Yield arrays of `size` sample indices in random order, reproducible from seed and epoch.

        A smaller batch at the end is omitted, since it would have the weight of a full one; with
        fewer than `size` samples, all are one batch.
        """
        order = np.random.default_rng((seed, epoch)).permutation(len(self))
        for start in range(0, max(len(self) - size + 1, 1), size):
            yield order[start : start + size]

    def iterate_slices(self, size: int) -> Iterator[slice]:
        """Yield slices of `size` samples that cover all in order; the last may be shorter."""
        for start in range(0, len(self), size):
            yield slice(start, start + size)


class Teacher:
    """The float model, which computes the targets of outputs and of some inner tensors."""

    def __init__(self, model: ir.Model, names: Sequence[str], samples: Samples) -> None:
        """Prepare to compute the tensors `names` of the float graph `model` for `samples`."""
        self._runner, self._samples = FloatRunner(model, set(names)), samples

    def compute_targets(self, index: Any) -> dict[str, Any]:
        """Run the float model on the samples at `index`.

        Return {target: tensor on their device}.
        """
        feeds = {name: array[index] for name, array in self._samples.arrays.items()}
        targets = {}
        for name, array, _ in self._runner.run(feeds):
            targets[name] = torch.from_numpy(np.asarray(array)).to(self._samples.device)
        return targets

    def all(self, names: Collection[str]) -> Mapping[str, Any]:
        """Run the float model on all samples; return {target: tensor} of the targets `names`."""
        batches = [
            self.compute_targets(index) for index in self._samples.iterate_slices(_BATCH_SIZE)
        ]
        targets = {}
        for name in names:
            targets[name] = torch.cat([batch[name] for batch in batches])
        return targets
