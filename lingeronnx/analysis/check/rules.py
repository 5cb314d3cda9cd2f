"""Rules for integer graphs beyond those of lowering: scales, widths, attributes, faults.

A rule is a function whose docstring is ``the rule | the remedy``, filled in from the platform's
fields. It looks at one integer node and its input scales, and returns the offending value or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import ir
from ...ir.attributes import Attributes, get_int, get_number, get_scales
from ...ir.plan import Affine
from ...operators.integer_ops import (
    AVG_POOL2D,
    CONCAT,
    DIV,
    LINEAR,
    PAD,
    QUANT,
    SLICE,
    TRANSPOSE,
    Format,
)
from ...operators.lowerings import Violation, get_rule_for_integer_op
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

__all__ = ["IntegerNode", "MOVE_NODE_REMEDY", "RULES", "Rule", "make_violation"]

#: The remedy for a node that a platform has no operator for.
MOVE_NODE_REMEDY = (
    "use operators that the platform has, or move the node before the first or after the last of "
    "them"
)


@dataclass(frozen=True)
class IntegerNode:
    """An integer node with the quantization parameters of the tensors upstream.

    Parameters
    ----------
    node
        The node.
    form
        Its operator.
    attrs
        Attributes by current names, with defaults.
    producer_qparams
        Quantization parameters of tensors, as their producers write them.
    """

    node: ir.Node
    form: Format
    attrs: Attributes
    producer_qparams: Mapping[str, Affine]

    def read_scales(self) -> dict[int, float]:
        """Return {input index: scale} of the node's inputs.

        The scale is the one that the node declares, or else the one its producer wrote. Inputs for
        which neither is known are left out.
        """
        qparams: dict[int, Affine] = {}
        for index, value in enumerate(self.node.inputs):
            if value is not None and value.name in self.producer_qparams:
                qparams[index] = self.producer_qparams[str(value.name)]
        qparams |= self.form.input_qparams(self.attrs)
        return {index: q.scale for index, q in qparams.items()}

    @property
    def output_qparams(self) -> Affine | None:
        """The quantization parameters of the output, from attributes and the first input's.

        None if the output is float.
        """
        first = self.node.inputs[0] if self.node.inputs else None
        input_qparams = None if first is None else self.producer_qparams.get(str(first.name))
        return self.form.output_qparams(self.attrs, [input_qparams])


Rule = Callable[[IntegerNode, Target], object]


def check_power_of_two_scales(integer_node: IntegerNode, target: Target) -> object:
    """scales are powers of two | quantize with --mode q-value."""
    if not target.needs_power_of_two_scales:
        return None
    violations = []
    for key, value in sorted(integer_node.attrs.items()):
        if not key.startswith("scale_") or value is None:
            continue
        for scale in np.atleast_1d(get_scales(integer_node.attrs, key)):
            if not _is_power_of_two(scale):
                violations.append(f"{key} = {scale:g}")
    return ", ".join(violations) or None


def check_right_shift(integer_node: IntegerNode, target: Target) -> object:
    """results are shifted right only: the output's scale is at most that of the product or of each
    summand | lower scale_o, or repair the graph with fix-dequant.
    """
    lowering = get_rule_for_integer_op(integer_node.form)
    if lowering is None or not target.needs_power_of_two_scales:
        return None
    if integer_node.attrs.get("scale_o") is None:
        return None
    scale, input_scales = get_number(integer_node.attrs, "scale_o"), integer_node.read_scales()
    if not all(map(_is_power_of_two, (scale, *input_scales.values()))):
        return None
    exponents = {
        ir.input_name(integer_node.node, index): math.frexp(input_scale)[1] - 1
        for index, input_scale in input_scales.items()
        if index < len(integer_node.node.inputs)
    }
    find_max_exponent = lowering.scale_constraints.max_output_exponent
    if find_max_exponent is None:
        return None
    try:
        max_exponent = find_max_exponent(integer_node.node, exponents.__getitem__)
    except (KeyError, IndexError):
        return None
    exponent = math.frexp(scale)[1] - 1
    if max_exponent is None or exponent <= max_exponent:
        return None
    return f"scale_o = 2^{exponent}, at most 2^{max_exponent} is possible"


def check_quant_width(integer_node: IntegerNode, target: Target) -> object:
    """a Quant writes 8 bits, whatever its data_bits | use data_bits = 8, or feed integers."""
    arithmetic = target.get_arithmetic(QUANT.name, QuantArithmetic)
    if integer_node.form is not QUANT or arithmetic is None:
        return None
    if arithmetic.float_precision is not QuantFloatPrecision.PRODUCT:
        return None
    bits = get_int(integer_node.attrs, "data_bits")
    return f"data_bits = {bits}" if bits != 8 else None


def check_average_pool_scale(integer_node: IntegerNode, target: Target) -> object:
    """an average keeps its input's scale | set scale_o to scale_x."""
    if target.pool_limits is None or not target.pool_limits.needs_same_scale:
        return None
    if integer_node.form is not AVG_POOL2D or integer_node.attrs.get("scale_o") is None:
        return None
    x, o = get_number(integer_node.attrs, "scale_x"), get_number(integer_node.attrs, "scale_o")
    return f"scale_x = {x:g}, scale_o = {o:g}" if x != o else None


def check_concat_scales(integer_node: IntegerNode, target: Target) -> object:
    """no input of a concatenation has a larger scale than the output |
    raise scale_o or requantize the input.
    """
    arithmetic = target.get_arithmetic(CONCAT.name, ConcatArithmetic)
    if integer_node.form is not CONCAT or arithmetic is None or not arithmetic.zeroes_larger_scales:
        return None
    if integer_node.attrs.get("scale_o") is None:
        return None
    output_scale = get_number(integer_node.attrs, "scale_o")
    larger = [
        f"scale_x_{index} = {q.scale:g}"
        for index, q in integer_node.form.input_qparams(integer_node.attrs).items()
        if q.scale > output_scale
    ]
    return f"{', '.join(larger)}, scale_o = {output_scale:g}" if larger else None


def check_scale_agreement(integer_node: IntegerNode, target: Target) -> object:
    """a node reads a tensor at the scale of its producer | repair the graph with fix-dequant."""
    mismatches = []
    for index, declared in integer_node.form.input_qparams(integer_node.attrs).items():
        if index >= len(integer_node.node.inputs):
            continue
        value = integer_node.node.inputs[index]
        if value is None:
            continue
        produced = integer_node.producer_qparams.get(str(value.name))
        if produced is not None and produced.scale != declared.scale:
            mismatches.append(
                f"'{value.name}' read at {declared.scale:g}, written at {produced.scale:g}"
            )
    return ", ".join(mismatches) or None


def check_byte_widths(integer_node: IntegerNode, target: Target) -> object:
    """operands have the widths of the chip, results of convolutions 8 bits |
    use 8 bits, or LinearInt for wider results.
    """
    if not target.is_int8_only or "scale_w" not in integer_node.attrs:
        return None
    supported_bits = {"parameter_bits": target.get_weight_bits(integer_node.form.name)}
    if integer_node.form is not LINEAR:
        supported_bits["o_bits"] = (8,)
    violations = []
    for key, supported in supported_bits.items():
        bits = integer_node.attrs.get(key)
        if bits is not None and bits not in supported:
            violations.append(f"{key} = {bits}")
    return ", ".join(violations) or None


def check_bias_type(integer_node: IntegerNode, target: Target) -> object:
    """a bias is int32 | quantize again."""
    if not target.is_int8_only or "scale_w" not in integer_node.attrs:
        return None
    if len(integer_node.node.inputs) <= 2:
        return None
    array = ir.const_value(integer_node.node.inputs[2])
    if array is None or array.dtype.name == "int32":
        return None
    return str(array.dtype)


def check_single_sample(integer_node: IntegerNode, target: Target) -> object:
    """graphs for a chip have a batch of one sample | write the graph with batch 1."""
    shape = ir.get_shape(integer_node.node.inputs[0]) if integer_node.node.inputs else None
    if not target.single_sample or not shape or not integer_node.form.needs_single_sample:
        return None
    return f"batch {shape[0] or 'of any size'}" if shape[0] != 1 else None


def check_operator_support(integer_node: IntegerNode, target: Target) -> object:
    """{target.name} computes the operator correctly | replace it, or quantize the model again."""
    if target.can_run(integer_node.form.name):
        return None
    reason = target.why.get(integer_node.form.name)
    if reason:
        return f"{integer_node.node.op_type}: {reason}"
    return f"it has no {integer_node.node.op_type}"


def check_division_scale(integer_node: IntegerNode, target: Target) -> object:
    """a division shifts its numerator left only, and on some chips not at all: q_o + q_y - q_x |
    lower scale_x.
    """
    if integer_node.form is not DIV or not target.needs_power_of_two_scales:
        return None
    if integer_node.attrs.get("scale_o") is None:
        return None
    arithmetic = target.get_arithmetic(DIV.name, DivArithmetic)
    x, y, o = (get_number(integer_node.attrs, key) for key in ("scale_x", "scale_y", "scale_o"))
    ratio = o * y / x
    cannot_shift = arithmetic is not None and arithmetic.quotient is DivisionMethod.UNSCALED
    if ratio < 1 or (cannot_shift and ratio != 1):
        return f"a shift of {math.log2(ratio):g}"
    return None


def check_curve_scale(integer_node: IntegerNode, target: Target) -> object:
    """a sigmoid or tanh uses its input's scale, of 11 fractional bits or more where required |
    quantize again.
    """
    if integer_node.form.kind is not LutArithmetic:
        return None
    arithmetic = target.get_arithmetic(integer_node.form.name, LutArithmetic)
    if arithmetic is None or integer_node.attrs.get("scale_x") is None:
        return None
    scale = get_number(integer_node.attrs, "scale_x")
    if arithmetic.input_rule is TableInputRule.ALWAYS_ZERO:
        return target.why.get(integer_node.form.name) or "a constant"
    min_scale = 2.0**arithmetic.table.input_fraction_bits
    if arithmetic.input_rule is TableInputRule.RIGHT_SHIFT_ONLY and scale < min_scale:
        return f"scale_x = {scale:g}"
    return None


def check_transpose(integer_node: IntegerNode, target: Target) -> object:
    """a transpose is none of {target.unsupported_perms} | compose it of two others."""
    perm = integer_node.attrs.get("perm") if integer_node.form is TRANSPOSE else None
    if isinstance(perm, Sequence) and tuple(perm) in target.unsupported_perms:
        return perm
    return None


def check_chip_name(integer_node: IntegerNode, target: Target) -> object:
    """nodes name the chip that they are for, {target.name} | export for this platform."""
    name = ir.get_attr(integer_node.node, "platform")
    return name if target.has_packer and name not in (None, target.name) else None


def check_slice_steps(integer_node: IntegerNode, target: Target) -> object:
    """a slice takes every element | use steps of 1."""
    limits = target.get_limits(SLICE.name, SliceLimits)
    if limits is None or integer_node.form is not SLICE or len(integer_node.node.inputs) < 5:
        return None
    steps = ir.const_value(integer_node.node.inputs[4])
    if steps is None or np.isin(steps, limits.steps).all():
        return None
    return f"steps {steps.tolist()}"


def check_pad_mode(integer_node: IntegerNode, target: Target) -> object:
    """padding is constant | use constant padding."""
    limits = target.get_limits(PAD.name, PadLimits)
    mode = ir.get_attr(integer_node.node, "mode", "constant")
    if limits is None or integer_node.form is not PAD or mode in limits.modes:
        return None
    return str(mode)


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


def _is_power_of_two(scale: float) -> bool:
    """Whether a positive scale is a power of two, 2^n with any integer n."""
    return math.frexp(scale)[0] == 0.5


def make_violation(node: ir.Node, rule: str, value: str, remedy: str) -> Violation:
    """Create the violation of `rule` by `node`, with its first named output ("" without one).

    `value` is the value that violates the rule, and `remedy` how to fix it.
    """
    tensor = next((str(v.name) for v in node.outputs if v.name), "")
    return Violation(str(node.name), ir.display_op_type(node), tensor, rule, value, remedy)
