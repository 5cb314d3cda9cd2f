"""Weight the errors of a layer's weights by gradients of the model's outputs.

The second moments of gradients replace those of the inputs. A change D of a layer's weights moves
output j of sample s by ``<A_sj, D>``, with ``A_sj = sum_p g_p (x_p - m)^T`` over the layer's
positions p: x its inputs, m their mean (the bias corrects the mean), g the gradient of the output
with respect to the layer's outputs. So errors that cancel over a feature map, as average pooling
allows, cost little, and those that all positions share cost much; moments of the inputs position by
position do not capture that. The sum of ``<A, D>^2`` is approximated by the Kronecker product of
two second moments (Martens and Grosse 2015; for sums over shared weights the "reduce" variant of
Eschenhagen et al. 2023)

    H = E[A^T A] over inputs, [K, K],    G = E[A A^T] over outputs, [O, O]

for random projections of the outputs, a few per sample. Gradients are those of the float model,
backpropagated through the operators of convolutional networks; a layer upstream of any other
operator has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import float_ops, ir
from ...operators.lowerings import is_relu_like
from ...runtime.runners import FloatRunner
from .receptive_fields import MAX_FAN_IN

__all__ = ["OutputMoments", "compute_output_moments"]

_PROJECTIONS_PER_SAMPLE = 3  # random projections of the outputs; eight are not clearly better
# Weight of the gradient moments; the remainder are moments of the inputs, and the unit matrix.
_GRADIENT_WEIGHT = 0.9

_Arrays = Mapping[str, np.ndarray]
_Backward = Callable[[ir.Node, np.ndarray, _Arrays], dict[str, np.ndarray]]


@dataclass(frozen=True)
class OutputMoments:
    """Second moments of the gradients A [O, K] of a layer's weights, summed over samples.

    Attributes
    ----------
    of_inputs
        Sum of A^T A, float64 [group, K, K].
    of_outputs
        Sum of A A^T, float64 [group, O, O].
    """

    of_inputs: np.ndarray
    of_outputs: np.ndarray

    @classmethod
    def from_gradients(cls, gradients: np.ndarray) -> OutputMoments:
        """Return the second moments of weight `gradients` [group, n, O, K], summed over n.

        They are sums of A^T A over the inputs, [K, K], and of A A^T over the outputs, [O, O].
        """
        group, count, outputs, fields = gradients.shape
        rows = gradients.reshape(group, count * outputs, fields)
        columns = gradients.transpose(0, 2, 1, 3).reshape(group, outputs, count * fields)
        return cls(_gram(rows.transpose(0, 2, 1)), _gram(columns))

    def __add__(self, other: OutputMoments) -> OutputMoments:
        """Return the sums of the moments of both sets of gradients."""
        return OutputMoments(self.of_inputs + other.of_inputs, self.of_outputs + other.of_outputs)

    def blend_input_moments(self, moments: np.ndarray) -> np.ndarray:
        """Return the gradients' moments [group, K, K] blended with those of the inputs.

        `moments` are the second moments of the inputs, [group, K, K]. Each matrix is scaled to
        trace 1 first (0 if the inputs are constant), and gradients weigh 0.9. For a group without
        gradients, the result is the input moments alone.
        """
        input_moments = _normalize_trace(moments)
        gradient_moments = _normalize_trace(self.of_inputs)
        has_gradients = np.trace(gradient_moments, axis1=1, axis2=2)[:, None, None] > 0
        blended = (1 - _GRADIENT_WEIGHT) * input_moments + _GRADIENT_WEIGHT * gradient_moments
        return np.where(has_gradients, blended, input_moments)

    @property
    def metric(self) -> np.ndarray:
        """The weights of output errors of all groups, [group * O, group * O], zero between groups.

        A block is 0.9 times the moments of the gradients, of trace 1, plus 0.1 times a unit matrix
        of trace 1.
        """
        group, outputs = self.of_outputs.shape[:2]
        metric = np.zeros((group * outputs, group * outputs))
        unit = np.eye(outputs) / outputs
        for g, group_moments in enumerate(_normalize_trace(self.of_outputs)):
            channels = slice(g * outputs, (g + 1) * outputs)
            metric[channels, channels] = (
                _GRADIENT_WEIGHT * group_moments + (1 - _GRADIENT_WEIGHT) * unit
            )
        return metric


def _normalize_trace(moments: np.ndarray) -> np.ndarray:
    """Return matrices [n, K, K] scaled to trace 1; zero matrices stay zero."""
    trace = np.trace(moments, axis1=1, axis2=2)[:, None, None]
    return np.asarray(np.divide(moments, trace, out=np.zeros_like(moments), where=trace > 0))


def _gram(array: np.ndarray) -> np.ndarray:
    """Return A A^T of each matrix A of `array` [n, rows, columns], float64 [n, rows, rows]."""
    return np.asarray(array @ array.transpose(0, 2, 1), np.float64)


def compute_output_moments(
    model: ir.Model,
    layers: Mapping[str, ir.Node],
    measured_tensors: Sequence[str],
    batches: Iterable[_Arrays],
) -> dict[str, OutputMoments]:
    """Return {output of a layer: second moments of its weights' gradients}.

    The gradients are those of random projections of the measured tensors, with a fixed seed. Layers
    with a path to `measured_tensors` that is not differentiable, or none at all, and layers with
    more than MAX_FAN_IN inputs per output are left out; the result is empty if a tensor does not
    have the batch on axis 0.

    Parameters
    ----------
    model
        Float graph.
    layers
        {output: layer}.
    measured_tensors
        Tensors whose errors count, each relative to its own power.
    batches
        Samples by graph input, on axis 0 of every tensor.
    """
    layers = {name: node for name, node in layers.items() if _fan_in(node) <= MAX_FAN_IN}
    if not layers:
        return {}
    differentiable = _differentiable_tensors(model, measured_tensors)
    layers = {name: node for name, node in layers.items() if name in differentiable}
    if not layers:
        return {}
    backward_nodes = [
        node
        for node in reversed(list(model.graph))
        if str(node.outputs[0].name) in differentiable and _backward_kind(node)
    ]
    tensors_needed = {*differentiable, *measured_tensors}
    node_inputs = {name for node in backward_nodes for name in _data_input_names(node)}
    runner = FloatRunner(model, tensors_needed | node_inputs)
    if not runner.has_batch_first(tensors_needed):
        return {}
    feeds = list(batches)
    means, power = _input_means_and_powers(runner, layers, measured_tensors, feeds)
    rng = np.random.default_rng(0)
    moments: dict[str, OutputMoments] = {}
    for feed in feeds:
        tensors = _run_tensors(runner, feed)
        columns = {name: _im2col(node, tensors) - means[name] for name, node in layers.items()}
        for _ in range(_PROJECTIONS_PER_SAMPLE):
            gradients = _random_projection(rng, tensors, power)
            for node, gradient in _iter_gradients(backward_nodes, gradients, tensors):
                name = str(node.outputs[0].name)
                if name not in layers:
                    continue
                weight_gradients = _weight_gradients(node, gradient, columns[name])
                new_moments = OutputMoments.from_gradients(weight_gradients)
                moments[name] = moments[name] + new_moments if name in moments else new_moments
    return moments


def _random_projection(
    rng: np.random.Generator, tensors: _Arrays, power: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """Return {tensor: random gradient}, float32, for the tensors of nonzero `power`.

    The gradients are normally distributed and divided by the root of the tensor's power, which is a
    sum of squares.
    """
    gradients = {}
    for name, tensor_power in power.items():
        if tensor_power:
            noise = rng.standard_normal(tensors[name].shape).astype(np.float32)
            gradients[name] = noise / np.float32(math.sqrt(tensor_power))
    return gradients


def _iter_gradients(
    nodes: Iterable[ir.Node], gradients: dict[str, np.ndarray], tensors: _Arrays
) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """Backpropagate `gradients`; yield each node that has one, with the gradient at its output.

    Parameters
    ----------
    nodes
        Nodes in reverse graph order.
    gradients
        {tensor: gradient}; modified: those of outputs are removed, those of inputs added.
    tensors
        Values of all tensors.
    """
    for node in nodes:
        gradient = gradients.pop(str(node.outputs[0].name), None)
        if gradient is None:
            continue
        yield node, gradient
        backward = _BACKWARD[_backward_kind(node)]
        for name, array in backward(node, gradient, tensors).items():
            gradients[name] = gradients[name] + array if name in gradients else array


def _run_tensors(runner: FloatRunner, feed: _Arrays) -> dict[str, np.ndarray]:
    """Run a batch `feed` and return {name: value} of all tensors of `runner` and the inputs."""
    return {**feed, **{name: array for name, array, _ in runner.run(feed)}}


def _input_means_and_powers(
    runner: FloatRunner,
    layers: Mapping[str, ir.Node],
    measured_tensors: Sequence[str],
    feeds: Sequence[_Arrays],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the mean inputs of `layers` and the power of measured tensors over all samples.

    Returns
    -------
    means : dict
        Mean inputs of each layer, over samples and positions, float32 [group, 1, K].
    power : dict
        Summed squares of each measured tensor.
    """
    sums: dict[str, np.ndarray] = {}
    counts = dict.fromkeys(layers, 0)
    power = dict.fromkeys(measured_tensors, 0.0)
    for feed in feeds:
        tensors = _run_tensors(runner, feed)
        for name, node in layers.items():
            columns = _im2col(node, tensors)
            batch_sum = columns.sum(axis=(0, 2), dtype=np.float64)
            sums[name] = sums[name] + batch_sum if name in sums else batch_sum
            counts[name] += columns.shape[0] * columns.shape[2]
        for name in measured_tensors:
            power[name] += float(np.square(tensors[name], dtype=np.float64).sum())
    means = {
        name: (total / counts[name])[:, None].astype(np.float32) for name, total in sums.items()
    }
    return means, power


# ---- the graph -----------------------------------------------------------------------------------


def _differentiable_tensors(model: ir.Model, measured_tensors: Sequence[str]) -> set[str]:
    """Return `measured_tensors` and the tensors all of whose paths to them are differentiable.

    A tensor with any path through a node that is not differentiable is left out, also if it is one
    of `measured_tensors`.
    """
    differentiable, excluded = set(measured_tensors), set[str]()
    for node in reversed(list(model.graph)):  # consumers come before producers
        outputs = {str(value.name) for value in node.outputs}
        is_path = not outputs.isdisjoint(differentiable)
        if not outputs.isdisjoint(excluded) or (is_path and not _backward_kind(node)):
            excluded.update(str(value.name) for value in node.inputs if value is not None)
        elif is_path:
            differentiable.update(_data_input_names(node))
    return differentiable - excluded


def _backward_kind(node: ir.Node) -> str:
    """Return the operator whose rule backpropagates through `node`, or "" if there is none.

    Relu-like nodes count as Clip, all reshaping ones as Reshape. Not differentiable are weights
    computed at run time, additions of unequal shapes, averages with padding, pools with ceil_mode
    or auto_pad, unknown operators, and nodes with several outputs.
    """
    kind = node.op_type
    if is_relu_like(node):
        kind = "Clip"
    elif node.op_type in float_ops.RESHAPING_OPS:
        kind = "Reshape"
    is_known = node.domain in ("", ir.FUNCTION_DOMAIN) and kind in _BACKWARD
    if not is_known or len(node.outputs) != 1:
        return ""
    if kind in _WEIGHTED and ir.const_value(node.inputs[1]) is None:
        return ""
    if kind == "Add" and not _adds_equal_shapes(node):
        return ""
    if kind in float_ops.POOL_KINDS and not _is_plain_pool(node):
        return ""
    return kind


def _adds_equal_shapes(node: ir.Node) -> bool:
    """Whether the inputs of an Add that are not constants have the shape of its output."""
    shape = ir.get_shape(node.outputs[0])
    return all(ir.get_shape(value) == shape for value in _data_inputs(node))


def _is_plain_pool(node: ir.Node) -> bool:
    """Whether a pool has explicit padding (none for an average) and rounds its shape down."""
    if ir.get_attr(node, "ceil_mode", 0) or ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    return node.op_type != "AveragePool" or not any(ir.get_attr(node, "pads", ()))


def _data_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node` that are not constants, without absent ones."""
    return [value for value in node.inputs if value is not None and ir.const_value(value) is None]


def _data_input_names(node: ir.Node) -> list[str]:
    """Return the names of the inputs of `node` that are not constants; duplicates are kept."""
    return [str(value.name) for value in _data_inputs(node)]


def _weight_array(node: ir.Node) -> np.ndarray:
    """Return the constant weights (input 1) of the layer `node`."""
    return ir.require_const_value(node.inputs[1])


def _fan_in(node: ir.Node) -> int:
    """Return the number of weights per output of the layer `node`."""
    return math.prod(_weight_array(node).shape[1:])


def _group_count(node: ir.Node) -> int:
    """Return the number of groups of the layer `node`; 1 by default."""
    return int(ir.get_attr(node, "group", 1))


# ---- layers --------------------------------------------------------------------------------------


def _im2col(node: ir.Node, tensors: _Arrays) -> np.ndarray:
    """Return the inputs that each output of a layer reads, [samples, group, positions, K].

    `tensors` has the layer's input by name.
    """
    source = tensors[ir.input_name(node)]
    if node.op_type == "Linear":
        return source.reshape(len(source), 1, -1, source.shape[-1])
    windows = _sliding_windows(node, source, _weight_array(node).shape[2:])
    group, rank = _group_count(node), source.ndim - 2
    grouped = windows.reshape(len(source), group, -1, *windows.shape[2:])
    positions_first = np.moveaxis(grouped, 2, 2 + rank)
    position_count = math.prod(windows.shape[2 : 2 + rank])
    return positions_first.reshape(len(source), group, position_count, -1)


def _split_gradient_by_group(node: ir.Node, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient at a layer's outputs as [samples, group, outputs, positions]."""
    if node.op_type == "Linear":
        return gradient.reshape(len(gradient), 1, -1, gradient.shape[-1]).transpose(0, 1, 3, 2)
    group = _group_count(node)
    return gradient.reshape(len(gradient), group, gradient.shape[1] // group, -1)


def _weight_gradients(node: ir.Node, gradient: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the gradients of a layer's weights, summed over positions, [group, samples, O, K].

    Parameters
    ----------
    gradient
        Gradient at the layer's outputs.
    columns
        Inputs that each output reads, [samples, group, positions, K].
    """
    return np.asarray((_split_gradient_by_group(node, gradient) @ columns).transpose(1, 0, 2, 3))


# ---- windows -------------------------------------------------------------------------------------


def _sliding_windows(
    node: ir.Node, source: np.ndarray, kernel: Sequence[int], fill: float = 0.0
) -> np.ndarray:
    """Return the windows of a convolution or pool in `source`, padded with `fill`.

    The result is a view of shape [samples, channels, positions..., kernel...].
    """
    begin, end, strides, dilations = _window_attributes(node, len(kernel))
    padding = [(0, 0), (0, 0), *zip(begin, end, strict=True)]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, 2 + len(kernel)))
    padded = np.pad(source, padding, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, extent, axis=axes)
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    return windows[(slice(None), slice(None), *steps)]


def _col2im(node: ir.Node, windows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return an array of `shape` in which every window is added at its position.

    It reverses the gathering of windows for gradients. `windows` is [N, C, positions...,
    kernel...]; `shape` is [N, C, ...] without padding; what falls on padding is dropped.
    """
    rank = len(shape) - 2
    begin, end, strides, dilations = _window_attributes(node, rank)
    padded = [b + n + e for b, n, e in zip(begin, shape[2:], end, strict=True)]
    total: np.ndarray = np.zeros((*shape[:2], *padded), windows.dtype)
    leading = (slice(None), slice(None))
    positions, kernel = windows.shape[2 : 2 + rank], windows.shape[2 + rank :]
    for offset in np.ndindex(*kernel):
        axes = zip(offset, dilations, positions, strides, strict=True)
        covered = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, n, s in axes]
        total[*leading, *covered] += windows[..., *offset]
    unpadded = [slice(b, b + n) for b, n in zip(begin, shape[2:], strict=True)]
    return np.asarray(total[*leading, *unpadded])


def _window_attributes(node: ir.Node, rank: int) -> tuple[Sequence[int], ...]:
    """Return leading and trailing padding, strides and dilations of a convolution or pool.

    Each has `rank` numbers, by default 0, 0, 1 and 1.
    """
    pads = ir.get_attr(node, "pads", [0] * 2 * rank)
    return (
        pads[:rank],
        pads[rank:],
        ir.get_attr(node, "strides", [1] * rank),
        ir.get_attr(node, "dilations", [1] * rank),
    )


# ---- operators backwards -------------------------------------------------------------------------


def _conv_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    """Return {data input: its gradient} of a convolution, from the output's `gradient`.

    `tensors` must contain the input.
    """
    name, weight = ir.input_name(node), _weight_array(node)
    group = _group_count(node)
    transposed = weight.reshape(group, len(weight) // group, -1).transpose(0, 2, 1)
    columns = (transposed @ _split_gradient_by_group(node, gradient)).reshape(
        len(gradient), tensors[name].shape[1], math.prod(weight.shape[2:]), -1
    )
    windows = columns.transpose(0, 1, 3, 2).reshape(
        *columns.shape[:2], *gradient.shape[2:], *weight.shape[2:]
    )
    return {name: _col2im(node, windows, tensors[name].shape)}


def _linear_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of a fully connected layer, from that of the output."""
    return {ir.input_name(node): gradient @ _weight_array(node)}


def _average_pool_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of an average pool: each window's, divided by its size.

    `gradient` is that of the output; `tensors` must contain the input.
    """
    name, kernel = ir.input_name(node), ir.get_attr(node, "kernel_shape")
    element_gradient = (gradient / np.float32(math.prod(kernel))).reshape(
        *gradient.shape, *[1] * len(kernel)
    )
    return {
        name: _col2im(
            node, np.broadcast_to(element_gradient, (*gradient.shape, *kernel)), tensors[name].shape
        )
    }


def _max_pool_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of a max pool, from the output's `gradient`.

    All maximal elements of a window get the gradient in full.
    """
    name, kernel = ir.input_name(node), ir.get_attr(node, "kernel_shape")
    window_shape = (*gradient.shape, *[1] * len(kernel))
    windows = _sliding_windows(node, tensors[name], kernel, -math.inf)
    is_max = windows == tensors[ir.output_name(node)].reshape(window_shape)
    return {name: _col2im(node, gradient.reshape(window_shape) * is_max, tensors[name].shape)}


def _clip_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of a Relu or Clip: that of the output, or 0.

    It is 0 at elements that the node changes, by their values in `tensors`.
    """
    name = ir.input_name(node)
    return {name: gradient * (tensors[ir.output_name(node)] == tensors[name])}


def _add_backward(node: ir.Node, gradient: np.ndarray, tensors: _Arrays) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of an Add, for the operands that are not constants.

    An operand that is added twice gets twice the output's `gradient`.
    """
    names = _data_input_names(node)
    return {name: gradient * np.float32(names.count(name)) for name in names}


def _reshape_backward(
    node: ir.Node, gradient: np.ndarray, tensors: _Arrays
) -> dict[str, np.ndarray]:
    """Return {input name: its gradient} of a reshape: the output's, in the input's shape."""
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
