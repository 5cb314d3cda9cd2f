"""The integer operators, one definition each: names in every dialect, attributes, scales, and the kernel.

Each family has a file, and lists its operators in `FAMILY`. `integer_format(node)` finds the one that an integer node
is, by any of its names. Stands below the rules (`ops`), which say what float operators become these.
"""

from __future__ import annotations

from ..errors import ModelError
from ..graph import ir
from . import border, clamp, curves, layers, pairs, pool, recurrent, rows
from ._base import QUANT_MODES, RENAMED, Attr, Bound, Format, Unary, attributes, other_zero
from .border import DEQUANT, QUANT, REQUANT
from .clamp import CLIP, RELU
from .curves import GELU, GLU, SIGMOID, SWISH, TABLE, TANH
from .layers import BATCH_NORM2D, CONV1D, CONV2D, CONV_TRANSPOSE2D, LINEAR
from .moves import concat, select, spread
from .moves import shape as move
from .moves.concat import CONCAT
from .moves.select import ARG_MAX, GATHER, SLICE, SPLIT
from .moves.shape import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE, UNSQUEEZE
from .moves.spread import EXPAND, PAD, RESIZE, SHUFFLE_CHANNEL, TILE
from .pairs import ADD, BMM, DIV, MUL, SUB
from .pool import AVG_POOL2D, GLOBAL_AVERAGE_POOL2D, MAX_POOL
from .recurrent import GRU, LSTM
from .rows import LAYER_NORM, LOG_SOFTMAX, SOFTMAX

__all__ = [
    "ADD", "ARG_MAX", "AVG_POOL2D", "BATCH_NORM2D", "BMM", "CLIP", "CONCAT", "CONV1D", "CONV2D", "CONV_TRANSPOSE2D",
    "DEQUANT", "DIV", "EXPAND", "FLATTEN", "FORMATS", "GATHER", "GELU", "GLOBAL_AVERAGE_POOL2D", "GLU", "GRU",
    "LAYER_NORM", "LINEAR", "LOG_SOFTMAX", "LSTM", "MAX_POOL", "MUL", "PAD", "QUANT", "QUANT_MODES", "RELU",
    "RENAMED", "REQUANT", "RESHAPE", "RESIZE", "SHUFFLE_CHANNEL", "SIGMOID", "SLICE", "SOFTMAX", "SPLIT", "SQUEEZE",
    "SUB", "SWISH", "TABLE", "TANH", "TILE", "TRAINED_ONLY", "TRANSPOSE", "UNSQUEEZE", "Attr", "Bound", "Format",
    "Unary", "add_format", "attributes", "format_named", "formats_known", "integer_format", "is_quantized_domain",
    "known_format", "other_zero", "remove_format",
]  # fmt: skip

_ALL = tuple(
    form
    for family in (border, layers, pairs, concat, pool, clamp, curves, rows, recurrent, move, select, spread)
    for form in family.FAMILY
)

#: Operators of domain `thinker`, and those of ONNX's own domain that graphs have on integers.
FORMATS: tuple[Format, ...] = tuple(form for form in _ALL if form.domain != "linger")

#: Operators of dialect v3 that the quantizer never writes: no chip's executor has them.
TRAINED_ONLY: tuple[Format, ...] = tuple(form for form in _ALL if form.domain == "linger")

#: By every name; `add_format` puts others in.
_BY_NAME = {name: form for form in _ALL for name in form.names}

_INTEGER_DOMAINS = ("thinker", "linger")


def add_format(form: Format) -> None:
    """Let another integer operator be known, whose names are free."""
    _BY_NAME.update(dict.fromkeys(form.names, form))


def remove_format(form: Format) -> None:
    """Take out what `add_format` put in."""
    for name in form.names:
        if _BY_NAME.get(name) is form:
            del _BY_NAME[name]


def formats_known() -> tuple[Format, ...]:
    """Return all integer operators, those that were added at the end."""
    return tuple(dict.fromkeys(_BY_NAME.values()))


def format_named(name: str) -> Format | None:
    """Return the integer operator of that name in any dialect, None where there is none."""
    return _BY_NAME.get(name)


def integer_format(node: ir.Node) -> Format | None:
    """Return the integer operator that a node is; None for a float node or an unknown one.

    A standard operator (Relu, MaxPool, Reshape ...) is an integer one only on integer tensors: the caller decides.
    """
    return _BY_NAME.get(node.op_type)


def known_format(node: ir.Node) -> Format | None:
    """Return `integer_format`; ModelError for an operator of the integer domains that is none."""
    form = integer_format(node)
    if form is None and is_quantized_domain(node):
        raise ModelError(f"{node.op_type} {node.name}: not an integer operator that this lingeronnx knows")
    return form


def is_quantized_domain(node: ir.Node) -> bool:
    """Whether the node's domain, or its name, is one of the quantized dialects'."""
    if node.domain in _INTEGER_DOMAINS:
        return True
    form = _BY_NAME.get(node.op_type)
    return form is not None and (form.domain == "thinker" or node.op_type != form.name)
