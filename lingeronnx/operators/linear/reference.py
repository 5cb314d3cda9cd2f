"""Matrix products: ``requantize(sum of products + bias)`` with one rounding.

Sums are int64. Zero points are subtracted from activations first.
"""

from __future__ import annotations

import numpy as np

from ...targets.arithmetic import Arithmetic, LayerArithmetic
from .._reference_arithmetic import to_python_ints
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic, get_optional_input

__all__ = ["FAMILY", "Bmm", "Linear"]


class Linear(Integer):
    """x [..., I], W [O, I], b [O]: fully connected layer.

    With group_size k, input 3 is factors [O, ceil(I/k)], one per k weights of a row.
    """

    names: tuple[str, ...] = ("LinearInt", "QLinear")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x W^T + b over the last axis of x (inputs x, W, optional b), requantized.

        With factors [O, groups] (input 3), the sum of each group of `group_size` inputs is
        multiplied by the group's factor before they are added. Targets whose layers may have 32
        bits sum Python integers.
        """
        weight, bias = inputs[1], get_optional_input(inputs, 2)
        factors = get_optional_input(inputs, 3)
        if expect_arithmetic(arithmetic, LayerArithmetic).supports_int32:
            total = to_python_ints(inputs[0]) @ to_python_ints(weight).T
            if bias is not None:
                total = total + to_python_ints(bias)
            return self.requantize_accumulator(total, a, arithmetic, "scale_x", "scale_w", axis=-1)
        x = a.subtract_zero_point(inputs[0], "x")
        group_size = int(a.get("group_size") or weight.shape[1])
        acc = np.zeros((*x.shape[:-1], len(weight)), np.int64)
        for group, start in enumerate(range(0, weight.shape[1], group_size)):
            columns = slice(start, start + group_size)
            sums = x[..., columns] @ weight[:, columns].astype(np.int64).T
            acc += sums if factors is None else sums * factors[:, group].astype(np.int64)
        if bias is not None:
            acc = acc + bias.astype(np.int64)
        return self.requantize_accumulator(acc, a, arithmetic, "scale_x", "scale_w", axis=-1)


class Bmm(Integer):
    """Matrix product of two activations, x [..., N, M] and y [..., M, P]."""

    names: tuple[str, ...] = ("BmmInt", "QBmm")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the matrix product of inputs 0 and 1 over the last two axes, requantized once."""
        x, y = (a.subtract_zero_point(array, key) for array, key in zip(inputs, "xy", strict=True))
        return self.requantize_accumulator(x @ y, a, arithmetic, "scale_x", "scale_y")


FAMILY: tuple[type[Integer], ...] = (Linear, Bmm)
