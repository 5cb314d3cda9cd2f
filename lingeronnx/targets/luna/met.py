"""Which faults of its executor a float node would meet on a chip, and the quantizer works around."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...graph import ir
from ...ops.layers.layer_norm import as_lines, short_line
from ...ops.layers.pool import is_mean
from .._target import Target
from .faults import LunaFault

__all__ = ["met"]

#: Fault -> whether a float node would meet it. Those not here are limits (constraints) or met by no operator.
_MEETS: Mapping[LunaFault, Callable[[ir.Node, Target], bool]] = {
    LunaFault.CLIP: lambda node, row: node.op_type == "Clip",
    LunaFault.SUB_PLACEMENT: lambda node, row: node.op_type == "Sub",
    LunaFault.AVGPOOL_SCALE: lambda node, row: node.op_type == "AveragePool" and not is_mean(node, row),
    LunaFault.AVGPOOL_GLOBAL: lambda node, row: (
        node.op_type == "AveragePool" and _covers(node) and not is_mean(node, row)
    ),
    LunaFault.PRELU: lambda node, row: node.op_type == "PRelu",
    LunaFault.PAD_MODES: lambda node, row: node.op_type == "Pad" and ir.attr(node, "mode", "constant") != "constant",
    LunaFault.CONV1D: lambda node, row: node.op_type == "Conv" and len(ir.shape(node.inputs[1]) or ()) == 3,
    LunaFault.CAT_SCALE: lambda node, row: node.op_type == "Concat",
    LunaFault.ADD_EXTERNAL: lambda node, row: node.op_type == "Add",
    LunaFault.TRANSPOSE: lambda node, row: (
        node.op_type == "Transpose" and tuple(ir.attr(node, "perm") or ()) in row.broken_transposes
    ),
    LunaFault.LINEAR_ROWS: lambda node, row: node.op_type == "Linear" and _rows(node) != 1,
    LunaFault.DIV_SCALE: lambda node, row: node.op_type == "Div",
    LunaFault.GRU_HALVED: lambda node, row: ir.kind(node) == "GRU",
    LunaFault.GRU_FORMAT: lambda node, row: ir.kind(node) == "GRU",
    LunaFault.LSTM_SQUARE: lambda node, row: ir.kind(node) == "LSTM",
    LunaFault.NORM_PLACEMENT: lambda node, row: node.op_type == "LayerNormalization",
    LunaFault.NORM_RANK: lambda node, row: node.op_type == "LayerNormalization" and as_lines(node, row),
    LunaFault.NORM_SHORT: lambda node, row: node.op_type == "LayerNormalization" and short_line(node, row),
    LunaFault.SOFTMAX: lambda node, row: node.op_type == "Softmax",
    LunaFault.LOG_SOFTMAX: lambda node, row: node.op_type == "LogSoftmax",
    LunaFault.TANH: lambda node, row: node.op_type == "Tanh",
    LunaFault.LUT_SCALE: lambda node, row: node.op_type in ("Sigmoid", "Tanh"),
    LunaFault.LUT_CONSTANT: lambda node, row: node.op_type == "Sigmoid",
}


def _covers(node: ir.Node) -> bool:
    source = ir.shape(node.inputs[0]) or ()
    return tuple(source[2:]) == tuple(ir.attr(node, "kernel_shape"))


def _rows(node: ir.Node) -> int:
    return math.prod(int(d or 1) for d in (ir.shape(node.outputs[0]) or ())[1:-1])


def met(node: ir.Node, target: Target) -> tuple[LunaFault, ...]:
    """Return the faults of `target` that a float node would meet."""
    return tuple(fault for fault, meets in _MEETS.items() if fault in target.faults and meets(node, target))
