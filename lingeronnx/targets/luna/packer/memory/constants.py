"""Constants as the packer stores them: weights padded for the array, everything else as it is."""

from __future__ import annotations

import math

from .....formats import CONV1D, CONV2D, CONV_TRANSPOSE2D
from .... import Target
from ...packing import packing
from ..net import Net, NetStep, NetTensor
from ..window import rounded

__all__ = ["stored_bytes", "stored_constants"]


def stored_bytes(step: NetStep, index: int, tensor: NetTensor, target: Target) -> int:
    """Return the bytes of constant input `index` of a step, rounded up to 16."""
    if index != 1 or step.op not in (CONV2D.name, CONV1D.name, CONV_TRANSPOSE2D.name):
        return tensor.planned
    group, align = int(step.get("group", 1)), packing(target).conv.share_outputs
    if step.op == CONV2D.name:
        need = _depthwise(tensor, target) if group > 1 else _plain(tensor, target)
    elif step.op == CONV1D.name:
        outputs, channels, kernel = tensor.shape
        if group > 1:
            need = rounded(outputs, packing(target).conv.depthwise_align) * kernel
        elif kernel > packing(target).conv.max_kernel_1d:
            need = tensor.bytes
        else:
            need = rounded(outputs, 2) * rounded(channels, 8) * kernel
    else:
        channels, outputs, kh, kw = tensor.shape
        need = rounded(outputs, align) * rounded(channels, 8) * kh * kw
    return rounded(need, 16)


def _plain(tensor: NetTensor, target: Target) -> int:
    align, limit = packing(target).conv.share_outputs, packing(target).conv.share_weights
    outputs, channels, kh, kw = tensor.shape
    one = rounded(channels, 8) * kh * kw
    count = rounded(outputs, align)
    if count * one > limit:
        most = max(limit // one // align * align, align)
        parts = math.ceil(outputs / most)
        count = rounded(math.ceil(outputs / parts), align) * parts
    return count * one


def _depthwise(tensor: NetTensor, target: Target) -> int:
    outputs, _, kh, kw = tensor.shape
    return (
        rounded(outputs, packing(target).conv.depthwise_align) * rounded(kh, packing(target).conv.depthwise_rows) * kw
    )


def stored_constants(net: Net, target: Target) -> dict[str, int]:
    """Return the stored bytes of every constant that takes memory, by first use."""
    stored: dict[str, int] = {}
    for step in net.steps:
        kept = {t.name for t in net.constants(step)}
        for index, name in enumerate(step.inputs):
            if name in kept and name not in stored:
                stored[name] = stored_bytes(step, index, net.tensors[name], target)
    return stored
