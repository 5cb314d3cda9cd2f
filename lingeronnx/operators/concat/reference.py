"""Concatenation."""

from __future__ import annotations

import numpy as np

from ...targets.arithmetic import Arithmetic
from ...targets.arithmetic import ConcatArithmetic as Joining
from .._reference_arithmetic import exact_log2, requantize
from .._reference_op import Attributes, Integer, Outputs, expect_arithmetic

__all__ = ["FAMILY", "Concat"]


class Concat(Integer):
    """Concatenation of inputs, each requantized to the output scale.

    On venusA, an input that would be shifted right becomes 0.
    """

    names: tuple[str, ...] = ("iqCat", "QCat")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Requantize each input to `scale_o`, and concatenate along `dim` or `axis` (default 0).

        An input without a `scale_x_N` has the output's scale. Some targets zero an input whose
        scale is larger than the output's.
        """
        rescaled = []
        zeroes_larger_scales = expect_arithmetic(arithmetic, Joining).zeroes_larger_scales
        for index, x in enumerate(inputs):
            key = f"scale_x_{index}"
            ratio = a.scale("scale_o") / a.scale(key) if key in a else 1.0
            if zeroes_larger_scales and exact_log2(ratio) < 0:
                x = x * 0
            rescaled.append(
                requantize(
                    a.subtract_zero_point(x, f"x_{index}"),
                    ratio,
                    a.o_bits,
                    arithmetic.requantize,
                    a.zero_point("o"),
                )
            )
        axis = a.get("dim") if a.get("dim") is not None else a.get("axis")
        return np.concatenate(rescaled, int(axis or 0))


FAMILY: tuple[type[Integer], ...] = (Concat,)
