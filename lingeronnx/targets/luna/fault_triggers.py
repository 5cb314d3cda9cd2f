"""Which faults of its executor a float node would meet on a chip, and the quantizer works around."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...graph import ir
from ...ops.layers.layer_norm import has_short_rows, needs_rank3_rows
from ...ops.layers.pool import is_lowered_to_linear
from .._target import Target
from .faults import LunaFault

__all__ = ["find_triggered_faults"]

#: Fault -> whether a float node would meet it. Those not here are limits (constraints) or met by no operator.
_TRIGGERS: Mapping[LunaFault, Callable[[ir.Node, Target], bool]] = {
    LunaFault.CLIP: lambda node, row: node.op_type == "Clip",
    LunaFault.SUB_PLACEMENT: lambda node, row: node.op_type == "Sub",
    LunaFault.AVGPOOL_SCALE: lambda node, row: (
        node.op_type == "AveragePool" and not is_lowered_to_linear(node, row)
    ),
    LunaFault.AVGPOOL_GLOBAL: lambda node, row: (
        node.op_type == "AveragePool"
        and _is_global_pool(node)
        and not is_lowered_to_linear(node, row)
    ),
    LunaFault.PRELU: lambda node, row: node.op_type == "PRelu",
    LunaFault.PAD_MODES: lambda node, row: (
        node.op_type == "Pad" and ir.get_attr(node, "mode", "constant") != "constant"
    ),
    LunaFault.CONV1D: lambda node, row: (
        node.op_type == "Conv" and len(ir.get_shape(node.inputs[1]) or ()) == 3
    ),
    LunaFault.CAT_SCALE: lambda node, row: node.op_type == "Concat",
    LunaFault.ADD_EXTERNAL: lambda node, row: node.op_type == "Add",
    LunaFault.TRANSPOSE: lambda node, row: (
        node.op_type == "Transpose"
        and tuple(ir.get_attr(node, "perm") or ()) in row.unsupported_perms
    ),
    LunaFault.LINEAR_ROWS: lambda node, row: node.op_type == "Linear" and _count_rows(node) != 1,
    LunaFault.DIV_SCALE: lambda node, row: node.op_type == "Div",
    LunaFault.GRU_HALVED: lambda node, row: ir.base_op_type(node) == "GRU",
    LunaFault.GRU_FORMAT: lambda node, row: ir.base_op_type(node) == "GRU",
    LunaFault.LSTM_SQUARE: lambda node, row: ir.base_op_type(node) == "LSTM",
    LunaFault.NORM_PLACEMENT: lambda node, row: node.op_type == "LayerNormalization",
    LunaFault.NORM_RANK: lambda node, row: (
        node.op_type == "LayerNormalization" and needs_rank3_rows(node, row)
    ),
    LunaFault.NORM_SHORT: lambda node, row: (
        node.op_type == "LayerNormalization" and has_short_rows(node, row)
    ),
    LunaFault.SOFTMAX: lambda node, row: node.op_type == "Softmax",
    LunaFault.LOG_SOFTMAX: lambda node, row: node.op_type == "LogSoftmax",
    LunaFault.TANH: lambda node, row: node.op_type == "Tanh",
    LunaFault.LUT_SCALE: lambda node, row: node.op_type in ("Sigmoid", "Tanh"),
    LunaFault.LUT_CONSTANT: lambda node, row: node.op_type == "Sigmoid",
}


def _is_global_pool(node: ir.Node) -> bool:
    source = ir.get_shape(node.inputs[0]) or ()
    return tuple(source[2:]) == tuple(ir.get_attr(node, "kernel_shape"))


def _count_rows(node: ir.Node) -> int:
    return math.prod(int(d or 1) for d in (ir.get_shape(node.outputs[0]) or ())[1:-1])


def find_triggered_faults(node: ir.Node, target: Target) -> tuple[LunaFault, ...]:
    """Return the faults of `target` that a float node would meet."""
    return tuple(
        fault
        for fault, meets in _TRIGGERS.items()
        if fault in target.faults and meets(node, target)
    )
