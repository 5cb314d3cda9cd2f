"""What a rule is: which float operators become an integer one, within which limits, and how it is
emitted.

Every file of this package fills in the class `Op`. The integer operator itself, its names,
attributes, scales and kernel, is a `Format` (`formats`). A rule knows nothing of passes, files or
commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..formats import Format
from ..graph import ir
from ..lowering import LoweringContext
from ..targets import LimitCheck, Target, format_limit_rule
from .scale_constraints import Scaling

__all__ = ["Op", "Violation", "fix_batch_to_one", "format_limit_rule"]


@dataclass(frozen=True)
class Violation:
    """A limit of the platform that a node breaks: what the user reads. value : empty where the rule
    says it all.
    """

    node: str
    op_type: str
    tensor: str
    rule: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.brief}; {self.remedy}"

    @property
    def place(self) -> str:
        """The operator, the node and the tensor that it writes."""
        return f"{self.op_type} {self.node} -> {self.tensor}"

    @property
    def brief(self) -> str:
        """The rule and the value, without the place."""
        return f"{self.rule}; here {self.value}" if self.value else self.rule


class Op:
    """How float operators become integer ones. Subclasses override what differs; the defaults fit
    what moves data.

    integer_op : the integer operator that it becomes, or of a composition the one that writes its
    output. composition_name : what a composition is called.
    floats : (domain, op type) of the float operators that it is asked about.
    """

    integer_op: Format
    composition_name = ""
    floats: tuple[tuple[str, str], ...] = ()
    constraints: tuple[LimitCheck, ...] = ()
    #: What it asks of the scales of its tensors.
    scale_constraints = Scaling()
    #: Whether it only moves data: between float operators there is no point in quantizing it.
    is_data_movement = False
    #: Whether its results are integers of its inputs, chosen or cut off: it rounds nothing.
    preserves_integers = False
    #: Whether the host does it, in float, where no integer operator follows.
    runs_on_host_when_last = False
    #: Whether an output that leaves the integers may be wider than the rest, or float.
    allows_wide_output = False
    #: Whether it may be written with a Reshape: where graphs hold one sample, that is what its axis 0 is.
    may_emit_reshape = False

    @property
    def name(self) -> str:
        """What users read: the integer operator's name, or the composition's title."""
        return self.composition_name or self.integer_op.name

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that carry activations."""
        return [0]

    def quantized_outputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the outputs that are integers at a scale of the plan."""
        return [0]

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the quantized weight inputs (not biases, which are derived)."""
        return []

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return why this float node is not this operator on any platform, or None."""
        return None

    def is_available(self, target: Target) -> bool:
        """Whether `target` has what this operator is lowered to."""
        return target.can_run(self.name)

    def explain_unavailable(self, node: ir.Node, target: Target) -> str:
        """Return the reason that a user reads where `is_available` says no."""
        return f"{target.name} has no operator for {ir.display_op_type(node)}"

    def supports_zero_points(self, node: ir.Node, target: Target) -> bool:
        """Return whether the activations of this float node may have zero points on `target`."""
        if self.scale_constraints.supports_zero_points is not None:
            return target.zero_points and self.scale_constraints.supports_zero_points(node, target)
        return (
            target.zero_points
            and self.integer_op.supports_zero_points
            and not self.composition_name
        )

    def macs(self, node: ir.Node) -> int:
        """Return the multiply-accumulates of one sample."""
        return 0

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer form of the float `node`; by default the same standard operator on
        integers.
        """
        context.emit(
            self.integer_op,
            node,
            context.inputs(node),
            {a: ir.get_attr(node, a) for a in node.attributes},
        )

    def get_limits(self, target: Target) -> tuple[LimitCheck, ...]:
        """Return the limits of this operator on `target`: those of the target's own, and the
        rule's.
        """
        return (
            *(
                ()
                if self.composition_name
                else target.vendor.get_limit_checks(self.integer_op.name)
            ),
            *self.constraints,
        )

    def find_violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return the limits of `target` that `node` (float or integer) breaks."""
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
    """Return a Reshape target with the batch axis as the chip has it: 1."""
    return [1 if i == 0 and d in (0, -1) else int(d) for i, d in enumerate(target)]
