"""The operators, in one explicit table. Adding one = its file + a line here + its test.

`float_op(node)` finds the operator that computes a float node; `integer_op(node)` the one an integer node is, by any
of its generations' names.
"""

from __future__ import annotations

from ..graph import ir
from ._base import RENAMED, Attr, Bound, Op, Tie, Violation, attributes, rule_text
from .activation import Clip, Relu, is_relu
from .border import Dequant, Quant, Requant
from .concat import Concat
from .constant_operand import AddConstant, MulConstant
from .conv import Conv1d, Conv2d
from .deconv import ConvTranspose2d
from .elementwise import Add, Div, Mul, Sub
from .gate import Glu
from .gated import Gated
from .layer_norm import LayerNorm
from .leaky import LeakyRelu
from .linear import Linear
from .lut import Gelu, Sigmoid, Swish, Tanh
from .matmul import Bmm
from .norm import BatchNorm2d, parameter_values, with_parameter
from .pool import AvgPool2d, GlobalAveragePool2d, MaxPool
from .recurrent import Gru, Lstm
from .select import ArgMax, Gather, Slice, Split
from .shape import Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from .softmax import LogSoftmax, Softmax
from .spread import Expand, Pad, Resize, ShuffleChannel, Tile
from .table import TABLE

__all__ = [
    "OPS",
    "RENAMED",
    "TRAINED_ONLY",
    "Attr",
    "Bound",
    "Op",
    "Tie",
    "Violation",
    "attributes",
    "float_op",
    "integer_op",
    "is_relu",
    "parameter_values",
    "rule_text",
    "with_parameter",
]

OPS: tuple[Op, ...] = (
    Quant(), Dequant(), Requant(), Conv2d(), Conv1d(), ConvTranspose2d(), Linear(), Bmm(), BatchNorm2d(), AddConstant(),
    MulConstant(), Add(), Sub(), Mul(), Div(), Concat(), AvgPool2d(), MaxPool(), Relu(), Clip(), LeakyRelu(), Glu(),
    Sigmoid(), Tanh(), Gated(), Softmax(), LogSoftmax(), LayerNorm(), Lstm(), Gru(), Reshape(), Flatten(), Squeeze(),
    Unsqueeze(), Transpose(), Slice(), Split(), Gather(), ArgMax(), Tile(), Expand(), Pad(), Resize(), ShuffleChannel(),
    TABLE,
)  # fmt: skip

#: Operators of generation 3 that the quantizer never writes: no chip's executor has them.
TRAINED_ONLY: tuple[Op, ...] = (GlobalAveragePool2d(), Gelu(), Swish())

_BY_NAME = {name: op for op in (*OPS, *TRAINED_ONLY) for name in (op.name, *op.aliases)}
_BY_FLOAT: dict[tuple[str, str], list[Op]] = {}
for _op in OPS:
    for _key in _op.floats:
        _BY_FLOAT.setdefault(_key, []).append(_op)

_INTEGER_DOMAINS = ("thinker", "linger")


def float_op(node: ir.Node) -> tuple[Op | None, str]:
    """Return the operator that computes the float `node`, or None and why there is none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    kind = node.op_type.partition("_")[0] if domain == ir.DOMAIN else node.op_type  # Curve_2 is a second Curve
    candidates = _BY_FLOAT.get((domain, kind), [])
    if not candidates:
        return None, f"{node.op_type} has no integer form"
    reasons = []
    for op in candidates:
        reason = op.reject(node)
        if reason is None:
            return op, ""
        reasons.append(reason)
    return None, reasons[-1] if len(candidates) == 1 else reasons[0]


def integer_op(node: ir.Node) -> Op | None:
    """Return the operator an integer node is; None for a float node or an unknown one.

    A standard operator (Relu, MaxPool, Reshape ...) is an integer one only on integer tensors: the caller decides.
    """
    return _BY_NAME.get(node.op_type)


def is_quantized_domain(node: ir.Node) -> bool:
    """Whether the node's domain, or its name, is one of the quantized generations'."""
    if node.domain in _INTEGER_DOMAINS:
        return True
    op = _BY_NAME.get(node.op_type)
    return op is not None and (op.domain == "thinker" or node.op_type in op.aliases)
