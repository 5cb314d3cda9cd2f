"""Build standard operators on 64-bit integers: the body of a function, or of a loop in one.

The counterpart of `simulator.fixed_point` in ONNX. All values are int64 unless another type is
given. ONNX has no arithmetic shift:

    v >> s  =  (v - Mod(v, 2^s)) / 2^s        Mod has the sign of the divisor, so the division is
                                              exact
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from simulator.channel_rescale import ChannelScaleForms
from simulator.fixed_point import ChainedForm, RescaleForm, ScaleForm, ShiftForm, WideScaleForm
from simulator.piecewise import Piecewise

from ..ir import ir

__all__ = [
    "IntegerNodes",
    "KernelWriter",
    "NotExactError",
    "Operand",
    "Shapes",
    "bias_and_sum_bound",
    "integer_matmul",
    "max_magnitude",
    "to_uint8",
    "uint8_zero_point",
]

#: Operand of a node: an existing value, or constant integers.
Operand: TypeAlias = "ir.Value | int | np.ndarray"

_INT64, _BOOL = int(ir.DataType.INT64), int(ir.DataType.BOOL)


class NotExactError(Exception):
    """Reason why an operator has no exact form in standard ONNX."""


class IntegerNodes:
    """Builder of standard nodes on int64 integers, collected in `nodes`.

    `names` yields unique numbers for the names of outputs, shared by a function and its loops.
    """

    def __init__(self, names: Iterator[int] | None = None) -> None:
        """Start with no nodes; `names` yields the numbers of tensor names, by default from 0."""
        self.nodes: list[ir.Node] = []
        self.names = itertools.count() if names is None else names
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def __call__(self, op_type: str, *inputs: Operand | None, **attributes: Any) -> ir.Value:  # noqa: ANN401 - as `ir.set_attr`
        """Append a node with one output and return the output, named ``OP_NUMBER``.

        Numbers and arrays among the inputs become int64 constants, None an absent input.
        """
        return self.add_multi_output(op_type, *inputs, outputs=1, **attributes)[0]

    def add_multi_output(
        self, op_type: str, *inputs: Operand | None, outputs: int, **attributes: Any
    ) -> list[ir.Value]:  # noqa: ANN401
        """Append a node with `outputs` outputs, and return these, named ``OP_NUMBER``.

        Numbers and arrays among the inputs become int64 constants, None an absent input.
        """
        values = [self._to_value(operand) for operand in inputs]
        node = ir.node(op_type, values, {}, num_outputs=outputs)
        for key, attribute in attributes.items():
            ir.set_attr(node, key, attribute)
        for value in node.outputs:
            value.name = f"{op_type}_{next(self.names)}"
        self.nodes.append(node)
        return list(node.outputs)

    def _to_value(self, operand: Operand | None) -> ir.Value | None:
        """Return `operand` as a value; a number or array becomes an int64 constant, None stays."""
        if operand is None or isinstance(operand, ir.Value):
            return operand
        return self.constant(np.asarray(operand, np.int64))

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return the output of a Constant node with `array`.

        Arrays of equal type, shape and contents share one node.
        """
        array = np.asarray(array, order="C")
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self("Constant", value=ir.tensor(array))
        return self._constants[key]

    # ---- types and shapes ------------------------------------------------------------------------

    def to_int64(self, x: ir.Value, zero: int = 0) -> ir.Value:
        """Append nodes that return `x` - `zero` as int64, for integers x of any type."""
        cast = self("Cast", x, to=_INT64)
        return self("Sub", cast, zero) if zero else cast

    def narrow(self, x: ir.Value, dtype: np.dtype) -> ir.Value:
        """Append a Cast of `x` to the integer type `dtype`.

        Values that do not fit lose their top bits. Returns its output, or `x` itself for int64.
        """
        return x if dtype == np.int64 else self("Cast", x, to=int(ir.DataType.from_numpy(dtype)))

    def unsqueeze(self, x: ir.Value, axis: int = -1) -> ir.Value:
        """Return `x` with an axis of size 1 inserted at `axis`, by default as the last one."""
        return self("Unsqueeze", x, np.array([axis]))

    def reduce_sum(self, x: ir.Value, keep: bool = True) -> ir.Value:
        """Return the sums of `x` along the last axis, which stays with size 1 if `keep`."""
        return self("ReduceSum", x, np.array([-1]), keepdims=int(keep))

    # ---- arithmetic ------------------------------------------------------------------------------

    def multiply_by_power_of_two(self, x: Operand, exponent: ir.Value) -> ir.Value:
        """Append nodes that return `x` * 2^`exponent`, for exponents (a tensor) from 0 to 62."""
        return self("Mul", x, self.gather(1 << np.arange(63), exponent))

    def shift_right_floor(self, x: ir.Value, shift: int | np.ndarray | ir.Value) -> ir.Value:
        """Append nodes that return `x` >> `shift`, rounded down, for shifts from 0 to 62.

        The shift is a constant, an array or a tensor. Returns `x` itself if all constant shifts are
        0.
        """
        if isinstance(shift, ir.Value):
            power: Operand = self.gather(1 << np.arange(63), shift)
        elif not np.any(shift):
            return x
        else:
            power = np.int64(1) << np.asarray(shift, np.int64)
        return self("Div", self("Sub", x, self("Mod", x, power)), power)

    def shift_right_round(self, x: ir.Value, shift: int) -> ir.Value:
        """Append nodes that return `x` shifted right by a constant `shift`, rounded half up.

        A negative shift goes left; for 0 it is `x` itself.
        """
        if shift <= 0:
            return self("Mul", x, 1 << -shift) if shift else x
        return self.shift_right_floor(self("Add", x, 1 << (shift - 1)), shift)

    def shift_right_round_by(self, x: ir.Value, shift: ir.Value) -> ir.Value:
        """Append nodes that return `x` shifted right by the tensor `shift`, rounded half up.

        Shifts are from 0 to 62.
        """
        halves = np.concatenate([[0], 1 << np.arange(62)])
        return self.shift_right_floor(self("Add", x, self.gather(halves, shift)), shift)

    def clamp(self, x: ir.Value, low: int | np.ndarray, high: int | np.ndarray) -> ir.Value:
        """Append nodes that return `x` clamped to [`low`, `high`], constants that broadcast."""
        return self.clamp_max(self.clamp_min(x, low), high)

    def clamp_min(self, x: ir.Value, low: Operand) -> ir.Value:
        """Append nodes that return max(`x`, `low`), by Less and Where.

        Max and Min of int64 are wrong near 2^31 in onnxruntime 1.22.
        """
        return self("Where", self("Less", x, low), low, x)

    def clamp_max(self, x: ir.Value, high: Operand) -> ir.Value:
        """Append nodes that return min(`x`, `high`), by Greater and Where.

        Max and Min of int64 are wrong near 2^31 in onnxruntime 1.22.
        """
        return self("Where", self("Greater", x, high), high, x)

    def saturate(self, x: ir.Value, bits: int) -> ir.Value:
        """Append nodes that return `x` clamped to the signed integers of `bits` bits."""
        return self.clamp(x, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)

    def bit_length(self, x: ir.Value, max_bits: int = 62) -> ir.Value:
        """Append nodes that return the bit length of `x` >= 0, at most `max_bits` <= 62."""
        reached = self("GreaterOrEqual", self.unsqueeze(x), 1 << np.arange(max_bits))
        return self.reduce_sum(self("Cast", reached, to=_INT64), keep=False)

    def gather(self, table: np.ndarray, index: ir.Value) -> ir.Value:
        """Append a lookup of `index` in the constant `table` of one axis; return table[index]."""
        return self("Gather", self.constant(np.asarray(table)), index, axis=0)

    def gather_last(self, x: ir.Value, indices: np.ndarray) -> ir.Value:
        """Append a Gather along the last axis; return x[..., indices] for constant `indices`."""
        return self("Gather", x, indices, axis=-1)

    # ---- requantization --------------------------------------------------------------------------

    def rescale(
        self, acc: ir.Value, form: RescaleForm | ChannelScaleForms, view: Sequence[int] = ()
    ) -> ir.Value:
        """Append nodes that requantize accumulators; return the result, saturated, as int64.

        Parameters
        ----------
        acc
            Accumulators.
        form
            Compiled form of a rescale.
        view
            Shape in which values per channel broadcast against `acc`.

        Raises
        ------
        NotExactError
            If the form does not round half up.
        """
        if isinstance(form, ChainedForm):
            return self.rescale(self.rescale(acc, form.first, view), form.second, view)
        if isinstance(form, ShiftForm):
            y = self.shift_right_floor(self("Add", acc, int(form.half)), int(form.shift))
            return self.clamp(y, int(form.low), int(form.high))
        if isinstance(form, WideScaleForm):
            return self._rescale_wide(acc, form)
        if isinstance(form, ChannelScaleForms) and not form.wide.any():
            limit, multiplier, half, shift = (
                np.reshape(a, view) for a in (form.limit, form.multiplier, form.half, form.shift)
            )
        elif isinstance(form, ScaleForm):
            limit, multiplier, half, shift = (np.asarray(a, np.int64) for a in form[:4])
        else:
            raise NotExactError("its results are not rounded half up")
        product = self("Mul", self.clamp(acc, -limit, limit), multiplier)
        rounded = self.shift_right_floor(self("Add", product, half), shift)
        return self.clamp(rounded, form.low, form.high)

    def _rescale_wide(self, acc: ir.Value, form: WideScaleForm) -> ir.Value:
        """Append nodes that requantize int64 sums `acc` in two halves of 32 bits.

        As the simulator does. The sums are limited, multiplied, shifted right with rounding half
        up, moved by the zero point and saturated to the range of `form`.
        """
        acc = self.clamp(acc, -form.limit, form.limit)
        upper = self("Mul", self.shift_right_floor(acc, 32), form.multiplier)
        lower = self("Mul", self("Mod", acc, 1 << 32), form.multiplier)
        if form.shift <= 32:
            shifted_upper = self("Mul", upper, 1 << (32 - form.shift))
            y = self("Add", shifted_upper, self.shift_right_round(lower, form.shift))
        else:
            total = self("Add", upper, self.shift_right_floor(lower, 32))
            y = self.shift_right_round(total, form.shift - 32)
        return self.clamp(self("Add", y, form.zero_point), form.low, form.high)

    def apply_piecewise(self, table: Piecewise, x: ir.Value, bits: int) -> ir.Value:
        """Append nodes that evaluate the piecewise linear function `table` at integers `x`.

        Results have `bits` bits, and equal those of the simulator.
        """
        curve = table.curve(bits)
        if curve.values.size:
            index = self("Add", self.clamp(x, -32768, 32768), 32768)
            return self.to_int64(self.gather(curve.values, index))
        rows = np.asarray(curve.rows, np.int64)
        x = self.clamp_min(x, int(curve.min_input))
        beyond = self("Greater", self.unsqueeze(self("Abs", x)), rows[:15])
        piece = self.reduce_sum(self("Cast", beyond, to=_INT64), keep=False)
        negative = self("Cast", self("Less", x, 0), to=_INT64)
        bias = self.gather(rows[32:64], self("Add", piece, self("Mul", negative, 16)))
        line = self("Add", self("Mul", self.gather(rows[16:32], piece), x), bias)
        y = self.shift_right_floor(line, self.gather(rows[64:80], piece))
        return self.saturate(self.shift_right_round(y, curve.shift), bits)


Shapes = Sequence[tuple[int, ...]]
KernelWriter = Callable[
    [IntegerNodes, Any, Sequence[ir.Value], Shapes, Sequence[np.dtype]], list[ir.Value]
]
_UINT8 = int(ir.DataType.UINT8)


def max_magnitude(dtype: np.dtype) -> int:
    """Return the largest |value| of a signed integer type, 2^(bits-1)."""
    return 1 << (8 * dtype.itemsize - 1)


def bias_and_sum_bound(
    weight: np.ndarray, bias: np.ndarray | None, zero: int, reach: int
) -> tuple[np.ndarray, int]:
    """Return the bias, int64 [O], and a bound of |sum (x - zero) * w + bias| for |x| <= reach.

    `weight` is [O, ...]; an absent bias is zeros.
    """
    wide = np.abs(weight.reshape(len(weight), -1).astype(np.int64)).sum(axis=1)
    biases = np.zeros(len(weight), np.int64) if bias is None else np.asarray(bias).astype(np.int64)
    return biases, int((wide * (reach + abs(zero)) + np.abs(biases)).max(initial=0))


def to_uint8(builder: IntegerNodes, x: ir.Value | np.ndarray) -> ir.Value:
    """Return int8 `x`, a tensor or an array, plus 128 as uint8.

    onnxruntime's products of uint8 by int8 saturate at 16 bits on processors without dot
    instructions; those of uint8 by uint8 are exact everywhere.
    """
    if isinstance(x, np.ndarray):
        return builder.constant((x.astype(np.int16) + 128).astype(np.uint8))
    return builder("Cast", builder("Add", builder.to_int64(x), 128), to=_UINT8)


def uint8_zero_point(builder: IntegerNodes, zero: int = 0) -> ir.Value:
    """Return the constant 128 + `zero`, the zero point of int8 values to which 128 was added."""
    return builder.constant(np.array(128 + zero, np.uint8))


def integer_matmul(
    builder: IntegerNodes, x: ir.Value, weight: np.ndarray, dtype: np.dtype, zero: int = 0
) -> ir.Value:
    """Return (x - zero) @ weight as int64 [..., O], for x [..., I] of type `dtype`, weight [I, O].

    Appends a MatMulInteger if both are int8, else a MatMul of int64.
    """
    if dtype == weight.dtype == np.int8:
        return builder.to_int64(
            builder(
                "MatMulInteger",
                to_uint8(builder, x),
                to_uint8(builder, weight),
                uint8_zero_point(builder, zero),
                uint8_zero_point(builder),
            )
        )
    return builder("MatMul", builder.to_int64(x, zero), builder.constant(weight.astype(np.int64)))
