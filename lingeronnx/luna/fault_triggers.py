"""Find the executor faults that a float node would trigger, which the quantizer works around."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..ir import ir
from ..operators.normalization.lowering.layer_norm import has_short_rows, needs_rank3_rows
from ..operators.pool.lowering import is_lowered_to_linear
from ..targets._target import Target
from .faults import LunaFault

__all__ = ["find_triggered_faults"]

#: Fault -> whether a float node triggers it. Faults without an entry are limits (constraints), or
#: no operator triggers them.
_TRIGGERS: Mapping[LunaFault, Callable[[ir.Node, Target], bool]] = {
    LunaFault.CLIP: lambda node, target: node.op_type == "Clip",
    LunaFault.SUB_PLACEMENT: lambda node, target: node.op_type == "Sub",
    LunaFault.AVGPOOL_SCALE: lambda node, target: (
        node.op_type == "AveragePool" and not is_lowered_to_linear(node, target)
    ),
    LunaFault.AVGPOOL_GLOBAL: lambda node, target: (
        node.op_type == "AveragePool"
        and _is_global_pool(node)
        and not is_lowered_to_linear(node, target)
    ),
    LunaFault.PRELU: lambda node, target: node.op_type == "PRelu",
    LunaFault.PAD_MODES: lambda node, target: (
        node.op_type == "Pad" and ir.get_attr(node, "mode", "constant") != "constant"
    ),
    LunaFault.CONV1D: lambda node, target: (
        node.op_type == "Conv" and len(ir.get_shape(node.inputs[1]) or ()) == 3
    ),
    LunaFault.CAT_SCALE: lambda node, target: node.op_type == "Concat",
    LunaFault.ADD_EXTERNAL: lambda node, target: node.op_type == "Add",
    LunaFault.TRANSPOSE: lambda node, target: (
        node.op_type == "Transpose"
        and tuple(ir.get_attr(node, "perm") or ()) in target.unsupported_perms
    ),
    LunaFault.LINEAR_ROWS: lambda node, target: node.op_type == "Linear" and _count_rows(node) != 1,
    LunaFault.MUL_AREA: lambda node, target: _is_channel_mul(node),
    LunaFault.DIV_SCALE: lambda node, target: node.op_type == "Div",
    LunaFault.GRU_HALVED: lambda node, target: ir.base_op_type(node) == "GRU",
    LunaFault.GRU_FORMAT: lambda node, target: ir.base_op_type(node) == "GRU",
    LunaFault.LSTM_SQUARE: lambda node, target: ir.base_op_type(node) == "LSTM",
    LunaFault.NORM_PLACEMENT: lambda node, target: node.op_type == "LayerNormalization",
    LunaFault.NORM_RANK: lambda node, target: (
        node.op_type == "LayerNormalization" and needs_rank3_rows(node, target)
    ),
    LunaFault.NORM_SHORT: lambda node, target: (
        node.op_type == "LayerNormalization" and has_short_rows(node, target)
    ),
    LunaFault.SOFTMAX: lambda node, target: node.op_type == "Softmax",
    LunaFault.LOG_SOFTMAX: lambda node, target: node.op_type == "LogSoftmax",
    LunaFault.TANH: lambda node, target: node.op_type == "Tanh",
    LunaFault.LUT_SCALE: lambda node, target: node.op_type in ("Sigmoid", "Tanh"),
    LunaFault.TANH_SCALE: lambda node, target: node.op_type == "Tanh",
    LunaFault.LUT_CONSTANT: lambda node, target: node.op_type == "Sigmoid",
}


def _is_global_pool(node: ir.Node) -> bool:
    """Whether the kernel of pool `node` equals the spatial sizes of its input; False if unknown."""
    input_shape = ir.get_shape(node.inputs[0]) or ()
    return tuple(input_shape[2:]) == tuple(ir.get_attr(node, "kernel_shape"))


def _is_channel_mul(node: ir.Node) -> bool:
    """Whether a Mul multiplies a map by one factor per channel, with more channels than pixels."""
    shapes = [ir.get_shape(value) or () for value in node.inputs]
    if node.op_type != "Mul" or any(len(shape) != 4 or None in shape[1:] for shape in shapes):
        return False
    channels, *size = max(shape[1:] for shape in shapes)
    return shapes[0][1:] != shapes[1][1:] and int(channels or 0) > math.prod(
        int(d or 0) for d in size
    )


def _count_rows(node: ir.Node) -> int:
    """Return the product of all output sizes of `node` but the batch and the last.

    Unknown sizes count as 1.
    """
    return math.prod(int(dim or 1) for dim in (ir.get_shape(node.outputs[0]) or ())[1:-1])


def find_triggered_faults(node: ir.Node, target: Target) -> tuple[LunaFault, ...]:
    """Return the faults of `target` that a float node would trigger if lowered, in fixed order."""
    return tuple(
        fault
        for fault, is_triggered in _TRIGGERS.items()
        if fault in target.faults and is_triggered(node, target)
    )
