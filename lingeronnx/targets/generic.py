"""The generic platform: an idealised NPU that computes every operator as it is meant, at any scale."""

from __future__ import annotations

from types import MappingProxyType

from ._target import Target, rows
from .arithmetic import (
    Arithmetic,
    Average,
    Concat,
    CurveArithmetic,
    Division,
    Gate,
    Gru,
    LayerArithmetic,
    Lstm,
    LstmForm,
    NormArithmetic,
    Padding,
    Product,
    Quantizer,
    Requantizer,
    RowsArithmetic,
    Sum,
)

__all__ = ["GENERIC"]

GENERIC = Target(
    name="generic",
    executor="",
    title="an idealised int8 NPU (docs/generic.md)",
    modes=("max-value", "q-value"),
    bits=(4, 8, 16),
    out_bits=(8, 16, 32),
    weight_scales=("tensor", "channel", "group"),
    zero_points=True,
    ops=MappingProxyType(
        {
            **rows(Quantizer(), "Quant"),
            **rows(Arithmetic(), "Dequant"),
            **rows(Requantizer(), "Requant"),
            **rows(
                LayerArithmetic(),
                "Conv2dInt",
                "Conv1dInt",
                "ConvTranspose2dInt",
                "LinearInt",
                "BmmInt",
                "BatchNorm2dInt",
            ),
            **rows(Sum(), "iqAdd", "iqSub"),
            **rows(Product(), "iqMul"),
            **rows(Concat(), "iqCat"),
            **rows(Padding(), "iqPad"),
            **rows(Average(), "AvgPool2dInt"),
            **rows(
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
            **rows(Lstm(form=LstmForm.WIDE), "LSTMInt"),
            **rows(Gru(), "GRUInt"),
            **rows(RowsArithmetic(), "SoftmaxInt", "LogSoftmaxInt"),
            **rows(NormArithmetic(), "LayerNormInt"),
            **rows(Arithmetic(), "iqTable"),
        }
    ),
    also=MappingProxyType(
        {
            **dict.fromkeys(("iqSigmoid", "iqTanh"), CurveArithmetic()),
            **dict.fromkeys(("ArgMax", "ShuffleChannel"), Arithmetic()),
            "GluInt": Gate(),
            "iqDiv": Division(),
        }
    ),
)
