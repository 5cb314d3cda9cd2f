"""Constants as the packer stores them: weights padded for the array, 4-bit ones two in a byte, all else as it is."""

from __future__ import annotations

import math
from typing import NamedTuple

from .....formats import CONV1D, CONV2D, CONV_TRANSPOSE2D, LAYER_NORM, LINEAR
from .... import Target
from ...packing import Narrow, packing
from ..net import Net, NetStep, NetTensor
from ..window import rounded

__all__ = ["Stored", "stored", "stored_constants"]


class Stored(NamedTuple):
    """Bytes of one constant.

    values : as 8 bits each, padded. packed : as the package holds them, which is less of 4-bit weights.
    """

    values: int
    packed: int

    @property
    def planned(self) -> int:
        """From its start to that of the constant behind it, as the executor counts; the package may differ."""
        whole = rounded(self.values, 16)
        return whole if self.packed == self.values else whole // 2

    @property
    def written(self) -> int:
        """What the package has there."""
        return rounded(self.packed, 16)

    @property
    def fetched(self) -> int:
        """What is planned for it in a buffer of the DMA, whatever its width."""
        return rounded(self.values, 16)


def stored(step: NetStep, index: int, tensor: NetTensor, target: Target) -> Stored:
    """Return the bytes of constant input `index` of a step."""
    values = _values(step, index, tensor, target)
    if step.weight_bits != 4 or packing(target).narrow.get(step.op) is not Narrow.HALVED or index != _HALVED[step.op]:
        return Stored(values, values)
    if step.op == CONV2D.name:
        return Stored(values, values // 2)
    return Stored(values, math.prod(tensor.shape[:-1]) * math.ceil(tensor.shape[-1] / 2))  # each row by itself


#: Operator -> the input that is stored two in a byte where the node says 4 bits.
_HALVED = {CONV2D.name: 1, LINEAR.name: 1, LAYER_NORM.name: 1, "Gather": 0}


def _values(step: NetStep, index: int, tensor: NetTensor, target: Target) -> int:
    if index != 1 or step.op not in (CONV2D.name, CONV1D.name, CONV_TRANSPOSE2D.name):
        return tensor.bytes
    group, align = int(step.get("group", 1)), packing(target).conv.share_outputs
    if step.op == CONV2D.name:
        return _depthwise(tensor, target) if group > 1 else _plain(tensor, target)
    if step.op == CONV1D.name:
        outputs, channels, kernel = tensor.shape
        if group > 1:
            return rounded(outputs, packing(target).conv.depthwise_align) * kernel
        if kernel > packing(target).conv.max_kernel_1d:
            return tensor.bytes
        return rounded(outputs, 2) * rounded(channels, 8) * kernel
    channels, outputs, kh, kw = tensor.shape
    return rounded(outputs, align) * rounded(channels, 8) * kh * kw


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


def stored_constants(net: Net, target: Target) -> dict[str, Stored]:
    """Return the bytes of every constant that takes memory, in the order in which they lie: by first use."""
    found: dict[str, Stored] = {}
    for step in net.steps:
        kept = {t.name for t in net.constants(step)}
        for index, name in enumerate(step.inputs):
            if name in kept and name not in found:
                found[name] = stored(step, index, net.tensors[name], target)
    return found
