"""Constants as the packer stores them.

Weights padded for the array, 4-bit ones two in a byte, all else as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .....formats import CONV1D, CONV2D, CONV_TRANSPOSE2D, LAYER_NORM, LINEAR
from .... import Target
from ...packer_profile import Int4Support, get_packer_profile
from ..packer_graph import PackerGraph, PackerStep, PackerTensor
from ..window import round_up

__all__ = ["StoredSize", "compute_stored_size", "compute_stored_sizes"]


class StoredSize(NamedTuple):
    """Bytes of one constant.

    unpacked_bytes : as 8 bits each, padded. packed : as the package holds them, which is less of
    4-bit weights.
    """

    unpacked_bytes: int
    packed_bytes: int

    @property
    def planned_bytes(self) -> int:
        """From its start to that of the constant behind it, as the executor counts.

        The package may differ.
        """
        whole = round_up(self.unpacked_bytes, 16)
        return whole if self.packed_bytes == self.unpacked_bytes else whole // 2

    @property
    def written_bytes(self) -> int:
        """What the package has there."""
        return round_up(self.packed_bytes, 16)

    @property
    def fetched_bytes(self) -> int:
        """What is planned for it in a buffer of the DMA, whatever its width."""
        return round_up(self.unpacked_bytes, 16)


def compute_stored_size(
    step: PackerStep, index: int, tensor: PackerTensor, target: Target
) -> StoredSize:
    """Return the bytes of constant input `index` of a step."""
    values = _get_unpacked_bytes(step, index, tensor, target)
    if (
        step.weight_bits != 4
        or get_packer_profile(target).narrow.get(step.op) is not Int4Support.PACKED
        or index != _INT4_INPUT[step.op]
    ):
        return StoredSize(values, values)
    if step.op == CONV2D.name:
        return StoredSize(values, values // 2)
    return StoredSize(
        values, math.prod(tensor.shape[:-1]) * math.ceil(tensor.shape[-1] / 2)
    )  # each row by itself


#: Operator -> the input that is stored two in a byte where the node says 4 bits.
_INT4_INPUT = {CONV2D.name: 1, LINEAR.name: 1, LAYER_NORM.name: 1, "Gather": 0}


def _get_unpacked_bytes(step: PackerStep, index: int, tensor: PackerTensor, target: Target) -> int:
    if index != 1 or step.op not in (CONV2D.name, CONV1D.name, CONV_TRANSPOSE2D.name):
        return tensor.size_bytes
    group, align = int(step.get("group", 1)), get_packer_profile(target).conv.weight_slice_outputs
    if step.op == CONV2D.name:
        return (
            _get_depthwise_weight_bytes(tensor, target)
            if group > 1
            else _get_conv_weight_bytes(tensor, target)
        )
    if step.op == CONV1D.name:
        outputs, channels, kernel = tensor.shape
        if group > 1:
            return (
                round_up(outputs, get_packer_profile(target).conv.depthwise_output_align) * kernel
            )
        if kernel > get_packer_profile(target).conv.max_kernel_1d:
            return tensor.size_bytes
        return round_up(outputs, 2) * round_up(channels, 8) * kernel
    channels, outputs, kh, kw = tensor.shape
    return round_up(outputs, align) * round_up(channels, 8) * kh * kw


def _get_conv_weight_bytes(tensor: PackerTensor, target: Target) -> int:
    align, limit = (
        get_packer_profile(target).conv.weight_slice_outputs,
        get_packer_profile(target).conv.weight_slice_bytes,
    )
    outputs, channels, kh, kw = tensor.shape
    one = round_up(channels, 8) * kh * kw
    count = round_up(outputs, align)
    if count * one > limit:
        most = max(limit // one // align * align, align)
        parts = math.ceil(outputs / most)
        count = round_up(math.ceil(outputs / parts), align) * parts
    return count * one


def _get_depthwise_weight_bytes(tensor: PackerTensor, target: Target) -> int:
    outputs, _, kh, kw = tensor.shape
    return (
        round_up(outputs, get_packer_profile(target).conv.depthwise_output_align)
        * round_up(kh, get_packer_profile(target).conv.depthwise_kernel_row_align)
        * kw
    )


def compute_stored_sizes(net: PackerGraph, target: Target) -> dict[str, StoredSize]:
    """Return the bytes of every constant that takes memory, in the order in which they lie.

    By first use.
    """
    found: dict[str, StoredSize] = {}
    for step in net.steps:
        kept = {t.name for t in net.get_constants(step)}
        for index, name in enumerate(step.inputs):
            if name in kept and name not in found:
                found[name] = compute_stored_size(step, index, net.tensors[name], target)
    return found
