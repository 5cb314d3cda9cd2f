"""Sigmoid and tanh by the chips' tables, iqSigmoid and iqTanh, whose output has 7 fractional bits.

A table that is read `RIGHT_ONLY` takes int16: a Requant by 2^8 stands in front of it, or a
LinearInt that writes 16 bits. Where there is no right one,
GluInt does: it multiplies a half of 1s by the sigmoid of the other half. Where there is an iqTable,
that does.
"""

from __future__ import annotations

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

#: A 1 that GluInt is fed is an int8 at scales up to 2^6.
_MAX_ONES_EXPONENT = 6


def check_glu_axis(node: ir.Node, target: Target) -> object:
    """where GluInt stands in for a table, the last of two or three axes is at most
    {target.sigmoid_limits.max_length}
    long |
    shorten it.
    """
    if target.can_run(TABLE.name) or target.sigmoid_limits is None:
        return None
    shape = ir.get_shape(node.inputs[0]) or ()
    fits = (
        len(shape) in target.sigmoid_limits.ranks
        and shape[-1] is not None
        and shape[-1] <= target.sigmoid_limits.max_length
    )
    return None if fits else "[" + ",".join("N" if d is None else str(d) for d in shape) + "]"


def _table_fraction_bits(form: Format, target: Target) -> int | None:
    """Return the table's fractional bits, where the table takes int16 anyway."""
    how = (
        target.get_arithmetic(form.name, LutArithmetic)
        if target.is_computed_correctly(form.name)
        else None
    )
    return (
        None
        if how is None or how.reading is not TableInputRule.RIGHT_ONLY
        else how.table.input_fraction_bits
    )


def _make_scale_constraints(form: Format) -> Scaling:
    """The chip's table writes 7 fractional bits."""
    return replace(
        TABLE_SCALE_CONSTRAINTS,
        output_bound=1.0,
        max_output_exponent=make_fixed_max_exponent(7),
        min_input_exponent=partial(_table_fraction_bits, form),
    )


class Sigmoid(Op):
    """The logistic function by the chip's table, or by what stands in for it."""

    integer_op = formats.SIGMOID
    floats: tuple[tuple[str, str], ...] = (("", "Sigmoid"),)
    scale_constraints = _make_scale_constraints(formats.SIGMOID)
    runs_on_host_when_last = True
    constraints: tuple[LimitCheck, ...] = (check_glu_axis,)

    def is_available(self, target: Target) -> bool:
        """By a table of either kind, sigmoid also by GluInt."""
        stand_in = self.integer_op is formats.SIGMOID and target.can_run(formats.GLU.name)
        return target.can_run(TABLE.name) or self.has_exact_table(target) or stand_in

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """The reason that the target gives, where it gives one."""
        return target.why.get(self.name) or super().explain_unavailable(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the row's way, and a Requant where the output is wanted at another scale."""
        if context.target.can_run(TABLE.name):
            TABLE.lower(node, context)
            return
        x, o, shape = (
            context.input_qparams(node, 0),
            context.output_qparams(node),
            list(ir.require_shape(node.outputs[0])),
        )
        attrs: dict[str, AttributeValue] = {"scale_o": Q7.scale}
        if self.has_exact_table(context.target):
            value, attrs["scale_x"] = self._emit_table_input(
                node, context, context.get_integer_input(node, 0), x, shape
            )
            form: Format = self.integer_op
        else:
            value, attrs["scale_x"] = self._emit_glu_input(
                node, context, context.get_integer_input(node, 0), x
            )
            form = formats.GLU
            attrs["dim"], attrs["o_bits"] = (
                len(shape) - 1,
                Q7.bits,
            )  # counted from -1, too little is planned
        if o == Q7:
            context.emit(form, node, [value], attrs)
            return
        value = context.emit_intermediate(form, node, "q7", [value], attrs, shape, Q7)
        context.emit(formats.REQUANT, node, [value], formats.REQUANT.scales(Q7, o))

    def emit_intermediate(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> ir.Value:
        """Emit the function of `value`, held as `x`, on the way to `node`'s output; return it, with
        7 bits.
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
        """Whether the row has the function right."""
        return target.is_computed_correctly(self.name)

    def _emit_table_input(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> tuple[ir.Value, float]:
        """Return `value` in the width that the row's table takes, and its scale."""
        how = low.target.get_arithmetic(self.name, LutArithmetic)
        if how is None or how.reading is not TableInputRule.RIGHT_ONLY or x.bits > 8:
            return value, x.scale
        if (
            x.scale < 2.0**3
            # a shift to the left would wrap in 16 bits; in 8 it saturates, where the function is flat
        ):
            most = Affine(2.0**3)
            attrs = formats.REQUANT.scales(x, most)
            value, x = (
                low.emit_intermediate(
                    formats.REQUANT, node, "limited", [value], attrs, shape, most
                ),
                most,
            )
        wide = Affine(x.scale * 2.0**8, 16)
        attrs = formats.REQUANT.scales(x, wide)
        return low.emit_intermediate(
            formats.REQUANT, node, "wide", [value], attrs, shape, wide
        ), wide.scale

    def _emit_glu_input(
        self, node: ir.Node, low: LoweringContext, value: ir.Value, x: Affine
    ) -> tuple[ir.Value, float]:
        """Return the last axis doubled, a half of 1s in front, and its scale: the work of a
        LinearInt, exact.
        """
        shape, base = list(ir.require_shape(node.outputs[0])), f"{ir.constant_base_name(node)}_ones"
        count = int(shape[-1] or 1)
        doubled = Affine(min(max(x.scale, 1.0), 2.0**_MAX_ONES_EXPONENT))
        one = Affine(2.0**6)
        weight = np.concatenate([np.zeros((count, count)), np.eye(count)]) * one.scale
        bias = np.concatenate([np.full(count, x.scale * one.scale), np.zeros(count)])
        parameters = [
            low.array(f"{base}_weight", weight.astype(np.int8)),
            low.array(f"{base}_bias", bias.astype(np.int32)),
        ]
        shape[-1] = 2 * count
        attrs = formats.LINEAR.scales(x, one, doubled)
        return low.emit_intermediate(
            formats.LINEAR, node, "ones", [value, *parameters], attrs, shape, doubled
        ), doubled.scale


class Tanh(Sigmoid):
    """The hyperbolic tangent by the chip's table."""

    integer_op = formats.TANH
    scale_constraints = _make_scale_constraints(formats.TANH)
    floats = (("", "Tanh"),)
    constraints = ()


SIGMOID, TANH = Sigmoid(), Tanh()
