"""The operators: immutable `simulator.kernel.Kernel` values that contain their constants."""

from simulator.kernels.conv import Conv, Linear, WideLinear, apply_weight_factors
from simulator.kernels.conv_transpose import ConvTranspose
from simulator.kernels.curve import PiecewiseCurve
from simulator.kernels.divide import Div, DivSingle
from simulator.kernels.elementwise import (
    AddScaled,
    AddShift,
    ChannelAffine,
    Clip,
    Mul,
    Relu,
    Requant,
)
from simulator.kernels.exact_mean import Mean
from simulator.kernels.glu import Glu
from simulator.kernels.indexing import ArgMax, Gather, IndexSelect, Lookup, Split
from simulator.kernels.layer_norm import LayerNorm
from simulator.kernels.lookup_table import Table, all_integers
from simulator.kernels.matmul import MatMul
from simulator.kernels.pool import AvgPool, MaxPool, luna_average
from simulator.kernels.quant_dequant import Dequant, Quant
from simulator.kernels.recurrent.gru import CandidateGru, ExecutorGru, Gru
from simulator.kernels.recurrent.lstm import Lstm
from simulator.kernels.recurrent.training_rnn import TrainedGru, TrainedLstm
from simulator.kernels.shape import Concat, Constant, Reshape, Transpose
from simulator.kernels.softmax import LogSoftmax, Softmax, make_input_table
from simulator.kernels.zero_points import ZeroPointKernel, subtract_zero_points

__all__ = [
    "AddScaled",
    "AddShift",
    "ArgMax",
    "AvgPool",
    "CandidateGru",
    "ChannelAffine",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "ConvTranspose",
    "Dequant",
    "Div",
    "DivSingle",
    "ExecutorGru",
    "Gather",
    "Glu",
    "Gru",
    "IndexSelect",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "Lookup",
    "Lstm",
    "MatMul",
    "MaxPool",
    "Mean",
    "Mul",
    "PiecewiseCurve",
    "Quant",
    "Relu",
    "Requant",
    "Reshape",
    "Softmax",
    "Split",
    "Table",
    "TrainedGru",
    "TrainedLstm",
    "Transpose",
    "WideLinear",
    "ZeroPointKernel",
    "all_integers",
    "apply_weight_factors",
    "luna_average",
    "make_input_table",
    "subtract_zero_points",
]
