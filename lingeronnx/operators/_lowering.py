"""Base classes of lowering rules: float operators, limits, and the emission of integer operators.

The `lowering` of each family defines subclasses of `Op`. The integer operator itself, with its
names, attributes, scales and kernel, is a `Format` (`integer_op` of the family). A rule knows
nothing about passes, files or commands.

`Scaling` are the requirements of an operator on the scales of its tensors (`Op.scale_constraints`).
They are read by scale assignment, scale legalization, equalization and checks. The exponent of a
scale 2^n is n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..ir import ir
from ..ir.attributes import AttributeValue
from ..targets import LimitCheck, Target, format_limit_rule
from ._weighted_op import WeightedIntegerOp, accumulator_scale
from .integer_ops import Format
from .lowering_context import LoweringContext

__all__ = [
    "Op",
    "Violation",
    "fix_batch_to_one",
    "format_limit_rule",
    "WeightLayer",
    "ExponentLookup",
    "ScalePair",
    "Scaling",
    "UnaryFunction",
    "make_fixed_max_exponent",
    "product_max_exponent",
    "share_input_output_scale",
    "share_no_scales",
]


#: Maps a tensor name to the exponent of its scale.
ExponentLookup = Callable[[str], int]


#: An elementwise real function, on float64 arrays.
UnaryFunction = Callable[[np.ndarray], np.ndarray]


class ScalePair(NamedTuple):
    """Two tensors that must share a scale.

    `statistics_of` is the tensor whose statistics determine it, or None for both.
    """

    first: str
    second: str
    statistics_of: str | None = None


def share_input_output_scale(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the constraint that input 0 and output 0 of `node` share a scale, on any `target`."""
    return [ScalePair(ir.input_name(node), ir.output_name(node))]


def share_no_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return no constraint, for any `node`: the output has its own scale."""
    return []


def product_max_exponent(node: ir.Node, exponent: ExponentLookup) -> int:
    """Return the largest exponent (log2 of the scale) of a product: the sum of those of its inputs.

    `exponent` gives that of a tensor by name. The product is only shifted right on such targets.
    """
    return exponent(ir.input_name(node, 0)) + exponent(ir.input_name(node, 1))


def make_fixed_max_exponent(fraction_bits: int) -> Callable[[ir.Node, ExponentLookup], int]:
    """Return a function (node, exponent lookup) that always returns `fraction_bits`.

    As `Scaling.max_output_exponent`, that limits the exponent (log2 of the scale) of the output.
    """
    return lambda node, exponent: fraction_bits


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Requirements of a lowering rule on scales; the defaults fit operators that move data.

    Functions take float nodes; `max_output_exponent` and `factor_behavior` also apply to integer
    nodes. A function that is None requires nothing.

    Attributes
    ----------
    shared_scales
        (node, target) -> pairs of tensors that must share a scale; by default input and output.
    factor_behavior
        Effect of positive factors on the inputs: one common factor "passes" to the output, is
        "absorbed" by a weight, or must not exist ("fixed"); "multiplied": the factor of the output
        is the product of those of two inputs.
    max_output_exponent
        (node, exponent lookup) -> largest exponent of the output on a target that only shifts
        right, or None for any.
    min_input_exponent
        target -> smallest exponent of a 16-bit input that is read unchanged, or None if inputs
        have 8 bits only.
    inputs_to_coarsen
        (node, target, scale lookup) -> inputs that are more accurate at the scale of the output.
    output_bound
        Smallest magnitude that no output exceeds; statistics beyond it are ignored.
    strict_output_bound
        Magnitude that outputs can never exceed; above 8 bits, no headroom is left beyond it.
    headroom_below
        node -> distance that the output range must extend below the smallest input, or None.
    real_function
        (graph, node, target) -> the elementwise function that determines the scale of the input,
        or None; also None if rounding the input costs more than that function shows.
    supports_zero_points
        (node, target with zero points) -> whether activations may have zero points. None: if the
        integer operator supports them and the rule is no composition.
    """

    shared_scales: Callable[[ir.Node, Target], list[ScalePair]] = share_input_output_scale
    factor_behavior: Literal["passes", "absorbed", "fixed", "multiplied"] = "passes"
    max_output_exponent: Callable[[ir.Node, ExponentLookup], int | None] | None = None
    min_input_exponent: Callable[[Target], int | None] | None = None
    inputs_to_coarsen: Callable[[ir.Node, Target, Callable[[str], float]], list[str]] | None = None
    output_bound: float | None = None
    strict_output_bound: float | None = None
    headroom_below: Callable[[ir.Node], float | None] | None = None
    real_function: Callable[[ir.Model, ir.Node, Target], UnaryFunction | None] | None = None
    supports_zero_points: Callable[[ir.Node, Target], bool] | None = None


@dataclass(frozen=True)
class Violation:
    """A limit of the platform that a node exceeds.

    Attributes
    ----------
    node, op_type
        Name and operator type of the node.
    tensor
        First output of the node.
    rule
        The limit, as a sentence.
    value
        The value that exceeds the limit; empty if the rule says it all.
    remedy
        How to change the model.
    """

    node: str
    op_type: str
    tensor: str
    rule: str
    value: str
    remedy: str

    def __str__(self) -> str:
        """Format the violation as "OPERATOR NODE -> TENSOR: rule; here VALUE; remedy"."""
        return f"{self.place}: {self.brief}; {self.remedy}"

    @property
    def place(self) -> str:
        """Operator type, node and first output, for messages: "OPERATOR NODE -> TENSOR"."""
        return f"{self.op_type} {self.node} -> {self.tensor}"

    @property
    def brief(self) -> str:
        """The limit and the value that exceeds it, without the node: "rule; here VALUE".

        Only the rule if there is no value.
        """
        return f"{self.rule}; here {self.value}" if self.value else self.rule


class Op:
    """A lowering rule: how a float operator becomes integer operators.

    Subclasses override attributes and methods; the defaults fit operators that only move data.

    Attributes
    ----------
    integer_op
        Integer operator that computes the output.
    composition_name
        Name of a rule that emits several integer operators; empty for a single one.
    floats
        (domain, op type) of the float operators that the rule may lower.
    constraints
        Limits of the nodes, in addition to those of the target.
    """

    integer_op: Format
    composition_name = ""
    floats: tuple[tuple[str, str], ...] = ()
    constraints: tuple[LimitCheck, ...] = ()
    #: Requirements on the scales of the tensors.
    scale_constraints = Scaling()
    #: Whether it only moves data; between float operators it is not worth quantizing.
    is_data_movement = False
    #: Whether its outputs are integers of its inputs, selected or clipped, without rounding.
    preserves_integers = False
    #: Whether the host computes it in float if no integer operator follows.
    runs_on_host_when_last = False
    #: Whether an output without integer consumers may have more bits, or be float.
    allows_wide_output = False
    #: Whether its output takes a positive factor per channel that all its inputs have.
    passes_channel_factors = False
    #: Whether it may emit a Reshape; in graphs of one sample, axis 0 is then 1.
    may_emit_reshape = False

    @property
    def name(self) -> str:
        """Name in messages: that of the composition, else of the integer operator."""
        return self.composition_name or self.integer_op.name

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs of `node` that carry activations, by default [0]."""
        return [0]

    def quantized_outputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the outputs of `node` that are integers at a scale of the plan.

        By default [0].
        """
        return [0]

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the quantized weight inputs of `node`, without biases.

        None by default.
        """
        return []

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Explain why this rule cannot lower `node` on any platform; None (default) if it can."""
        return None

    def is_available(self, target: Target) -> bool:
        """Whether `target` has the integer operators that this rule emits.

        By default the operator, or composition, with the rule's name.
        """
        return target.can_run(self.name)

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason, for users, why `target` cannot compute `node`: it lacks the operator.

        Called if this rule is not available on `target`.
        """
        return f"{target.name} has no operator for {ir.display_op_type(node)}"

    def supports_zero_points(self, node: ir.Node, target: Target) -> bool:
        """Whether the activations of `node` may have nonzero zero points on `target`.

        Never if the target has none. Otherwise a function in the rule's scale constraints decides
        if it is set, else the integer operator; a rule that emits several nodes then does not
        support them.
        """
        if self.scale_constraints.supports_zero_points is not None:
            return target.zero_points and self.scale_constraints.supports_zero_points(node, target)
        return (
            target.zero_points
            and self.integer_op.supports_zero_points
            and not self.composition_name
        )

    def macs(self, node: ir.Node) -> int:
        """Return the number of multiply-accumulate operations of `node` for one sample.

        0 by default.
        """
        return 0

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer operators of the float `node` into `context`.

        The default emits `integer_op` with the inputs and attributes of `node`.
        """
        context.emit(
            self.integer_op,
            node,
            context.inputs(node),
            {a: ir.get_attr(node, a) for a in node.attributes},
        )

    def get_limits(self, target: Target) -> tuple[LimitCheck, ...]:
        """Return the checks of the limits of a node on `target`: the target's, then the rule's.

        A composition of several integer operators has only those of the rule.
        """
        if self.composition_name:
            return self.constraints
        return (*target.vendor.get_limit_checks(self.integer_op.name), *self.constraints)

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return one violation for each limit of `target` that `node`, float or integer, exceeds.

        Empty if it keeps all limits of this rule and its integer operator.
        """
        violations = []
        for constraint in self.get_limits(target):
            value = constraint(node, target)
            if value is not None:
                rule, remedy = format_limit_rule(constraint, target)
                violations.append(
                    Violation(
                        str(node.name),
                        ir.display_op_type(node),
                        ir.output_name(node),
                        rule,
                        str(value),
                        remedy,
                    )
                )
        return violations


def fix_batch_to_one(target: Sequence[int]) -> list[int]:
    """Return the Reshape target `target` with a batch of 1, as on chips.

    Only a first entry of 0 or -1 is replaced.
    """
    return [1 if i == 0 and d in (0, -1) else int(d) for i, d in enumerate(target)]


class WeightLayer(Op):
    """Base of rules for layers with a weight at input 1 and a bias at input 2."""

    integer_op: WeightedIntegerOp
    scale_constraints = Scaling(
        factor_behavior="absorbed",
        shared_scales=share_no_scales,
        max_output_exponent=product_max_exponent,
    )

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [1], the index of the input of `node` that is its weight."""
        return [1]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return the reason why the layer `node` has no integer form, or None if it has one.

        Reasons: its weight (input 1) or its bias (input 2) is not constant. A missing bias is
        accepted.
        """
        if ir.const_value(node.inputs[1]) is None:
            return "its weight is computed at run time"
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and ir.const_value(bias) is None:
            return "its bias is computed at run time"
        return None

    def make_integer_attributes(
        self, node: ir.Node, low: LoweringContext
    ) -> dict[str, AttributeValue]:
        """Return the attributes with scales and bits of input 0, weight and output, as in `low`."""
        return self.integer_op.make_qparams_attributes(
            low.input_qparams(node, 0), low.input_qparams(node, 1), low.output_qparams(node)
        )

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer layer into `context`, with constants for weight (1) and bias (2).

        The bias, left out if there is none, has the scale of the accumulator: that of input times
        weight.
        """
        attrs = {**self.make_shape_attributes(node), **self.make_integer_attributes(node, context)}
        inputs = [
            context.get_integer_input(node, 0),
            context.weight(node, 1),
            *context.bias(node, 2, accumulator_scale(attrs)),
        ]
        context.emit(self.integer_op, node, inputs, attrs)

    def make_shape_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes that describe shapes, for subclasses to override; here none."""
        return {}
