"""What the float model gives at the layers that are refined: some of its outputs, or sums over them.

A layer's bias is moved by the mean error of those outputs that lie inside what the integer tensor can hold, and that no
Relu behind the layer cuts off. Of the float model this takes one sum per channel, and one bit per output: whether it
lies inside. The outputs themselves are 32 times that, and are kept only where a method looks at them. Of large maps a
fixed sample of positions is compared.

Noise of mean zero has another mean behind a Relu, which cuts one sign off: more comes out than should. In a deep net of
much noise that adds up. With `means` the bias makes the mean behind the Relu right instead, of all outputs that are
held. That takes something from the outputs that are active, and these may be all that counts: it is the second choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...graph import ir
from ...ops import is_relu
from ...plan import Affine, Plan
from ...run.memory import release
from ...run.runners import FloatRunner

__all__ = ["Target", "targets"]

_PRIOR = 32.0  # elements of no error that are mixed into every mean, so that a rare channel moves little
_FEWEST = 1024  # positions that a layer is compared at, however little memory there is


@dataclass(frozen=True)
class _Inside:
    """The float values that lie inside what an integer tensor can hold.

    bits : uint8 [positions, channels / 8], a bit for each value. total : float64 [channels], the sum of those inside.
    """

    bits: np.ndarray
    total: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, q: Affine | None, floor: float | np.ndarray, means: bool) -> _Inside:
        """Return those of `values` [positions, channels] that a tensor held as `q` can hold, and above `floor`.

        q : None where the layer writes floats, which hold everything. means : those below `floor` as well, as `floor`.
        """
        low, high = -math.inf, math.inf
        if q is not None:
            low, high = (q.low - q.zero_point) / q.scale, (q.high - q.zero_point) / q.scale
        if means:
            values = np.maximum(values, floor)
            inside = (values > low) & (values < high)
        else:
            inside = (values > np.maximum(low, floor)) & (values < high)
        total = np.einsum("nc,nc->c", np.where(inside, values, 0), inside, dtype=np.float64)
        return cls(np.packbits(inside, axis=1), total)

    @classmethod
    def joined(cls, parts: Sequence[_Inside]) -> _Inside:
        """Return what several pieces of the positions are together."""
        return cls(np.concatenate([part.bits for part in parts]), np.sum([part.total for part in parts], axis=0))


@dataclass(frozen=True)
class Target:
    """What the float model gives at some positions of a layer.

    index : of the positions, among all of all samples; shape : of the layer's output with its channels on axis `axis`.
    q : how the integers are held, None where the layer writes floats. inside : which values these can hold, and their
    sums. values : float32 [positions, channels], empty where no method looks at them. floor : the value at which a Relu
    behind the layer cuts off, for all or as `values`. means : whether means are compared behind it.
    """

    index: np.ndarray
    shape: tuple[int, ...]
    axis: int
    q: Affine | None
    inside: _Inside
    values: np.ndarray
    floor: float | np.ndarray
    means: bool = False

    @property
    def first_half(self) -> np.ndarray:
        """Whether each position lies in the first half of the samples."""
        return np.asarray(self.index < int(self.index[len(self.index) // 2]))

    def floor_at(self, places: np.ndarray) -> np.ndarray:
        """Return the floor at some of the positions, [places, channels]."""
        return np.broadcast_to(self.floor, self.values.shape)[places]

    def behind(self, node: ir.Node, other: Target, array: np.ndarray, q: Affine) -> Target:
        """Return what `node` must give so that its sum with the integers `array` is that with the `other` floats."""
        real = (self.of(array).astype(np.float32) - np.float32(q.zero_point)) / np.float32(q.scale)
        (reader,) = (use.node for use in node.outputs[0].uses())
        floor = -real if _floor(reader) == 0 else -math.inf
        values = self.values + other.values - real
        return replace(self, values=values, floor=floor, inside=_Inside.of(values, self.q, floor, self.means))

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the same positions of the integers `array`, [positions, channels]."""
        return _at(array.reshape(self.shape), self.axis, self.index)

    def mean_error(self, array: np.ndarray) -> np.ndarray:
        """Return by how much the layer's integers `array` are too large: the mean over the values inside.

        float64 [channels], in real units. Of means behind a Relu: over those that it lets through, which a bias moves.
        """
        have = self.of(array)
        inside = np.unpackbits(self.inside.bits, axis=1, count=have.shape[1])
        count = moved = inside.sum(axis=0, dtype=np.int64)
        if self.means:
            floor = self.floor if self.q is None else self.floor * self.q.scale + self.q.zero_point
            moved = np.count_nonzero((have > floor) & inside.view(bool), axis=0)
            have = np.maximum(have, np.float32(floor))
        total = np.einsum("nc,nc->c", have, inside, dtype=np.float64)  # exact: integers far below 2**53
        if self.q is not None:
            total = (total - self.q.zero_point * count) / self.q.scale
        return np.asarray((total - self.inside.total) / (moved + _PRIOR))


@dataclass
class _Seen:
    """What was seen of one layer so far, piece by piece; shape : of its output for all samples."""

    shape: tuple[int, ...]
    places: list[np.ndarray] = field(default_factory=list)
    inside: list[_Inside] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)


def targets(
    layers: Mapping[str, ir.Node],
    plan: Plan,
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]],
    budget: int,
    looked_at: Collection[str],
    alike: bool,
    means: Collection[str] = (),
) -> dict[str, Target]:
    """Run `pieces` and compare every layer at as many positions as their values fit an eighth of the budget.

    layers : {tensor: a layer that has an output of that shape}. looked_at : those whose values are kept. alike :
    tensors of one size at the same positions. means : those whose means are compared behind a Relu.
    """
    axes = {name: 1 if node.op_type == "Conv" else -1 for name, node in layers.items()}
    floors = {name: _floor(node) for name, node in layers.items()}
    channels = sum((ir.shape(node.outputs[0]) or (1, 1))[axes[name]] or 1 for name, node in layers.items())
    most = max(_FEWEST, budget // 8 // (4 * channels)) if channels else 0
    rng = np.random.default_rng(0)
    found: dict[str, _Seen] = {}
    for number, feed in enumerate(pieces):
        share = max(1, most * (number + 1) // len(pieces) - most * number // len(pieces))
        for name, array, _ in runner.run(feed, layers):
            seen = found.setdefault(name, _Seen((0, *array.shape[1:])))
            before, there = (math.prod(shape) // array.shape[axes[name]] for shape in (seen.shape, array.shape))
            rng = np.random.default_rng((number, there)) if alike else rng
            index = np.sort(rng.permutation(there)[:share]) if there > share else np.arange(there)
            values = _at(array, axes[name], index)
            seen.shape = (seen.shape[0] + array.shape[0], *array.shape[1:])
            seen.places.append(index + before)
            seen.inside.append(_Inside.of(values, plan.tensors.get(name), floors[name], name in means))
            seen.values.append(values if name in looked_at else values[:0].copy())
        release()
    return {
        name: Target(
            np.concatenate(seen.places), seen.shape, axes[name], plan.tensors.get(name), _Inside.joined(seen.inside),
            np.concatenate(seen.values), floors[name], name in means,
        )
        for name, seen in found.items()
    }  # fmt: skip


def _at(array: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return [positions, channels] at some of all positions; the channels lie on axis `axis`."""
    last = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(last[np.unravel_index(index, last.shape[:-1])])


def _floor(node: ir.Node) -> float:
    """Return the value at which a Relu behind the layer cuts off, -inf where there is none."""
    reader = ir.sole_consumer(node.outputs[0])
    return 0.0 if reader is not None and is_relu(reader) else -math.inf
