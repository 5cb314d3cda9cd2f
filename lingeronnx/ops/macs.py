"""Multiply-accumulates of float nodes, quantizable or not, so that nothing is left in float unseen."""

from __future__ import annotations

import math

from ..graph import ir
from .conv import CONV2D
from .linear import LINEAR
from .recurrent import LSTM

__all__ = ["macs"]


def _size(value: ir.Value | None) -> list[int]:
    """Return the shape of one sample with the batch as 1, and 1 for what is not known."""
    dims = list(ir.shape(value) or ()) if value is not None else []
    return [1 if i == 0 or d is None else int(d) for i, d in enumerate(dims)]


def macs(node: ir.Node) -> int:
    """Return the multiply-accumulates of one sample; 0 for operators that are not sums of products."""
    kind = ir.kind(node)
    if kind == "Conv":
        return CONV2D.macs(node)
    if kind == "Linear" and node.domain == ir.DOMAIN:
        return LINEAR.macs(node)
    if kind in ("MatMul", "Gemm"):
        left = _size(node.inputs[0])
        inner = left[0 if kind == "Gemm" and ir.attr(node, "transA", 0) else -1] if left else 1
        return math.prod(_size(node.outputs[0])) * inner
    if node.domain == ir.DOMAIN and kind in ("LSTM", "GRU"):
        return LSTM.macs(node)
    if kind == "ConvTranspose":
        weight = ir.shape(node.inputs[1]) or ()
        return math.prod(_size(node.inputs[0])) * math.prod(int(d or 1) for d in weight[1:])
    if kind in ("LSTM", "GRU", "RNN"):
        steps = _size(node.inputs[0])
        weights = [math.prod(int(d or 1) for d in ir.shape(v) or ()) for v in node.inputs[1:3] if v is not None]
        length = int((ir.shape(node.inputs[0]) or (1,))[1 if ir.attr(node, "layout", 0) else 0] or 1)
        return sum(weights) * length if steps else 0
    return 0
