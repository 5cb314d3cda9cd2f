"""Squeeze and Unsqueeze; ONNX has the other operators that only change the shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...targets.arithmetic import Arithmetic
from .._reference_op import Attributes, Integer, Outputs, StandardOpRun

__all__ = ["FAMILY", "Squeeze", "Unsqueeze"]


class Squeeze(StandardOpRun):
    """Squeeze with the attribute `axes`, in any opset."""

    names: tuple[str, ...] = ("Squeeze",)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Whether `attributes` has `axes`, which standard ONNX has as an input from opset 13 on."""
        return "axes" in attributes

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Remove the axes of x in attribute `axes` or input 1; without both, all axes of size 1."""
        x = inputs[0]
        axes = a.get("axes") or (inputs[1].tolist() if len(inputs) > 1 else None)
        return np.squeeze(x, None if axes is None else tuple(int(n) for n in axes))


class Unsqueeze(Squeeze):
    """Unsqueeze with the attribute `axes`, in any opset."""

    names: tuple[str, ...] = ("Unsqueeze",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Insert axes of size 1 into x at `axes` (attribute or input 1), counted in the result."""
        axes = a.get("axes") or inputs[1].tolist()
        return np.expand_dims(inputs[0], tuple(int(n) for n in axes))


FAMILY: tuple[type[Integer], ...] = (Squeeze, Unsqueeze)
