"""Operators with weights or two matrices.

Convolutions, linear, matrix product, batch normalisation.
Every one is ``requantize(sum of products + bias)`` with one rounding; sums are int64. Activations
count as what they are above their zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..targets.arithmetic import Arithmetic
from ._base import Attributes, Integer, Outputs, get_optional_input

__all__ = ["FAMILY", "BatchNorm2d", "Bmm", "Conv", "ConvTranspose", "Linear"]


def _window_attributes(a: Attributes, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return strides, pads (all begins, then all ends) and dilations."""
    return (
        list(a.get("strides") or [1] * rank),
        list(a.get("pads") or [0] * 2 * rank),
        list(a.get("dilations") or [1] * rank),
    )


def _add_bias(acc: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Add a bias [C] along axis 1, or nothing."""
    return (
        acc if bias is None else acc + bias.astype(np.int64).reshape(1, -1, *[1] * (acc.ndim - 2))
    )


def _strided_slice(start: int, step: int, count: int) -> slice:
    """Return the positions start, start + step, ... (count of them)."""
    return slice(start, start + step * (count - 1) + 1, step)


class Conv(Integer):
    """x [N, C, ...], W [O, C/group, ...], b [O]: convolution with zero padding, of any rank."""

    names: tuple[str, ...] = ("Conv2dInt", "QConv2d", "QConvBN2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Add up one kernel position after another."""
        x, weight, bias = inputs[0], inputs[1], get_optional_input(inputs, 2)
        rank, group = weight.ndim - 2, int(a.get("group") or 1)
        strides, pads, dilations = _window_attributes(a, rank)
        padded = np.pad(
            a.subtract_zero_point(x, "x"),
            [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)],
        )
        space = [
            (padded.shape[2 + i] - dilations[i] * (weight.shape[2 + i] - 1) - 1) // strides[i] + 1
            for i in range(rank)
        ]
        acc = np.zeros((len(x), len(weight), *space), np.int64)
        for place in np.ndindex(*weight.shape[2:]):
            seen = [
                _strided_slice(p * d, s, n)
                for p, d, s, n in zip(place, dilations, strides, space, strict=True)
            ]
            patch = padded[:, :, *seen]
            taps = weight[:, :, *place].astype(np.int64)
            acc += _grouped_matmul(patch, taps, group)
        return self.requantize_accumulator(
            _add_bias(acc, bias), a, arithmetic, "scale_x", "scale_w"
        )


def _grouped_matmul(x: np.ndarray, taps: np.ndarray, group: int) -> np.ndarray:
    """Return sum over c of taps[o, c] * x[n, c, ...], every group of outputs on its own channels."""
    parts = zip(np.split(x, group, 1), np.split(taps, group, 0), strict=True)
    return np.concatenate(
        [np.moveaxis(np.tensordot(w, part, (1, 1)), 0, 1) for part, w in parts], 1
    )


class Conv1d(Conv):
    """The same of rank 1."""

    names: tuple[str, ...] = ("Conv1dInt", "QConv1d", "QConvBN1d")


class ConvTranspose(Integer):
    """x [N, C, H, W], W [C, O/group, kh, kw], b [O].

    Every input is spread over the outputs its kernel reaches.
    """

    names: tuple[str, ...] = ("ConvTranspose2dInt", "QConvTranspose2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Add up one kernel position after another into the uncropped result."""
        x, weight, bias = inputs[0], inputs[1], get_optional_input(inputs, 2)
        rank, group = weight.ndim - 2, int(a.get("group") or 1)
        strides, pads, dilations = _window_attributes(a, rank)
        more = list(a.get("output_padding") or [0] * rank)
        whole = [
            (x.shape[2 + i] - 1) * strides[i]
            + dilations[i] * (weight.shape[2 + i] - 1)
            + 1
            + more[i]
            for i in range(rank)
        ]
        acc = np.zeros((len(x), weight.shape[1] * group, *whole), np.int64)
        for place in np.ndindex(*weight.shape[2:]):
            taps = weight[:, :, *place].astype(np.int64)
            turned = np.concatenate(
                [part.T for part in np.split(taps, group, 0)], 0
            )  # [O, C/group]
            reached = [
                _strided_slice(p * d, s, n)
                for p, d, s, n in zip(place, dilations, strides, x.shape[2:], strict=True)
            ]
            acc[:, :, *reached] += _grouped_matmul(a.subtract_zero_point(x, "x"), turned, group)
        kept = [slice(pads[i], whole[i] - pads[rank + i]) for i in range(rank)]
        acc = acc[:, :, *kept]
        return self.requantize_accumulator(
            _add_bias(acc, bias), a, arithmetic, "scale_x", "scale_w"
        )


class Linear(Integer):
    """x [..., I], W [O, I], b [O].

    With group_size k factors m [O, ceil(I/k)], one for each k weights of a row.
    """

    names: tuple[str, ...] = ("LinearInt", "QLinear")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """X W^T + b over the last axis; of groups, the sum of each times its factor."""
        x, weight, bias, factors = (
            inputs[0],
            inputs[1],
            get_optional_input(inputs, 2),
            get_optional_input(inputs, 3),
        )
        above, size = a.subtract_zero_point(x, "x"), int(a.get("group_size") or weight.shape[1])
        acc = np.zeros((*x.shape[:-1], len(weight)), np.int64)
        for group, start in enumerate(range(0, weight.shape[1], size)):
            of = slice(start, start + size)
            sums = above[..., of] @ weight[:, of].astype(np.int64).T
            acc += sums if factors is None else sums * factors[:, group].astype(np.int64)
        if bias is not None:
            acc = acc + bias.astype(np.int64)
        return self.requantize_accumulator(acc, a, arithmetic, "scale_x", "scale_w", axis=-1)


class Bmm(Integer):
    """Matrix product of two activations, x [..., N, M] and y [..., M, P]."""

    names: tuple[str, ...] = ("BmmInt", "QBmm")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """Multiply the matrices and round once."""
        x, y = (a.subtract_zero_point(array, key) for array, key in zip(inputs, "xy", strict=True))
        return self.requantize_accumulator(x @ y, a, arithmetic, "scale_x", "scale_y")


class BatchNorm2d(Integer):
    """x [N, C, H, W], factor [C], offset [C]; further inputs are not read."""

    names: tuple[str, ...] = ("BatchNorm2dInt", "QBatchNorm2d")

    def compute(self, a: Attributes, arithmetic: Arithmetic, *inputs: np.ndarray) -> Outputs:
        """X * w[c] + b[c]."""
        x, factor, offset = inputs[:3]
        column: Sequence[int] = (-1, *[1] * (x.ndim - 2))
        acc = a.subtract_zero_point(x, "x") * factor.astype(np.int64).reshape(column)
        return self.requantize_accumulator(
            _add_bias(acc, offset.reshape(-1)), a, arithmetic, "scale_x", "scale_w"
        )


FAMILY: tuple[type[Integer], ...] = (Conv, Conv1d, ConvTranspose, Linear, Bmm, BatchNorm2d)
