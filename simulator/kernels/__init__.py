"""The operators: frozen values with their constants inside, all `simulator.kernel.Kernel`."""

from simulator.kernels.borders import Dequant, Quant
from simulator.kernels.centered import Centered, centered
from simulator.kernels.conv import Conv, Linear, multiplied
from simulator.kernels.deconv import ConvTranspose
from simulator.kernels.divide import Div, DivSingle
from simulator.kernels.elementwise import AddScaled, AddShift, ChannelAffine, Clip, Mul, Relu, Requant
from simulator.kernels.glu import Glu
from simulator.kernels.layer_norm import LayerNorm
from simulator.kernels.matmul import MatMul
from simulator.kernels.mean import Mean
from simulator.kernels.pick import ArgMax, Gather, Lookup, Pick, Split
from simulator.kernels.pool import AvgPool, MaxPool, luna_average
from simulator.kernels.recurrent.gru import ExecutorGru, Gru
from simulator.kernels.recurrent.lstm import Lstm
from simulator.kernels.recurrent.trained_rnn import TrainedGru, TrainedLstm
from simulator.kernels.shape import Concat, Constant, Reshape, Transpose
from simulator.kernels.softmax import LogSoftmax, Softmax, softmax_entry
from simulator.kernels.table import Table, grid

__all__ = [
    "AddScaled", "AddShift", "ArgMax", "AvgPool", "Centered", "ChannelAffine", "Clip", "Concat", "Constant", "Conv",
    "ConvTranspose", "Dequant", "Div", "DivSingle", "ExecutorGru", "Gather", "Glu", "Gru", "LayerNorm", "Linear",
    "LogSoftmax", "Lookup", "Lstm", "MatMul", "MaxPool", "Mean", "Mul", "Pick", "Quant", "Relu", "Requant", "Reshape",
    "Softmax", "Split", "Table", "TrainedGru", "TrainedLstm", "Transpose", "centered", "grid", "luna_average",
    "multiplied", "softmax_entry",
]  # fmt: skip
