"""What a rule is: which float operators become an integer one, within which limits, and how it is emitted.

Every file of this package fills in the class `Op`. The integer operator itself, its names, attributes, scales and
kernel, is a `Format` (`formats`). A rule knows nothing of passes, files or commands.
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
    """A limit of the platform that a node breaks: what the user reads. value : empty where the rule says it all."""

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
    """How float operators become integer ones. Subclasses override what differs; the defaults fit what moves data.

    format : the integer operator that it becomes, or of a composition the one that writes its output.
    title : what a composition is called.
    floats : (domain, op type) of the float operators that it is asked about.
    """

    format: Format
    title = ""
    floats: tuple[tuple[str, str], ...] = ()
    constraints: tuple[LimitCheck, ...] = ()
    #: What it asks of the scales of its tensors.
    scaling = Scaling()
    #: Whether it only moves data: between float operators there is no point in quantizing it.
    moves = False
    #: Whether its results are integers of its inputs, chosen or cut off: it rounds nothing.
    keeps = False
    #: Whether the host does it, in float, where no integer operator follows.
    head = False
    #: Whether an output that leaves the integers may be wider than the rest, or float.
    wide = False
    #: Whether it may be written with a Reshape: where graphs hold one sample, that is what its axis 0 is.
    reshapes = False

    @property
    def name(self) -> str:
        """What users read: the integer operator's name, or the composition's title."""
        return self.title or self.format.name

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that carry activations."""
        return [0]

    def results(self, node: ir.Node) -> list[int]:
        """Return the indices of the outputs that are integers at a scale of the plan."""
        return [0]

    def parameters(self, node: ir.Node) -> list[int]:
        """Return the indices of the quantized weight inputs (not biases, which are derived)."""
        return []

    def reject(self, node: ir.Node) -> str | None:
        """Return why this float node is not this operator on any platform, or None."""
        return None

    def available(self, target: Target) -> bool:
        """Whether `target` has what this operator is lowered to."""
        return target.runs(self.name)

    def absence(self, node: ir.Node, target: Target) -> str:
        """Return the reason that a user reads where `available` says no."""
        return f"{target.name} has no operator for {ir.display_op_type(node)}"

    def takes_zero_points(self, node: ir.Node, target: Target) -> bool:
        """Return whether the activations of this float node may have zero points on `target`."""
        if self.scaling.zero_points is not None:
            return target.zero_points and self.scaling.zero_points(node, target)
        return target.zero_points and self.format.zero_points and not self.title

    def macs(self, node: ir.Node) -> int:
        """Return the multiply-accumulates of one sample."""
        return 0

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer form of the float `node`; by default the same standard operator on integers."""
        context.emit(self.format, node, context.inputs(node), {a: ir.get_attr(node, a) for a in node.attributes})

    def limits(self, target: Target) -> tuple[LimitCheck, ...]:
        """Return the limits of this operator on `target`: those of the target's own, and the rule's."""
        return (*(() if self.title else target.vendor.limits(self.format.name)), *self.constraints)

    def violations(self, node: ir.Node, target: Target) -> list[Violation]:
        """Return the limits of `target` that `node` (float or integer) breaks."""
        violations = []
        for constraint in self.limits(target):
            value = constraint(node, target)
            if value is not None:
                rule, remedy = format_limit_rule(constraint, target)
                violations.append(
                    Violation(str(node.name), ir.display_op_type(node), ir.output_name(node), rule, str(value), remedy)
                )
        return violations


def fix_batch_to_one(target: Sequence[int]) -> list[int]:
    """Return a Reshape target with the batch axis as the chip has it: 1."""
    return [1 if i == 0 and d in (0, -1) else int(d) for i, d in enumerate(target)]
