"""Relu, Clip, PRelu and Relux."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...targets.arithmetic import Arithmetic, ReluArithmetic
from .._reference_arithmetic import exact_log2, round_shift_half_up, saturate, to_python_ints
from .._reference_op import Attributes, Integer, Outputs, StandardOpRun, get_optional_input

__all__ = ["FAMILY", "Clip", "PRelu", "Relu", "Relux"]


class Relu(StandardOpRun):
    """Negative integers become 0: max(0, x), after a right shift on some executors."""

    names: tuple[str, ...] = ("Relu",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x (input 0) with negative integers replaced by 0, in the type of x.

        Executors that read `scale_o` shift x right by log2(scale_o / scale_x) first.
        """
        x = inputs[0]
        has_scales = a.get("scale_x") is not None and a.get("scale_o") is not None
        reads_scales = isinstance(arithmetic, ReluArithmetic) and arithmetic.shifts_to_output_scale
        if has_scales and reads_scales:
            shift = exact_log2(a.scale("scale_o") / a.scale("scale_x"))
            if shift < 0:
                raise ValueError(f"scale_o needs a left shift by {-shift}")
            x = round_shift_half_up(to_python_ints(x), shift)
        return np.where(x < 0, 0, x).astype(inputs[0].dtype)


class Clip(StandardOpRun):
    """min(max(x, low), high); an absent bound does not limit x."""

    names: tuple[str, ...] = ("Clip",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x limited to [input 1, input 2], in the type of x.

        Without an input the bound is the integer in attribute `min` or `max`; an absent bound does
        not limit.
        """
        x, low, high = inputs[0], get_optional_input(inputs, 1), get_optional_input(inputs, 2)
        minimum = a.get("min") if low is None else low
        maximum = a.get("max") if high is None else high
        y = x if minimum is None else np.where(x < minimum, minimum, x)
        return (y if maximum is None else np.where(y > maximum, maximum, y)).astype(x.dtype)


def _shift_and_saturate(x: np.ndarray, shift: int) -> np.ndarray:
    """Return the integers `x` shifted right, rounded half up, within their type."""
    return saturate(round_shift_half_up(to_python_ints(x), shift), 8 * x.dtype.itemsize)


class PRelu(StandardOpRun):
    """Integers divided by 2^post_shift, negative ones also by 2^slope."""

    names: tuple[str, ...] = ("PRelu",)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Whether the node has the slope as an attribute, which the standard does not have."""
        return attributes.get("slope") is not None

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x shifted right by post_shift, negative integers by slope as well."""
        (x,) = inputs
        shift = int(a.get("post_shift") or 0)
        negative = _shift_and_saturate(x, shift + int(a["slope"]))
        return np.where(x < 0, negative, _shift_and_saturate(x, shift)).astype(x.dtype)


class Relux(Integer):
    """Shifted integers within 0 and a threshold."""

    names: tuple[str, ...] = ("Relux",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x shifted right by `shift`, within 0 and `threshold`, in the type of x."""
        (x,) = inputs
        shifted = _shift_and_saturate(x, int(a.get("shift") or 0))
        clipped: np.ndarray = np.clip(shifted, None, int(a["threshold"])).clip(0, None)
        return clipped.astype(x.dtype)


FAMILY: tuple[type[Integer], ...] = (Relu, Clip, PRelu, Relux)
