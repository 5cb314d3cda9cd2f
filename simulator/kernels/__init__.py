"""The operators: frozen values with their constants inside, all `simulator.kernel.Kernel`."""

from simulator.kernels.conv import Conv, Linear
from simulator.kernels.elementwise import AddScaled, AddShift, Affine, Clip, Dequant, Mul, Quant, Relu, Requant
from simulator.kernels.matmul import MatMul
from simulator.kernels.pool import AvgPool, MaxPool, luna_average
from simulator.kernels.shape import Concat, Constant, Reshape, Transpose

__all__ = [
    "AddScaled", "AddShift", "Affine", "AvgPool", "Clip", "Concat", "Constant", "Conv", "Dequant", "Linear", "MatMul",
    "MaxPool", "Mul", "Quant", "Relu", "Requant", "Reshape", "Transpose", "luna_average",
]  # fmt: skip
