"""Convolutions: ``requantize(sum of products + bias)`` with one rounding.

Sums are int64. Zero points are subtracted from activations first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...targets.arithmetic import Arithmetic
from .._reference_op import Attributes, Integer, Outputs, get_optional_input

__all__ = ["FAMILY", "Conv", "Conv1d", "ConvTranspose"]


def _window_attributes(a: Attributes, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return the attributes strides, pads (begins of all `rank` axes, then ends) and dilations.

    Absent ones become 1, 0 and 1 on each axis.
    """
    return (
        list(a.get("strides") or [1] * rank),
        list(a.get("pads") or [0] * 2 * rank),
        list(a.get("dilations") or [1] * rank),
    )


def _add_bias(acc: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Return `acc` [N, C, ...] plus a bias [C] in int64, or `acc` itself if `bias` is None."""
    if bias is None:
        return acc
    return acc + bias.astype(np.int64).reshape(1, -1, *[1] * (acc.ndim - 2))


def _strided_slice(start: int, step: int, count: int) -> slice:
    """Return the slice of the `count` positions start, start + step, ..."""
    return slice(start, start + step * (count - 1) + 1, step)


def _tap_slices(
    tap: Sequence[int], dilations: Sequence[int], strides: Sequence[int], shape: Sequence[int]
) -> list[slice]:
    """Return, per axis, the slice of input positions that kernel element `tap` meets.

    `tap` has one index per axis, and so have `dilations` and `strides`. `shape` is the number of
    windows per axis; slices have that many elements.
    """
    return [
        _strided_slice(index * dilation, stride, size)
        for index, dilation, stride, size in zip(tap, dilations, strides, shape, strict=True)
    ]


class Conv(Integer):
    """x [N, C, ...], W [O, C/group, ...], b [O]: convolution with zero padding, of any rank."""

    names: tuple[str, ...] = ("Conv2dInt", "QConv2d", "QConvBN2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the convolution of x (input 0) with weight (1) and optional bias (2), requantized.

        x is padded with zeros; the products are accumulated in int64, kernel element by element.
        Groups, strides, pads and dilations are attributes.
        """
        x, weight, bias = inputs[0], inputs[1], get_optional_input(inputs, 2)
        rank, group = weight.ndim - 2, int(a.get("group") or 1)
        strides, pads, dilations = _window_attributes(a, rank)
        padded = np.pad(
            a.subtract_zero_point(x, "x"),
            [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)],
        )
        output_shape = [
            (padded.shape[2 + i] - dilations[i] * (weight.shape[2 + i] - 1) - 1) // strides[i] + 1
            for i in range(rank)
        ]
        acc = np.zeros((len(x), len(weight), *output_shape), np.int64)
        for tap in np.ndindex(*weight.shape[2:]):
            patch = padded[:, :, *_tap_slices(tap, dilations, strides, output_shape)]
            tap_weight = weight[:, :, *tap].astype(np.int64)
            acc += _grouped_matmul(patch, tap_weight, group)
        return self.requantize_accumulator(
            _add_bias(acc, bias), a, arithmetic, "scale_x", "scale_w"
        )


def _grouped_matmul(x: np.ndarray, weight: np.ndarray, group: int) -> np.ndarray:
    """Multiply x [N, C, ...] by `weight` [O, C/group], group by group.

    Returns
    -------
    np.ndarray
        Sum over c of weight[o, c] * x[n, c, ...], [N, O, ...].
    """
    products = []
    for group_x, group_weight in zip(
        np.split(x, group, 1), np.split(weight, group, 0), strict=True
    ):
        products.append(np.moveaxis(np.tensordot(group_weight, group_x, (1, 1)), 0, 1))
    return np.concatenate(products, 1)


class Conv1d(Conv):
    """Convolution of rank 1."""

    names: tuple[str, ...] = ("Conv1dInt", "QConv1d", "QConvBN1d")


class ConvTranspose(Integer):
    """x [N, C, H, W], W [C, O/group, kh, kw], b [O]: transposed convolution."""

    names: tuple[str, ...] = ("ConvTranspose2dInt", "QConvTranspose2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Return the transposed convolution of x (input 0) with weight (1) and optional bias (2).

        The products are accumulated in int64, kernel element by element, the pads cropped, the bias
        added and the result requantized.
        """
        x, weight, bias = inputs[0], inputs[1], get_optional_input(inputs, 2)
        rank, group = weight.ndim - 2, int(a.get("group") or 1)
        strides, pads, dilations = _window_attributes(a, rank)
        output_padding = list(a.get("output_padding") or [0] * rank)
        full_shape = [
            (x.shape[2 + i] - 1) * strides[i]
            + dilations[i] * (weight.shape[2 + i] - 1)
            + 1
            + output_padding[i]
            for i in range(rank)
        ]
        acc = np.zeros((len(x), weight.shape[1] * group, *full_shape), np.int64)
        for tap in np.ndindex(*weight.shape[2:]):
            tap_weight = weight[:, :, *tap].astype(np.int64)
            transposed_groups = [chunk.T for chunk in np.split(tap_weight, group, 0)]
            transposed = np.concatenate(transposed_groups, 0)  # [O, C/group]
            positions = _tap_slices(tap, dilations, strides, x.shape[2:])
            acc[:, :, *positions] += _grouped_matmul(
                a.subtract_zero_point(x, "x"), transposed, group
            )
        cropped = [slice(pads[i], full_shape[i] - pads[rank + i]) for i in range(rank)]
        acc = acc[:, :, *cropped]
        return self.requantize_accumulator(
            _add_bias(acc, bias), a, arithmetic, "scale_x", "scale_w"
        )


FAMILY: tuple[type[Integer], ...] = (Conv, Conv1d, ConvTranspose)
