"""Sums and products with a constant tensor, such as a position embedding: iqAdd and iqMul with one constant operand.

On chips every element of a sample is made a channel of its own and BatchNorm2dInt does it: with a factor of 1 and the
constant as summand, or the constant as factor. Where a layer can take the constant up, a pass has put it there; a
constant of one value is a table's business.

A sum with 0 or `FAR` is the mask of a Softmax (`masks`). What it hides becomes the lowest integer, what it shows
keeps scale and integer; the scale is low enough for the lowest integer to get no share in any row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from .. import formats
from ..emit import Lowering
from ..formats.pairs import PairFormat
from ..graph import ir
from ..plan import Affine
from ..targets import Target
from ..targets.limits import OperandLimits
from .elementwise import BinaryOp
from .functions.masks import MASKED_AT_RUN_TIME, masked_at_run_time, masked_row
from .scaling import Exponents, ScalePair, Scaling

__all__ = ["AddConstant", "MulConstant"]

_ONE = 6  # a factor of 1 is held as 2^6


def _computed(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if ir.const(value) is None][:1]


def _constants(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if ir.const(value) is not None]


def _by_channels(form: PairFormat, target: Target) -> bool:
    """Whether no operand may be a constant, so that every element becomes a channel."""
    return target.limits(form.name, OperandLimits) is not None


def _shown_as_it_is(node: ir.Node, target: Target) -> list[ScalePair]:
    """What a mask shows stays as it is."""
    x, y = ir.read_name(node, _computed(node)[0]), ir.written_name(node)
    return [] if masked_row(node) is None else [ScalePair(x, y, statistics_of=x)]


def _hidden_below(node: ir.Node) -> float | None:
    """A row of n may have nothing but the least number to show, and n that are hidden, of 1/256 together."""
    count = masked_row(node)
    return None if count is None else math.log(256.0 * count)


def _times_one(node: ir.Node, exponent: Exponents) -> int:
    """The product with a factor of 1 is shifted right."""
    return exponent(ir.read_name(node, _computed(node)[0])) + _ONE


def _times_constant(node: ir.Node, exponent: Exponents) -> int:
    """The product with the factor is shifted right."""
    return exponent(ir.read_name(node, _constants(node)[0])) + exponent(ir.read_name(node, _computed(node)[0]))


def _zero_points(form: PairFormat, node: ir.Node, target: Target) -> bool:
    """Whether the platform has the operator; a mask's range is one around 0."""
    return not _by_channels(form, target) and masked_row(node) is None


class AddConstant(BinaryOp):
    """Sum of an activation and a constant tensor."""

    format: PairFormat = formats.ADD
    title = "iqAdd (constant)"
    floats = (("", "Add"),)
    scaling = Scaling(
        factor="fixed",
        shared_scales=_shown_as_it_is,
        room_below=_hidden_below,
        max_exponent=_times_one,
        zero_points=partial(_zero_points, formats.ADD),
    )
    factor_is_constant = False
    reshapes = True  # to channels, where a chip takes one sample

    def data(self, node: ir.Node) -> list[int]:
        """The one that is computed."""
        return _computed(node)

    def parameters(self, node: ir.Node) -> list[int]:
        """Return the constant operand."""
        return _constants(node)

    def reject(self, node: ir.Node) -> str | None:
        """One constant of several values that does not widen the result."""
        if masked_at_run_time(node.outputs[0]):
            return MASKED_AT_RUN_TIME
        arrays = [ir.const(value) for value in node.inputs]
        array = next((a for a in arrays if a is not None), None)
        if array is None or all(a is not None for a in arrays):
            return "neither operand is a constant" if array is None else "both operands are constants"
        widens = ir.shape(node.inputs[self.data(node)[0]]) != ir.shape(node.outputs[0])
        batch = array.ndim == len(ir.shape(node.outputs[0]) or ()) and array.shape[:1] != (1,)
        if widens:
            return f"its constant of shape {list(array.shape)} makes the result larger than what is computed"
        if batch:
            return f"its constant of shape {list(array.shape)} is not the same for every sample"
        one = array.size < 2 or array.dtype.kind != "f"
        return f"{node.op_type} with one constant is a table's work" if one else None

    def available(self, target: Target) -> bool:
        """Whether the platform has the operator it becomes."""
        return target.runs((formats.BATCH_NORM2D if _by_channels(self.format, target) else self.format).name)

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the constant as second operand, or as factor or summand of a BatchNorm2dInt."""
        index, other = self.data(node)[0], self.parameters(node)[0]
        array = ir.constant(node.inputs[other])
        shape = ir.known_shape(node.outputs[0])
        x, y, o = low.read(node, index), low.read(node, other), low.written(node)
        value = low.integer(node, index)
        if _by_channels(self.format, low.target):
            self._as_channels(node, low, value, (1, *(int(d or 1) for d in shape[1:])))
            return
        full = (1,) * (len(shape) - array.ndim) + array.shape
        constant = low.constant(node, other, y, lambda a: a.reshape(full))
        low.emit(self.format, node, [value, constant], self.format.scales(x, y, o))

    def _as_channels(self, node: ir.Node, low: Lowering, value: ir.Value, shape: tuple[int, ...]) -> None:
        (other,) = self.parameters(node)
        x, o, base = low.read(node, self.data(node)[0]), low.written(node), ir.written_name(node)
        count = math.prod(shape)

        def spread(array: np.ndarray) -> np.ndarray:
            return np.broadcast_to(array, shape).reshape(-1)

        if self.factor_is_constant:
            w = low.read(node, other)
            parameters = [
                low.constant(node, other, w, spread, f"{base}_factor"),
                low.array(f"{base}_offset", np.zeros(count, np.int32)),
            ]
        else:
            w = Affine(2.0**_ONE)
            parameters = [
                low.array(f"{base}_factor", np.full(count, w.scale).astype(np.int8)),
                *low.bias(node, other, x.scale * w.scale, spread, f"{base}_offset"),
            ]
        column = [1, count, 1, 1]
        target = low.array(f"{base}_column_shape", np.array(column, np.int64))
        value = low.insert(formats.RESHAPE, node, "column", [value, target], {}, column, x)
        attrs = formats.BATCH_NORM2D.scales(x, w, o)
        value = low.insert(formats.BATCH_NORM2D, node, "affine", [value, *parameters], attrs, column, o)
        back = low.array(f"{base}_shape", np.array(shape, np.int64))
        low.emit(formats.RESHAPE, node, [value, back], {})


class MulConstant(AddConstant):
    """Product of an activation and a constant tensor."""

    format = formats.MUL
    title = "iqMul (constant)"
    floats = (("", "Mul"),)
    scaling = replace(AddConstant.scaling, max_exponent=_times_constant, zero_points=partial(_zero_points, formats.MUL))
    factor_is_constant = True
