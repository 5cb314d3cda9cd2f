"""Fake quantizers of operators that select elements: split, gather, embedding, arg max."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simulator import kernels as k

from ...common.errors import ModelError
from .common import FakeQuantContext, FakeQuantizer, run_without_gradient

__all__ = ["KERNELS"]


def _gather(kernel: k.Gather, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Select slices of the input at constant indices of `kernel.axis`.

    The axes of the index array replace that axis. Returns a tuple of one tensor.
    """
    (x,) = inputs
    indices = torch.from_numpy(np.asarray(kernel.indices, np.int64)).to(x.device)
    axis = kernel.axis % x.ndim
    selected = x.index_select(axis, indices.reshape(-1))
    return (selected.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]),)


def _lookup(kernel: k.Lookup, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Return a tuple of the rows of the kernel's table at the indices that the input holds.

    The table is a learned parameter if it is trained. Raises ModelError for an index that is
    negative or not below the number of rows.
    """
    (x,) = inputs
    index = x.to(torch.int64)
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(kernel.table)):
        raise ModelError(
            f"an index from {int(index.min())} to {int(index.max())}: the table has "
            f"{len(kernel.table)} rows"
        )
    return (context.get_parameter(0, kernel.table, x)[index],)


def _split(kernel: k.Split, inputs: Sequence[Any], context: FakeQuantContext) -> tuple[Any, ...]:
    """Split `inputs[0]` along `kernel.axis` into parts of `kernel.sizes`; return all parts."""
    return tuple(inputs[0].split([int(n) for n in kernel.sizes], kernel.axis))


#: Simulator kernel -> its fake quantizer.
KERNELS: Mapping[type, FakeQuantizer] = {
    k.ArgMax: run_without_gradient,
    k.Gather: _gather,
    k.Lookup: _lookup,
    k.Split: _split,
}
