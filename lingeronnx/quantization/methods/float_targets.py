"""Collect the float model's outputs of the layers that are refined, and compare integers with them.

The bias of a layer is corrected by the mean error of those outputs that the integer tensor can
represent and that no Relu after the layer cuts off. If the layer's only consumer is a LeakyRelu or
PRelu, it is the mean error after that: an error below 0 counts only by its slope. (Corrected before
the activation, equally on both sides of 0, the positive values would be too small if a layer's
outputs have shrunk, and more so from layer to layer.) Other activation functions, such as SiLU, can
be treated alike (`activation_curves`), which is a second choice: it gains 7 dB in YOLOv8, but text
recognition with more noise loses by it. This needs two sums per channel of the float model, and one
bit per output: whether it is representable. The outputs themselves take 32 times the memory, and
are stored only if a method needs them. Large feature maps are compared at a fixed sample of
positions.

Noise of mean zero has another mean after a Relu, which removes one sign: the mean increases. In a
deep model with much noise this adds up. With `match_means` the bias corrects the mean after the
Relu instead, over all representable outputs. This worsens the active outputs, which may be all that
matters, and so is the second choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine, Plan
from ...operators.clamp.lowering import get_negative_slopes
from ...operators.lowerings import is_relu_like
from ...runtime.memory import trim_memory
from ...runtime.runners import FloatRunner
from .activation_curves import ActivationCurve

__all__ = ["LayerTarget", "collect_layer_targets", "has_relu"]

# Elements without error that are added to every mean, so that a rarely active channel changes
# little.
_PRIOR_COUNT = 32.0
_MIN_POSITIONS = 1024  # minimum number of compared positions, regardless of the memory budget


class _RepresentableMask(NamedTuple):
    """The float values that an integer tensor can represent.

    Attributes
    ----------
    bits
        uint8 [positions, channels / 8], one bit per value.
    total
        float64 [channels]: sum of the representable values, after the activation if there is one.
    sensitivity
        float64 [channels]: derivative of that sum by a common shift of all values.
    """

    bits: np.ndarray
    total: np.ndarray
    sensitivity: np.ndarray

    @classmethod
    def from_values(
        cls,
        values: np.ndarray,
        qparams: Affine | None,
        threshold: float | np.ndarray,
        match_means: bool = False,
        slopes: np.ndarray | None = None,
        curve: ActivationCurve | None = None,
    ) -> _RepresentableMask:
        """Select the float values of a layer that an integer tensor with `qparams` can represent.

        Values on the bounds, and those that a Relu after the layer cuts off, are excluded. The sum
        of the selected values is kept, too.

        Parameters
        ----------
        values
            Float values [positions, channels].
        qparams
            Parameters of the integer tensor; None if the layer writes floats.
        threshold
            Values of at most this are cut off by a Relu; -inf without one.
        match_means
            Whether values below `threshold` count as `threshold` instead of being excluded.
        slopes
            Negative slopes of a LeakyRelu after the layer, [1] or [channels].
        curve
            Another activation function after the layer.
        """
        low, high = -math.inf, math.inf
        if qparams is not None:
            low, high = (
                (qparams.low - qparams.zero_point) / qparams.scale,
                (qparams.high - qparams.zero_point) / qparams.scale,
            )
        if match_means:
            values = np.maximum(values, threshold)
            mask = (values > low) & (values < high)
        else:
            mask = (values > np.maximum(low, threshold)) & (values < high)
        if curve is not None:
            total, sensitivity = curve.sum_values(values, mask)
            return cls(np.packbits(mask, axis=1), total, sensitivity)
        activated = values
        if slopes is not None:
            activated = np.where(values < 0, slopes.astype(values.dtype) * values, values)
        total = np.einsum("nc,nc->c", np.where(mask, activated, 0), mask, dtype=np.float64)
        sensitivity = mask.sum(axis=0, dtype=np.float64)
        if slopes is not None:
            sensitivity -= (1 - slopes) * (mask & (values < 0)).sum(axis=0)
        return cls(np.packbits(mask, axis=1), total, sensitivity)

    @classmethod
    def concatenate(cls, masks: Sequence[_RepresentableMask]) -> _RepresentableMask:
        """Return the masks of several batches as one: positions concatenated, sums added."""
        return cls(
            np.concatenate([mask.bits for mask in masks]),
            np.sum([mask.total for mask in masks], axis=0),
            np.sum([mask.sensitivity for mask in masks], axis=0),
        )


@dataclass(frozen=True)
class LayerTarget:
    """Float outputs of a layer at some positions.

    Attributes
    ----------
    index
        Indices of the positions among those of all samples.
    shape, axis
        Shape of the layer's output for all samples, and its channel axis.
    qparams
        Parameters of the integer output; None if the layer writes floats.
    representable
        The values that the integers can represent.
    values
        float32 [positions, channels]; empty if no method needs them.
    relu_threshold
        Threshold of a Relu after the layer, a scalar or of the shape of `values`.
    match_means
        Whether means are compared after that Relu.
    slopes
        Negative slopes of a LeakyRelu or PRelu that is the only consumer, float64 [1] or
        [channels], or None.
    curve
        Another activation function that is the only consumer, or None.
    """

    index: np.ndarray
    shape: tuple[int, ...]
    axis: int
    qparams: Affine | None
    representable: _RepresentableMask
    values: np.ndarray
    relu_threshold: float | np.ndarray
    match_means: bool = False
    slopes: np.ndarray | None = None
    curve: ActivationCurve | None = None

    @property
    def in_first_half(self) -> np.ndarray:
        """Whether each position lies before the middle one of the positions, bool [positions]."""
        return np.asarray(self.index < int(self.index[len(self.index) // 2]))

    def relu_threshold_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the Relu threshold at some of the positions, [len(positions), channels].

        Values below it are cut off; -inf without a Relu. `positions` index those of this target.
        """
        thresholds: np.ndarray = np.broadcast_to(self.relu_threshold, self.values.shape)[positions]
        return thresholds

    def compensate_summand(
        self, node: ir.Node, other: LayerTarget, array: np.ndarray, qparams: Affine
    ) -> LayerTarget:
        """Return the target that also compensates the error of the other summand of an Add.

        With it, the sum of the layer's output and the integers `array` matches the float sum.

        Parameters
        ----------
        node
            The layer, whose only consumer is an Add.
        other
            Float values of the other summand, at the same positions.
        array
            Its integers, as a complete tensor.
        qparams
            Their parameters.
        """
        summand = (
            self.gather(array).astype(np.float32) - np.float32(qparams.zero_point)
        ) / np.float32(qparams.scale)
        (consumer,) = (use.node for use in node.outputs[0].uses())
        threshold = -summand if _relu_threshold(consumer) == 0 else -math.inf
        values = self.values + other.values - summand
        return replace(
            self,
            values=values,
            relu_threshold=threshold,
            curve=None,
            representable=_RepresentableMask.from_values(
                values, self.qparams, threshold, self.match_means
            ),
        )

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return a complete tensor `array` at the target's positions: [positions, channels]."""
        return _gather_positions(array.reshape(self.shape), self.axis, self.index)

    def mean_error(self, array: np.ndarray) -> np.ndarray:
        """Return the mean error per channel of the layer's integers `array` to the float model.

        Only values count that the integers can represent. If means are compared after a Relu, the
        mean is over the values that pass it, which the bias affects.

        Returns
        -------
        numpy.ndarray
            float64 [channels], in float units; positive if the integers are too large. It is drawn
            towards 0 for channels with few such values.
        """
        actual = self.gather(array)
        mask = np.unpackbits(self.representable.bits, axis=1, count=actual.shape[1])
        if self.curve is not None:
            error = self.curve.sum_integers(actual, mask) - self.representable.total
            return np.asarray(error / (self.representable.sensitivity + _PRIOR_COUNT))
        zero, scale = 0, 1.0
        if self.qparams is not None:
            zero, scale = self.qparams.zero_point, self.qparams.scale
        sensitivity = self.representable.sensitivity
        if self.match_means:
            threshold = self.relu_threshold * scale + zero
            sensitivity = np.count_nonzero((actual > threshold) & mask.view(bool), axis=0)
            actual = np.maximum(actual, np.float32(threshold))
        # The sum is exact: integers far below 2**53.
        total = np.einsum("nc,nc->c", actual, mask, dtype=np.float64)
        total -= zero * mask.sum(axis=0, dtype=np.int64)
        if self.slopes is not None:
            negative = np.einsum("nc,nc->c", np.minimum(actual.astype(np.float64) - zero, 0), mask)
            total -= (1 - self.slopes) * negative
        error = total / scale - self.representable.total
        return np.asarray(error / (sensitivity + _PRIOR_COUNT))


@dataclass
class _PartialTarget:
    """Data of one layer collected so far, one item per batch; `shape` is that of its output."""

    shape: tuple[int, ...]
    positions: list[np.ndarray] = field(default_factory=list)
    masks: list[_RepresentableMask] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)


def collect_layer_targets(
    layers: Mapping[str, ir.Node],
    plan: Plan,
    runner: FloatRunner,
    batches: Sequence[Mapping[str, np.ndarray]],
    budget: int,
    keep_values_for: Collection[str],
    share_positions: bool,
    match_means_for: Collection[str] = (),
    curves: Mapping[str, ActivationCurve] = MappingProxyType({}),
) -> dict[str, LayerTarget]:
    """Run the float model and return {tensor: its float values at some positions, as a target}.

    Each batch contributes an equal number of positions, a random sample if it has more.

    Parameters
    ----------
    layers
        {tensor: a layer with an output of that shape}.
    plan
        Parameters of the integer tensors.
    runner
        Runner of the float model.
    batches
        Calibration samples.
    budget
        Memory budget in bytes; the float32 values of all compared positions of all layers fit in
        an eighth of it, except that at least 1024 positions are compared.
    keep_values_for
        Tensors whose float values are stored in the target; the others have only sums.
    share_positions
        Whether tensors of equal size are sampled at the same positions.
    match_means_for
        Tensors whose means are compared after a Relu.
    curves
        {tensor: activation function that its means are compared after}.
    """
    axes = {name: 1 if node.op_type == "Conv" else -1 for name, node in layers.items()}
    thresholds = {name: _relu_threshold(node) for name, node in layers.items()}
    slopes = {name: _leaky_slopes(node) for name, node in layers.items()}
    max_positions = _max_positions(layers, axes, budget)
    rng = np.random.default_rng(0)
    partial_targets: dict[str, _PartialTarget] = {}
    for batch_index, feed in enumerate(batches):
        batch_end = max_positions * (batch_index + 1) // len(batches)
        batch_positions = max(1, batch_end - max_positions * batch_index // len(batches))
        for name, array, _ in runner.run(feed, layers):
            layer = partial_targets.setdefault(name, _PartialTarget((0, *array.shape[1:])))
            channels = array.shape[axes[name]]
            previous = math.prod(layer.shape) // channels
            available = math.prod(array.shape) // channels
            if share_positions:
                rng = np.random.default_rng((batch_index, available))
            index = np.arange(available)
            if available > batch_positions:
                index = np.sort(rng.permutation(available)[:batch_positions])
            values = _gather_positions(array, axes[name], index)
            layer.shape = (layer.shape[0] + array.shape[0], *array.shape[1:])
            layer.positions.append(index + previous)
            mask = _RepresentableMask.from_values(
                values,
                plan.tensors.get(name),
                thresholds[name],
                name in match_means_for,
                slopes[name],
                curves.get(name),
            )
            layer.masks.append(mask)
            layer.values.append(values if name in keep_values_for else values[:0].copy())
    trim_memory()
    return {
        name: LayerTarget(
            index=np.concatenate(layer.positions),
            shape=layer.shape,
            axis=axes[name],
            qparams=plan.tensors.get(name),
            representable=_RepresentableMask.concatenate(layer.masks),
            values=np.concatenate(layer.values),
            relu_threshold=thresholds[name],
            match_means=name in match_means_for,
            slopes=slopes[name],
            curve=curves.get(name),
        )
        for name, layer in partial_targets.items()
    }


def _max_positions(layers: Mapping[str, ir.Node], axes: Mapping[str, int], budget: int) -> int:
    """Count the positions whose float32 values, of all `layers`, fit an eighth of `budget` bytes.

    At least 1024; 0 without layers. `axes` are the channel axes by tensor.
    """
    channels = 0
    for name, node in layers.items():
        shape = ir.get_shape(node.outputs[0]) or (1, 1)
        channels += shape[axes[name]] or 1
    return max(_MIN_POSITIONS, budget // 8 // (4 * channels)) if channels else 0


def _gather_positions(array: np.ndarray, axis: int, index: np.ndarray) -> np.ndarray:
    """Return the values of `array` at some of its positions, [positions, channels].

    A position is an index of all axes but the channels.

    Parameters
    ----------
    axis
        Channel axis of `array`.
    index
        Flat indices of the positions.
    """
    channels_last = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(channels_last[np.unravel_index(index, channels_last.shape[:-1])])


def _relu_threshold(node: ir.Node) -> float:
    """Return 0.0 if the only consumer of the layer `node` cuts off negative values, else -inf."""
    consumer = ir.sole_consumer(node.outputs[0])
    return 0.0 if consumer is not None and is_relu_like(consumer) else -math.inf


def has_relu(node: ir.Node) -> bool:
    """Whether the only consumer of the layer `node` is a Relu, or a Clip from 0 on."""
    return _relu_threshold(node) == 0


def _leaky_slopes(node: ir.Node) -> np.ndarray | None:
    """Return the slopes of a LeakyRelu or PRelu that is the only consumer of a layer, or None.

    None too for slopes that are computed or negative. The result is float64 [1] or [channels].
    """
    consumer = ir.sole_consumer(node.outputs[0])
    if consumer is None or consumer.domain or consumer.op_type not in ("LeakyRelu", "PRelu"):
        return None
    slopes = get_negative_slopes(consumer)
    return slopes if slopes is not None and (slopes >= 0).all() else None
