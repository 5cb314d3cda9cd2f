"""Known faults of devices, packers and host programs, each with what the first bad tensor would hold if it were that.

A suspect is right where the device's tensor holds exactly its array: several can be, the plainest
comes first. Those that only rearrange our own result come before those that compute a layer again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..targets import PLATFORMS
from .accumulators import extract_accumulators
from .layer_subgraph import LayerSubgraph
from .simulation import SampleRun, SimulatedGraph

__all__ = ["FaultHypothesis", "iterate_hypotheses"]

LayerChange = tuple[str, str, LayerSubgraph]  # a fault's kind and text, and the layer that has it

_SHIFT_ERRORS = (1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(frozen=True)
class FaultHypothesis:
    """A fault, and the integers it would give.

    kind : one word or two. text : what would be wrong, and where to look.
    """

    kind: str
    text: str
    array: np.ndarray


def iterate_hypotheses(
    graph: SimulatedGraph,
    layer: LayerSubgraph | None,
    tensor: str,
    ours: SampleRun,
    others: Mapping[str, SampleRun],
    have: np.ndarray | None,
) -> Iterator[FaultHypothesis]:
    """Yield what could be wrong with `tensor`, the likeliest first.

    layer : what computes it, where that can be computed again. others : runs of the samples before
    and after, by what to call them. have : the device's integers in the shape of ours, where they
    are known.
    """
    want = ours.integers[tensor]
    if layer is not None:
        yield from _iterate_relu_faults(layer, want)
        yield from _compute_changes(
            _iterate_state_faults(graph, layer, ours, others, graph.quantized_inputs), want
        )
    yield from _iterate_rearrangements(want)
    yield from _iterate_stale_values(graph, tensor, ours, others)
    if layer is None:
        return
    if have is not None and (sums := extract_accumulators(layer)) is not None:
        for kind, text, array in itertools.chain(
            sums.iterate_arithmetic_variants(), sums.iterate_corrupted_weights(have)
        ):
            yield FaultHypothesis(kind, text, array)
    inner = [name for name in layer.inputs if name not in graph.quantized_inputs]
    changes = (
        _iterate_shift_faults(layer),
        _iterate_input_faults(graph, layer, ours),
        _iterate_state_faults(graph, layer, ours, others, inner),
        _iterate_constant_faults(layer),
        _iterate_operand_faults(layer),
        _iterate_window_faults(layer),
        _iterate_wrong_chips(graph, layer),
    )
    yield from _compute_changes(itertools.chain.from_iterable(changes), want)


def _compute_changes(changes: Iterable[LayerChange], want: np.ndarray) -> Iterator[FaultHypothesis]:
    """Compute changed layers; those that can not be computed, or change nothing, are left out."""
    for kind, text, layer in changes:
        result = layer.compute()
        if result is not None and result.size == want.size and not np.array_equal(result, want):
            yield FaultHypothesis(kind, text, result)


# ---- our own result, differently laid out ------------------------------------------------------------------------


def _iterate_axis_orders(array: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield the orders of axes that put the values of `array` elsewhere, simple ones first."""
    axes = tuple(range(array.ndim))
    for order in sorted(
        itertools.permutations(axes),
        key=lambda o: sum(a != b for a, b in zip(o, axes, strict=True)),
    ):
        other = np.ascontiguousarray(array.transpose(order))
        if array.ndim <= 4 and not np.array_equal(other.reshape(-1), array.reshape(-1)):
            yield order, other.reshape(array.shape)
            yield order, _reinterpret_layout(array, order)


def _reinterpret_layout(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return the values of `array` read as if they lay in `order`."""
    sizes = [array.shape[axis] for axis in order]
    return np.ascontiguousarray(array.reshape(sizes).transpose(np.argsort(order))).reshape(
        array.shape
    )


def _describe_layout(order: tuple[int, ...]) -> str:
    if order in ((0, 2, 3, 1), (0, 3, 1, 2)):
        return f"channels last (NHWC) and channels first (NCHW) are confused: axes {list(order)}"
    return f"axes are in the order {list(order)}"


def _iterate_rearrangements(want: np.ndarray) -> Iterator[FaultHypothesis]:
    for order, array in _iterate_axis_orders(want):
        kind = "layout" if len(order) > 2 and order[1] != 1 else "transposed"
        yield FaultHypothesis(
            kind, f"the values are ours in another layout: {_describe_layout(order)}", array
        )
    for axis in range(want.ndim):
        if want.shape[axis] > 1:
            yield FaultHypothesis(
                "order", f"the values are ours in reverse along axis {axis}", np.flip(want, axis)
            )
    yield FaultHypothesis(
        "not computed",
        "all values are 0: the layer did not run, or its result was cleared",
        np.zeros_like(want),
    )
    if want.dtype.itemsize > 1:
        yield FaultHypothesis("byte order", "the bytes of each value are swapped", want.byteswap())
    yield FaultHypothesis(
        "sign",
        "values are read as unsigned, 128 too much or too little",
        want ^ np.iinfo(want.dtype).min,
    )
    flat = want.reshape(-1)
    for by in (1, -1, 2, -2, 4, -4, 8, -8, 16, -16):
        if abs(by) < flat.size:
            text = f"the values are ours moved by {by} places: an address that is off"
            yield FaultHypothesis("offset", text, np.roll(flat, by).reshape(want.shape))


def _iterate_stale_values(
    graph: SimulatedGraph, tensor: str, ours: SampleRun, others: Mapping[str, SampleRun]
) -> Iterator[FaultHypothesis]:
    want = ours.integers[tensor]
    for label, run in others.items():
        if tensor in run.integers:
            text = (
                f"the values are ours of the {label}: a stale buffer, or samples in another order"
            )
            yield FaultHypothesis("stale", text, run.integers[tensor])
    for name, array in ours.integers.items():
        if (
            name != tensor
            and array.size == want.size
            and array.dtype == want.dtype
            and name in graph.device
        ):
            text = (
                f"it holds the values of '{name}': not computed, or overwritten; look at the "
                "packer's memory plan"
            )
            yield FaultHypothesis("overwritten", text, array.reshape(want.shape))


# ---- the layer computed in another way ---------------------------------------------------------------------------


def _iterate_relu_faults(layer: LayerSubgraph, want: np.ndarray) -> Iterator[FaultHypothesis]:
    for index, kind in enumerate(layer.operators):
        if kind != "Relu":
            continue
        other = layer.without(index)
        array = layer.inputs.get(layer.nodes[index].input[0]) if other is None else other.compute()
        if array is not None and array.size == want.size:
            yield FaultHypothesis("relu", f"the Relu {layer.nodes[index].name} is missing", array)
    if (want < 0).any():
        yield FaultHypothesis(
            "relu", "negative values are 0: a Relu that the graph has not", np.maximum(want, 0)
        )


def _iterate_shift_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield every scale of every node, a power of two off; the output's first."""
    for index in reversed(range(len(layer.nodes))):
        scales = {
            k: float(v)
            for k, v in layer.attributes(index).items()
            if k.startswith("scale") and isinstance(v, int | float)
        }
        for name in sorted(scales, key=lambda key: key != "scale_o"):
            for by in _SHIFT_ERRORS:
                scale = scales[name] * 2.0**by
                text = (
                    f"{name} of {layer.nodes[index].name} is {scale:g} there, {scales[name]:g} in "
                    "the graph: "
                    f"the shift is {abs(by)} bit{'s' * (abs(by) > 1)} off"
                )
                yield "shift", text, layer.with_attribute(index, name, scale)


def _iterate_input_faults(
    graph: SimulatedGraph, layer: LayerSubgraph, ours: SampleRun
) -> Iterator[LayerChange]:
    """Yield wrong ways to feed a graph input."""
    for name, integers in layer.inputs.items():
        entry = graph.quantized_inputs.get(name)
        if entry is None:
            continue
        who, scale = f"input '{graph.find_source_input(name, ours)}'", ours.scales.get(name)
        limits = np.iinfo(integers.dtype)
        if scale is not None and entry in ours.floats:
            x = ours.floats[entry].astype(np.float64)
            for by in _SHIFT_ERRORS:
                array = np.clip(np.floor(x * scale * 2.0**by + 0.5), limits.min, limits.max).astype(
                    integers.dtype
                )
                text = (
                    f"{who} was quantized with scale {scale * 2.0**by:g}; the graph takes {scale:g}"
                )
                yield "input scale", text, layer.with_input(name, array)
            for text, way in (
                ("cut off towards zero", np.trunc),
                ("rounded down", np.floor),
                ("rounded half to even", np.rint),
            ):
                array = np.clip(way(x * scale), limits.min, limits.max).astype(integers.dtype)
                yield (
                    "input rounding",
                    f"{who} was {text}, not rounded half up",
                    layer.with_input(name, array),
                )
            wrapped = np.floor(x * scale + 0.5).astype(np.int64).astype(integers.dtype)
            yield (
                "input saturation",
                f"{who} wraps around where it should saturate",
                layer.with_input(name, wrapped),
            )
        for order, array in _iterate_axis_orders(integers):
            yield (
                "input layout",
                f"{who} was fed in another layout: {_describe_layout(order)}",
                layer.with_input(name, array),
            )
        for axis in range(1, integers.ndim):
            if integers.shape[axis] > 1:
                text = f"{who} was fed in reverse along axis {axis}" + (
                    " (RGB for BGR?)" if axis == 1 else ""
                )
                yield "input order", text, layer.with_input(name, np.flip(integers, axis))
        text = f"{who} was fed unsigned, 128 too much or too little"
        yield "input sign", text, layer.with_input(name, integers ^ limits.min)


def _iterate_state_faults(
    graph: SimulatedGraph,
    layer: LayerSubgraph,
    ours: SampleRun,
    others: Mapping[str, SampleRun],
    names: Collection[str],
) -> Iterator[LayerChange]:
    """Yield inputs of the layer, those in `names`, that are stale or empty."""
    for name, array in layer.inputs.items():
        if name not in names:
            continue
        who = (
            f"input '{graph.find_source_input(name, ours)}'"
            if name in graph.quantized_inputs
            else f"'{name}'"
        )
        for label, run in others.items():
            if name in run.integers and run.integers[name].shape == array.shape:
                text = (
                    f"{layer.nodes[-1].name} read {who} as it was for the {label}: a stale "
                    "state or buffer"
                )
                yield "stale", text, layer.with_input(name, run.integers[name])
        text = (
            f"{layer.nodes[-1].name} read zeros as {who}: a state that is not fed back, or a "
            "buffer not filled"
        )
        yield "stale", text, layer.with_input(name, np.zeros_like(array))


def _iterate_constant_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    for index, kind in enumerate(layer.operators):
        node = layer.nodes[index]
        names = [name for name in node.input if name in layer.constants]
        weights = [name for name in names if layer.constants[name].ndim > 1]
        for name in names:
            array = layer.constants[name]
            if array.ndim == 1 and kind != "Reshape" and array.any():
                yield (
                    "bias",
                    f"the bias of {node.name} is missing",
                    layer.with_constant(name, np.zeros_like(array)),
                )
        for name in weights:
            array = layer.constants[name]
            for order, other in _iterate_axis_orders(array):
                yield (
                    "weight layout",
                    f"the weights of {node.name} are read with {_describe_layout(order)}",
                    (layer.with_constant(name, other)),
                )
            for axes in ((2, 3), (0,), (1,)):
                if array.ndim > max(axes) and any(array.shape[a] > 1 for a in axes):
                    yield (
                        "weight layout",
                        f"the weights of {node.name} are in reverse along axes {list(axes)}",
                        (layer.with_constant(name, np.flip(array, axes))),
                    )
            zeros = np.zeros_like(array)
            yield (
                "weight",
                f"the weights of {node.name} are all 0: not loaded",
                layer.with_constant(name, zeros),
            )


def _iterate_operand_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    for index, node in enumerate(layer.nodes):
        moving = list(layer.iterate_activations(index))
        for one, two in itertools.combinations(dict.fromkeys(moving), 2):
            swapped = {one: two, two: one}
            names = [swapped.get(name, name) for name in node.input]
            yield (
                "operands",
                f"the operands '{one}' and '{two}' of {node.name} are exchanged",
                (layer.with_inputs(index, names)),
            )
    for name, array in layer.inputs.items():
        for order, other in _iterate_axis_orders(array):
            text = (
                f"{layer.nodes[0].name} read '{name}' in another layout: {_describe_layout(order)}"
            )
            yield "layout", text, layer.with_input(name, other)


def _iterate_window_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield pads and dilations other than the node's."""
    for index, node in enumerate(layer.nodes):
        attributes = layer.attributes(index)
        pads = attributes.get("pads")
        if isinstance(pads, list) and any(pads):
            half = len(pads) // 2
            both = [sum(pair) for pair in zip(pads[:half], pads[half:], strict=True)]
            ways = (
                ("begins for ends", pads[half:] + pads[:half]),
                ("axes exchanged", pads[::-1]),
                ("all at the begin", [*both, *[0] * half]),
                ("all at the end", [*[0] * half, *both]),
            )
            for text, other in ways:
                if other != pads:
                    yield (
                        "pads",
                        f"the pads of {node.name} are {other} ({text}), {pads} in the graph",
                        (layer.with_attribute(index, "pads", other)),
                    )
        if attributes.get("dilations") not in (None, [1, 1], [1]):
            size = len(attributes["dilations"])  # type: ignore[arg-type]
            yield (
                "dilation",
                f"the dilation of {node.name} is ignored",
                (layer.with_attribute(index, "dilations", [1] * size)),
            )


def _iterate_wrong_chips(graph: SimulatedGraph, layer: LayerSubgraph) -> Iterator[LayerChange]:
    for target in PLATFORMS:
        if target.has_packer and target != graph.target:
            yield (
                "chip",
                f"this is what {target.name} computes: packed or built for another chip",
                layer.for_platform(target.name),
            )
