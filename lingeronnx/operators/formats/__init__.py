"""Definitions of the integer operators: names in every dialect, attributes, scales, kernels.

Each family has a file, which lists its operators in `FAMILY`. `find_integer_op` finds the operator
of a node by any of its names. The lowering rules (`rules`) build on these definitions.
"""

from __future__ import annotations

from ...common.errors import ModelError
from ...ir import ir
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

_ALL_INTEGER_OPS: tuple[Format, ...] = (
    *quant_dequant.FAMILY,
    *layers.FAMILY,
    *binary.FAMILY,
    *concat.FAMILY,
    *pool.FAMILY,
    *clamp.FAMILY,
    *activation_tables.FAMILY,
    *normalization.FAMILY,
    *recurrent.FAMILY,
    *move.FAMILY,
    *selection.FAMILY,
    *repeat_resize.FAMILY,
)

#: Operators of domain `thinker`, and standard operators that work on integers.
INTEGER_OPS: tuple[Format, ...] = tuple(
    form for form in _ALL_INTEGER_OPS if form.domain != "linger"
)

#: Operators of dialect v3 that no executor has; the quantizer never emits them.
TRAINING_ONLY_OPS: tuple[Format, ...] = tuple(
    form for form in _ALL_INTEGER_OPS if form.domain == "linger"
)

#: Integer operators by each of their names, including those of `add_integer_op`.
_INTEGER_OPS_BY_NAME: dict[str, Format] = {}
for _form in _ALL_INTEGER_OPS:
    _INTEGER_OPS_BY_NAME.update(dict.fromkeys(_form.names, _form))

_INTEGER_DOMAINS = ("thinker", "linger")


def add_integer_op(form: Format) -> None:
    """Register the integer operator `form` under all its names, so that graphs may contain it.

    A name that is in use already is replaced; the caller must see to that.
    """
    _INTEGER_OPS_BY_NAME.update(dict.fromkeys(form.names, form))


def remove_integer_op(form: Format) -> None:
    """Remove the registration of the integer operator `form` under its names.

    Names that refer to another operator by now are left.
    """
    for name in form.names:
        if _INTEGER_OPS_BY_NAME.get(name) is form:
            del _INTEGER_OPS_BY_NAME[name]


def get_known_integer_ops() -> tuple[Format, ...]:
    """Return all registered integer operators, each once: the package's, then added ones."""
    return tuple(dict.fromkeys(_INTEGER_OPS_BY_NAME.values()))


def find_integer_op_by_name(name: str) -> Format | None:
    """Return the integer operator that has the name `name` in any dialect, or None."""
    return _INTEGER_OPS_BY_NAME.get(name)


def find_integer_op(node: ir.Node) -> Format | None:
    """Return the integer operator with the name of `node`, in any dialect; None if there is none.

    The domain does not count. A standard operator such as Relu, MaxPool or Reshape is also a float
    operator; the caller must know whether its tensors are integers.
    """
    return _INTEGER_OPS_BY_NAME.get(node.op_type)


def require_integer_op(node: ir.Node) -> Format | None:
    """Return the integer operator with the name of `node`, or None for a float node.

    Raises ModelError if the node can only be an integer node (by domain or name) and its operator
    is unknown. A standard operator such as Relu or Reshape is returned as well, whatever its
    tensors are.
    """
    form = find_integer_op(node)
    if form is None and is_quantized_domain(node):
        raise ModelError(f"{node.op_type} {node.name}: not a supported integer operator")
    return form


def is_quantized_domain(node: ir.Node) -> bool:
    """Whether `node` can only be an integer node.

    True if its domain is "thinker" or "linger", or its operator has the name of an integer operator
    of domain "thinker" or a name that only a dialect uses.
    """
    if node.domain in _INTEGER_DOMAINS:
        return True
    form = _INTEGER_OPS_BY_NAME.get(node.op_type)
    return form is not None and (form.domain == "thinker" or node.op_type != form.name)
