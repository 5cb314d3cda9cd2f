"""Operators that select elements: Split, Gather and ArgMax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...targets.arithmetic import Arithmetic
from .._reference_op import Attributes, Integer, Outputs, StandardOpRun

__all__ = ["FAMILY", "ArgMax", "Gather", "Split"]


class Split(StandardOpRun):
    """Split with the attribute `dims`: a list of sizes, or a number for equal sizes."""

    names: tuple[str, ...] = ("Split",)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Whether `attributes` has `dims`, which the standard Split does not.

        Then sizes are taken from it.
        """
        return "dims" in attributes

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Split x along `axis` (default 0) into slices of the sizes `split` or `dims`; return them.

        A number instead of sizes means equal slices, one per output.
        """
        x, axis, count = inputs[0], int(a.get("axis") or 0), len(self.onnx_node.output)
        sizes = a.get("split") or a["dims"]
        sizes = [x.shape[axis] // count] * count if isinstance(sizes, int) else list(sizes)
        return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


class Gather(Integer):
    """Elements of a table along an axis."""

    names: tuple[str, ...] = ("Gather",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the elements of input 0, a table, at the indices of input 1 along axis `axis`.

        The attribute is 0 by default.
        """
        table, index = inputs
        return np.asarray(np.take(table, index, axis=int(a.get("axis") or 0)))


class ArgMax(StandardOpRun):
    """Maximum of a single row and its first position: int32 [2, 1, ..., 1]."""

    names: tuple[str, ...] = ("ArgMax",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return (maximum, first position) of all elements of x as int32 [2, 1, ..., 1].

        The result has the rank of x; positions count flattened elements.
        """
        row = inputs[0].reshape(-1).tolist()
        return np.array([max(row), row.index(max(row))], np.int32).reshape(
            2, *[1] * (inputs[0].ndim - 1)
        )


FAMILY: tuple[type[Integer], ...] = (Gather, Split, ArgMax)
