"""Operators that move data: concatenation, padding, selection, resizing, squeezing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from ...targets.arithmetic import Arithmetic, PadArithmetic
from ...targets.arithmetic import ConcatArithmetic as Joining
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
