"""Detect images with swapped channels, or height and width, from the outputs of the first layer.

With normalization per channel, images with swapped channels have the same moments as correct ones,
and transposed images always do. If a BatchNormalization follows the first Conv, it stores the mean
m and variance v of each of the Conv's channels over the training data. For each order of the
channels, and for height and width exchanged, the outputs for the given images have means a and
variances b, at a distance of

    d = mean over channels of (a - m)^2 / v + log(b / v)^2

The images are reported as wrong if another layout is closer by a factor of 1.5. If the given layout
is not closer than all others by that factor, the check is undecided, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ...ir import ir
from .sources import FloatSource, TensorSource

__all__ = ["InputLayoutCheck", "check_input_layout"]

_MIN_SAMPLES = 48  # samples required to judge the layout
_MIN_DISTANCE_RATIO = 1.5  # of distances of two layouts that is significant
_MIN_VARIANCE = 1e-12
_COLOR_CHANNELS = 3


@dataclass(frozen=True)
class InputLayoutCheck:
    """Result of the layout check of an input.

    Parameters
    ----------
    kind
        Kind of the problem, or "".
    measured, limit
        The measured value and its limit, as text.
    undecided
        Note on why the layout could not be decided, or "".
    """

    kind: str = ""
    measured: str = ""
    limit: str = ""
    undecided: str = ""


def check_input_layout(
    base: TensorSource, name: str, feeds: Mapping[str, np.ndarray]
) -> InputLayoutCheck:
    """Check whether the images [N, 3, H, W] of input `name` have swapped channels, or H and W.

    The outputs of the first Conv are compared with the statistics of the BatchNormalization after
    it, for the given layout and all others. The result is empty if the layout is right, for inputs
    of another shape and if `base` is no float model. It is undecided with fewer than _MIN_SAMPLES
    images, without such a BatchNormalization, or if another layout is almost as close. Otherwise it
    has the kind of the mistake.
    """
    images = feeds.get(name)
    if not isinstance(base, FloatSource) or images is None:
        return InputLayoutCheck()
    if images.ndim != 4 or images.shape[1] != _COLOR_CHANNELS:
        return InputLayoutCheck()
    note = f"'{name}': cannot decide whether channels, or height and width, are swapped"
    norm = _first_batch_norm(base.graph, name)
    if norm is None:
        return InputLayoutCheck(
            undecided=f"{note}: no BatchNormalization after the first Conv has usual moments"
        )
    if len(images) < _MIN_SAMPLES:
        return InputLayoutCheck(
            undecided=f"{note} from {len(images)} samples; use at least {_MIN_SAMPLES}"
        )
    distances = {
        layout: _distance(base, norm, {**feeds, name: variant})
        for layout, variant in _layout_variants(images)
    }
    given_distance = distances.pop("")
    best = min(distances, key=distances.__getitem__)
    measured = (
        f"the distance of the first layer's outputs to the training data is {given_distance:.3g}, "
        f"with {best} {distances[best]:.3g}"
    )
    if given_distance > _MIN_DISTANCE_RATIO * distances[best]:
        kind = "input height and width swapped" if best == _TRANSPOSED else "input channels swapped"
        return InputLayoutCheck(kind, measured, f"less than {_MIN_DISTANCE_RATIO:g} times")
    max_distance = _MIN_DISTANCE_RATIO * given_distance
    similar = [layout for layout, distance in distances.items() if distance < max_distance]
    if similar:
        return InputLayoutCheck(
            undecided=f"'{name}': cannot distinguish it from {', '.join(similar)}: {measured}"
        )
    return InputLayoutCheck()


_TRANSPOSED = "height and width exchanged"


def _layout_variants(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (description, images) of the given layout, with "", and then of all others.

    Others are the permutations of the three channels, and height and width exchanged if these are
    equal.
    """
    yield "", array
    for order in permutations(range(_COLOR_CHANNELS)):
        if order != tuple(range(_COLOR_CHANNELS)):
            yield f"channels {list(order)}", np.ascontiguousarray(array[:, list(order)])
    if array.shape[2] == array.shape[3]:
        yield _TRANSPOSED, np.ascontiguousarray(array.swapaxes(2, 3))


def _first_batch_norm(graph: ir.Model, name: str) -> ir.Node | None:
    """Return the BatchNormalization after the first Conv of the model's input `name`.

    None unless the Conv is the sole consumer of the input and the BatchNormalization that of the
    Conv, with a constant variance.
    """
    value = next((v for v in graph.graph.inputs if v.name == name), None)
    conv = None if value is None else ir.sole_consumer(value)
    if conv is None or conv.op_type != "Conv":
        return None
    norm = ir.sole_consumer(conv.outputs[0])
    if norm is None or norm.op_type != "BatchNormalization":
        return None
    return None if ir.const_value(norm.inputs[4]) is None else norm


def _distance(base: FloatSource, norm: ir.Node, feeds: Mapping[str, np.ndarray]) -> float:
    """Run `feeds` and compute how far the inputs of `norm` are from the training data.

    Squared difference of means (in training deviations) plus squared log ratio of variances, from
    the statistics that the BatchNormalization stores, averaged over the channels.
    """
    ((_, outputs, _),) = base.session.tensors(feeds, [ir.input_name(norm)])
    train_mean = np.asarray(ir.const_value(norm.inputs[3]), np.float64)
    train_variance = np.asarray(ir.const_value(norm.inputs[4]), np.float64)
    train_variance = np.maximum(train_variance, _MIN_VARIANCE)
    outputs = outputs.astype(np.float64)
    mean = outputs.mean(axis=(0, 2, 3))
    variance = np.maximum(outputs.var(axis=(0, 2, 3)), _MIN_VARIANCE)
    mean_error = np.square(mean - train_mean) / train_variance
    return float(np.mean(mean_error + np.square(np.log(variance / train_variance))))
