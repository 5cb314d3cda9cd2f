"""Relu and Clip."""

from __future__ import annotations

import numpy as np

from ...targets.arithmetic import Arithmetic
from .._reference_op import Attributes, Integer, Outputs, StandardOpRun, get_optional_input

__all__ = ["FAMILY", "Clip", "Relu"]


class Relu(StandardOpRun):
    """Negative integers become 0: max(0, x)."""

    names: tuple[str, ...] = ("Relu",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x (input 0) with negative integers replaced by 0, in the type of x."""
        return np.where(inputs[0] < 0, 0, inputs[0]).astype(inputs[0].dtype)


class Clip(StandardOpRun):
    """min(max(x, low), high); an absent bound does not limit x."""

    names: tuple[str, ...] = ("Clip",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x limited to [input 1, input 2], in the type of x.

        An absent bound does not limit.
        """
        x, low, high = inputs[0], get_optional_input(inputs, 1), get_optional_input(inputs, 2)
        y = x if low is None else np.where(x < low, low, x)
        return (y if high is None else np.where(y > high, high, y)).astype(x.dtype)


FAMILY: tuple[type[Integer], ...] = (Relu, Clip)
