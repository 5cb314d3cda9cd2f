"""A second vendor, invented: an NPU as microcontrollers have beside their core, with nothing of
LUNA's.

It multiplies and shifts, rounds half away from zero in layers and to even in sums, takes a scale
for each channel of a weight and zero points of activations, holds maps as rows of channels in
bricks of 16 (NHWC), and has no packer.

The folder above is a project that pip installs; its entry point makes `PLATFORMS` known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lingeronnx.ir import ir
from lingeronnx.operators.conv_geometry import ConvGeometry
from lingeronnx.operators.integer_ops import AVG_POOL2D, CONV2D, LINEAR, MAX_POOL
from lingeronnx.targets import LimitCheck, Target, Vendor, make_support_rows
from lingeronnx.targets.arithmetic import (
    AddArithmetic,
    Arithmetic,
    AveragePoolArithmetic,
    ConcatArithmetic,
    LayerArithmetic,
    LstmArithmetic,
    MulArithmetic,
    QuantArithmetic,
    RequantArithmetic,
    Requantization,
    RoundingMode,
    SoftmaxArithmetic,
)
from lingeronnx.targets.limits import ConvLimits, PoolLimits

AWAY = Requantization(rounding=RoundingMode.HALF_AWAY)
EVEN = Requantization(rounding=RoundingMode.HALF_EVEN)

_BRICK = 16


def kernel_sides(node: ir.Node, target: Target) -> Any:
    """a kernel is at most {own.side} on a side | let --fit split it into kernels that are added."""
    kernel = ConvGeometry(node).kernel
    return "x".join(map(str, kernel)) if max(kernel) > target.vendor.side else None


def stride_values(node: ir.Node, target: Target) -> Any:
    """a stride is 1, 2 or 3 | let --fit take it apart."""
    return next((stride for stride in ConvGeometry(node).strides if stride > 3), None)


def brick_row(node: ir.Node, target: Target) -> Any:
    """a row of a map in bricks of 16 channels fits {own.row_bytes} bytes | use fewer channels or a
    narrower map.
    """
    shape = ir.get_shape(node.inputs[0]) or ()
    if len(shape) != 4 or None in shape[1:]:
        return None
    need = math.ceil(int(shape[1] or 1) / _BRICK) * _BRICK * int(shape[3] or 1)
    return f"{need} bytes" if need > target.vendor.row_bytes else None


def linear_output_count(node: ir.Node, target: Target) -> Any:
    """a fully connected layer has at most {own.features} outputs | cut the layer over its
    outputs.
    """
    weight = ir.get_shape(node.inputs[1]) or (0,)
    return weight[0] if int(weight[0] or 0) > target.vendor.features else None


_LIMITS: dict[str, tuple[LimitCheck, ...]] = {
    CONV2D.name: (kernel_sides, stride_values, brick_row),
    AVG_POOL2D.name: (brick_row,),
    MAX_POOL.name: (brick_row,),
    LINEAR.name: (linear_output_count,),
}
_MENDED: dict[str, tuple[LimitCheck, ...]] = {"split-kernel": (kernel_sides,)}


@dataclass(frozen=True)
class Cirrus(Vendor):
    """Its own limits, as data and functions. row_bytes : of a row of a map. side : of a kernel."""

    side: int = 3
    row_bytes: int = 1024
    features: int = 64

    def get_limit_checks(self, operator: str) -> tuple[LimitCheck, ...]:
        """Return those of an operator."""
        return _LIMITS.get(operator, ())

    def get_limits_fixed_by(self, rewrite_name: str) -> Sequence[LimitCheck]:
        """Return those that a rewrite is for."""
        return _MENDED.get(rewrite_name, ())


_CONV = ConvLimits(
    max_kernel=3,
    max_kernel_dilated=3,
    max_kernel_1d=3,
    strides=(1, 2, 3),
    max_pad=2,
    channel_align=_BRICK,
)
_POOL = PoolLimits(max_kernel=8, max_average_area=64, max_global_area_per_channel=None)

CIRRUS = Target(
    name="cirrus",
    executor="1.0",
    title="an NPU that nobody built, of another vendor",
    modes=("max-value",),
    bits=(8,),
    weight_scales=("tensor", "channel"),
    zero_points=True,
    opset=13,
    ir_version=7,
    ops=MappingProxyType(
        {
            **make_support_rows(QuantArithmetic(EVEN), "Quant"),
            **make_support_rows(RequantArithmetic(AWAY), "Requant"),
            **make_support_rows(
                Arithmetic(),
                "Dequant",
                "Relu",
                "Flatten",
                "Reshape",
                "Transpose",
                "Gather",
                "Slice",
                "Squeeze",
            ),
            **make_support_rows(Arithmetic(), "MaxPool", limits=_POOL),
            **make_support_rows(LayerArithmetic(AWAY), "Conv2dInt", limits=_CONV),
            **make_support_rows(LayerArithmetic(AWAY), "LinearInt", "BmmInt", "BatchNorm2dInt"),
            **make_support_rows(AddArithmetic(EVEN), "iqAdd"),
            **make_support_rows(MulArithmetic(AWAY), "iqMul"),
            **make_support_rows(ConcatArithmetic(AWAY), "iqCat"),
            **make_support_rows(AveragePoolArithmetic(AWAY), "AvgPool2dInt", limits=_POOL),
            **make_support_rows(SoftmaxArithmetic(EVEN), "SoftmaxInt"),
            **make_support_rows(LstmArithmetic(AWAY), "LSTMInt"),
        }
    ),
    vendor=Cirrus(),
)

PLATFORMS = (CIRRUS,)
