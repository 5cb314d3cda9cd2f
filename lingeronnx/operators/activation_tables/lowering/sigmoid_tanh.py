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

from ....ir import ir
from ....ir.attributes import AttributeValue
from ....ir.plan import Affine
from ....targets import LimitCheck, Target
from ....targets.arithmetic import LutArithmetic, TableInputRule
from ... import integer_ops
from ..._lowering import Op, Scaling, make_fixed_max_exponent
from ...integer_ops import Format
from ...lowering_context import LoweringContext
from ..integer_op import Q7
from .lookup_table import TABLE, TABLE_SCALE_CONSTRAINTS

__all__ = ["SIGMOID", "TANH", "check_glu_axis"]

#: Largest exponent at which a 1, as input of GluInt, fits int8.
_MAX_ONES_EXPONENT = 6


def check_glu_axis(node: ir.Node, target: Target) -> str | None:
    """where GluInt stands in for a table, the input has 2 or 3 axes, the last of at most
    {target.sigmoid_limits.max_length} elements | reshape it, or shorten the last axis.
    """
    if target.can_run(TABLE.name) or target.sigmoid_limits is None:
        return None
    shape = ir.get_shape(node.inputs[0]) or ()
    limits = target.sigmoid_limits
    if len(shape) in limits.ranks and (shape[-1] or math.inf) <= limits.max_length:
        return None
    return "[" + ",".join("N" if dim is None else str(dim) for dim in shape) + "]"


def _table_fraction_bits(form: Format, target: Target) -> int | None:
    """Return the fractional bits that the input of a chip's table must have at least, or None.

    It must have those of the table if the target computes `form` correctly and only shifts its
    input right.
    """
    if not target.is_computed_correctly(form.name):
        return None
    arithmetic = target.get_arithmetic(form.name, LutArithmetic)
    if arithmetic is None or arithmetic.input_rule is not TableInputRule.RIGHT_SHIFT_ONLY:
        return None
    return arithmetic.table.input_fraction_bits


def _make_scale_constraints(form: Format) -> Scaling:
    """Return the scale constraints of a table operator `form` with 7 fractional output bits.

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

    integer_op = integer_ops.SIGMOID
    floats: tuple[tuple[str, str], ...] = (("", "Sigmoid"),)
    scale_constraints = _make_scale_constraints(integer_ops.SIGMOID)
    runs_on_host_when_last = True
    constraints: tuple[LimitCheck, ...] = (check_glu_axis,)

    def is_available(self, target: Target) -> bool:
        """Whether `target` can compute the function: by iqTable, its own operator, or GluInt.

        Its own operator (iqSigmoid, iqTanh) must be computed correctly there; GluInt is only for a
        sigmoid.
        """
        has_glu = self.integer_op is integer_ops.SIGMOID and target.can_run(integer_ops.GLU.name)
        return target.can_run(TABLE.name) or self.has_exact_table(target) or has_glu

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason that `target` gives for lacking this operator, else the general one."""
        return target.why.get(self.name) or super().explain_unavailable(node, target)

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit iqTable, the function's own operator, or GluInt, whichever the target has first.

        iqTable has the output's own scale. The function's own operator (iqSigmoid, iqTanh) is taken
        if the target computes it exactly; GluInt, with ones as the values to be gated, is left for
        a sigmoid. Both give Q7 (scale 128), so that a Requant follows if the output has other
        parameters.
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
            form = integer_ops.GLU
            # With a negative axis, the packer plans too little memory.
            attrs["dim"], attrs["o_bits"] = len(shape) - 1, Q7.bits
        if o == Q7:
            context.emit(form, node, [value], attrs)
            return
        value = context.emit_intermediate(form, node, "q7", [value], attrs, shape, Q7)
        context.emit(
            integer_ops.REQUANT, node, [value], integer_ops.REQUANT.make_qparams_attributes(Q7, o)
        )

    def emit_intermediate(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> ir.Value:
        """Emit the function of `value`, of scale and bits `x`, as an intermediate of `node`.

        Return it. The result has 8 bits and scale 128 (Q7) and the given `shape`; it is emitted
        into `low`.
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
        """Whether `target` runs this function's own operator and computes it correctly."""
        return target.is_computed_correctly(self.name)

    def _emit_table_input(
        self,
        node: ir.Node,
        low: LoweringContext,
        value: ir.Value,
        x: Affine,
        shape: Sequence[int | None],
    ) -> tuple[ir.Value, float]:
        """Return `value` with the bit width that the table needs, and its scale.

        `x` describes `value`. It is returned unchanged unless the chip only shifts the table's
        input right and `x` has at most 8 bits. Then a Requant makes it 16 bits wide with 2^8 times
        the scale, after another Requant to scale 2^3 if its scale is smaller. Nodes are emitted
        into `low`; `shape` is the shape of `value`.
        """
        arithmetic = low.target.get_arithmetic(self.name, LutArithmetic)
        if arithmetic is None or arithmetic.input_rule is not TableInputRule.RIGHT_SHIFT_ONLY:
            return value, x.scale
        if x.bits > 8:
            return value, x.scale
        if x.scale < 2.0**3:
            # A left shift wraps in 16 bits; in 8 bits it saturates, where the function is constant.
            limited = Affine(2.0**3)
            attrs = integer_ops.REQUANT.make_qparams_attributes(x, limited)
            value = low.emit_intermediate(
                integer_ops.REQUANT, node, "limited", [value], attrs, shape, limited
            )
            x = limited
        wide = Affine(x.scale * 2.0**8, 16)
        attrs = integer_ops.REQUANT.make_qparams_attributes(x, wide)
        value = low.emit_intermediate(
            integer_ops.REQUANT, node, "wide", [value], attrs, shape, wide
        )
        return value, wide.scale

    def _emit_glu_input(
        self, node: ir.Node, low: LoweringContext, value: ir.Value, x: Affine
    ) -> tuple[ir.Value, float]:
        """Prepend as many ones as values to the last axis of `value`.

        Return the result and its scale. They are added by a LinearInt of exact weights, emitted
        into `low`, for a GluInt that multiplies the ones by the sigmoid of the values. The scale is
        that of `x`, the parameters of `value`, but at least 1 and at most the largest that
        represents 1 in 8 bits.
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
        attrs = integer_ops.LINEAR.make_qparams_attributes(x, w, doubled)
        value = low.emit_intermediate(
            integer_ops.LINEAR, node, "ones", [value, *parameters], attrs, shape, doubled
        )
        return value, doubled.scale


class Tanh(Sigmoid):
    """Tanh by iqTanh or iqTable."""

    integer_op = integer_ops.TANH
    scale_constraints = _make_scale_constraints(integer_ops.TANH)
    floats = (("", "Tanh"),)
    constraints = ()


SIGMOID, TANH = Sigmoid(), Tanh()
