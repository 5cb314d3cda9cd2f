"""Sigmoid and tanh by the tables of chips; a limit returns None if kept, else the offending value.

These are iqSigmoid and iqTanh, with 7 fractional output bits.

A table with input rule `RIGHT_SHIFT_ONLY` needs int16: a Requant by 2^8 precedes it, or a
LinearInt with a 16-bit output. If iqSigmoid is not computed correctly, GluInt multiplies a half of
ones by the sigmoid of the other half. On targets with iqTable, that is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ... import formats
from ...formats import Format
from ...formats.activation_tables import Q7
from ...graph import ir
from ...graph.attributes import AttributeValue
from ...lowering import LoweringContext
from ...plan import Affine
from ...targets import LimitCheck, Target
from ...targets.arithmetic import LutArithmetic, TableInputRule
from .._base import Op
from ..scale_constraints import Scaling, make_fixed_max_exponent
from .lookup_table import TABLE, TABLE_SCALE_CONSTRAINTS

__all__ = ["SIGMOID", "TANH", "check_glu_axis"]

#: Largest exponent at which a 1, as input of GluInt, fits int8.
_MAX_ONES_EXPONENT = 6


def check_glu_axis(node: ir.Node, target: Target) -> str | None:
    """where GluInt stands in for a table, the last of two or three axes is at most
    {target.sigmoid_limits.max_length}
    long |
    shorten it.
    """
    if target.can_run(TABLE.name) or target.sigmoid_limits is None:
        return None
    shape = ir.get_shape(node.inputs[0]) or ()
    limits = target.sigmoid_limits
    if len(shape) in limits.ranks and (shape[-1] or math.inf) <= limits.max_length:
        return None
    return "[" + ",".join("N" if dim is None else str(dim) for dim in shape) + "]"


def _table_fraction_bits(form: Format, target: Target) -> int | None:
    """Return the input fraction bits of a table that needs int16 inputs, else None.

    It needs them if the target computes `form` correctly and only shifts its input right
    (RIGHT_SHIFT_ONLY).
    """
    if not target.is_computed_correctly(form.name):
        return None
    arithmetic = target.get_arithmetic(form.name, LutArithmetic)
    if arithmetic is None or arithmetic.input_rule is not TableInputRule.RIGHT_SHIFT_ONLY:
        return None
    return arithmetic.table.input_fraction_bits


def _make_scale_constraints(form: Format) -> Scaling:
    """Return the scale constraints of a table operator with 7 fractional output bits.

    The output bound is 1.0, the input's least number of fractional bits the one that `form`
    requires.
    """
    return replace(
        TABLE_SCALE_CONSTRAINTS,
        output_bound=1.0,
        max_output_exponent=make_fixed_max_exponent(7),
        min_input_exponent=partial(_table_fraction_bits, form),
    )


class Sigmoid(Op):
    """Sigmoid by iqSigmoid, GluInt or iqTable."""

    integer_op = formats.SIGMOID
    floats: tuple[tuple[str, str], ...] = (("", "Sigmoid"),)
    scale_constraints = _make_scale_constraints(formats.SIGMOID)
    runs_on_host_when_last = True
    constraints: tuple[LimitCheck, ...] = (check_glu_axis,)

    def is_available(self, target: Target) -> bool:
        """Whether `target` has iqTable, a correct table, or (sigmoid only) GluInt."""
        has_glu = self.integer_op is formats.SIGMOID and target.can_run(formats.GLU.name)
        return target.can_run(TABLE.name) or self.has_exact_table(target) or has_glu

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason that `target` gives for the operator, else the general one of `Op`."""
        return target.why.get(self.name) or super().explain_unavailable(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqTable, iqSigmoid or GluInt, by what the target has.

        iqTable is emitted at the output's own scale if `context.target` has it; otherwise iqSigmoid
        if it is exact there, else GluInt on ones and the input, with a Requant if the output is not
        in Q7.
        """
        if context.target.can_run(TABLE.name):
            TABLE.lower(node, context)
            return
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        shape = list(ir.require_shape(node.outputs[0]))
        attrs: dict[str, AttributeValue] = {"scale_o": Q7.scale}
        value = context.get_integer_input(node, 0)
        if self.has_exact_table(context.target):
            value, attrs["scale_x"] = self._emit_table_input(node, context, value, x, shape)
            form: Format = self.integer_op
        else:
            value, attrs["scale_x"] = self._emit_glu_input(node, context, value, x)
            form = formats.GLU
            # With a negative axis, the packer plans too little memory.
            attrs["dim"], attrs["o_bits"] = len(shape) - 1, Q7.bits
        if o == Q7:
            context.emit(form, node, [value], attrs)
            return
        value = context.emit_intermediate(form, node, "q7", [value], attrs, shape, Q7)
        context.emit(formats.REQUANT, node, [value], formats.REQUANT.make_qparams_attributes(Q7, o))

    def emit_intermediate(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> ir.Value:
        """Emit the function of `value`, which has qparams `x`, as an intermediate of `node`.

        Returns the result, in Q7.
        """
        value, scale = self._emit_table_input(node, low, value, x, shape)
        return low.emit_intermediate(
            self.integer_op,
            node,
            "gate",
            [value],
            {"scale_x": scale, "scale_o": Q7.scale},
            shape,
            Q7,
        )

    def has_exact_table(self, target: Target) -> bool:
        """Whether `target` computes the function correctly by its table."""
        return target.is_computed_correctly(self.name)

    def _emit_table_input(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> tuple[ir.Value, float]:
        """Return `value` in the bit width that the table needs, and its scale.

        `value` and its own scale, unless the chip only shifts the table's input right
        (RIGHT_SHIFT_ONLY) and it has at most 8 bits. Then a Requant makes it 16 bits wide with 2^8
        times the scale, after another Requant to scale 2^3 if its scale is smaller.
        """
        arithmetic = low.target.get_arithmetic(self.name, LutArithmetic)
        if arithmetic is None or arithmetic.input_rule is not TableInputRule.RIGHT_SHIFT_ONLY:
            return value, x.scale
        if x.bits > 8:
            return value, x.scale
        if x.scale < 2.0**3:
            # A left shift wraps in 16 bits; in 8 bits it saturates, where the function is constant.
            limited = Affine(2.0**3)
            attrs = formats.REQUANT.make_qparams_attributes(x, limited)
            value = low.emit_intermediate(
                formats.REQUANT, node, "limited", [value], attrs, shape, limited
            )
            x = limited
        wide = Affine(x.scale * 2.0**8, 16)
        attrs = formats.REQUANT.make_qparams_attributes(x, wide)
        value = low.emit_intermediate(formats.REQUANT, node, "wide", [value], attrs, shape, wide)
        return value, wide.scale

    def _emit_glu_input(
        self, node: ir.Node, low: LoweringContext, value: ir.Value, x: Affine
    ) -> tuple[ir.Value, float]:
        """Prepend ones on the last axis by an exact LinearInt; return the result and its scale.

        The result has twice the last size of `value`: ones, then the values. Its scale is that of
        `x`, but at least 1 and at most 2^_MAX_ONES_EXPONENT.
        """
        shape, base = list(ir.require_shape(node.outputs[0])), f"{ir.constant_base_name(node)}_ones"
        count = int(shape[-1] or 1)
        doubled = Affine(min(max(x.scale, 1.0), 2.0**_MAX_ONES_EXPONENT))
        w = Affine(2.0**6)
        weight = np.concatenate([np.zeros((count, count)), np.eye(count)]) * w.scale
        bias = np.concatenate([np.full(count, x.scale * w.scale), np.zeros(count)])
        parameters = [
            low.array(f"{base}_weight", weight.astype(np.int8)),
            low.array(f"{base}_bias", bias.astype(np.int32)),
        ]
        shape[-1] = 2 * count
        attrs = formats.LINEAR.make_qparams_attributes(x, w, doubled)
        value = low.emit_intermediate(
            formats.LINEAR, node, "ones", [value, *parameters], attrs, shape, doubled
        )
        return value, doubled.scale


class Tanh(Sigmoid):
    """Tanh by iqTanh or iqTable."""

    integer_op = formats.TANH
    scale_constraints = _make_scale_constraints(formats.TANH)
    floats = (("", "Tanh"),)
    constraints = ()


SIGMOID, TANH = Sigmoid(), Tanh()
