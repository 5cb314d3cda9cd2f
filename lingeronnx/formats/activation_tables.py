"""Functions of one number.

IqSigmoid and iqTanh by the chips' tables, GluInt, and iqTable with a table of its own.
iqSigmoid and iqTanh write 7 fractional bits. How an input comes to the format of the table, Q11 or
Q27, is a `TableInputRule`:

==================  ==============================================================================
`RIGHT_SHIFT_ONLY`  int16 in; shifted right, never left: a scale below 2^11 is read as 2^11
`SATURATED`         shifted and saturated
`WRAPPED`           shifted without saturation, and 0 comes out beyond the table
`ALWAYS_ZERO`       the executor's factor overflows to 0, so that every input reads as 0
==================  ==============================================================================

In training software outputs have the node's format (`uses_node_format`): the table in Q11 gives
Q15, rounded to any scale, the one in Q27 rounds once, to o_bits - 1 fractional bits. An int8 input
with `RIGHT_SHIFT_ONLY` equals an int16 input after a Requant by 2^8. QGelu and QSwish (venusA,
dialect v3) have tables of their own, Q27 in and out.

GluInt multiplies the first half of the last axis by the sigmoid of the second. The training side
gates any axis, and has a sigmoid for each chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number
from ..plan import Affine
from ..targets.arithmetic import GluArithmetic, LutArithmetic, TableInputRule
from . import shape_inference as rules
from ._base import (
    Attr,
    Format,
    KernelInfo,
    UnaryIntegerOp,
    make_zero_point_spec,
    qparams_from_attributes,
)
from .float_model import FloatNodeBuilder
from .shape_inference import Signature
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
        """Return why it gates another axis than the last, or None."""
        last = len(ir.get_shape(node.inputs[0]) or ()) - 1
        return None if get_int(attrs, "dim", -1) in (-1, last) else "it does not gate the last axis"

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel, the sigmoid of every integer worked out."""
        from simulator.kernels import Glu as Kernel

        how, axis = (
            info.expect_arithmetic(GluArithmetic),
            get_int(info.attributes, "dim") % len(info.input_shapes[0]),
        )
        if not how.any_axis and axis != len(info.input_shapes[0]) - 1:
            raise ModelError(
                f"{info.label}: dim = {info.attributes['dim']}; only the last axis is gated"
            )
        scale = get_number(info.attributes, "scale_x")
        gate = Kernel.gates(info.require_exponent("scale_x", scale), how.table.value)
        return Kernel(gate, info.rescale(info.output_scale_ratio(scale, 2.0**15)), axis)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """One half times the sigmoid of the other."""
        shape, axis = builder.info.input_shapes[0], get_int(builder.attrs, "dim")
        half = shape[axis % len(shape)] // 2
        value, gate = builder.add_multi_output_node(
            "Split", builder.float_input(), outputs=2, axis=axis, split=[half, half]
        )
        return [builder("Mul", value, builder("Sigmoid", gate))]


GLU = Glu()


#: How iqSigmoid and iqTanh write their results.
Q7 = Affine(2.0**7)


class Sigmoid(Format):
    """Logistic function by a table of straight pieces."""

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
        """The width of the output is always told."""
        return super().to_v3_attributes({"o_bits": 8, **attrs}, inputs)

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Return why the output has another scale than 2^7, or None."""
        scale = attrs.get("scale_o", Q7.scale)
        return f"scale_o = {scale:g}, not {Q7.scale:g}" if scale != Q7.scale else None

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the table of the node's function."""
        from simulator.fixed_point import round_shift_right, saturate_array
        from simulator.kernels import Table, all_integers
        from simulator.piecewise import load_piecewise

        how = info.expect_arithmetic(LutArithmetic)
        curve, bits, fraction = (
            load_piecewise(self.function, how.table.value),
            info.width(),
            how.table.input_fraction_bits,
        )
        x, q = (
            all_integers(bits),
            info.require_exponent("scale_x", get_number(info.attributes, "scale_x")),
        )
        if how.uses_node_format:
            return Table(
                self._compute_training_table(info, curve, round_shift_right(x, q - fraction))
            )
        if how.input_rule is TableInputRule.ALWAYS_ZERO:
            x = x * 0
        elif how.input_rule is TableInputRule.RIGHT_SHIFT_ONLY:
            x = round_shift_right(x << (16 - bits), max(q + 16 - bits - fraction, 0))
        else:
            x = saturate_array(round_shift_right(x, q - fraction), 32)
        return Table(curve.evaluate_rounded(x, 8).astype(np.int8))

    def _compute_training_table(
        self, bound: KernelInfo, curve: Piecewise, x: np.ndarray
    ) -> np.ndarray:
        """Return what the training side computes for x in the format of its table."""
        from simulator.fixed_point import integer_dtype, saturate_array

        bits, scale = get_int(bound.attributes, "o_bits"), get_number(bound.attributes, "scale_o")
        if bound.expect_arithmetic(LutArithmetic).input_rule is TableInputRule.WRAPPED:
            return requantize_table(bound, curve.evaluate_unsaturated(x), 2.0**15)
        if scale != 2.0 ** (bits - 1):
            raise ModelError(
                f"{bound.label}: scale_o = {scale:g}; of {bits} bits it is {2.0 ** (bits - 1):g}"
            )
        return curve.evaluate_rounded(saturate_array(x, 32), bits).astype(integer_dtype(bits))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the curve itself."""
        return [builder(self.standard_op, builder.float_input())]

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """2^7, whatever the node says, to the executor."""
        return Q7

    def all_output_qparams(
        self, bound: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """What the node says to the training side."""
        return (
            [qparams_from_attributes(bound.attributes, "o")]
            if bound.expect_arithmetic(LutArithmetic).uses_node_format
            else super().all_output_qparams(bound, scales)
        )


SIGMOID = Sigmoid()


def requantize_table(bound: KernelInfo, values: np.ndarray, scale: float) -> np.ndarray:
    """Return integers at `scale` in the node's output format, rounded as it says."""
    from simulator.fixed_point import divide_rounded, integer_dtype, saturate_array

    bits, shift = (
        get_int(bound.attributes, "o_bits"),
        bound.require_exponent("scale_o", bound.output_scale_ratio(scale)),
    )
    rounding = int(bound.rounding)
    moved = [divide_rounded(int(v) << max(shift, 0), 1 << max(-shift, 0), rounding) for v in values]
    return saturate_array(np.array(moved, object), bits).astype(integer_dtype(bits))


class Tanh(Sigmoid):
    """Hyperbolic tangent by a table of straight pieces."""

    name = "iqTanh"
    v3_name = "QTanh"
    standard_op = "Tanh"
    function = "tanh"


TANH = Tanh()


class Gelu(Format):
    """GELU by venusA's table, in generation 3 only; it has no name that the packer knows."""

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
        """Return the table of the node's function."""
        from simulator.fixed_point import round_shift_right, saturate_array
        from simulator.kernels import Table, all_integers
        from simulator.piecewise import load_piecewise

        table = info.expect_arithmetic(LutArithmetic).table
        chip, fraction = table.value, table.input_fraction_bits
        q = info.require_exponent("scale_x", get_number(info.attributes, "scale_x"))
        y = load_piecewise(self.function, chip).evaluate_to_fraction(
            saturate_array(round_shift_right(all_integers(info.width()), q - fraction), 32),
            fraction,
            32,
        )
        return Table(requantize_table(info, y, 2.0**fraction))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the curve itself."""
        return [build_function_nodes(self.function_name, builder)]


GELU = Gelu()


class Swish(Gelu):
    """SiLU by venusA's table, in generation 3 only."""

    name = "QSwish"
    function = "swish"
    function_name = "Silu"


SWISH = Swish()


class Table(UnaryIntegerOp):
    """Any function of one number; its entries know both zero points."""

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
        """Return the table that the node holds."""
        from simulator.kernels import Table as Kernel

        return Kernel(info.require_constant(1, "int8 int16", "table"))

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Emit the standard function of this table, else ``table[round(x * scale) + zero]``."""
        table, x, o = (
            builder.info.constants[1],
            qparams_from_attributes(builder.attrs, "x"),
            qparams_from_attributes(builder.attrs, "o"),
        )
        name = identify_table_function(table, x, o, str(builder.attrs["function"]))
        if name is not None:
            return [build_function_nodes(name, builder)]
        first = builder.add_constant(np.float32(table.size // 2 + x.zero_point + 0.5), "middle")
        counts = builder(
            "Mul", builder.float_input(), builder.add_constant(np.float32(x.scale), "counts")
        )
        place = builder(
            "Cast", builder("Add", counts, first), to=6
        )  # the sum is positive: cut off, it is rounded
        entries = o.real(table.reshape(-1)).astype(np.float32)
        return [builder("Gather", builder.add_constant(entries, "entries"), place, axis=0)]


TABLE = Table()


FAMILY: tuple[Format, ...] = (GLU, SIGMOID, TANH, GELU, SWISH, TABLE)
