"""The generic platform: an idealised NPU that computes every operator as defined, at any scale."""

from __future__ import annotations

from types import MappingProxyType

from ._target import Target, make_support_rows
from .arithmetic import (
    AddArithmetic,
    Arithmetic,
    AveragePoolArithmetic,
    ConcatArithmetic,
    DivArithmetic,
    GluArithmetic,
    GruArithmetic,
    LayerArithmetic,
    LayerNormArithmetic,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    MulArithmetic,
    PadArithmetic,
    QuantArithmetic,
    RequantArithmetic,
    SoftmaxArithmetic,
)

__all__ = ["GENERIC"]

GENERIC = Target(
    name="generic",
    executor="",
    title="an idealised int8 NPU (docs/reference/generic.md)",
    modes=("max-value", "q-value"),
    bits=(4, 8, 16),
    out_bits=(8, 16, 32),
    weight_scales=("tensor", "channel", "group"),
    zero_points=True,
    ops=MappingProxyType(
        {
            **make_support_rows(QuantArithmetic(), "Quant"),
            **make_support_rows(Arithmetic(), "Dequant"),
            **make_support_rows(RequantArithmetic(), "Requant"),
            **make_support_rows(
                LayerArithmetic(),
                "Conv2dInt",
                "Conv1dInt",
                "ConvTranspose2dInt",
                "LinearInt",
                "BmmInt",
                "BatchNorm2dInt",
            ),
            **make_support_rows(AddArithmetic(), "iqAdd", "iqSub"),
            **make_support_rows(MulArithmetic(), "iqMul"),
            **make_support_rows(ConcatArithmetic(), "iqCat"),
            **make_support_rows(PadArithmetic(), "iqPad"),
            **make_support_rows(AveragePoolArithmetic(), "AvgPool2dInt"),
            **make_support_rows(
                Arithmetic(),
                "MaxPool",
                "Relu",
                "Clip",
                "Reshape",
                "Flatten",
                "Transpose",
                "Squeeze",
                "Unsqueeze",
                "Slice",
                "Split",
                "Gather",
                "Tile",
                "Expand",
                "Resize",
            ),
            **make_support_rows(LstmArithmetic(form=LstmFormat.WIDE), "LSTMInt"),
            **make_support_rows(GruArithmetic(), "GRUInt"),
            **make_support_rows(SoftmaxArithmetic(), "SoftmaxInt", "LogSoftmaxInt"),
            **make_support_rows(LayerNormArithmetic(), "LayerNormInt"),
            **make_support_rows(Arithmetic(), "InstanceNormInt", "iqTable"),
        }
    ),
    also=MappingProxyType(
        {
            **dict.fromkeys(("iqSigmoid", "iqTanh"), LutArithmetic()),
            **dict.fromkeys(("ArgMax", "ShuffleChannel"), Arithmetic()),
            "GluInt": GluArithmetic(),
            "iqDiv": DivArithmetic(),
        }
    ),
)
