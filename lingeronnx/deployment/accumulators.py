"""Compute the accumulators of a convolution or fully connected layer, to simulate faults in them.

    out = relu(sat(floor(acc / 2^shift + 1/2))),   acc[c] = weight[c] . patches + bias[c]

This is an independent implementation in numpy and int64. Its result is compared with the
simulator's before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..operators.integer_ops import LINEAR, find_integer_op_by_name
from .layer_subgraph import LayerSubgraph

__all__ = ["LayerAccumulators", "extract_accumulators"]

_MAX_TRIED_WEIGHTS = 8  # the likeliest first


@dataclass(frozen=True)
class LayerAccumulators:
    """Operands of one layer with weights, from which its accumulators are computed.

    patches : int64 [group, term, position], the values that a channel's weights are multiplied
    with. weight : int64 [channel, term]. bias : int64 [channel]. shift : bits to shift right.
    shape, dtype : of the output. axis : channel axis of the output. weight_shape : of one channel.
    weight_type : dtype of the stored weights. relu : whether a Relu follows.
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
        """Sums of products plus bias, before shift and rounding, int64 [channel, position]."""
        groups = len(self.patches)
        products = self.weight.reshape(groups, -1, self.weight.shape[1]) @ self.patches
        sums: np.ndarray = products.reshape(len(self.weight), -1) + self.bias[:, None]
        return sums

    def round_half_up(self, acc: np.ndarray) -> np.ndarray:
        """Return accumulators divided by 2^shift and rounded half up, without saturation.

        A negative shift multiplies. `acc` is int64 of any shape.
        """
        if self.shift <= 0:
            return acc << -self.shift
        return (acc + (1 << (self.shift - 1))) >> self.shift

    def saturate(self, values: np.ndarray) -> np.ndarray:
        """Clip `values` to the output's integer type and convert.

        With a Relu also to 0 from below.
        """
        limits = np.iinfo(self.dtype)
        values = np.clip(values, limits.min, limits.max).astype(self.dtype)
        return np.maximum(values, 0) if self.relu else values

    def to_channel_rows(self, array: np.ndarray) -> np.ndarray:
        """Rearrange an array with the elements of the output to [channel, position]."""
        return np.moveaxis(array.reshape(self.shape), self.axis, 0).reshape(len(self.weight), -1)

    def from_channel_rows(self, rows: np.ndarray) -> np.ndarray:
        """Rearrange an array [channel, position] to the output's shape."""
        spatial_shape = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        return np.moveaxis(rows.reshape(len(self.weight), *spatial_shape), 0, self.axis)

    def iterate_arithmetic_variants(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield (kind, text, output) of the layer with another rounding or saturation.

        The kinds are "rounding" (only if the layer shifts right) and "saturation": wrapping, or
        limits of 1 to 3 bits less. `output` is in the layer's shape and type.
        """
        acc = self.accumulators
        if self.shift > 0:
            for text, values in self._iterate_roundings(acc):
                yield "rounding", f"sums are {text}", self.from_channel_rows(self.saturate(values))
        wrapped = self.round_half_up(acc).astype(self.dtype)
        wrapped = np.maximum(wrapped, 0) if self.relu else wrapped
        text = "values beyond the limits wrap around instead of saturating"
        yield "saturation", text, self.from_channel_rows(wrapped)
        output_bits = np.iinfo(self.dtype).bits
        for bits in range(output_bits - 1, output_bits - 4, -1):
            limit = 1 << (bits - 1)
            values = self.saturate(np.clip(self.round_half_up(acc), -limit, limit - 1))
            yield "saturation", f"values saturate at {bits} bits", self.from_channel_rows(values)

    def _iterate_roundings(self, acc: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (text, accumulators shifted right) of four roundings other than half up.

        `acc` are the integers before the shift; results are not saturated. The shift must be
        positive.
        """
        half = 1 << (self.shift - 1)
        rounded, magnitude = self.round_half_up(acc), np.abs(acc).astype(np.int64)
        is_tie = (acc & ((1 << self.shift) - 1)) == half
        yield "truncated (floor) instead of rounded half up", acc >> self.shift
        yield (
            "truncated towards zero instead of rounded half up",
            np.sign(acc) * (magnitude >> self.shift),
        )
        yield "rounded half to even instead of half up", rounded - (is_tie & (rounded % 2 == 1))
        yield (
            "rounded half away from zero instead of half up",
            np.sign(acc) * ((magnitude + half) >> self.shift),
        )

    def iterate_corrupted_weights(
        self, actual: np.ndarray
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield ("weight", text, output) of changes of one weight or bias that reproduce `actual`.

        `actual` is the device's output. Nothing is yielded unless it differs in exactly one
        channel. The change of each weight is estimated by least squares over elements that are not
        saturated, and the `_MAX_TRIED_WEIGHTS` that reduce the error most are tried.
        """
        actual_rows, acc = self.to_channel_rows(actual), self.accumulators
        expected_rows = self.saturate(self.round_half_up(acc))
        channels = np.flatnonzero((actual_rows != expected_rows).any(axis=1))
        if len(channels) != 1:
            return
        channel = int(channels[0])
        terms = self.patches[channel * len(self.patches) // len(self.weight)]
        bias_term = np.ones((1, terms.shape[1]), np.int64)
        terms = np.concatenate([terms, bias_term])
        unsaturated = self._find_unsaturated(expected_rows[channel], actual_rows[channel])
        error = actual_rows[channel].astype(np.float64) - expected_rows[channel]
        error = error[unsaturated] * 2.0**self.shift
        x = terms[:, unsaturated].astype(np.float64)
        power = np.maximum((x * x).sum(axis=1), 1e-9)
        slopes = x @ error / power
        by_reduction = np.argsort(-slopes * slopes * power, kind="stable")
        for term in by_reduction[:_MAX_TRIED_WEIGHTS].tolist():
            estimate = round(float(slopes[term]))
            yield from self._iterate_weight_changes(
                channel, term, estimate, acc[channel], terms[term], actual_rows
            )

    def _find_unsaturated(self, expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
        """Return the mask of positions where neither array is at a limit of the output's type.

        The lower limit is 0 with a Relu. The mask is True everywhere if there is no such position.
        """
        limits = np.iinfo(self.dtype)
        low, high = (0 if self.relu else limits.min), limits.max
        unsaturated = (expected > low) & (expected < high) & (actual > low) & (actual < high)
        return unsaturated if unsaturated.any() else np.ones_like(unsaturated)

    def _iterate_weight_changes(
        self,
        channel: int,
        term: int,
        estimate: int,
        acc: np.ndarray,
        x: np.ndarray,
        actual_rows: np.ndarray,
    ) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield the first change of a weight or bias near `estimate` that reproduces `actual_rows`.

        The item is ("weight", text, output in the layer's shape); nothing is yielded if no change
        does.

        Parameters
        ----------
        channel
            Output channel.
        term
            Index of the weight, or their number for the bias.
        estimate
            Expected change.
        acc
            Accumulators of the channel, [position].
        x
            Factors of the term, [position].
        actual_rows
            Actual output, [channel, position].
        """
        is_bias = term == self.weight.shape[1]
        old = int(self.bias[channel] if is_bias else self.weight[channel, term])
        for delta in self._list_weight_changes(estimate, old, is_bias):
            row = self.saturate(self.round_half_up(acc + delta * x))
            if not np.array_equal(row, actual_rows[channel]):
                continue
            rows = self.saturate(self.round_half_up(self.accumulators))
            rows = self.to_channel_rows(self.from_channel_rows(rows)).copy()
            rows[channel] = row
            index = [channel]
            if not is_bias:
                index += map(int, np.unravel_index(term, self.weight_shape))
            text = (
                f"{'bias' if is_bias else 'weight'} {index} is {old + delta} on the device, {old} "
                "in the graph"
            )
            # Rounding hides low bits of a bias, and one position cannot distinguish weights.
            if is_bias or x.size == 1:
                text = f"only output channel {channel} is wrong, for example because {text}"
            yield "weight", text, self.from_channel_rows(rows)
            return

    def _list_weight_changes(self, estimate: int, old: int, is_bias: bool) -> list[int]:
        """List nonzero changes near `estimate` of a weight or bias `old`, the likeliest first.

        They stay within the integer type. Changes that flip few bits come first; for a bias with a
        large shift, whose low bits have no effect, those nearest to the estimate.
        """
        radius = 2 + (1 << max(self.shift, 0) if is_bias else abs(estimate) // 8)
        has_rounded_bits = is_bias and radius > 31
        radius = 32 if has_rounded_bits else radius
        limits = np.iinfo(np.int32 if is_bias else self.weight_type)
        low = max(estimate - radius, int(limits.min) - old)
        high = min(estimate + radius, int(limits.max) - old)
        deltas = [delta for delta in range(low, high + 1) if delta]
        if has_rounded_bits:
            return sorted(deltas, key=lambda delta: abs(delta - estimate))
        return sorted(deltas, key=lambda delta: (bin((old + delta) ^ old).count("1"), delta))


def extract_accumulators(layer: LayerSubgraph) -> LayerAccumulators | None:
    """Return the operands of a layer's convolution or Linear, from which its sums are computed.

    It must be the layer's last node, but for a Relu. None for other layers, without constant
    weights or an integer shift, if its input is not one of the layer's, or if the result differs
    from that of the simulator.
    """
    relu = layer.operators[-1] == "Relu"
    index = len(layer.nodes) - (2 if relu else 1)
    if index < 0 or (relu and layer.nodes[-1].input[0] != layer.nodes[index].output[0]):
        return None
    node, op_type = layer.nodes[index], layer.operators[index]
    is_linear = op_type == LINEAR.name
    if node.input[0] not in layer.inputs or not (is_linear or _is_convolution(op_type)):
        return None
    weight, expected = layer.constants.get(node.input[1]), layer.compute()
    attributes = layer.attributes(index)
    shift = _get_shift(attributes)
    if weight is None or expected is None or shift is None:
        return None
    x = layer.inputs[node.input[0]].astype(np.int64)
    stored_bias = layer.constants.get(node.input[2]) if len(node.input) > 2 else None
    bias = np.zeros(len(weight), np.int64)
    if stored_bias is not None:
        bias = stored_bias.astype(np.int64).reshape(-1)
    accumulators = LayerAccumulators(
        patches=_extract_rows(x) if is_linear else _extract_patches(x, weight, attributes),
        weight=weight.reshape(len(weight), -1).astype(np.int64),
        bias=bias,
        shift=shift,
        shape=expected.shape,
        dtype=expected.dtype,
        axis=expected.ndim - 1 if is_linear else 1,
        weight_shape=weight.shape[1:],
        weight_type=weight.dtype,
        relu=relu,
    )
    rows = accumulators.saturate(accumulators.round_half_up(accumulators.accumulators))
    is_exact = np.array_equal(accumulators.from_channel_rows(rows), expected)
    return accumulators if is_exact else None


def _is_convolution(op_type: str) -> bool:
    """Whether a channel of the integer operator sums over windows of the inputs of its group."""
    form = find_integer_op_by_name(op_type)
    return form is not None and form.width_axes is not None and form.width_axes.is_grouped


def _get_shift(attributes: Mapping[str, object]) -> int | None:
    """Return the right shift of a layer's sums, log2(scale_x * scale_w / scale_o).

    None if it is not an integer, or if one of the scales is missing or not positive.
    """
    scale_x, scale_w, scale_o = (
        float(attributes.get(key, 0))  # type: ignore[arg-type]
        for key in ("scale_x", "scale_w", "scale_o")
    )
    if min(scale_x, scale_w, scale_o) <= 0:
        return None
    shift = math.log2(scale_x * scale_w / scale_o)
    return int(shift) if shift == int(shift) else None


def _extract_rows(x: np.ndarray) -> np.ndarray:
    """Return the input [..., term] of a fully connected layer as [1, term, position]."""
    return x.reshape(-1, x.shape[-1]).T[None]


def _extract_patches(
    x: np.ndarray, weight: np.ndarray, attributes: Mapping[str, object]
) -> np.ndarray:
    """Return the windows of a convolution's input [1, C, ...] as [group, term, position].

    The input is padded with zeros; pads, strides, dilations and group are in `attributes`. The
    terms are in the order of a channel's weights.
    """
    rank = weight.ndim - 2

    def get_integers(key: str, default: int, count: int) -> list[int]:
        """Return the integers of an attribute, or `count` times `default` if it is missing."""
        values = attributes.get(key) or [default] * count
        return [int(value) for value in values]  # type: ignore[attr-defined]

    pads, strides = get_integers("pads", 0, 2 * rank), get_integers("strides", 1, rank)
    dilations = get_integers("dilations", 1, rank)
    groups = int(attributes.get("group") or 1)  # type: ignore[call-overload]
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], spans, axis=tuple(range(1, rank + 1)))
    steps = (slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))
    windows = windows[steps]  # [C, position..., kernel...]
    order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
    windows = windows.transpose(order)  # [C, kernel..., position...]
    positions = math.prod(windows.shape[1 + rank :])
    return np.ascontiguousarray(windows).reshape(groups, -1, positions)
