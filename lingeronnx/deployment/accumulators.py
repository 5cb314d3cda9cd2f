"""The sums of products behind a convolution or fully connected layer, for faults that show in them only.

    out = relu(sat(floor(acc / 2^shift + 1/2))),   acc[c] = weight[c] . patches + bias[c]

Written anew in numpy, in int64; what the simulator computes is compared with it before it is
believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..formats import CONV1D, CONV2D, LINEAR
from .layer_subgraph import LayerSubgraph

__all__ = ["LayerAccumulators", "extract_accumulators"]

_CONVOLUTIONS = (CONV1D.name, CONV2D.name)
_MAX_TRIED_WEIGHTS = 8  # weights, the likeliest first


@dataclass(frozen=True)
class LayerAccumulators:
    """Of one layer with weights, channels first.

    patches : int64 [group, term, place], what the weights of a channel are multiplied with. weight
    : int64 [channel, term]. bias : int64 [channel]. shift : bits to the right. axis : of the
    channels in the output. weight_shape : of
    one channel. relu : whether a Relu follows.
    """

    patches: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    shift: int
    shape: tuple[int, ...]
    dtype: np.dtype
    axis: int
    weight_shape: tuple[int, ...]
    weight_type: np.dtype
    relu: bool

    @property
    def accumulators(self) -> np.ndarray:
        """int64 [channel, place], without rounding."""
        groups = len(self.patches)
        parts = self.weight.reshape(groups, -1, self.weight.shape[1]) @ self.patches
        return parts.reshape(len(self.weight), -1) + self.bias[:, None]

    def round_half_up(self, acc: np.ndarray) -> np.ndarray:
        """Return sums shifted and rounded half up, not saturated."""
        if self.shift <= 0:
            return acc << -self.shift
        return (acc + (1 << (self.shift - 1))) >> self.shift

    def saturate(self, values: np.ndarray) -> np.ndarray:
        """Saturate, apply the Relu."""
        limits = np.iinfo(self.dtype)
        values = np.clip(values, limits.min, limits.max).astype(self.dtype)
        return np.maximum(values, 0) if self.relu else values

    def to_channel_rows(self, array: np.ndarray) -> np.ndarray:
        """Return an output array as [channel, place]."""
        return np.moveaxis(array.reshape(self.shape), self.axis, 0).reshape(len(self.weight), -1)

    def from_channel_rows(self, flat: np.ndarray) -> np.ndarray:
        """Return [channel, place] in the shape of the output."""
        rest = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        return np.moveaxis(flat.reshape(len(self.weight), *rest), 0, self.axis)

    def iterate_arithmetic_variants(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield (kind, text, output) of the layer rounded or saturated in other ways."""
        acc, half = self.accumulators, 1 << max(self.shift - 1, 0)
        limits = np.iinfo(self.dtype)
        if self.shift > 0:
            up, size = self.round_half_up(acc), np.abs(acc).astype(np.int64)
            ties = (acc & ((1 << self.shift) - 1)) == half
            ways = (
                ("cut off (floor) instead of rounded half up", acc >> self.shift),
                (
                    "cut off towards zero instead of rounded half up",
                    np.sign(acc) * (size >> self.shift),
                ),
                ("rounded half to even instead of half up", up - (ties & (up % 2 == 1))),
                (
                    "rounded half away from zero instead of half up",
                    np.sign(acc) * ((size + half) >> self.shift),
                ),
            )
            for text, values in ways:
                yield "rounding", f"sums are {text}", self.from_channel_rows(self.saturate(values))
        wrapped = self.round_half_up(acc).astype(self.dtype)
        wrapped = np.maximum(wrapped, 0) if self.relu else wrapped
        yield (
            "saturation",
            "values beyond the limits wrap around instead of saturating",
            self.from_channel_rows(wrapped),
        )
        for bits in range(limits.bits - 1, limits.bits - 4, -1):
            top = 1 << (bits - 1)
            values = self.saturate(np.clip(self.round_half_up(acc), -top, top - 1))
            yield "saturation", f"values saturate at {bits} bits", self.from_channel_rows(values)

    def iterate_corrupted_weights(self, have: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield what the output would be with one other weight or bias, where `have` differs in one channel only."""
        given, acc = self.to_channel_rows(have), self.accumulators
        want = self.saturate(self.round_half_up(acc))
        channels = np.flatnonzero((given != want).any(axis=1))
        if len(channels) != 1:
            return
        channel = int(channels[0])
        terms = self.patches[channel * len(self.patches) // len(self.weight)]
        terms = np.concatenate(
            [terms, np.ones((1, terms.shape[1]), np.int64)]
        )  # the last is the bias's
        limits = np.iinfo(self.dtype)
        low, high = (0 if self.relu else limits.min), limits.max
        inner = (
            (want[channel] > low)
            & (want[channel] < high)
            & (given[channel] > low)
            & (given[channel] < high)
        )
        inner = inner if inner.any() else np.ones_like(inner)
        off = (given[channel].astype(np.float64) - want[channel])[inner] * 2.0**self.shift
        x = terms[:, inner].astype(np.float64)
        power = np.maximum((x * x).sum(axis=1), 1e-9)
        slopes = x @ off / power
        for term in np.argsort(-slopes * slopes * power, kind="stable")[
            :_MAX_TRIED_WEIGHTS
        ].tolist():
            yield from self._iterate_weight_changes(
                channel, term, round(float(slopes[term])), acc[channel], terms[term], given
            )

    def _iterate_weight_changes(
        self, channel: int, term: int, guess: int, acc: np.ndarray, x: np.ndarray, given: np.ndarray
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield the output with a weight changed by about `guess`, where that is exactly what was given."""
        is_bias = term == self.weight.shape[1]
        old = int(self.bias[channel] if is_bias else self.weight[channel, term])
        reach = 2 + (1 << max(self.shift, 0) if is_bias else abs(guess) // 8)
        one_will_do = is_bias and reach > 31  # all biases between two roundings give the same
        reach = 32 if one_will_do else reach
        limits = np.iinfo(np.int32 if is_bias else self.weight_type)
        low, high = (
            max(guess - reach, int(limits.min) - old),
            min(guess + reach, int(limits.max) - old),
        )
        deltas: Sequence[int] = range(low, high + 1)
        if one_will_do:
            deltas = sorted(deltas, key=lambda d: abs(d - guess))
        else:
            deltas = sorted(deltas, key=lambda d: (bin((old + d) ^ old).count("1"), d))
        for delta in filter(None, deltas):
            row = self.saturate(self.round_half_up(acc + delta * x))
            if np.array_equal(row, given[channel]):
                whole = self.to_channel_rows(
                    self.from_channel_rows(self.saturate(self.round_half_up(self.accumulators)))
                ).copy()
                whole[channel] = row
                place = (
                    [channel]
                    if is_bias
                    else [channel, *map(int, np.unravel_index(term, self.weight_shape))]
                )
                text = (
                    f"{'bias' if is_bias else 'weight'} {place} is {old + delta} there, {old} "
                    "in the graph"
                )
                if (
                    is_bias or x.size == 1
                ):  # a rounding hides part of a bias; one place cannot tell weights apart
                    text = f"of output channel {channel} alone something is wrong, such as: {text}"
                yield "weight", text, self.from_channel_rows(whole)
                return


def extract_accumulators(layer: LayerSubgraph) -> LayerAccumulators | None:
    """Return the sums of a layer that ends in a convolution or fully connected layer, or in the Relu behind one."""
    relu = layer.operators[-1] == "Relu"
    index = len(layer.nodes) - (2 if relu else 1)
    if index < 0 or (relu and layer.nodes[-1].input[0] != layer.nodes[index].output[0]):
        return None
    node, kind = layer.nodes[index], layer.operators[index]
    if kind not in (*_CONVOLUTIONS, LINEAR.name) or node.input[0] not in layer.inputs:
        return None
    weight = layer.constants.get(node.input[1])
    want = layer.compute()
    attrs = layer.attributes(index)
    ratio = [float(attrs.get(key, 0)) for key in ("scale_x", "scale_w", "scale_o")]  # type: ignore[arg-type]
    if weight is None or want is None or min(ratio) <= 0:
        return None
    shift = math.log2(ratio[0] * ratio[1] / ratio[2])
    if shift != int(shift):
        return None
    x = layer.inputs[node.input[0]].astype(np.int64)
    bias = layer.constants.get(node.input[2]) if len(node.input) > 2 else None
    bias = np.zeros(len(weight), np.int64) if bias is None else bias.astype(np.int64).reshape(-1)
    patches = _rows(x) if kind == LINEAR.name else _patches(x, weight, attrs)
    axis = want.ndim - 1 if kind == LINEAR.name else 1
    found = LayerAccumulators(
        patches=patches,
        weight=weight.reshape(len(weight), -1).astype(np.int64),
        bias=bias,
        shift=int(shift),
        shape=want.shape,
        dtype=want.dtype,
        axis=axis,
        weight_shape=weight.shape[1:],
        weight_type=weight.dtype,
        relu=relu,
    )
    same = found.from_channel_rows(found.saturate(found.round_half_up(found.accumulators)))
    return found if np.array_equal(same, want) else None


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]).T[None]


def _patches(x: np.ndarray, weight: np.ndarray, attrs: dict[str, object]) -> np.ndarray:
    """Return [group, term, place] of one sample [1, C, ...].

    Terms in the order of a channel's weights.
    """
    sides = weight.ndim - 2

    def numbers(key: str, default: int, count: int) -> list[int]:
        found = attrs.get(key) or [default] * count
        return [int(v) for v in found]  # type: ignore[attr-defined]

    pads, strides = numbers("pads", 0, 2 * sides), numbers("strides", 1, sides)
    dilations, groups = numbers("dilations", 1, sides), int(attrs.get("group") or 1)  # type: ignore[call-overload]
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:sides], pads[sides:], strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], spans, axis=tuple(range(1, sides + 1)))
    cut = (
        slice(None),
        *(slice(None, None, s) for s in strides),
        *(slice(None, None, d) for d in dilations),
    )
    windows = windows[cut]  # [C, place..., kernel...]
    order = (0, *range(1 + sides, 1 + 2 * sides), *range(1, 1 + sides))
    windows = windows.transpose(order)
    places = math.prod(windows.shape[1 + sides :])
    return np.ascontiguousarray(windows).reshape(groups, -1, places)
