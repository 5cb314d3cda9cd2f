"""What errors of a layer's weights do at the model's outputs.

Second moments of gradients, in place of those of inputs.
A change D of a layer's weights moves output j of sample s by ``<A_sj, D>``, with ``A_sj = sum_p g_p
(x_p - m)^T`` over the layer's positions p: x its inputs, m their mean (a change of that is the
bias's business), g the gradient of the output at the layer's own outputs. So errors that cancel
over a whole map, as an average pooling lets them, cost little, and those that all positions share
cost much; moments of the inputs position by position do not know that. The sum of ``<A, D>^2`` is
held as the Kronecker product of two second moments (Martens and Grosse 2015; for sums over shared
weights as Eschenhagen et al. 2023, "reduce", have it)

    H = E[A^T A] over inputs, [K, K],    G = E[A A^T] over outputs, [O, O]

for random mixtures of the outputs, some for each sample. Gradients are those of the float model,
reckoned backwards over the operators of convolutional nets; a layer with another operator behind it
has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph import ir, operators
from ...ops import is_relu_like
from ...run.runners import FloatRunner
from .receptive_fields import MAX_FAN_IN

__all__ = ["OutputMoments", "compute_output_moments"]

_PROJECTIONS_PER_SAMPLE = (
    3  # of the outputs, for each sample: eight gain nothing that is clear, and take longer
)
# share of what gradients say; the rest are the moments of the inputs themselves, and all outputs
# alike
_GRADIENT_WEIGHT = 0.9

_Arrays = Mapping[str, np.ndarray]
_Backward = Callable[[ir.Node, np.ndarray, _Arrays], dict[str, np.ndarray]]


@dataclass(frozen=True)
class OutputMoments:
    """Sums of squared gradients of a layer's weights.

    Of_inputs float64 [group, K, K], of_outputs [group, O, O].
    """

    of_inputs: np.ndarray
    of_outputs: np.ndarray

    @classmethod
    def from_gradients(cls, gradients: np.ndarray) -> OutputMoments:
        """Return those of `gradients` [group, n, O, K]."""
        group, count, outputs, fields = gradients.shape
        rows = gradients.reshape(group, count * outputs, fields)
        columns = gradients.transpose(0, 2, 1, 3).reshape(group, outputs, count * fields)
        return cls(_gram(rows.transpose(0, 2, 1)), _gram(columns))

    def __add__(self, other: OutputMoments) -> OutputMoments:
        return OutputMoments(self.of_inputs + other.of_inputs, self.of_outputs + other.of_outputs)

    def blend_input_moments(self, moments: np.ndarray) -> np.ndarray:
        """Return H [group, K, K] with a share of the `moments` of the inputs.

        Traces are 1, or 0 where nothing moves.
        Where no gradient is seen the moments stand alone.
        """
        own, other = _normalize_trace(moments), _normalize_trace(self.of_inputs)
        seen = np.trace(other, axis1=1, axis2=2)[:, None, None] > 0
        return np.where(seen, (1 - _GRADIENT_WEIGHT) * own + _GRADIENT_WEIGHT * other, own)

    @property
    def metric(self) -> np.ndarray:
        """G of all groups, [group * O, group * O], with a share of the unit matrix."""
        group, outputs = self.of_outputs.shape[:2]
        metric = np.zeros((group * outputs, group * outputs))
        unit = np.eye(outputs) / outputs
        for g, own in enumerate(_normalize_trace(self.of_outputs)):
            of = slice(g * outputs, (g + 1) * outputs)
            metric[of, of] = _GRADIENT_WEIGHT * own + (1 - _GRADIENT_WEIGHT) * unit
        return metric


def _normalize_trace(moments: np.ndarray) -> np.ndarray:
    """Return matrices of trace 1; zeros stay."""
    trace = np.trace(moments, axis1=1, axis2=2)[:, None, None]
    return np.asarray(np.divide(moments, trace, out=np.zeros_like(moments), where=trace > 0))


def _gram(array: np.ndarray) -> np.ndarray:
    return np.asarray(array @ array.transpose(0, 2, 1), np.float64)


def compute_output_moments(
    model: ir.Model,
    layers: Mapping[str, ir.Node],
    measured_tensors: Sequence[str],
    pieces: Iterable[_Arrays],
) -> dict[str, OutputMoments]:
    """Return the moments of `layers`, by their outputs, without those whose gradients are not known.

    measured_tensors : the tensors whose errors count, each against its own power. pieces : samples,
    on axis 0 of every tensor.
    """
    behind = _differentiable_tensors(model, measured_tensors)
    known = {
        name: node
        for name, node in layers.items()
        if name in behind and _fan_in(node) <= MAX_FAN_IN
    }
    if not known:
        return {}
    steps = [
        node
        for node in reversed(list(model.graph))
        if str(node.outputs[0].name) in behind and _backward_kind(node)
    ]
    runner, feeds = (
        FloatRunner(
            model,
            {
                *behind,
                *measured_tensors,
                *(name for node in steps for name in _data_input_names(node)),
            },
        ),
        [*pieces],
    )
    if not runner.has_batch_first({*behind, *measured_tensors}):
        return {}
    means, power = _input_means_and_powers(runner, known, measured_tensors, feeds)
    rng, moments = np.random.default_rng(0), dict[str, OutputMoments]()
    for feed in feeds:
        tensors = {**feed, **{name: array for name, array, _ in runner.run(feed)}}
        rows = {name: _im2col(node, tensors) - means[name] for name, node in known.items()}
        for _ in range(_PROJECTIONS_PER_SAMPLE):
            gradients = {
                name: rng.standard_normal(tensors[name].shape).astype(np.float32)
                / np.float32(math.sqrt(power[name]))
                for name in measured_tensors
                if power[name]
            }
            for node in steps:
                name = str(node.outputs[0].name)
                gradient = gradients.pop(name, None)
                if gradient is None:
                    continue
                if name in known:
                    found = OutputMoments.from_gradients(
                        _weight_gradients(node, gradient, rows[name])
                    )
                    moments[name] = moments[name] + found if name in moments else found
                for source, array in _BACKWARD[_backward_kind(node)](
                    node, gradient, tensors
                ).items():
                    gradients[source] = gradients[source] + array if source in gradients else array
    return moments


def _input_means_and_powers(
    runner: FloatRunner,
    layers: Mapping[str, ir.Node],
    wanted: Sequence[str],
    feeds: Sequence[_Arrays],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the mean inputs of each layer, [group, 1, K], and the summed squares of each tensor of `wanted`."""
    sums, counts, power = (
        dict[str, np.ndarray](),
        dict.fromkeys(layers, 0),
        dict.fromkeys(wanted, 0.0),
    )
    for feed in feeds:
        tensors = {**feed, **{name: array for name, array, _ in runner.run(feed)}}
        for name, node in layers.items():
            rows = _im2col(node, tensors)
            total = rows.sum(axis=(0, 2), dtype=np.float64)
            sums[name] = sums[name] + total if name in sums else total
            counts[name] += rows.shape[0] * rows.shape[2]
        for name in wanted:
            power[name] += float(np.square(tensors[name], dtype=np.float64).sum())
    return {
        name: (total / counts[name])[:, None].astype(np.float32) for name, total in sums.items()
    }, power


# ---- the graph -----------------------------------------------------------------------------------


def _differentiable_tensors(model: ir.Model, wanted: Sequence[str]) -> set[str]:
    """Return the tensors from which every way to one of `wanted` is known, these among them."""
    good, lost = set(wanted), set[str]()
    for node in reversed(list(model.graph)):  # all that read a tensor come before what writes it
        names = {str(value.name) for value in node.outputs}
        if names & lost or (names & good and not _backward_kind(node)):
            lost.update(str(value.name) for value in node.inputs if value is not None)
        elif names & good:
            good.update(_data_input_names(node))
    return good - lost


def _backward_kind(node: ir.Node) -> str:
    """Return which of the operators in `_BACKWARD` is reckoned for `node`, "" for none."""
    kind = (
        "Clip"
        if is_relu_like(node)
        else "Reshape"
        if node.op_type in operators.RESHAPING_OPS
        else node.op_type
    )
    if (
        node.domain not in ("", ir.FUNCTION_DOMAIN)
        or kind not in _BACKWARD
        or len(node.outputs) != 1
    ):
        return ""
    if kind in _WEIGHTED and ir.const_value(node.inputs[1]) is None:
        return ""
    if kind == "Add" and any(
        ir.get_shape(value) != ir.get_shape(node.outputs[0]) for value in _data_inputs(node)
    ):
        return ""
    pool = operators.POOL_KINDS.get(kind)
    if pool and (
        ir.get_attr(node, "ceil_mode", 0) or ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET"
    ):
        return ""
    return "" if kind == "AveragePool" and any(ir.get_attr(node, "pads", ())) else kind


def _data_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the data that a known node reads."""
    return [value for value in node.inputs if value is not None and ir.const_value(value) is None]


def _data_input_names(node: ir.Node) -> list[str]:
    return [str(value.name) for value in _data_inputs(node)]


def _weight_array(node: ir.Node) -> np.ndarray:
    return ir.require_const_value(node.inputs[1])


def _fan_in(node: ir.Node) -> int:
    return math.prod(_weight_array(node).shape[1:])


def _group_count(node: ir.Node) -> int:
    return int(ir.get_attr(node, "group", 1))


# ---- layers --------------------------------------------------------------------------------------


def _im2col(node: ir.Node, tensors: _Arrays) -> np.ndarray:
    """Return what each output of a layer reads, [samples, group, positions, K]."""
    source = tensors[ir.input_name(node)]
    if node.op_type == "Linear":
        return source.reshape(len(source), 1, -1, source.shape[-1])
    windows, group, rank = (
        _sliding_windows(node, source, _weight_array(node).shape[2:]),
        _group_count(node),
        source.ndim - 2,
    )
    apart = windows.reshape(len(source), group, -1, *windows.shape[2:])
    last = np.moveaxis(apart, 2, 2 + rank)
    return last.reshape(len(source), group, math.prod(windows.shape[2 : 2 + rank]), -1)


def _split_gradient_by_group(node: ir.Node, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient at a layer's outputs as [samples, group, outputs, positions]."""
    if node.op_type == "Linear":
        return gradient.reshape(len(gradient), 1, -1, gradient.shape[-1]).transpose(0, 1, 3, 2)
    group = _group_count(node)
    return gradient.reshape(len(gradient), group, gradient.shape[1] // group, -1)


def _weight_gradients(node: ir.Node, gradient: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the gradients of a layer's weights, [group, samples, O, K]."""
    return np.asarray((_split_gradient_by_group(node, gradient) @ rows).transpose(1, 0, 2, 3))


# ---- windows -------------------------------------------------------------------------------------


def _sliding_windows(
    node: ir.Node, source: np.ndarray, kernel: Sequence[int], fill: float = 0.0
) -> np.ndarray:
    """Return a view of `source`, padded with `fill`.

    [samples, channels, positions..., kernel...].
    """
    begin, end, strides, dilations = _window_attributes(node, len(kernel))
    sides = [(0, 0), (0, 0), *zip(begin, end, strict=True)]
    size = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, 2 + len(kernel)))
    view = np.lib.stride_tricks.sliding_window_view(
        np.pad(source, sides, constant_values=fill), size, axis=axes
    )
    return view[
        (slice(None), slice(None), *(slice(None, None, step) for step in (*strides, *dilations)))
    ]


def _col2im(node: ir.Node, windows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return sums [shape] of what `_sliding_windows` takes from each place."""
    rank = len(shape) - 2
    begin, end, strides, dilations = _window_attributes(node, rank)
    total: np.ndarray = np.zeros(
        (*shape[:2], *(b + n + e for b, n, e in zip(begin, shape[2:], end, strict=True))),
        windows.dtype,
    )
    positions, kernel = windows.shape[2 : 2 + rank], windows.shape[2 + rank :]
    for place in np.ndindex(*kernel):
        steps = zip(place, dilations, positions, strides, strict=True)
        at: tuple[Any, ...] = (
            ...,
            *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in steps),
        )
        total[at] += windows[(..., *place)]
    inside: tuple[Any, ...] = (
        ...,
        *(slice(b, b + n) for b, n in zip(begin, shape[2:], strict=True)),
    )
    return np.asarray(total[inside])


def _window_attributes(node: ir.Node, rank: int) -> tuple[Sequence[int], ...]:
    """Return padding in front and behind, strides and dilations."""
    pads = ir.get_attr(node, "pads", [0] * 2 * rank)
    return (
        pads[:rank],
        pads[rank:],
        ir.get_attr(node, "strides", [1] * rank),
        ir.get_attr(node, "dilations", [1] * rank),
    )


# ---- operators backwards -------------------------------------------------------------------------


def _conv_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    name, weight = ir.input_name(node), _weight_array(node)
    group = _group_count(node)
    parts = weight.reshape(group, len(weight) // group, -1).transpose(0, 2, 1)
    columns = (parts @ _split_gradient_by_group(node, gradient)).reshape(
        len(gradient), tensors[name].shape[1], math.prod(weight.shape[2:]), -1
    )
    windows = columns.transpose(0, 1, 3, 2).reshape(
        *columns.shape[:2], *gradient.shape[2:], *weight.shape[2:]
    )
    return {name: _col2im(node, windows, tensors[name].shape)}


def _linear_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    return {ir.input_name(node): gradient @ _weight_array(node)}


def _average_pool_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    name, kernel = ir.input_name(node), ir.get_attr(node, "kernel_shape")
    share = (gradient / np.float32(math.prod(kernel))).reshape(*gradient.shape, *[1] * len(kernel))
    return {
        name: _col2im(node, np.broadcast_to(share, (*gradient.shape, *kernel)), tensors[name].shape)
    }


def _max_pool_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    name, kernel = ir.input_name(node), ir.get_attr(node, "kernel_shape")
    ones = [1] * len(kernel)
    taken = _sliding_windows(node, tensors[name], kernel, -math.inf) == tensors[
        ir.output_name(node)
    ].reshape(*gradient.shape, *ones)
    return {
        name: _col2im(node, gradient.reshape(*gradient.shape, *ones) * taken, tensors[name].shape)
    }


def _clip_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    name = ir.input_name(node)
    return {name: gradient * (tensors[ir.output_name(node)] == tensors[name])}


def _add_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    names = _data_input_names(node)
    return {name: gradient * np.float32(names.count(name)) for name in names}


def _reshape_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    name = ir.input_name(node)
    return {name: gradient.reshape(tensors[name].shape)}


_WEIGHTED = ("Conv", "Linear")
_BACKWARD: Mapping[str, _Backward] = {
    "Conv": _conv_backward,
    "Linear": _linear_backward,
    "AveragePool": _average_pool_backward,
    "MaxPool": _max_pool_backward,
    "Clip": _clip_backward,
    "Add": _add_backward,
    "Reshape": _reshape_backward,
}
