"""The integer operators, one definition each.

Names in every dialect, attributes, scales, and the kernel.
Each family has a file, and lists its operators in `FAMILY`. `find_integer_op(node)` finds the one
that an integer node is, by any of its names. Stands below the rules (`ops`), which say what float
operators become these.
"""

from __future__ import annotations

from ..errors import ModelError
from ..graph import ir
from . import (
    activation_tables,
    binary,
    clamp,
    layers,
    normalization,
    pool,
    quant_dequant,
    recurrent,
)
from ._base import (
    ATTRIBUTE_RENAMES,
    QUANT_MODES,
    Attr,
    Format,
    KernelInfo,
    UnaryIntegerOp,
    find_nonzero_zero_point,
    read_attributes,
)
from .activation_tables import GELU, GLU, SIGMOID, SWISH, TABLE, TANH
from .binary import ADD, BMM, DIV, MUL, SUB
from .clamp import CLIP, RELU
from .data_movement import concat, repeat_resize, selection
from .data_movement import shape as move
from .data_movement.concat import CONCAT
from .data_movement.repeat_resize import EXPAND, PAD, RESIZE, SHUFFLE_CHANNEL, TILE
from .data_movement.selection import ARG_MAX, GATHER, SLICE, SPLIT
from .data_movement.shape import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE, UNSQUEEZE
from .layers import BATCH_NORM2D, CONV1D, CONV2D, CONV_TRANSPOSE2D, LINEAR
from .normalization import LAYER_NORM, LOG_SOFTMAX, SOFTMAX
from .pool import AVG_POOL2D, GLOBAL_AVERAGE_POOL2D, MAX_POOL
from .quant_dequant import DEQUANT, QUANT, REQUANT
from .recurrent import GRU, LSTM

__all__ = [
    "ADD",
    "ARG_MAX",
    "AVG_POOL2D",
    "BATCH_NORM2D",
    "BMM",
    "CLIP",
    "CONCAT",
    "CONV1D",
    "CONV2D",
    "CONV_TRANSPOSE2D",
    "DEQUANT",
    "DIV",
    "EXPAND",
    "FLATTEN",
    "INTEGER_OPS",
    "GATHER",
    "GELU",
    "GLOBAL_AVERAGE_POOL2D",
    "GLU",
    "GRU",
    "LAYER_NORM",
    "LINEAR",
    "LOG_SOFTMAX",
    "LSTM",
    "MAX_POOL",
    "MUL",
    "PAD",
    "QUANT",
    "QUANT_MODES",
    "RELU",
    "ATTRIBUTE_RENAMES",
    "REQUANT",
    "RESHAPE",
    "RESIZE",
    "SHUFFLE_CHANNEL",
    "SIGMOID",
    "SLICE",
    "SOFTMAX",
    "SPLIT",
    "SQUEEZE",
    "SUB",
    "SWISH",
    "TABLE",
    "TANH",
    "TILE",
    "TRAINING_ONLY_OPS",
    "TRANSPOSE",
    "UNSQUEEZE",
    "Attr",
    "KernelInfo",
    "Format",
    "UnaryIntegerOp",
    "add_integer_op",
    "read_attributes",
    "find_integer_op_by_name",
    "get_known_integer_ops",
    "find_integer_op",
    "is_quantized_domain",
    "require_integer_op",
    "find_nonzero_zero_point",
    "remove_integer_op",
]

_ALL_INTEGER_OPS = tuple(
    form
    for family in (
        quant_dequant,
        layers,
        binary,
        concat,
        pool,
        clamp,
        activation_tables,
        normalization,
        recurrent,
        move,
        selection,
        repeat_resize,
    )
    for form in family.FAMILY
)

#: Operators of domain `thinker`, and those of ONNX's own domain that graphs have on integers.
INTEGER_OPS: tuple[Format, ...] = tuple(
    form for form in _ALL_INTEGER_OPS if form.domain != "linger"
)

#: Operators of dialect v3 that the quantizer never writes: no chip's executor has them.
TRAINING_ONLY_OPS: tuple[Format, ...] = tuple(
    form for form in _ALL_INTEGER_OPS if form.domain == "linger"
)

#: By every name; `add_integer_op` puts others in.
_INTEGER_OPS_BY_NAME = {name: form for form in _ALL_INTEGER_OPS for name in form.names}

_INTEGER_DOMAINS = ("thinker", "linger")


def add_integer_op(form: Format) -> None:
    """Let another integer operator be known, whose names are free."""
    _INTEGER_OPS_BY_NAME.update(dict.fromkeys(form.names, form))


def remove_integer_op(form: Format) -> None:
    """Take out what `add_integer_op` put in."""
    for name in form.names:
        if _INTEGER_OPS_BY_NAME.get(name) is form:
            del _INTEGER_OPS_BY_NAME[name]


def get_known_integer_ops() -> tuple[Format, ...]:
    """Return all integer operators, those that were added at the end."""
    return tuple(dict.fromkeys(_INTEGER_OPS_BY_NAME.values()))


def find_integer_op_by_name(name: str) -> Format | None:
    """Return the integer operator of that name in any dialect, None where there is none."""
    return _INTEGER_OPS_BY_NAME.get(name)


def find_integer_op(node: ir.Node) -> Format | None:
    """Return the integer operator that a node is; None for a float node or an unknown one.

    A standard operator (Relu, MaxPool, Reshape ...) is an integer one only on integer tensors: the
    caller decides.
    """
    return _INTEGER_OPS_BY_NAME.get(node.op_type)


def require_integer_op(node: ir.Node) -> Format | None:
    """Return `find_integer_op`; ModelError for an operator of the integer domains that is none."""
    form = find_integer_op(node)
    if form is None and is_quantized_domain(node):
        raise ModelError(
            f"{node.op_type} {node.name}: not an integer operator that this lingeronnx knows"
        )
    return form


def is_quantized_domain(node: ir.Node) -> bool:
    """Whether the node's domain, or its name, is one of the quantized dialects'."""
    if node.domain in _INTEGER_DOMAINS:
        return True
    form = _INTEGER_OPS_BY_NAME.get(node.op_type)
    return form is not None and (form.domain == "thinker" or node.op_type != form.name)
