"""The integer operators of all families: names in every dialect, attributes, scales, kernels.

Each family defines its operators in `integer_op`, which lists them in `FAMILY`. `find_integer_op`
finds the operator of a node by any of its names. The lowering rules build on these definitions.
"""

from __future__ import annotations

from ..common.errors import ModelError
from ..ir import ir
from ._integer_op import (
    ATTRIBUTE_RENAMES,
    Attr,
    Format,
    UnaryIntegerOp,
    find_nonzero_zero_point,
    read_attributes,
)
from ._kernel_info import QUANT_MODES, KernelInfo
from ._weighted_op import WeightedIntegerOp
from .activation_tables import integer_op as activation_tables
from .activation_tables.integer_op import GELU, GLU, SIGMOID, SWISH, TABLE, TANH
from .batch_norm.integer_op import BATCH_NORM1D, BATCH_NORM2D
from .clamp import integer_op as clamp
from .clamp.integer_op import CLIP, PRELU, RELU, RELUX
from .concat import integer_op as concat
from .concat.integer_op import CONCAT
from .conv import integer_op as conv
from .conv.integer_op import CONV1D, CONV2D, CONV_TRANSPOSE2D
from .elementwise import integer_op as elementwise
from .elementwise.integer_op import ADD, DIV, MUL, SUB
from .linear.integer_op import BMM, LINEAR
from .normalization import integer_op as normalization
from .normalization.integer_op import LAYER_NORM, LOG_SOFTMAX, SOFTMAX
from .pool import integer_op as pool
from .pool.integer_op import AVG_POOL2D, GLOBAL_AVERAGE_POOL2D, MAX_POOL
from .quant_dequant import integer_op as quant_dequant
from .quant_dequant.integer_op import DEQUANT, QUANT, REQUANT
from .recurrent import integer_op as recurrent
from .recurrent.integer_op import GRU, LSTM
from .repeat_resize import integer_op as repeat_resize
from .repeat_resize.integer_op import EXPAND, PAD, RESIZE, SHUFFLE_CHANNEL, TILE
from .reshape import integer_op as reshape
from .reshape.integer_op import FLATTEN, RESHAPE, SQUEEZE, TRANSPOSE, UNSQUEEZE
from .selection import integer_op as selection
from .selection.integer_op import ARG_MAX, GATHER, SLICE, SPLIT

__all__ = [
    "ADD",
    "ARG_MAX",
    "AVG_POOL2D",
    "BATCH_NORM1D",
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
    "PRELU",
    "QUANT",
    "QUANT_MODES",
    "RELU",
    "RELUX",
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
    "WeightedIntegerOp",
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
    *conv.FAMILY,
    LINEAR,
    BATCH_NORM2D,
    BATCH_NORM1D,
    *elementwise.FAMILY,
    BMM,
    *concat.FAMILY,
    *pool.FAMILY,
    *clamp.FAMILY,
    *activation_tables.FAMILY,
    *normalization.FAMILY,
    *recurrent.FAMILY,
    *reshape.FAMILY,
    *selection.FAMILY,
    *repeat_resize.FAMILY,
)

#: Operators of domain `thinker`, and standard operators that work on integers.
INTEGER_OPS: tuple[Format, ...] = tuple(
    form for form in _ALL_INTEGER_OPS if form.domain != "linger"
)

#: Operators of dialect v3 that executor 3.0.4 does not have; the quantizer never emits them.
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
    of these domains or a name that only a dialect uses.
    """
    if node.domain in _INTEGER_DOMAINS:
        return True
    form = _INTEGER_OPS_BY_NAME.get(node.op_type)
    return form is not None and (form.domain in _INTEGER_DOMAINS or node.op_type != form.name)
