"""Padding, resizing and the channel shuffle."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ...targets.arithmetic import Arithmetic, PadArithmetic
from .._reference_op import (
    Attributes,
    Integer,
    Outputs,
    StandardOpRun,
    expect_arithmetic,
    get_optional_input,
)

__all__ = ["FAMILY", "Pad", "Resize", "ShuffleChannel"]


class Pad(Integer):
    """Padding; venus swaps the meanings of reflect and replicate."""

    names: tuple[str, ...] = ("iqPad", "QPad")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Pad x; the pads (input 1 or attribute) are the begins of all axes, then the ends.

        Mode constant pads with input 2 (default 0). Other modes than reflect and edge (replicate
        where the target swaps both) raise ValueError.
        """
        x, pads, value = inputs[0], get_optional_input(inputs, 1), get_optional_input(inputs, 2)
        flat_pads = [int(n) for n in (pads if pads is not None else a["pads"])]
        axis_pads = list(zip(flat_pads[: x.ndim], flat_pads[x.ndim :], strict=True))
        mode = a.get("mode") or "constant"
        is_swapped = expect_arithmetic(arithmetic, PadArithmetic).swapped
        if mode == "constant":
            fill = 0 if value is None else value.reshape(-1)[0]
            return np.pad(x, axis_pads, constant_values=fill)
        if mode not in ("reflect", "replicate" if is_swapped else "edge"):
            raise ValueError(f"mode {mode} is not supported")
        reflects = (mode == "reflect") != is_swapped
        return np.pad(x, axis_pads, "reflect" if reflects else "edge")


class ShuffleChannel(Integer):
    """Channel shuffle: transposes channels [g, C/g] to [C/g, g]."""

    names: tuple[str, ...] = ("ShuffleChannel",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x with the channels along `axis` (default 1) shuffled in `groups`.

        Channels [groups, C/groups] are transposed to [C/groups, groups].
        """
        (x,) = inputs
        axis, groups = int(a.get("axis", 1)), int(a["groups"])
        order = np.arange(x.shape[axis]).reshape(groups, -1).T.reshape(-1)
        return x.take(order, axis)


class Resize(StandardOpRun):
    """Nearest-neighbor resizing; positions are computed in rational numbers."""

    names: tuple[str, ...] = ("Resize",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Resize x by the factors (input 2, one per axis), one axis after the other.

        An axis gets floor(size * factor) elements, each the nearest of the input. Raises ValueError
        for another mode than nearest.
        """
        x, _, factors = inputs[:3]
        if (a.get("mode") or "nearest") != "nearest":
            raise ValueError(f"mode = {a['mode']}: only the nearest element has an integer form")
        for axis, factor in enumerate(factors.tolist()):
            count = int(x.shape[axis] * Fraction(factor))
            positions = [
                self.nearest_index(a, i, Fraction(factor), x.shape[axis], count)
                for i in range(count)
            ]
            x = x.take(positions, axis)
        return x

    @staticmethod
    def nearest_index(a: Attributes, i: int, factor: Fraction, size: int, count: int) -> int:
        """Return the input index, 0 to `size` - 1, of output index `i`, below `count`, of an axis.

        `factor` is the ratio of resizing. Follows `coordinate_transformation_mode` (default
        half_pixel) and `nearest_mode` (default round_prefer_floor) of ONNX, in rational numbers.
        Raises ValueError for an unsupported coordinate mode.
        """
        half, mode = Fraction(1, 2), a.get("coordinate_transformation_mode") or "half_pixel"
        if mode == "asymmetric":
            x = i / factor
        elif mode == "align_corners":
            x = Fraction(i * (size - 1), count - 1) if count > 1 else Fraction(0)
        elif mode == "tf_half_pixel_for_nn":
            x = (i + half) / factor
        elif mode == "pytorch_half_pixel" and count == 1:
            x = Fraction(0)
        elif mode in ("half_pixel", "pytorch_half_pixel"):
            x = (i + half) / factor - half
        else:
            raise ValueError(f"coordinate_transformation_mode {mode} is not supported")
        index_by_mode = {
            "floor": math.floor(x),
            "ceil": math.ceil(x),
            "round_prefer_floor": math.ceil(x - half),
            "round_prefer_ceil": math.floor(x + half),
        }
        index = index_by_mode[a.get("nearest_mode") or "round_prefer_floor"]
        return min(max(index, 0), size - 1)


FAMILY: tuple[type[Integer], ...] = (Pad, ShuffleChannel, Resize)
