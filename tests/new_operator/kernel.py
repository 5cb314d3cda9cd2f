"""The kernel: what the chip computes."""

from dataclasses import dataclass

import numpy as np

from simulator.kernel import NumpyKernel, TensorSpec


@dataclass(frozen=True, eq=False)
class Squash(NumpyKernel):
    """int8 x -> int8: the entry of a table in the chip."""

    table: np.ndarray

    def infer(self, *specs):
        return (TensorSpec(specs[0].shape, np.dtype(np.int8)),)

    def __call__(self, *arrays):
        return (self.table[arrays[0].astype(int) + 128],)
