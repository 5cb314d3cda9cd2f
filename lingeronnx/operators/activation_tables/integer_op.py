"""Elementwise activations that are computed with lookup tables.

iqSigmoid and iqTanh use the piecewise linear tables of the chips, as GluInt does for its gate. The
table of an iqTable is a constant input of the node.

The outputs of iqSigmoid and iqTanh have 7 fractional bits. The table expects its input in Q11 or
Q27, and the `TableInputRule` of the target says how an input is converted to that format:

==================  ==============================================================================
`RIGHT_SHIFT_ONLY`  int16 input, only shifted right; a scale below 2^11 is treated as 2^11
`SATURATED`         shifted and saturated
`WRAPPED`           shifted without saturation; the output is 0 outside the range of the table
`ALWAYS_ZERO`       the factor of the executor overflows to 0, so every input is treated as 0
==================  ==============================================================================

Later executors round the result of venusA to Q31 first (`rounds_twice`), and saturate inputs of 8,
16 and 32 bits. In the training software, outputs have the format of the node (`uses_node_format`):
a Q11 table yields Q15, which is rounded to any scale; a Q27 table rounds once, to o_bits - 1
fractional bits. An int8 input with `RIGHT_SHIFT_ONLY` equals an int16 input after a Requant by 2^8.
QGelu and QSwish (venusA: dialect v3, and executors from 3.0.9 on) have tables with Q27 input and
output.

GluInt multiplies the first half of the last axis by the sigmoid of the second half. The training
software accepts any axis, and has one sigmoid per chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number
from ...ir.plan import Affine
from ...targets.arithmetic import GluArithmetic, LutArithmetic, TableInputRule
from .. import shape_inference as rules
from .._integer_op import (
    Attr,
    Format,
    UnaryIntegerOp,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature
from .table_functions import build_function_nodes, identify_table_function

if TYPE_CHECKING:
    from simulator.piecewise import Piecewise

__all__ = ["FAMILY", "GLU", "SIGMOID", "TANH", "GELU", "SWISH", "TABLE"]


class Glu(Format):
    """Gated linear unit: one half of an axis times the sigmoid of the other half."""

    name = "GluInt"
    signature = Signature("x:integer", "integer", rules.infer_glu)
    v1_implicit_attributes = ("data_bits", "o_bits")
    kind = GluArithmetic
    v3_name = "QGLU"
    has_inexact_float_model = True
    attributes = (
        Attr("dim", "i", -1),
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
        Attr("o_bits", "i", 8),
    )

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return the reason why dialect v1 cannot express the GLU `node`, or None if it can.

        Dialect v1 gates the last axis only, so `dim` must be -1 (the default) or that axis.
        """
        last_axis = len(ir.get_shape(node.inputs[0]) or ()) - 1
        if get_int(attrs, "dim", -1) in (-1, last_axis):
            return None
        return "it does not gate the last axis"

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the GLU kernel, with the sigmoid of every input integer precomputed.

        The product of value and gate (usually 15 fractional bits) is rescaled once to scale_o.
        Raises ModelError if `dim` is not the last axis and the target does not support others, or
        scale_x is not a power of two.
        """
        from simulator.kernels import Glu as Kernel

        arithmetic = info.expect_arithmetic(GluArithmetic)
        rank = len(info.input_shapes[0])
        axis = get_int(info.attributes, "dim") % rank
        if not arithmetic.any_axis and axis != rank - 1:
            raise ModelError(
                f"{info.label}: dim = {info.attributes['dim']}; it must be the last axis, "
                f"{rank - 1} or -1"
            )
        scale = get_number(info.attributes, "scale_x")
        bits = arithmetic.gate_bits or 16
        gate_table = Kernel.gates(
            info.require_exponent("scale_x", scale),
            arithmetic.table.value,
            bits,
            saturates=not arithmetic.any_axis,
        )
        ratio = info.output_scale_ratio(scale, 2.0 ** (bits - 1))
        return Kernel(gate_table, info.rescale(ratio), axis, bits)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append Split of axis `dim` into halves, Sigmoid of the second, and Mul of both.

        Return [product].
        """
        shape, axis = builder.info.input_shapes[0], get_int(builder.attrs, "dim")
        half = shape[axis % len(shape)] // 2
        value, gate = builder.add_multi_output_node(
            "Split", builder.float_input(), outputs=2, axis=axis, split=[half, half]
        )
        return [builder("Mul", value, builder("Sigmoid", gate))]


GLU = Glu()


#: Output qparams of iqSigmoid and iqTanh in the executor: 7 fractional bits.
Q7 = Affine(2.0**7)


class Sigmoid(Format):
    """Logistic function computed with a piecewise linear table."""

    name = "iqSigmoid"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))
    kind = LutArithmetic
    v3_name = "QSigmoid"
    has_inexact_float_model = True
    standard_op = "Sigmoid"
    v1_implicit_attributes = ("data_bits", "o_bits")
    function = "sigmoid"
    attributes = (Attr("scale_x", "f"), Attr("scale_o", "f", Q7.scale), Attr("o_bits", "i", 8))

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v3, which requires `o_bits` and `data_bits`.

        Both are 8 if absent.
        """
        return super().to_v3_attributes({"o_bits": 8, **attrs}, inputs)

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the sigmoid or tanh `node`, or None if it can.

        The output of dialect v1 has 7 fractional bits, so `scale_o` must be 2^7 (the default).
        """
        scale = attrs.get("scale_o", Q7.scale)
        return f"scale_o = {scale:g}, not {Q7.scale:g}" if scale != Q7.scale else None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up the sigmoid (or tanh) of every input integer, lowest first.

        An input is shifted from scale_x, which must be a power of two, to the fractional bits of
        the chip's piecewise linear function, by the rule of the target. The result is int8 with 7
        fractional bits; in the arithmetic of training software it has o_bits at scale_o. An input
        of 32 bits is evaluated without a table of all results.
        """
        from simulator.fixed_point import round_shift_right
        from simulator.kernels import PiecewiseCurve, Table, all_integers
        from simulator.piecewise import load_piecewise

        arithmetic = info.expect_arithmetic(LutArithmetic)
        fraction_bits = arithmetic.table.input_fraction_bits
        exponent = info.require_exponent("scale_x", get_number(info.attributes, "scale_x"))
        if _is_wide_input(info, arithmetic):
            return PiecewiseCurve(
                self.function,
                arithmetic.table.value,
                exponent - fraction_bits,
                rounds_twice=arithmetic.rounds_twice,
            )
        bits = info.width()
        if not arithmetic.uses_node_format:
            return Table(_compute_executor_table(self.function, arithmetic, bits, exponent))
        x = round_shift_right(all_integers(bits), exponent - fraction_bits)
        function = load_piecewise(self.function, arithmetic.table.value)
        return Table(self._compute_training_table(info, function, x))

    def _compute_training_table(
        self, info: KernelInfo, function: Piecewise, x: np.ndarray
    ) -> np.ndarray:
        """Return the results of training software for `x`, integers in the chip table's format.

        `function` is the piecewise linear function. With input rule WRAPPED, the Q15 result is
        requantized to scale_o and o_bits. Otherwise it is rounded once to o_bits - 1 fractional
        bits; raises ModelError if scale_o is not 2^(o_bits - 1).
        """
        from simulator.fixed_point import integer_dtype, saturate_array

        bits, scale = get_int(info.attributes, "o_bits"), get_number(info.attributes, "scale_o")
        if info.expect_arithmetic(LutArithmetic).input_rule is TableInputRule.WRAPPED:
            return requantize_table(info, function.evaluate_unsaturated(x), 2.0**15)
        if scale != 2.0 ** (bits - 1):
            raise ModelError(
                f"{info.label}: scale_o = {scale:g}; with {bits} bits it must be "
                f"{2.0 ** (bits - 1):g}"
            )
        return function.evaluate_rounded(saturate_array(x, 32), bits).astype(integer_dtype(bits))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append the standard Sigmoid (Tanh in the subclass) of the float input.

        Return [its output].
        """
        return [builder(self.standard_op, builder.float_input())]

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return scale 2^7 with 8 bits, which the executor's output has whatever `scale_o` is."""
        return Q7

    def all_output_qparams(
        self, info: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return [qparams of the output]: the node's in training software, else scale 2^7.

        The other ones have 8 bits whatever `scale_o` is.
        """
        if info.expect_arithmetic(LutArithmetic).uses_node_format:
            return [qparams_from_attributes(info.attributes, "o")]
        return super().all_output_qparams(info, scales)


SIGMOID = Sigmoid()


@lru_cache(maxsize=32)
def _compute_executor_table(
    name: str, arithmetic: LutArithmetic, bits: int, exponent: int
) -> np.ndarray:
    """Return the executor's results for all integers of `bits` bits at scale 2^`exponent`.

    They are int8 [2^bits] with 7 fractional bits, and shared by all callers: the steps of an
    unrolled recurrent layer have the same table. `name` is that of the piecewise function.
    """
    from simulator.fixed_point import round_shift_right, saturate_array
    from simulator.kernels import all_integers
    from simulator.piecewise import load_piecewise

    function, x = load_piecewise(name, arithmetic.table.value), all_integers(bits)
    fraction_bits = arithmetic.table.input_fraction_bits
    if arithmetic.input_rule is TableInputRule.ALWAYS_ZERO:
        x = x * 0
    elif arithmetic.input_rule is TableInputRule.RIGHT_SHIFT_ONLY:
        x = round_shift_right(x << (16 - bits), max(exponent + 16 - bits - fraction_bits, 0))
    else:
        x = saturate_array(round_shift_right(x, exponent - fraction_bits), function.bits)
    if not arithmetic.rounds_twice:
        return function.evaluate_rounded(x, 8).astype(np.int8)
    y = round_shift_right(function.evaluate_rounded(x, 32), 24)
    return saturate_array(y, 8).astype(np.int8)


def _is_wide_input(info: KernelInfo, arithmetic: LutArithmetic) -> bool:
    """Whether the input of a sigmoid or tanh is int32, and the target supports that."""
    is_int32 = bool(info.input_dtypes) and info.input_dtypes[0] == np.int32
    return is_int32 and arithmetic.supports_int32


def requantize_table(info: KernelInfo, values: np.ndarray, scale: float) -> np.ndarray:
    """Return the integers `values` at `scale`, requantized to scale_o and o_bits of the node.

    Uses the rounding mode of the node and saturates. `values` may be integers of any size; the
    result has the dtype for o_bits. Raises ModelError if scale_o / scale is not a power of two.
    """
    from simulator.fixed_point import divide_rounded, integer_dtype, saturate_array

    bits = get_int(info.attributes, "o_bits")
    shift = info.require_exponent("scale_o", info.output_scale_ratio(scale))
    factor_shift, divisor = max(shift, 0), 1 << max(-shift, 0)
    rounding = int(info.rounding)
    rescaled = [divide_rounded(int(value) << factor_shift, divisor, rounding) for value in values]
    return saturate_array(np.array(rescaled, object), bits).astype(integer_dtype(bits))


class Tanh(Sigmoid):
    """Hyperbolic tangent computed with a piecewise linear table."""

    name = "iqTanh"
    v3_name = "QTanh"
    standard_op = "Tanh"
    function = "tanh"


TANH = Tanh()


class Gelu(Format):
    """GELU with the table of venusA; the quantizer never writes it."""

    name = "QGelu"
    signature = Signature("x:integer", "integer", rules.keep_input_shape(rules.type_of_bits))
    kind = LutArithmetic
    domain = "linger"
    function = "gelu"
    has_inexact_float_model = True
    function_name = "Gelu"
    attributes = (
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up GELU (SiLU in a subclass) of every input integer.

        The table is computed here. An input is shifted from scale_x, which must be a power of two,
        to the format of the chip's table and saturated to 32 bits; the result is requantized to
        scale_o and o_bits.
        """
        from simulator.fixed_point import round_shift_right, saturate_array
        from simulator.kernels import Table, all_integers
        from simulator.piecewise import load_piecewise

        table = info.expect_arithmetic(LutArithmetic).table
        fraction_bits = table.input_fraction_bits
        exponent = info.require_exponent("scale_x", get_number(info.attributes, "scale_x"))
        x = round_shift_right(all_integers(info.width()), exponent - fraction_bits)
        function = load_piecewise(self.function, table.value)
        y = function.evaluate_to_fraction(saturate_array(x, 32), fraction_bits, 32)
        return Table(requantize_table(info, y, 2.0**fraction_bits))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append standard operators that compute the function (GELU or SiLU).

        Return [the result].
        """
        return [build_function_nodes(self.function_name, builder)]


GELU = Gelu()


class Swish(Gelu):
    """SiLU computed with the table of venusA; the quantizer never writes it."""

    name = "QSwish"
    function = "swish"
    function_name = "Silu"


SWISH = Swish()


class Table(UnaryIntegerOp):
    """Any elementwise function; the table entries include both zero points."""

    name = "iqTable"
    supports_zero_points = True
    signature = Signature(
        "x:integer table:weight", "integer", rules.keep_input_shape(rules.type_of_bits)
    )
    attributes: tuple[Attr, ...] = (
        Attr("function", "s", ""),
        Attr("data_bits", "i", 8),
        Attr("o_bits", "i", 8),
        Attr("scale_x", "f"),
        Attr("scale_o", "f"),
        make_zero_point_spec("x"),
        make_zero_point_spec("o"),
    )

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return a kernel that looks up outputs in the constant table (int8, int16) at input 1.

        ModelError if that is not constant or of another type.
        """
        from simulator.kernels import Table as Kernel

        return Kernel(info.require_constant(1, "int8 int16", "table"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append the standard function that the table holds to `builder`; return [its output].

        If the entries are those of no known function, a Gather looks up the dequantized entry at
        round(x * scale_x) + half the table size + zero point.
        """
        table = builder.info.constants[1]
        x = qparams_from_attributes(builder.attrs, "x")
        o = qparams_from_attributes(builder.attrs, "o")
        name = identify_table_function(table, x, o, str(builder.attrs["function"]))
        if name is not None:
            return [build_function_nodes(name, builder)]
        offset = builder.add_constant(np.float32(table.size // 2 + x.zero_point + 0.5), "middle")
        scale = builder.add_constant(np.float32(x.scale), "counts")
        integers = builder("Mul", builder.float_input(), scale)
        # The sum is positive, so that the truncation of Cast rounds to the nearest index.
        index = builder("Cast", builder("Add", integers, offset), to=6)
        entries = o.real(table.reshape(-1)).astype(np.float32)
        return [builder("Gather", builder.add_constant(entries, "entries"), index, axis=0)]


TABLE = Table()


FAMILY: tuple[Format, ...] = (GLU, SIGMOID, TANH, GELU, SWISH, TABLE)
