"""Whether pictures are turned, or their channels in another order.

Told by what the first layer answers.
Normalised for each channel, pictures of swapped channels have the moments of right ones, and turned
ones have them always. Where a BatchNormalization stands behind the first Conv, it holds the mean m
and variance v of each of the Conv's channels over the training data. Of each order of the channels,
and of height and width exchanged, the answers to the pictures at hand have means a and variances b,
and lie

    d = mean over channels of (a - m)^2 / v + log(b / v)^2

from there. The pictures are called wrong where another form is nearer by half; where no form is
nearer than the given one by half of that, nothing can be told, and this is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from ...graph import ir
from .sources import FloatSource, TensorSource

__all__ = ["InputLayoutCheck", "check_input_layout"]

_MIN_SAMPLES = 48  # samples below which nothing is told
_MIN_DISTANCE_RATIO = 1.5  # times
_COLOR_CHANNELS = 3


@dataclass(frozen=True)
class InputLayoutCheck:
    """What the first layer says of an input.

    kind : what is wrong, "" for nothing. measured, limit : in words. open : what cannot be told, ""
    where all can.
    """

    kind: str = ""
    measured: str = ""
    limit: str = ""
    undecided: str = ""


def check_input_layout(
    base: TensorSource, name: str, feeds: Mapping[str, np.ndarray]
) -> InputLayoutCheck:
    """Return what the first layer says of the pictures [N, 3, H, W] that input `name` has in `feeds`."""
    array = feeds.get(name)
    if (
        not isinstance(base, FloatSource)
        or array is None
        or array.ndim != 4
        or array.shape[1] != _COLOR_CHANNELS
    ):
        return InputLayoutCheck()
    told = "whether channels, or height and width, are swapped cannot be told"
    norm = _first_batch_norm(base.graph, name)
    if norm is None:
        return InputLayoutCheck(
            undecided=(
                f"'{name}': {told}: no BatchNormalization behind the first Conv holds what is usual"
            )
        )
    if len(array) < _MIN_SAMPLES:
        return InputLayoutCheck(
            undecided=f"'{name}': {told} from {len(array)} samples; {_MIN_SAMPLES} may do"
        )
    found = {
        form: _distance(base, norm, {**feeds, name: turned})
        for form, turned in _layout_variants(array)
    }
    plain = found.pop("")
    best = min(found, key=lambda form: found[form])
    numbers = (
        f"the first layer's answers lie {plain:.3g} from the training data's, "
        f"{found[best]:.3g} with {best}"
    )
    if plain > _MIN_DISTANCE_RATIO * found[best]:
        kind = "input height and width swapped" if best == _TRANSPOSED else "input channels swapped"
        return InputLayoutCheck(kind, numbers, f"less than {_MIN_DISTANCE_RATIO:g} times")
    near = [form for form, distance in found.items() if distance < _MIN_DISTANCE_RATIO * plain]
    if near:
        return InputLayoutCheck(
            undecided=f"'{name}': cannot be told from {', '.join(near)}: {numbers}"
        )
    return InputLayoutCheck()


_TRANSPOSED = "height and width exchanged"


def _layout_variants(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (what is done, the pictures so), the given ones first."""
    yield "", array
    for order in permutations(range(_COLOR_CHANNELS)):
        if order != tuple(range(_COLOR_CHANNELS)):
            yield f"channels {list(order)}", np.ascontiguousarray(array[:, list(order)])
    if array.shape[2] == array.shape[3]:
        yield _TRANSPOSED, np.ascontiguousarray(array.swapaxes(2, 3))


def _first_batch_norm(graph: ir.Model, name: str) -> ir.Node | None:
    """Return the BatchNormalization behind the one Conv that reads input `name`.

    None where there is none.
    """
    value = next((v for v in graph.graph.inputs if v.name == name), None)
    conv = None if value is None else ir.sole_consumer(value)
    norm = None if conv is None or conv.op_type != "Conv" else ir.sole_consumer(conv.outputs[0])
    held = (
        norm is not None
        and norm.op_type == "BatchNormalization"
        and ir.const_value(norm.inputs[4]) is not None
    )
    return norm if held else None


def _distance(base: FloatSource, norm: ir.Node, feeds: Mapping[str, np.ndarray]) -> float:
    ((_, answers, _),) = base.session.tensors(feeds, [ir.input_name(norm)])
    mean, variance = (
        np.asarray(ir.const_value(norm.inputs[index]), np.float64) for index in (3, 4)
    )
    wide, least = answers.astype(np.float64), 1e-12
    means, variances = wide.mean(axis=(0, 2, 3)), wide.var(axis=(0, 2, 3))
    apart = np.square(means - mean) / np.maximum(variance, least)
    return float(
        np.mean(
            apart + np.square(np.log(np.maximum(variances, least) / np.maximum(variance, least)))
        )
    )
