"""The operators: immutable `simulator.kernel.Kernel` values that contain their constants.

A name is loaded on first use, so that a graph loads only the operators it has. Type checkers read
the imports under TYPE_CHECKING instead, which correspond to `_HOME`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.kernels.conv import Conv as Conv
    from simulator.kernels.conv import Linear as Linear
    from simulator.kernels.conv import WideLinear as WideLinear
    from simulator.kernels.conv import apply_weight_factors as apply_weight_factors
    from simulator.kernels.conv_transpose import ConvTranspose as ConvTranspose
    from simulator.kernels.curve import PiecewiseCurve as PiecewiseCurve
    from simulator.kernels.divide import Div as Div
    from simulator.kernels.divide import DivSingle as DivSingle
    from simulator.kernels.elementwise import AddScaled as AddScaled
    from simulator.kernels.elementwise import AddShift as AddShift
    from simulator.kernels.elementwise import ChannelAffine as ChannelAffine
    from simulator.kernels.elementwise import Clip as Clip
    from simulator.kernels.elementwise import Mul as Mul
    from simulator.kernels.elementwise import Relu as Relu
    from simulator.kernels.elementwise import Requant as Requant
    from simulator.kernels.exact_mean import Mean as Mean
    from simulator.kernels.glu import Glu as Glu
    from simulator.kernels.indexing import ArgMax as ArgMax
    from simulator.kernels.indexing import Gather as Gather
    from simulator.kernels.indexing import IndexSelect as IndexSelect
    from simulator.kernels.indexing import Lookup as Lookup
    from simulator.kernels.indexing import Split as Split
    from simulator.kernels.layer_norm import LayerNorm as LayerNorm
    from simulator.kernels.lookup_table import Table as Table
    from simulator.kernels.lookup_table import all_integers as all_integers
    from simulator.kernels.matmul import MatMul as MatMul
    from simulator.kernels.pool import AvgPool as AvgPool
    from simulator.kernels.pool import MaxPool as MaxPool
    from simulator.kernels.pool import luna_average as luna_average
    from simulator.kernels.quant_dequant import Dequant as Dequant
    from simulator.kernels.quant_dequant import Quant as Quant
    from simulator.kernels.recurrent.gru import CandidateGru as CandidateGru
    from simulator.kernels.recurrent.gru import ExecutorGru as ExecutorGru
    from simulator.kernels.recurrent.gru import Gru as Gru
    from simulator.kernels.recurrent.lstm import Lstm as Lstm
    from simulator.kernels.recurrent.training_rnn import TrainedGru as TrainedGru
    from simulator.kernels.recurrent.training_rnn import TrainedLstm as TrainedLstm
    from simulator.kernels.shape import Concat as Concat
    from simulator.kernels.shape import Constant as Constant
    from simulator.kernels.shape import Reshape as Reshape
    from simulator.kernels.shape import Transpose as Transpose
    from simulator.kernels.softmax import LogSoftmax as LogSoftmax
    from simulator.kernels.softmax import Softmax as Softmax
    from simulator.kernels.softmax import make_input_table as make_input_table
    from simulator.kernels.zero_points import ZeroPointKernel as ZeroPointKernel
    from simulator.kernels.zero_points import subtract_zero_points as subtract_zero_points

#: Module that defines each name.
_HOME = {
    "AddScaled": ".elementwise",
    "AddShift": ".elementwise",
    "ArgMax": ".indexing",
    "AvgPool": ".pool",
    "CandidateGru": ".recurrent.gru",
    "ChannelAffine": ".elementwise",
    "Clip": ".elementwise",
    "Concat": ".shape",
    "Constant": ".shape",
    "Conv": ".conv",
    "ConvTranspose": ".conv_transpose",
    "Dequant": ".quant_dequant",
    "Div": ".divide",
    "DivSingle": ".divide",
    "ExecutorGru": ".recurrent.gru",
    "Gather": ".indexing",
    "Glu": ".glu",
    "Gru": ".recurrent.gru",
    "IndexSelect": ".indexing",
    "LayerNorm": ".layer_norm",
    "Linear": ".conv",
    "LogSoftmax": ".softmax",
    "Lookup": ".indexing",
    "Lstm": ".recurrent.lstm",
    "MatMul": ".matmul",
    "MaxPool": ".pool",
    "Mean": ".exact_mean",
    "Mul": ".elementwise",
    "PiecewiseCurve": ".curve",
    "Quant": ".quant_dequant",
    "Relu": ".elementwise",
    "Requant": ".elementwise",
    "Reshape": ".shape",
    "Softmax": ".softmax",
    "Split": ".indexing",
    "Table": ".lookup_table",
    "TrainedGru": ".recurrent.training_rnn",
    "TrainedLstm": ".recurrent.training_rnn",
    "Transpose": ".shape",
    "WideLinear": ".conv",
    "ZeroPointKernel": ".zero_points",
    "all_integers": ".lookup_table",
    "apply_weight_factors": ".conv",
    "luna_average": ".pool",
    "make_input_table": ".softmax",
    "subtract_zero_points": ".zero_points",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name

    def __getattr__(name: str) -> object:
        """Import the module that defines operator `name`; return the operator and keep it."""
        if name not in _HOME:
            raise AttributeError(f"module 'simulator.kernels' has no attribute '{name}'")
        kernel_type = getattr(importlib.import_module(_HOME[name], __name__), name)
        globals()[name] = kernel_type
        return kernel_type
