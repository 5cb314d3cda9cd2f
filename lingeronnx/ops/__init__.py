"""The rules: which float operators become which integer ones, in one explicit table.

Adding one = its file + a line here + its test. `float_op(node, row)` finds the rule of a float node;
`lowering_rule(format)` the one whose limits hold for an integer node. The integer operators are in `formats`.
"""

from __future__ import annotations

from ..formats import Format
from ..graph import ir
from ..targets import Target
from ._base import Op, Violation, rule_text
from .constant_operand import AddConstant, MulConstant
from .elementwise import Add, Mul, Sub
from .functions.activation import Clip, Relu, is_relu
from .functions.gated import Gated
from .functions.hard import HardSigmoid, HardSwish
from .functions.leaky import LeakyRelu
from .functions.lut import SIGMOID, TANH
from .functions.table import HALF_LINES, TABLE
from .layers.conv import CONV2D, Conv1d
from .layers.deconv import ConvTranspose2d
from .layers.layer_norm import LayerNorm
from .layers.linear import LINEAR
from .layers.matmul import Bmm
from .layers.norm import BatchNorm2d, parameter_values, with_parameter
from .layers.pool import AVERAGE, MaxPool
from .layers.recurrent import LSTM, Gru
from .layers.softmax import LogSoftmax, Softmax
from .moves.concat import Concat
from .moves.pad import Pad
from .moves.select import Gather, Slice
from .moves.shape import Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from .moves.spread import Expand, Resize, Tile
from .scaling import ScalePair, Scaling, own_scale

__all__ = [
    "OPS",
    "Op",
    "ScalePair",
    "Scaling",
    "Violation",
    "add_lowering_rule",
    "float_op",
    "is_relu",
    "is_tabled",
    "own_scale",
    "parameter_values",
    "remove_lowering_rule",
    "lowering_rule",
    "rule_text",
    "runs",
    "with_parameter",
]

OPS: tuple[Op, ...] = (
    CONV2D, Conv1d(), ConvTranspose2d(), LINEAR, Bmm(), BatchNorm2d(), AddConstant(), MulConstant(), Add(), Sub(),
    Mul(), Concat(), AVERAGE, MaxPool(), Relu(), Clip(), HALF_LINES, LeakyRelu(), SIGMOID, TANH, Gated(),
    HardSigmoid(), HardSwish(), Softmax(), LogSoftmax(), LayerNorm(), LSTM, Gru(), Reshape(), Flatten(), Squeeze(),
    Unsqueeze(), Transpose(), Slice(), Gather(), Tile(), Expand(), Pad(), Resize(), TABLE,
)  # fmt: skip

#: A composition's title is not the name of the integer operator that it ends in.
_BY_FORMAT = {op.format: op for op in OPS if not op.title}
_BY_FLOAT: dict[tuple[str, str], list[Op]] = {}
for _op in OPS:
    for _key in _op.floats:
        _BY_FLOAT.setdefault(_key, []).append(_op)


def float_op(node: ir.Node, target: Target) -> tuple[Op | None, str]:
    """Return the rule by which the float `node` is lowered for `target`, or None and why there is none.

    Of several rules that take the node it is the first that `target` has and whose limits hold, else the first
    that `target` has, else the first: no rule needs to know of the others. Its `available` and `violations` say what
    is against it.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    candidates = _BY_FLOAT.get((domain, ir.kind(node)), [])
    if not candidates:
        return None, f"{node.op_type} has no integer form"
    reasons = [op.reject(node) for op in candidates]
    fitting = [op for op, reason in zip(candidates, reasons, strict=True) if reason is None]
    if not fitting:
        return None, str(reasons[0])
    there = [op for op in fitting if op.available(target)]
    best = there[:1] if len(there) < 2 else [op for op in there if not op.violations(node, target)]
    return (best or there or fitting)[0], ""


def runs(node: ir.Node, target: Target) -> bool:
    """Whether `target` computes the float `node` in integers, within its limits."""
    op, _ = float_op(node, target)
    return op is not None and op.available(target) and not op.violations(node, target)


def is_tabled(kind: str) -> bool:
    """Whether a table is all there is for a standard function of one number."""
    return _BY_FLOAT.get(("", kind)) == [TABLE]


def add_lowering_rule(op: Op) -> None:
    """Let another rule be asked, after those that are there."""
    if not op.title:
        _BY_FORMAT[op.format] = op
    for key in op.floats:
        _BY_FLOAT.setdefault(key, []).append(op)


def remove_lowering_rule(op: Op) -> None:
    """Take out what `add_lowering_rule` put in."""
    if _BY_FORMAT.get(op.format) is op:
        del _BY_FORMAT[op.format]
    for key in op.floats:
        _BY_FLOAT[key] = [other for other in _BY_FLOAT.get(key, []) if other is not op]


def lowering_rule(form: Format) -> Op | None:
    """Return the rule that writes `form` and knows its limits; None for an operator that the quantizer never writes."""
    return _BY_FORMAT.get(form)
