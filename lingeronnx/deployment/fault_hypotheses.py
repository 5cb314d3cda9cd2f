"""Hypotheses of known faults in devices, packers and host programs, and the tensors they produce.

A hypothesis is confirmed if the device's tensor equals its array exactly. Several can be confirmed;
the simplest comes first. Faults that only rearrange the simulator's result come before those that
compute the layer again.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from ..targets import PLATFORMS
from .accumulators import extract_accumulators
from .layer_subgraph import LayerSubgraph
from .simulation import SampleRun, SimulatedGraph

__all__ = ["FaultHypothesis", "iterate_hypotheses"]

LayerChange = tuple[str, str, LayerSubgraph]  # kind, text, and the layer with the fault

_SHIFT_ERRORS = (1, -1, 2, -2, 3, -3, 4, -4)


@dataclass(frozen=True)
class FaultHypothesis:
    """A possible fault, and the integers that it would produce.

    kind : category in one or two words. text : description, and where to look.
    """

    kind: str
    text: str
    array: np.ndarray


def iterate_hypotheses(
    graph: SimulatedGraph,
    layer: LayerSubgraph | None,
    tensor: str,
    run: SampleRun,
    neighbors: Mapping[str, SampleRun],
    actual: np.ndarray | None,
) -> Iterator[FaultHypothesis]:
    """Yield possible faults of `tensor`, the likeliest first.

    Parameters
    ----------
    graph
        The integer graph in the simulator.
    layer
        The subgraph that computes `tensor`, or None if it cannot be computed again.
    tensor
        Name of the first tensor that differs.
    run
        The simulator's tensors for the sample.
    neighbors
        Runs of the previous and next sample, by label.
    actual
        The device's integers in the simulator's shape, or None if they are not known; used only for
        single corrupted weights, and not compared here.
    """
    expected = run.integers[tensor]
    if layer is not None:
        yield from _iterate_relu_faults(layer, expected)
        input_faults = _iterate_state_faults(graph, layer, run, neighbors, graph.quantized_inputs)
        yield from _compute_changes(input_faults, expected)
    yield from _iterate_rearrangements(expected)
    yield from _iterate_stale_values(graph, tensor, run, neighbors)
    if layer is None:
        return
    if actual is not None and (accumulators := extract_accumulators(layer)) is not None:
        arithmetic = accumulators.iterate_arithmetic_variants()
        weights = accumulators.iterate_corrupted_weights(actual)
        for kind, text, array in itertools.chain(arithmetic, weights):
            yield FaultHypothesis(kind, text, array)
    inner_inputs = [name for name in layer.inputs if name not in graph.quantized_inputs]
    changes = (
        _iterate_shift_faults(layer),
        _iterate_input_faults(graph, layer, run),
        _iterate_state_faults(graph, layer, run, neighbors, inner_inputs),
        _iterate_constant_faults(layer),
        _iterate_operand_faults(layer),
        _iterate_window_faults(layer),
        _iterate_wrong_chips(graph, layer),
    )
    yield from _compute_changes(itertools.chain.from_iterable(changes), expected)


def _compute_changes(
    changes: Iterable[LayerChange], expected: np.ndarray
) -> Iterator[FaultHypothesis]:
    """Compute each changed layer, given as (kind, text, layer), and yield it as a hypothesis.

    Skipped are layers that cannot be computed, have another number of elements, or produce the
    `expected` result.
    """
    for kind, text, layer in changes:
        result = layer.compute()
        if (
            result is not None
            and result.size == expected.size
            and not np.array_equal(result, expected)
        ):
            yield FaultHypothesis(kind, text, result)


# ---- the simulator's result in another layout ----------------------------------------------------


def _iterate_axis_orders(array: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield axis orders that change the flat order of `array`, with the array stored in that order.

    Only up to four axes. Orders that move the fewest axes come first. For each, both directions are
    yielded: the array transposed, and the array misread as if it were transposed; both in the shape
    of `array`.
    """
    axes = tuple(range(array.ndim))

    def count_moved_axes(order: tuple[int, ...]) -> int:
        """Return the number of axes that the order moves to another position."""
        return sum(a != b for a, b in zip(order, axes, strict=True))

    for order in sorted(itertools.permutations(axes), key=count_moved_axes):
        transposed = np.ascontiguousarray(array.transpose(order))
        if array.ndim <= 4 and not np.array_equal(transposed.reshape(-1), array.reshape(-1)):
            yield order, transposed.reshape(array.shape)
            yield order, _reinterpret_layout(array, order)


def _reinterpret_layout(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Return the values of `array` read as if they were stored in the axis order `order`.

    The result has the shape of `array`.
    """
    stored = array.reshape([array.shape[axis] for axis in order])
    return np.ascontiguousarray(stored.transpose(np.argsort(order))).reshape(array.shape)


def _describe_layout(order: tuple[int, ...]) -> str:
    """Describe an axis order as text, by name if it confuses NHWC and NCHW."""
    if order in ((0, 2, 3, 1), (0, 3, 1, 2)):
        return f"channels last (NHWC) and channels first (NCHW) are confused: axes {list(order)}"
    return f"axes are in the order {list(order)}"


def _iterate_rearrangements(expected: np.ndarray) -> Iterator[FaultHypothesis]:
    """Yield hypotheses that only rearrange or reinterpret the expected integers.

    They are transposed, reversed along an axis, all zero, byte-swapped (not int8), read as
    unsigned, or cyclically shifted by up to 16 elements.
    """
    for order, array in _iterate_axis_orders(expected):
        kind = "layout" if len(order) > 2 and order[1] != 1 else "transposed"
        yield FaultHypothesis(
            kind, f"the values are in another layout: {_describe_layout(order)}", array
        )
    for axis in range(expected.ndim):
        if expected.shape[axis] > 1:
            yield FaultHypothesis(
                "order", f"the values are reversed along axis {axis}", np.flip(expected, axis)
            )
    yield FaultHypothesis(
        "not computed",
        "all values are 0: the layer did not run, or its result was cleared",
        np.zeros_like(expected),
    )
    if expected.dtype.itemsize > 1:
        yield FaultHypothesis(
            "byte order", "the bytes of each value are swapped", expected.byteswap()
        )
    yield FaultHypothesis(
        "sign",
        "values are read as unsigned, 128 too large or too small",
        expected ^ np.iinfo(expected.dtype).min,
    )
    flat = expected.reshape(-1)
    for offset in (1, -1, 2, -2, 4, -4, 8, -8, 16, -16):
        if abs(offset) < flat.size:
            text = f"the values are shifted by {offset} elements: a wrong address"
            yield FaultHypothesis("offset", text, np.roll(flat, offset).reshape(expected.shape))


def _iterate_stale_values(
    graph: SimulatedGraph, tensor: str, run: SampleRun, neighbors: Mapping[str, SampleRun]
) -> Iterator[FaultHypothesis]:
    """Yield hypotheses that the tensor has the values of another sample or of another tensor.

    `neighbors` has runs of other samples by a label for the text; `run` is that of this sample, of
    which all tensors of equal size and type are tried.
    """
    expected = run.integers[tensor]
    for label, neighbor in neighbors.items():
        if tensor in neighbor.integers:
            text = (
                f"the values are those of the {label}: a stale buffer, or samples in another order"
            )
            yield FaultHypothesis("stale", text, neighbor.integers[tensor])
    for name, array in run.integers.items():
        if (
            name != tensor
            and array.size == expected.size
            and array.dtype == expected.dtype
            and name in graph.device
        ):
            text = (
                f"it contains the values of '{name}': not computed, or overwritten; look at the "
                "packer's memory plan"
            )
            yield FaultHypothesis("overwritten", text, array.reshape(expected.shape))


# ---- the layer computed with a fault -------------------------------------------------------------


def _iterate_relu_faults(layer: LayerSubgraph, expected: np.ndarray) -> Iterator[FaultHypothesis]:
    """Yield the result without one of the layer's Relus, and with an additional Relu.

    The latter only if some expected values are negative. `expected` is the layer's right result.
    """
    for index, op_type in enumerate(layer.operators):
        if op_type != "Relu":
            continue
        without_relu = layer.without(index)
        array = (
            layer.inputs.get(layer.nodes[index].input[0])
            if without_relu is None
            else without_relu.compute()
        )
        if array is not None and array.size == expected.size:
            yield FaultHypothesis("relu", f"the Relu {layer.nodes[index].name} is missing", array)
    if (expected < 0).any():
        yield FaultHypothesis(
            "relu",
            "negative values are 0: a Relu that the graph does not have",
            np.maximum(expected, 0),
        )


def _iterate_shift_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with one scale of a node off by 1 to 4 bits, the last node first.

    Of a node the output scale (`scale_o`) comes first.
    """
    for index in reversed(range(len(layer.nodes))):
        scales = {
            name: float(value)
            for name, value in layer.attributes(index).items()
            if name.startswith("scale") and isinstance(value, int | float)
        }
        for name in sorted(scales, key=lambda key: key != "scale_o"):
            for bits in _SHIFT_ERRORS:
                scale = scales[name] * 2.0**bits
                text = (
                    f"{name} of {layer.nodes[index].name} is {scale:g} on the device, "
                    f"{scales[name]:g} in the graph: "
                    f"the shift is {abs(bits)} bit{'s' * (abs(bits) > 1)} off"
                )
                yield "shift", text, layer.with_attribute(index, name, scale)


def _iterate_input_faults(
    graph: SimulatedGraph, layer: LayerSubgraph, run: SampleRun
) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with a graph input that was quantized or laid out incorrectly.

    Only inputs of the layer that are quantized graph inputs are changed: quantization (if the real
    values are known), layout, order along an axis, sign.
    """
    for name, integers in layer.inputs.items():
        if name not in graph.quantized_inputs:
            continue
        subject, scale = f"input '{graph.find_source_input(name, run)}'", run.scales.get(name)
        real_values = run.floats.get(graph.quantized_inputs[name])
        if scale is not None and real_values is not None:
            yield from _iterate_quantization_faults(layer, name, subject, real_values, scale)
        for order, array in _iterate_axis_orders(integers):
            text = f"{subject} was fed in another layout: {_describe_layout(order)}"
            yield "input layout", text, layer.with_input(name, array)
        for axis in range(1, integers.ndim):
            if integers.shape[axis] > 1:
                hint = " (RGB for BGR?)" if axis == 1 else ""
                text = f"{subject} was fed in reverse along axis {axis}{hint}"
                yield "input order", text, layer.with_input(name, np.flip(integers, axis))
        text = f"{subject} was fed unsigned, 128 too large or too small"
        yield "input sign", text, layer.with_input(name, integers ^ np.iinfo(integers.dtype).min)


def _iterate_quantization_faults(
    layer: LayerSubgraph, name: str, subject: str, real_values: np.ndarray, scale: float
) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with input `name` quantized by wrong scale, rounding, saturation.

    `real_values` is the input before quantization, `scale` the right one in integer steps per unit,
    and `subject` names the input in the text. Wrong scales are off by 1 to 4 bits.
    """
    dtype = layer.inputs[name].dtype
    limits = np.iinfo(dtype)
    x = real_values.astype(np.float64)
    for bits in _SHIFT_ERRORS:
        wrong_scale = scale * 2.0**bits
        array = np.clip(np.floor(x * scale * 2.0**bits + 0.5), limits.min, limits.max).astype(dtype)
        text = f"{subject} was quantized with scale {wrong_scale:g}; the graph expects {scale:g}"
        yield "input scale", text, layer.with_input(name, array)
    for rounding, round_values in (
        ("truncated towards zero", np.trunc),
        ("rounded down", np.floor),
        ("rounded half to even", np.rint),
    ):
        array = np.clip(round_values(x * scale), limits.min, limits.max).astype(dtype)
        text = f"{subject} was {rounding}, not rounded half up"
        yield "input rounding", text, layer.with_input(name, array)
    wrapped = np.floor(x * scale + 0.5).astype(np.int64).astype(dtype)
    text = f"{subject} wraps around instead of saturating"
    yield "input saturation", text, layer.with_input(name, wrapped)


def _iterate_state_faults(
    graph: SimulatedGraph,
    layer: LayerSubgraph,
    run: SampleRun,
    neighbors: Mapping[str, SampleRun],
    names: Collection[str],
) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with one of its inputs in `names` as in another sample, or zero.

    This is how a stale or unfilled state or buffer looks. `neighbors` has runs of other samples by
    a label for the text.
    """
    reader = layer.nodes[-1].name
    for name, array in layer.inputs.items():
        if name not in names:
            continue
        subject = f"'{name}'"
        if name in graph.quantized_inputs:
            subject = f"input '{graph.find_source_input(name, run)}'"
        for label, neighbor in neighbors.items():
            if name in neighbor.integers and neighbor.integers[name].shape == array.shape:
                text = f"{reader} read {subject} as it was for the {label}: a stale state or buffer"
                yield "stale", text, layer.with_input(name, neighbor.integers[name])
        text = (
            f"{reader} read zeros as {subject}: a state that is not fed back, or a buffer that was "
            "not filled"
        )
        yield "stale", text, layer.with_input(name, np.zeros_like(array))


def _iterate_constant_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) without a bias, or with weights in another layout or zero.

    A bias is a constant of one axis that is not 0, weights are those of more axes.
    """
    for index, op_type in enumerate(layer.operators):
        node = layer.nodes[index]
        names = [name for name in node.input if name in layer.constants]
        for name in names:
            array = layer.constants[name]
            if array.ndim == 1 and op_type != "Reshape" and array.any():
                zeros = np.zeros_like(array)
                yield (
                    "bias",
                    f"the bias of {node.name} is missing",
                    layer.with_constant(name, zeros),
                )
        for name in names:
            if layer.constants[name].ndim > 1:
                yield from _iterate_weight_faults(layer, node, name)


def _iterate_weight_faults(
    layer: LayerSubgraph, node: onnx.NodeProto, name: str
) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with weight `name` of `node` in another layout, reversed or zero.

    Reversed are both kernel axes together, the output channels, or the input channels.
    """
    array = layer.constants[name]
    for order, transposed in _iterate_axis_orders(array):
        text = f"the weights of {node.name} are read with {_describe_layout(order)}"
        yield "weight layout", text, layer.with_constant(name, transposed)
    for axes in ((2, 3), (0,), (1,)):
        if array.ndim > max(axes) and any(array.shape[axis] > 1 for axis in axes):
            text = f"the weights of {node.name} are in reverse along axes {list(axes)}"
            yield "weight layout", text, layer.with_constant(name, np.flip(array, axes))
    text = f"the weights of {node.name} are all 0: not loaded"
    yield "weight", text, layer.with_constant(name, np.zeros_like(array))


def _iterate_operand_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with two operands exchanged, or an input in another layout.

    Operands are distinct inputs of the node that are not constant.
    """
    for index, node in enumerate(layer.nodes):
        operands = dict.fromkeys(layer.iterate_activations(index))
        for first, second in itertools.combinations(operands, 2):
            exchanged = {first: second, second: first}
            names = [exchanged.get(name, name) for name in node.input]
            text = f"the operands '{first}' and '{second}' of {node.name} are exchanged"
            yield "operands", text, layer.with_inputs(index, names)
    for name, array in layer.inputs.items():
        for order, transposed in _iterate_axis_orders(array):
            text = (
                f"{layer.nodes[0].name} read '{name}' in another layout: {_describe_layout(order)}"
            )
            yield "layout", text, layer.with_input(name, transposed)


def _iterate_window_faults(layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with the pads of a node rearranged, or its dilation ignored.

    Four arrangements of pads: begins for ends, axes exchanged, all at the begin or at the end.
    """
    for index, node in enumerate(layer.nodes):
        attributes = layer.attributes(index)
        pads = attributes.get("pads")
        if isinstance(pads, list) and any(pads):
            half = len(pads) // 2
            totals = [sum(pair) for pair in zip(pads[:half], pads[half:], strict=True)]
            variants = (
                ("begins for ends", pads[half:] + pads[:half]),
                ("axes exchanged", pads[::-1]),
                ("all at the begin", [*totals, *[0] * half]),
                ("all at the end", [*[0] * half, *totals]),
            )
            for label, wrong_pads in variants:
                if wrong_pads != pads:
                    text = (
                        f"the pads of {node.name} are {wrong_pads} ({label}), {pads} in the graph"
                    )
                    yield "pads", text, layer.with_attribute(index, "pads", wrong_pads)
        if attributes.get("dilations") not in (None, [1, 1], [1]):
            rank = len(attributes["dilations"])  # type: ignore[arg-type]
            text = f"the dilation of {node.name} is ignored"
            yield "dilation", text, layer.with_attribute(index, "dilations", [1] * rank)


def _iterate_wrong_chips(graph: SimulatedGraph, layer: LayerSubgraph) -> Iterator[LayerChange]:
    """Yield (kind, text, layer) with the arithmetic of every other chip that has a packer."""
    for target in PLATFORMS:
        if target.has_packer and target != graph.target:
            yield (
                "chip",
                f"this is what {target.name} computes: packed or built for another chip",
                layer.for_platform(target.name),
            )
