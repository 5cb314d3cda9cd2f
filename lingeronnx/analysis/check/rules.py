"""Rules for integer graphs beyond the constraints of `ops`: scales, widths, attributes, what the
executor does wrong.

A rule is a function whose docstring is ``the rule | the remedy``, filled in from the platform's
row; it looks at one integer node with what is known around it and returns the offending value or
None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...formats import (
    AVG_POOL2D,
    BATCH_NORM2D,
    CONCAT,
    CONV1D,
    CONV2D,
    CONV_TRANSPOSE2D,
    DIV,
    LINEAR,
    MAX_POOL,
    PAD,
    QUANT,
    SIGMOID,
    SLICE,
    TANH,
    TRANSPOSE,
    Format,
)
from ...graph import ir
from ...graph.attributes import Attributes, get_int, get_number, get_scales
from ...ops import get_rule_for_integer_op
from ...plan import Affine
from ...targets import Target
from ...targets.arithmetic import (
    ConcatArithmetic,
    DivArithmetic,
    DivisionMethod,
    LutArithmetic,
    QuantArithmetic,
    QuantFloatPrecision,
    TableInputRule,
)
from ...targets.limits import PadLimits, SliceLimits

__all__ = ["RULES", "Rule", "IntegerNode"]


@dataclass(frozen=True)
class IntegerNode:
    """An integer node with what is known around it.

    attrs : by current names with defaults. held : the tensors before it, as their producers write
    them.
    """

    node: ir.Node
    form: Format
    attrs: Attributes
    held: Mapping[str, Affine]

    def read_scales(self) -> dict[int, float]:
        """Return the scale at which each input is read, as the node says, else as its producer
        says.
        """
        by_input = {
            i: self.held[str(v.name)]
            for i, v in enumerate(self.node.inputs)
            if v is not None and v.name in self.held
        }
        return {i: q.scale for i, q in {**by_input, **self.form.input_qparams(self.attrs)}.items()}

    @property
    def output_qparams(self) -> Affine | None:
        """How the output is held."""
        first = self.node.inputs[0] if self.node.inputs else None
        return self.form.output_qparams(
            self.attrs, [self.held.get(str(first.name)) if first is not None else None]
        )


Rule = Callable[[IntegerNode, Target], object]


def check_power_of_two_scales(integer_node: IntegerNode, target: Target) -> object:
    """scales are powers of two | quantize with --mode q-value."""
    if not target.needs_power_of_two_scales:
        return None
    wrong = [
        f"{key} = {scale:g}"
        for key, value in sorted(integer_node.attrs.items())
        if key.startswith("scale_") and value is not None
        for scale in np.atleast_1d(get_scales(integer_node.attrs, key))
        if not _is_power_of_two(scale)
    ]
    return ", ".join(wrong) or None


def check_right_shift(integer_node: IntegerNode, target: Target) -> object:
    """the result is shifted right, never left: the output's scale is at most that of the product or
    of each summand |
    lower scale_o, or repair the graph with fix-dequant.
    """
    lowering = get_rule_for_integer_op(integer_node.form)
    if (
        lowering is None
        or not target.needs_power_of_two_scales
        or integer_node.attrs.get("scale_o") is None
    ):
        return None
    scale, reads = get_number(integer_node.attrs, "scale_o"), integer_node.read_scales()
    if not all(map(_is_power_of_two, (scale, *reads.values()))):
        return None
    names = {
        ir.input_name(integer_node.node, i): value
        for i, value in reads.items()
        if i < len(integer_node.node.inputs)
    }
    try:
        most = lowering.scale_constraints.max_output_exponent(
            integer_node.node, lambda name: math.frexp(names[name])[1] - 1
        )
    except (KeyError, IndexError):
        return None
    exponent = math.frexp(scale)[1] - 1
    return (
        f"scale_o = 2^{exponent}, at most 2^{most} is possible"
        if most is not None and exponent > most
        else None
    )


def check_quant_width(integer_node: IntegerNode, target: Target) -> object:
    """a Quant writes 8 bits, whatever it says | write data_bits = 8, or feed the integers
    themselves.
    """
    how = target.get_arithmetic(QUANT.name, QuantArithmetic)
    if integer_node.form is not QUANT or how is None or how.real is not QuantFloatPrecision.PRODUCT:
        return None
    bits = get_int(integer_node.attrs, "data_bits")
    return f"data_bits = {bits}" if bits != 8 else None


def check_average_pool_scale(integer_node: IntegerNode, target: Target) -> object:
    """an average keeps its input's scale | set scale_o to scale_x."""
    same = target.pool_limits is not None and target.pool_limits.needs_same_scale
    if not same or integer_node.form is not AVG_POOL2D or integer_node.attrs.get("scale_o") is None:
        return None
    x, o = get_number(integer_node.attrs, "scale_x"), get_number(integer_node.attrs, "scale_o")
    return f"scale_x = {x:g}, scale_o = {o:g}" if x != o else None


def check_concat_scales(integer_node: IntegerNode, target: Target) -> object:
    """no input of a concatenation has a larger scale than its output | raise scale_o or requantize
    the input.
    """
    how = target.get_arithmetic(CONCAT.name, ConcatArithmetic)
    if (
        integer_node.form is not CONCAT
        or how is None
        or not how.zeroes_larger_scales
        or integer_node.attrs.get("scale_o") is None
    ):
        return None
    o = get_number(integer_node.attrs, "scale_o")
    over = [
        f"scale_x_{i} = {q.scale:g}"
        for i, q in integer_node.form.input_qparams(integer_node.attrs).items()
        if q.scale > o
    ]
    return f"{', '.join(over)}, scale_o = {o:g}" if over else None


def check_scale_agreement(integer_node: IntegerNode, target: Target) -> object:
    """a node reads a tensor at the scale its producer writes | repair the graph with
    fix-dequant.
    """
    wrong = []
    for index, read in integer_node.form.input_qparams(integer_node.attrs).items():
        value = integer_node.node.inputs[index] if index < len(integer_node.node.inputs) else None
        own = integer_node.held.get(str(value.name)) if value is not None else None
        if own is not None and own.scale != read.scale:
            wrong.append(
                f"'{value.name if value is not None else ''}' read at {read.scale:g}, written at "
                f"{own.scale:g}"
            )
    return ", ".join(wrong) or None


def check_byte_widths(integer_node: IntegerNode, target: Target) -> object:
    """operands are as wide as the chip has them, and the results of convolutions 8 bits | use 8
    bits, or LinearInt for
    wider results.
    """
    if not target.is_int8_only or "scale_w" not in integer_node.attrs:
        return None
    known = {"parameter_bits": target.get_weight_bits(integer_node.form.name), "o_bits": (8,)}
    if integer_node.form is LINEAR:
        del known["o_bits"]
    wrong = [
        f"{k} = {integer_node.attrs[k]}"
        for k, bits in known.items()
        if integer_node.attrs.get(k) not in (None, *bits)
    ]
    return ", ".join(wrong) or None


def check_bias_type(integer_node: IntegerNode, target: Target) -> object:
    """a bias is int32 | quantize again."""
    value = (
        integer_node.node.inputs[2]
        if "scale_w" in integer_node.attrs and len(integer_node.node.inputs) > 2
        else None
    )
    array = ir.const_value(value)
    return (
        str(array.dtype)
        if target.is_int8_only and array is not None and array.dtype.name != "int32"
        else None
    )


def check_single_sample(integer_node: IntegerNode, target: Target) -> object:
    """graphs for a chip hold one sample | write the graph with batch 1."""
    dims = ir.get_shape(integer_node.node.inputs[0]) if integer_node.node.inputs else None
    if not target.single_sample or not dims or integer_node.form not in _IMAGE_FORMATS:
        return None
    return f"batch {dims[0] or 'of any size'}" if dims[0] != 1 else None


def check_operator_support(integer_node: IntegerNode, target: Target) -> object:
    """{target.name} computes the operator right | replace it, or quantize the float model again."""
    if target.can_run(integer_node.form.name):
        return None
    why = target.why.get(integer_node.form.name)
    return (
        f"{integer_node.node.op_type}: {why}" if why else f"it has no {integer_node.node.op_type}"
    )


def check_division_scale(integer_node: IntegerNode, target: Target) -> object:
    """a division shifts its numerator to the left, and on some chips not at all: q_o + q_y - q_x |
    lower scale_x.
    """
    how = target.get_arithmetic(DIV.name, DivArithmetic)
    if (
        integer_node.form is not DIV
        or not target.needs_power_of_two_scales
        or integer_node.attrs.get("scale_o") is None
    ):
        return None
    x, y, o = (get_number(integer_node.attrs, key) for key in ("scale_x", "scale_y", "scale_o"))
    ratio = o * y / x
    wrong = ratio < 1 or (
        how is not None and how.quotient is DivisionMethod.UNSCALED and ratio != 1
    )
    return f"a shift of {math.log2(ratio):g}" if wrong else None


def check_curve_scale(integer_node: IntegerNode, target: Target) -> object:
    """a sigmoid or tanh follows its input, of 11 fractional bits or more where it takes no fewer |
    quantize again.
    """
    if integer_node.form not in (SIGMOID, TANH):
        return None
    how = target.get_arithmetic(integer_node.form.name, LutArithmetic)
    if how is None or integer_node.attrs.get("scale_x") is None:
        return None
    x = get_number(integer_node.attrs, "scale_x")
    if how.input_rule is TableInputRule.NOTHING:
        return target.why.get(integer_node.form.name) or "a constant"
    return (
        f"scale_x = {x:g}"
        if how.input_rule is TableInputRule.RIGHT_ONLY and x < 2.0**how.table.input_fraction_bits
        else None
    )


def check_transpose(integer_node: IntegerNode, target: Target) -> object:
    """a transpose is none of {target.unsupported_perms} | make it from two others."""
    perm = integer_node.attrs.get("perm") if integer_node.form is TRANSPOSE else None
    return perm if isinstance(perm, Sequence) and tuple(perm) in target.unsupported_perms else None


def check_chip_name(integer_node: IntegerNode, target: Target) -> object:
    """nodes name the chip they are for, {target.name} | export for this platform."""
    name = ir.get_attr(integer_node.node, "platform")
    return name if target.has_packer and name not in (None, target.name) else None


def check_slice_steps(integer_node: IntegerNode, target: Target) -> object:
    """a slice takes every element | use steps of 1."""
    limits = target.get_limits(SLICE.name, SliceLimits)
    if limits is None or integer_node.form is not SLICE or len(integer_node.node.inputs) < 5:
        return None
    steps = ir.const_value(integer_node.node.inputs[4])
    return (
        f"steps {steps.tolist()}"
        if steps is not None and not np.isin(steps, limits.steps).all()
        else None
    )


def check_pad_mode(integer_node: IntegerNode, target: Target) -> object:
    """padding is constant | use constant padding."""
    limits, mode = (
        target.get_limits(PAD.name, PadLimits),
        ir.get_attr(integer_node.node, "mode", "constant"),
    )
    return (
        str(mode)
        if limits is not None and integer_node.form is PAD and mode not in limits.modes
        else None
    )


RULES: tuple[Rule, ...] = (
    check_operator_support,
    check_chip_name,
    check_power_of_two_scales,
    check_quant_width,
    check_scale_agreement,
    check_right_shift,
    check_average_pool_scale,
    check_concat_scales,
    check_byte_widths,
    check_bias_type,
    check_single_sample,
    check_division_scale,
    check_curve_scale,
    check_transpose,
    check_slice_steps,
    check_pad_mode,
)

_IMAGE_FORMATS = (CONV2D, CONV1D, CONV_TRANSPOSE2D, AVG_POOL2D, MAX_POOL, BATCH_NORM2D)


def _is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5
