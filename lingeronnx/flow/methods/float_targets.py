"""What the float model gives at the layers that are refined.

Some of its outputs, or sums over them.
A layer's bias is moved by the mean error of those outputs that lie inside what the integer tensor
can hold, and that no Relu behind the layer cuts off. Where a LeakyRelu or PRelu alone reads the
layer, it is the mean error behind that which is taken out: an error below 0 counts for its slope
only. (Taken out in front, as much on either side of 0, it would leave the positive values too small
where a layer's outputs have shrunk, and more so layer after layer.) Of the float model this takes
two sums per channel, and one bit per output: whether it lies inside. The outputs themselves are 32
times that, and are kept only where a method looks at them. Of large maps a fixed sample of
positions is compared.

Noise of mean zero has another mean behind a Relu, which cuts one sign off: more comes out than
should. In a deep net of much noise that adds up. With `means` the bias makes the mean behind the
Relu right instead, of all outputs that are held. That takes something from the outputs that are
active, and these may be all that counts: it is the second choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...graph import ir
from ...ops import is_relu_like
from ...ops.functions.leaky_relu import get_negative_slopes as slopes_of
from ...plan import Affine, Plan
from ...run.memory import trim_memory
from ...run.runners import FloatRunner

__all__ = ["LayerTarget", "collect_layer_targets"]

_PRIOR_COUNT = (
    32.0  # elements of no error that are mixed into every mean, so that a rare channel moves little
)
_MIN_POSITIONS = 1024  # positions that a layer is compared at, however little memory there is


@dataclass(frozen=True)
class _RepresentableMask:
    """The float values that lie inside what an integer tensor can hold.

    bits : uint8 [positions, channels / 8], a bit for each value. total : float64 [channels], the
    sum of those inside, behind what reads them. moves : float64 [channels], by how much that sum
    grows with them all.
    """

    bits: np.ndarray
    total: np.ndarray
    moves: np.ndarray

    @classmethod
    def from_values(
        cls,
        values: np.ndarray,
        qparams: Affine | None,
        floor: float | np.ndarray,
        means: bool = False,
        slopes: np.ndarray | None = None,
    ) -> _RepresentableMask:
        """Return those of `values` [positions, channels] that a tensor held as `qparams` can hold, and above `floor`.

        qparams : None where the layer writes floats, which hold everything. means : those below
        `floor` as well, as `floor`. slopes : of a LeakyRelu behind, [1] or [channels].
        """
        low, high = -math.inf, math.inf
        if qparams is not None:
            low, high = (
                (qparams.low - qparams.zero_point) / qparams.scale,
                (qparams.high - qparams.zero_point) / qparams.scale,
            )
        values = np.maximum(values, floor) if means else values
        inside = (values > (low if means else np.maximum(low, floor))) & (values < high)
        behind = (
            values
            if slopes is None
            else np.where(values < 0, slopes.astype(values.dtype) * values, values)
        )
        total = np.einsum("nc,nc->c", np.where(inside, behind, 0), inside, dtype=np.float64)
        moves = inside.sum(axis=0, dtype=np.float64)
        if slopes is not None:
            moves -= (1 - slopes) * (inside & (values < 0)).sum(axis=0)
        return cls(np.packbits(inside, axis=1), total, moves)

    @classmethod
    def joined(cls, parts: Sequence[_RepresentableMask]) -> _RepresentableMask:
        """Return what several pieces of the positions are together."""
        totals, moves = (
            np.sum([getattr(part, name) for part in parts], axis=0) for name in ("total", "moves")
        )
        return cls(np.concatenate([part.bits for part in parts]), totals, moves)


@dataclass(frozen=True)
class LayerTarget:
    """What the float model gives at some positions of a layer.

    index : of the positions, among all of all samples; shape : of the layer's output with its
    channels on axis `axis`. q : how the integers are held, None where the layer writes floats.
    inside : which values these can hold, and their sums. values : float32 [positions, channels],
    empty where no method looks at them. floor : the value at which a Relu behind the layer cuts
    off, for all or as `values`. means : whether means are compared behind it. slopes : of a
    LeakyRelu or PRelu that alone reads the layer, float64 [1] or [channels]; None where there is
    none.
    """

    index: np.ndarray
    shape: tuple[int, ...]
    axis: int
    q: Affine | None
    representable: _RepresentableMask
    values: np.ndarray
    relu_threshold: float | np.ndarray
    match_means: bool = False
    slopes: np.ndarray | None = None

    @property
    def in_first_half(self) -> np.ndarray:
        """Whether each position lies in the first half of the samples."""
        return np.asarray(self.index < int(self.index[len(self.index) // 2]))

    def relu_threshold_at(self, places: np.ndarray) -> np.ndarray:
        """Return the floor at some of the positions, [places, channels]."""
        return np.broadcast_to(self.relu_threshold, self.values.shape)[places]

    def compensate_summand(
        self, node: ir.Node, other: LayerTarget, array: np.ndarray, qparams: Affine
    ) -> LayerTarget:
        """Return what `node` must give so that its sum with the integers `array` is that with the `other` floats."""
        real = (
            self.gather(array).astype(np.float32) - np.float32(qparams.zero_point)
        ) / np.float32(qparams.scale)
        (reader,) = (use.node for use in node.outputs[0].uses())
        floor = -real if _relu_threshold(reader) == 0 else -math.inf
        values = self.values + other.values - real
        return replace(
            self,
            values=values,
            relu_threshold=floor,
            representable=_RepresentableMask.from_values(values, self.q, floor, self.match_means),
        )

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return the same positions of the integers `array`, [positions, channels]."""
        return _gather_positions(array.reshape(self.shape), self.axis, self.index)

    def mean_error(self, array: np.ndarray) -> np.ndarray:
        """Return by how much the layer's integers `array` are too large.

        The mean over the values inside.
        float64 [channels], in real units. Of means behind a Relu: over those that it lets through,
        which a bias moves.
        """
        have = self.gather(array)
        inside = np.unpackbits(self.representable.bits, axis=1, count=have.shape[1])
        zero, scale = (0, 1.0) if self.q is None else (self.q.zero_point, self.q.scale)
        moves = self.representable.moves
        if self.match_means:
            floor = self.relu_threshold * scale + zero
            moves = np.count_nonzero((have > floor) & inside.view(bool), axis=0)
            have = np.maximum(have, np.float32(floor))
        total = np.einsum(
            "nc,nc->c", have, inside, dtype=np.float64
        )  # exact: integers far below 2**53
        total -= zero * inside.sum(axis=0, dtype=np.int64)
        if self.slopes is not None:
            below = np.einsum("nc,nc->c", np.minimum(have.astype(np.float64) - zero, 0), inside)
            total -= (1 - self.slopes) * below
        return np.asarray((total / scale - self.representable.total) / (moves + _PRIOR_COUNT))


@dataclass
class _PartialTarget:
    """What was seen of one layer so far, piece by piece; shape : of its output for all samples."""

    shape: tuple[int, ...]
    positions: list[np.ndarray] = field(default_factory=list)
    inside: list[_RepresentableMask] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)


def collect_layer_targets(
    layers: Mapping[str, ir.Node],
    plan: Plan,
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]],
    budget: int,
    keep_values_for: Collection[str],
    share_positions: bool,
    match_means_for: Collection[str] = (),
) -> dict[str, LayerTarget]:
    """Run `pieces` and compare every layer at as many positions as their values fit an eighth of the budget.

    layers : {tensor: a layer that has an output of that shape}. looked_at : those whose values are
    kept. alike : tensors of one size at the same positions. means : those whose means are compared
    behind a Relu.
    """
    axes = {name: 1 if node.op_type == "Conv" else -1 for name, node in layers.items()}
    floors = {name: _relu_threshold(node) for name, node in layers.items()}
    steep = {name: _leaky_slopes(node) for name, node in layers.items()}
    channels = sum(
        (ir.get_shape(node.outputs[0]) or (1, 1))[axes[name]] or 1 for name, node in layers.items()
    )
    most = max(_MIN_POSITIONS, budget // 8 // (4 * channels)) if channels else 0
    rng = np.random.default_rng(0)
    by_layer: dict[str, _PartialTarget] = {}
    for number, feed in enumerate(pieces):
        share = max(1, most * (number + 1) // len(pieces) - most * number // len(pieces))
        for name, array, _ in runner.run(feed, layers):
            layer = by_layer.setdefault(name, _PartialTarget((0, *array.shape[1:])))
            before, there = (
                math.prod(shape) // array.shape[axes[name]] for shape in (layer.shape, array.shape)
            )
            rng = np.random.default_rng((number, there)) if share_positions else rng
            index = np.sort(rng.permutation(there)[:share]) if there > share else np.arange(there)
            values = _gather_positions(array, axes[name], index)
            layer.shape = (layer.shape[0] + array.shape[0], *array.shape[1:])
            layer.positions.append(index + before)
            layer.inside.append(
                _RepresentableMask.from_values(
                    values,
                    plan.tensors.get(name),
                    floors[name],
                    name in match_means_for,
                    steep[name],
                )
            )
            layer.values.append(values if name in keep_values_for else values[:0].copy())
        trim_memory()
    return {
        name: LayerTarget(
            index=np.concatenate(layer.positions),
            shape=layer.shape,
            axis=axes[name],
            q=plan.tensors.get(name),
            representable=_RepresentableMask.joined(layer.inside),
            values=np.concatenate(layer.values),
            relu_threshold=floors[name],
            match_means=name in match_means_for,
            slopes=steep[name],
        )
        for name, layer in by_layer.items()
    }


def _gather_positions(array: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return [positions, channels] at some of all positions; the channels lie on axis `axis`."""
    last = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(last[np.unravel_index(index, last.shape[:-1])])


def _relu_threshold(node: ir.Node) -> float:
    """Return the value at which a Relu behind the layer cuts off, -inf where there is none."""
    reader = ir.sole_consumer(node.outputs[0])
    return 0.0 if reader is not None and is_relu_like(reader) else -math.inf


def _leaky_slopes(node: ir.Node) -> np.ndarray | None:
    """Return the slopes of a LeakyRelu or PRelu that alone reads the layer, None where there is none."""
    reader = ir.sole_consumer(node.outputs[0])
    if reader is None or reader.domain or reader.op_type not in ("LeakyRelu", "PRelu"):
        return None
    slopes = slopes_of(reader)
    return slopes if slopes is not None and (slopes >= 0).all() else None
