"""Operators that move integers: concatenation, padding, splitting, lookup, squeezing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from ..targets.arithmetic import Arithmetic, PadArithmetic
from ..targets.arithmetic import ConcatArithmetic as Joining
from ._arithmetic import exact_log2, requantize
from ._base import (
    Attributes,
    Integer,
    Outputs,
    StandardOpRun,
    expect_arithmetic,
    get_optional_input,
)

__all__ = [
    "FAMILY",
    "ArgMax",
    "Concat",
    "Gather",
    "Pad",
    "Resize",
    "ShuffleChannel",
    "Split",
    "Squeeze",
    "Unsqueeze",
]


class Concat(Integer):
    """Concatenation, every input brought to the output's scale.

    VenusA turns what it would shift right into 0.
    """

    names: tuple[str, ...] = ("iqCat", "QCat")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Requantize each input and join them."""
        parts, zeroes_larger_scales = (
            [],
            expect_arithmetic(arithmetic, Joining).zeroes_larger_scales,
        )
        for index, x in enumerate(inputs):
            key = f"scale_x_{index}"
            ratio = a.scale("scale_o") / a.scale(key) if key in a else 1.0
            if zeroes_larger_scales and exact_log2(ratio) < 0:
                x = x * 0
            parts.append(
                requantize(
                    a.subtract_zero_point(x, f"x_{index}"),
                    ratio,
                    a.o_bits,
                    arithmetic.requantize,
                    a.zero_point("o"),
                )
            )
        axis = a.get("dim") if a.get("dim") is not None else a.get("axis")
        return np.concatenate(parts, int(axis or 0))


class Pad(Integer):
    """Padding; venus exchanges the meanings of reflect and replicate."""

    names: tuple[str, ...] = ("iqPad", "QPad")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Pad by all begins, then all ends."""
        x, pads, value = inputs[0], get_optional_input(inputs, 1), get_optional_input(inputs, 2)
        sides = [int(n) for n in (pads if pads is not None else a["pads"])]
        each = list(zip(sides[: x.ndim], sides[x.ndim :], strict=True))
        mode, swapped = (
            a.get("mode") or "constant",
            expect_arithmetic(arithmetic, PadArithmetic).swapped,
        )
        if mode == "constant":
            return np.pad(x, each, constant_values=0 if value is None else value.reshape(-1)[0])
        if mode not in ("reflect", "replicate" if swapped else "edge"):
            raise ValueError(f"no such mode: {mode}")
        reflect = (mode == "reflect") != swapped
        return np.pad(x, each, "reflect" if reflect else "edge")


class Split(StandardOpRun):
    """Cut into the sizes `dims`: a number of equal parts' size or a list."""

    names: tuple[str, ...] = ("Split",)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """The standard has no `dims`."""
        return "dims" in attributes

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the parts of x."""
        x, axis, parts = inputs[0], int(a.get("axis") or 0), len(self.onnx_node.output)
        sizes = a.get("split") or a["dims"]
        sizes = [x.shape[axis] // parts] * parts if isinstance(sizes, int) else list(sizes)
        return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


class Gather(Integer):
    """Rows of a table."""

    names: tuple[str, ...] = ("Gather",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Take along an axis."""
        table, index = inputs
        return np.asarray(np.take(table, index, axis=int(a.get("axis") or 0)))


class ShuffleChannel(Integer):
    """Channels dealt round: [g, C/g] becomes [C/g, g]."""

    names: tuple[str, ...] = ("ShuffleChannel",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the channels in their new order."""
        (x,) = inputs
        axis, groups = int(a.get("axis", 1)), int(a["groups"])
        order = np.arange(x.shape[axis]).reshape(groups, -1).T.reshape(-1)
        return x.take(order, axis)


class ArgMax(StandardOpRun):
    """The largest integer of the single row and its first position: int32 [2, 1, .., 1]."""

    names: tuple[str, ...] = ("ArgMax",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the largest integer and its position."""
        row = inputs[0].reshape(-1).tolist()
        return np.array([max(row), row.index(max(row))], np.int32).reshape(
            2, *[1] * (inputs[0].ndim - 1)
        )


class Resize(StandardOpRun):
    """Enlarging by whole factors to the nearest element.

    Every position is found with rational numbers.
    """

    names: tuple[str, ...] = ("Resize",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Look up every axis."""
        x, _, factors = inputs[:3]
        if (a.get("mode") or "nearest") != "nearest":
            raise ValueError(f"mode = {a['mode']}: only the nearest element has an integer form")
        for axis, factor in enumerate(factors.tolist()):
            count = int(x.shape[axis] * Fraction(factor))
            places = [
                self.nearest_index(a, i, Fraction(factor), x.shape[axis], count)
                for i in range(count)
            ]
            x = x.take(places, axis)
        return x

    @staticmethod
    def nearest_index(a: Attributes, i: int, factor: Fraction, size: int, count: int) -> int:
        """Return the element of `size` that result `i` of `count` shows."""
        half, rule = Fraction(1, 2), a.get("coordinate_transformation_mode") or "half_pixel"
        if rule == "asymmetric":
            place = i / factor
        elif rule == "align_corners":
            place = Fraction(i * (size - 1), count - 1) if count > 1 else Fraction(0)
        elif rule == "tf_half_pixel_for_nn":
            place = (i + half) / factor
        elif rule in ("half_pixel", "pytorch_half_pixel"):
            place = Fraction(0) if rule[0] == "p" and count == 1 else (i + half) / factor - half
        else:
            raise ValueError(f"no such coordinate_transformation_mode: {rule}")
        ties = a.get("nearest_mode") or "round_prefer_floor"
        found = {
            "floor": math.floor(place),
            "ceil": math.ceil(place),
            "round_prefer_floor": math.ceil(place - half),
            "round_prefer_ceil": math.floor(place + half),
        }[ties]
        return min(max(found, 0), size - 1)


class Squeeze(StandardOpRun):
    """Axes as an attribute, in any opset."""

    names: tuple[str, ...] = ("Squeeze",)

    def is_vendor_form(
        self, inputs: Sequence[np.ndarray], attributes: Mapping[str, object]
    ) -> bool:
        """Opset 13 takes them as an input."""
        return "axes" in attributes

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x without the axes."""
        x = inputs[0]
        axes = a.get("axes") or (inputs[1].tolist() if len(inputs) > 1 else None)
        return np.squeeze(x, None if axes is None else tuple(int(n) for n in axes))


class Unsqueeze(Squeeze):
    """Axes as an attribute, in any opset."""

    names: tuple[str, ...] = ("Unsqueeze",)

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return x with axes of size 1 inserted."""
        axes = a.get("axes") or inputs[1].tolist()
        return np.expand_dims(inputs[0], tuple(int(n) for n in axes))


FAMILY: tuple[type[Integer], ...] = (
    Concat,
    Pad,
    Gather,
    ShuffleChannel,
    Split,
    ArgMax,
    Resize,
    Squeeze,
    Unsqueeze,
)
