"""Factor and offset per channel, with one rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...targets.arithmetic import Arithmetic
from .._reference_op import Attributes, Integer, Outputs
from ..conv.reference import _add_bias

__all__ = ["FAMILY", "BatchNorm2d"]


class BatchNorm2d(Integer):
    """x [N, C, H, W], factor [C], offset [C]; further inputs are ignored."""

    names: tuple[str, ...] = ("BatchNorm2dInt", "QBatchNorm2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x * factor[c] + offset[c] (inputs 1 and 2, by channel on axis 1), requantized.

        Further inputs are ignored.
        """
        x, factor, offset = inputs[:3]
        column: Sequence[int] = (-1, *[1] * (x.ndim - 2))
        acc = a.subtract_zero_point(x, "x") * factor.astype(np.int64).reshape(column)
        return self.requantize_accumulator(
            _add_bias(acc, offset.reshape(-1)), a, arithmetic, "scale_x", "scale_w"
        )


class BatchNorm1d(BatchNorm2d):
    """x [N, C, L], factor [C], offset [C]."""

    names: tuple[str, ...] = ("BatchNorm1dInt",)


FAMILY: tuple[type[Integer], ...] = (BatchNorm2d, BatchNorm1d)
