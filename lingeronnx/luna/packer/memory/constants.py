"""Sizes of constants as the packer stores them.

Weights of convolutions are padded, 4-bit weights are packed two in a byte, all other constants are
stored unchanged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ....common.arithmetic import round_up
from ....operators.integer_ops import CONV1D, CONV2D, CONV_TRANSPOSE2D, LAYER_NORM, LINEAR
from ....targets import Target
from ...packer_profile import Int4Support, get_packer_profile
from ..packer_graph import PackerGraph, PackerStep, PackerTensor

__all__ = ["StoredSize", "compute_stored_size", "compute_stored_sizes"]


class StoredSize(NamedTuple):
    """Size of one constant in bytes.

    unpacked_bytes : size with 8 bits per element, padded.
    packed_bytes : size in the package, which is smaller for 4-bit weights.
    """

    unpacked_bytes: int
    packed_bytes: int

    @property
    def planned_bytes(self) -> int:
        """The distance in bytes to the next constant that the executor assumes.

        It is the 8-bit size rounded up to 16, and half of that for 4-bit weights; the bytes in the
        package may differ.
        """
        unpacked = round_up(self.unpacked_bytes, 16)
        return unpacked if self.packed_bytes == self.unpacked_bytes else unpacked // 2

    @property
    def written_bytes(self) -> int:
        """The bytes that the constant takes in the package, a multiple of 16."""
        return round_up(self.packed_bytes, 16)

    @property
    def fetched_bytes(self) -> int:
        """The bytes planned for the constant in a DMA buffer: its 8-bit size rounded up to 16.

        They are the same for 4-bit weights.
        """
        return round_up(self.unpacked_bytes, 16)


def compute_stored_size(
    step: PackerStep, index: int, tensor: PackerTensor, target: Target
) -> StoredSize:
    """Compute the size of `tensor`, constant input `index` of `step`, as the packer stores it.

    Weights of convolutions are padded. `packed_bytes` differs from `unpacked_bytes` only for 4-bit
    weights that this chip packs: half of it for a Conv2dInt, otherwise two elements per byte, each
    row on its own.
    """
    unpacked_bytes = _get_unpacked_bytes(step, index, tensor, target)
    if (
        step.weight_bits != 4
        or get_packer_profile(target).narrow.get(step.op) is not Int4Support.PACKED
        or index != _INT4_INPUT[step.op]
    ):
        return StoredSize(unpacked_bytes, unpacked_bytes)
    if step.op == CONV2D.name:
        return StoredSize(unpacked_bytes, unpacked_bytes // 2)
    rows, row_bytes = math.prod(tensor.shape[:-1]), math.ceil(tensor.shape[-1] / 2)
    return StoredSize(unpacked_bytes, rows * row_bytes)  # each row is packed separately


#: Operator -> index of the input that is packed two in a byte if the node has 4-bit weights.
_INT4_INPUT = {CONV2D.name: 1, LINEAR.name: 1, LAYER_NORM.name: 1, "Gather": 0}


def _get_unpacked_bytes(step: PackerStep, index: int, tensor: PackerTensor, target: Target) -> int:
    """Return the bytes of constant input `index` of `step`, padded if it is a convolution's weight.

    A weight is input 1 of a Conv1dInt, Conv2dInt or ConvTranspose2dInt; other constants, and 1-D
    kernels above the chip's limit, have the size of the tensor.
    """
    if index != 1 or step.op not in (CONV2D.name, CONV1D.name, CONV_TRANSPOSE2D.name):
        return tensor.size_bytes
    limits = get_packer_profile(target).conv
    group = int(step.get("group", 1))
    if step.op == CONV2D.name:
        if group > 1:
            return _get_depthwise_weight_bytes(tensor, target)
        return _get_conv_weight_bytes(tensor, target)
    if step.op == CONV1D.name:
        outputs, channels, kernel = tensor.shape
        if group > 1:
            return round_up(outputs, limits.depthwise_output_align) * kernel
        if kernel > limits.max_kernel_1d:
            return tensor.size_bytes
        return round_up(outputs, 2) * round_up(channels, 8) * kernel
    channels, outputs, kh, kw = tensor.shape
    return round_up(outputs, limits.weight_slice_outputs) * round_up(channels, 8) * kh * kw


def _get_conv_weight_bytes(tensor: PackerTensor, target: Target) -> int:
    """Return the padded bytes of Conv2dInt weights [O, I, kh, kw].

    I is rounded up to 8 and O to the chip's alignment; weights above `weight_slice_bytes` are
    stored in equal slices of O, each rounded up on its own.
    """
    limits = get_packer_profile(target).conv
    align = limits.weight_slice_outputs
    outputs, channels, kh, kw = tensor.shape
    bytes_per_output = round_up(channels, 8) * kh * kw
    stored_outputs = round_up(outputs, align)
    if stored_outputs * bytes_per_output > limits.weight_slice_bytes:
        max_slice_outputs = max(
            limits.weight_slice_bytes // bytes_per_output // align * align, align
        )
        slice_count = math.ceil(outputs / max_slice_outputs)
        stored_outputs = round_up(math.ceil(outputs / slice_count), align) * slice_count
    return stored_outputs * bytes_per_output


def _get_depthwise_weight_bytes(tensor: PackerTensor, target: Target) -> int:
    """Return the bytes of depthwise Conv2dInt weights [O, 1, kh, kw].

    O and kh are rounded up to the alignments of the chip.
    """
    limits = get_packer_profile(target).conv
    outputs, _, kh, kw = tensor.shape
    return (
        round_up(outputs, limits.depthwise_output_align)
        * round_up(kh, limits.depthwise_kernel_row_align)
        * kw
    )


def compute_stored_sizes(net: PackerGraph, target: Target) -> dict[str, StoredSize]:
    """Return constant name -> stored size for all constants of `net` that take memory.

    In storage order, which is that of first use.
    """
    stored_sizes: dict[str, StoredSize] = {}
    for step in net.steps:
        constants = {t.name for t in net.get_constants(step)}
        for index, name in enumerate(step.inputs):
            if name in constants and name not in stored_sizes:
                stored_sizes[name] = compute_stored_size(step, index, net.tensors[name], target)
    return stored_sizes
