"""Suspicious places in a model and its integer form, found without running it.

    output at 8 bits    the output of a layer that leaves the integer part could have more bits
    bias saturates      a bias is at the limit of its integer type
    scale cut           the platform stores a scale that is coarser than the calibrator's by a bit
                        or more
    dead channels       weights of output channels are all zero, or round to zero
    outlier range       the range is over 10 times the 0.99 quantile of the absolute values
    scales at a concat  an input would fit a scale at least 4 times finer than the output's
    no Dequant          an output leaves the graph as integers
    in float            an operator between integer operators is computed in float on the host
    limit               a limit of the platform is violated

The sources are statistics of the calibration data, the plan and the integer graph. This module
knows neither files nor commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.escaping import quote_shell
from ...ir import ir
from ...ir.attributes import get_number
from ...operators.integer_ops import (
    CONCAT,
    DEQUANT,
    Format,
    find_integer_op,
    is_quantized_domain,
    read_attributes,
)
from ...operators.lowerings import Violation, get_rule_for_integer_op
from ...quantization import QuantizedModel
from ...quantization.calibration import TensorStats
from ...quantization.partition import Partition
from ...quantization.scales import calibrate_activations, group_shared_scales
from ..profile.outliers import MAX_RATIO, QUANTILE, compute_outlier_rows

__all__ = ["LIMIT_KIND", "Suspicion", "find_graph_suspicions", "find_model_suspicions"]

#: The kind of a suspicion that `check` reports as a violation.
LIMIT_KIND = "limit"

_MIN_SCALE_RATIO = 4.0  # of an input's to an output's scale; the input loses two bits


@dataclass(frozen=True)
class Suspicion:
    """A suspicious place in a model.

    Parameters
    ----------
    layer
        The layer or tensor.
    kind
        Kind of the suspicion.
    measured, limit
        The measurement and its limit, as text.
    remedy
        How to fix it, as text or as an option.
    """

    layer: str
    kind: str
    measured: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        """Format it as "layer: kind: measured; limit; remedy"."""
        return f"{self.layer}: {self.kind}: {self.measured}; {self.limit}; {self.remedy}"


def find_model_suspicions(
    result: QuantizedModel, violations: Sequence[Violation] = ()
) -> list[Suspicion]:
    """Return the suspicions about a quantized float model.

    They are grouped by kind, in a fixed order; `violations` of the limits come last, each as a
    suspicion.
    """
    partition = Partition.build(result.float_graph, result.plan.floats, result.platform)
    return [
        *_find_narrow_outputs(partition, result),
        *_find_saturated_biases(result.graph),
        *_find_coarsened_scales(partition, result),
        *_find_dead_channels(result),
        *_find_outlier_ranges(partition, result.basis.stats),
        *_find_concat_scale_mismatches(partition, result),
        *_find_integer_outputs(result.graph),
        *_find_float_between_integers(partition),
        *map(_from_violation, violations),
    ]


def find_graph_suspicions(graph: ir.Model, violations: Sequence[Violation] = ()) -> list[Suspicion]:
    """Return the suspicions about an integer graph, as far as the file shows them.

    These are saturated biases, dead channels, scales at a Concat and integer outputs; then
    `violations` of the limits, each as a suspicion.
    """
    return [
        *_find_saturated_biases(graph),
        *_find_graph_dead_channels(graph),
        *_find_graph_concat_mismatches(graph),
        *_find_integer_outputs(graph),
        *map(_from_violation, violations),
    ]


def _format_override(tensor: str, setting: str) -> str:
    """Return the option --override that gives `tensor` a setting, quoted for a shell."""
    return f"--override {quote_shell(f'{tensor}={setting}')}"


def _from_violation(violation: Violation) -> Suspicion:
    """Convert a violated limit to a suspicion of kind "limit" about its node."""
    return Suspicion(violation.node, LIMIT_KIND, violation.value, violation.rule, violation.remedy)


def _find_narrow_outputs(partition: Partition, result: QuantizedModel) -> Iterator[Suspicion]:
    """Yield outputs of the integer part with at most 8 bits that could have more.

    The operator and the platform must allow more. A chip's outputs are never suspicious: more bits
    would change the input of its program.
    """
    max_bits = 8 if result.platform.has_packer else max(result.platform.out_bits)
    for node, op in partition.integer_nodes:
        name = ir.output_name(node)
        q = result.plan.tensors.get(name)
        leaves_integers = op.allows_wide_output and not any(
            id(use.node) in partition.integer_node_ids for use in node.outputs[0].uses()
        )
        if leaves_integers and q is not None and q.bits <= 8 < max_bits:
            measured = f"'{name}' leaves the integer part in {q.bits} bits"
            limit = f"{result.platform.name} supports up to {max_bits}"
            yield Suspicion(
                str(node.name),
                "output at 8 bits",
                measured,
                limit,
                _format_override(name, f"out_bits:{max_bits}"),
            )


def _find_float_between_integers(partition: Partition) -> Iterator[Suspicion]:
    """Yield float operators with integer operators upstream and downstream, at any distance."""
    nodes = list(partition.graph.graph)
    downstream_ids = set(partition.integer_node_ids)  # integer nodes and nodes downstream
    for node in nodes:
        if not downstream_ids.isdisjoint(id(ir.producer(value)) for value in node.inputs):
            downstream_ids.add(id(node))
    upstream_ids = set(partition.integer_node_ids)  # integer nodes and nodes upstream
    for node in reversed(nodes):
        if not upstream_ids.isdisjoint(_consumer_ids(node)):
            upstream_ids.add(id(node))
    between_ids = (downstream_ids & upstream_ids) - partition.integer_node_ids
    for node in nodes:
        if id(node) in between_ids:
            reason = partition.floats.get(str(node.name), "")
            yield Suspicion(
                str(node.name),
                "in float",
                f"{node.op_type} stays in float between integers: {reason}",
                "integers from the first layer to the last",
                "stay within the reported limit, or rewrite the operator",
            )


def _consumer_ids(node: ir.Node) -> set[int]:
    """Return the `id()` of each node that reads an output of `node`."""
    ids: set[int] = set()
    for value in node.outputs:
        ids.update(id(use.node) for use in value.uses())
    return ids


def _find_saturated_biases(graph: ir.Model) -> Iterator[Suspicion]:
    """Yield biases of an integer graph with values at the lowest or highest integer of their type.

    A bias is an integer constant of 32 bits or more, from the third input on.
    """
    for node in graph.graph:
        if not is_quantized_domain(node):
            continue
        for value in node.inputs[2:]:
            array = ir.const_value(value)
            if value is None or array is None or array.dtype.kind != "i":
                continue
            if array.dtype.itemsize < 4:
                continue
            limits = np.iinfo(array.dtype)
            count = int(np.count_nonzero((array == limits.min) | (array == limits.max)))
            if count:
                yield Suspicion(
                    str(node.name),
                    "bias saturates",
                    f"{count} of {array.size} values of '{value.name}' are at a limit of "
                    f"{array.dtype}",
                    f"{limits.min} to {limits.max}",
                    "clamp the bias, or use coarser scales for input and weight",
                )


def _find_coarsened_scales(partition: Partition, result: QuantizedModel) -> Iterator[Suspicion]:
    """Yield scales that are stored at most half as fine as the calibrator chose.

    Tensors that share a scale are one suspicion, at the last of them; only groups with calibration
    data of some tensor count. Nothing is found for a plan that was not calibrated.
    """
    policy, stats, target = result.basis.policy, result.basis.stats, result.platform
    if policy is None:
        return
    max_scale = 2.0 ** target.exponents[1]
    for group in group_shared_scales(partition, target):
        name = group.tensors[-1]
        calibrated = calibrate_activations(partition, [group], stats, target, policy, [])
        fitting_scale = calibrated[name].scale
        q = result.plan.tensors.get(name)
        if q is None or not set(group.tensors) & stats.keys() or fitting_scale < 2 * q.scale:
            continue
        limit = "an output's scale is at most that of its inputs: the chip shifts right only"
        if q.scale >= max_scale:
            limit = f"{target.name} stores scales up to {max_scale:g}"
        others = len(group.tensors) - 1
        also = f" (and {others} with the same scale)" if others else ""
        yield Suspicion(
            name,
            "scale cut",
            f"{fitting_scale:g} fits the data, {q.scale:g} is stored{also}",
            limit,
            "scale up the model's values, or use finer scales upstream",
        )


def _iter_layer_weights(graph: ir.Model) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """Yield (node, weight array) of integer layers, with the output channels moved to axis 0.

    Layers are nodes of operators with a channel axis whose second input is a constant of two axes
    or more.
    """
    for node in graph.graph:
        op = find_integer_op(node) if is_quantized_domain(node) else None
        array = ir.const_value(node.inputs[1]) if op is not None and len(node.inputs) > 1 else None
        if op is not None and op.channel_axis is not None and array is not None and array.ndim > 1:
            yield node, np.moveaxis(array, op.channel_axis, 0)


def _find_dead_channels(result: QuantizedModel) -> Iterator[Suspicion]:
    """Yield layers of the integer graph with output channels whose weights are all zero.

    The float model's weights of the same name tell which of them are zero only by rounding.
    """
    initializers = result.float_graph.graph.initializers
    float_weights = {name: ir.const_value(value) for name, value in initializers.items()}
    for node, weight in _iter_layer_weights(result.graph):
        float_weight = float_weights.get(ir.input_name(node, 1))
        suspicion = _dead_channel_suspicion(node, weight, float_weight)
        if suspicion is not None:
            yield suspicion


def _find_graph_dead_channels(graph: ir.Model) -> Iterator[Suspicion]:
    """Yield layers of an integer graph with output channels whose weights are all zero."""
    for node, weight in _iter_layer_weights(graph):
        suspicion = _dead_channel_suspicion(node, weight, None)
        if suspicion is not None:
            yield suspicion


def _dead_channel_suspicion(
    node: ir.Node, weight: np.ndarray, float_weight: np.ndarray | None
) -> Suspicion | None:
    """Return a suspicion if output channels of an integer weight [O, I, ...] are all zero.

    None if there are none. It also says how many of these have nonzero weights in `float_weight`
    (channels on any axis of length O), so that they are zero by rounding; 0 if `float_weight` is
    None.

    It also says how many of these have nonzero weights in `float_weight` (channels on any axis of
    length O), so that they are zero by rounding; 0 if `float_weight` is None.
    """
    is_dead = ~weight.reshape(len(weight), -1).any(axis=1)
    if not is_dead.any():
        return None
    rounded_count = 0
    if float_weight is not None and float_weight.ndim == weight.ndim:
        has_weights = _has_weights_per_channel(float_weight, len(weight))
        if has_weights is not None:
            rounded_count = int(np.count_nonzero(is_dead & has_weights))
    channels = np.flatnonzero(is_dead)
    listed = ", ".join(map(str, channels[:6])) + (", ..." if len(channels) > 6 else "")
    remedy = "remove the channels"
    if rounded_count:
        remedy = "equalize or retrain the layer; on generic, use --weight-scales channel"
    return Suspicion(
        str(node.name),
        "dead channels",
        f"{len(channels)} of {len(weight)} output channels have only zero weights ({listed}), "
        f"{rounded_count} of them by rounding",
        "each channel has one that is not zero",
        remedy,
    )


def _has_weights_per_channel(weight: np.ndarray, channel_count: int) -> np.ndarray | None:
    """Return a mask of the channels that have nonzero float weights, bool [channel_count].

    The channels are on the first axis of that length; None if there is none.
    """
    for axis, length in enumerate(weight.shape):
        if length == channel_count:
            by_channel = np.moveaxis(weight, axis, 0).reshape(channel_count, -1)
            return np.asarray(by_channel.any(axis=1))
    return None


def _find_outlier_ranges(
    partition: Partition, stats: Mapping[str, TensorStats]
) -> Iterator[Suspicion]:
    """Yield tensors and weights whose range is set by a few values.

    They are those whose largest absolute value exceeds MAX_RATIO times the 0.99 quantile of the
    absolute values. Tensors are judged by their calibration statistics; weights that are all zero
    are left out.
    """
    for name, observed in stats.items():
        max_abs, quantile = max(observed.high, -observed.low), _abs_quantile(observed)
        if max_abs > MAX_RATIO * quantile:
            remedy = _format_override(name, "calibrator:percentile")
            yield _outlier_suspicion(name, max_abs, quantile, remedy)
    remedy = "clamp or normalize this layer in training"
    for node, op in partition.integer_nodes:
        weights = []
        for index in op.weight_inputs(node):
            array = ir.const_value(node.inputs[index])
            if array is not None:
                weights.append((ir.input_name(node, index), array))
        for row in compute_outlier_rows(iter(weights)):
            if row.is_outlier and row.max_abs > 0:
                yield _outlier_suspicion(row.name, row.max_abs, row.quantile_99, remedy)


def _outlier_suspicion(name: str, max_abs: float, quantile: float, remedy: str) -> Suspicion:
    """Return the suspicion "outlier range" of tensor `name`: largest value by 0.99 quantile.

    The ratio is "infinitely many times" if the quantile is 0. `remedy` is the advice to the user.
    """
    times = f"{max_abs / quantile:.3g} times" if quantile > 0 else "infinitely many times"
    return Suspicion(
        name,
        "outlier range",
        f"largest value {max_abs:.4g}, {times} the 0.99 quantile {quantile:.4g}",
        f"at most {MAX_RATIO:g} times",
        remedy,
    )


def _abs_quantile(stats: TensorStats) -> float:
    """Return the 0.99 quantile of a tensor's absolute values, from the bins of its histogram.

    Accurate to the width of a bin; 0 without values.
    """
    centres, counts = stats.nonzero_bins()
    order = np.argsort(np.abs(centres), kind="stable")
    if not len(order):
        return 0.0
    cumulative = np.cumsum(counts[order])
    index = np.searchsorted(cumulative, QUANTILE * cumulative[-1])
    return float(np.abs(centres)[order][index])


def _find_concat_scale_mismatches(
    partition: Partition, result: QuantizedModel
) -> Iterator[Suspicion]:
    """Yield calibrated inputs of a Concat that alone would fit a much finer scale than its output.

    Much finer is _MIN_SCALE_RATIO times. Nothing is found for a plan that was not calibrated.
    """
    policy, stats = result.basis.policy, result.basis.stats
    if policy is None:
        return
    for node, op in partition.integer_nodes:
        q = result.plan.tensors.get(ir.output_name(node))
        if op.integer_op is not CONCAT or q is None:
            continue
        for value in node.inputs:
            name = "" if value is None else str(value.name)
            observed = stats.get(name)
            if observed is None or observed.sum_of_squares == 0:
                continue
            fitting_scale = policy.policy_for_tensors([name], q.bits).choose_scale(observed)
            if fitting_scale >= _MIN_SCALE_RATIO * q.scale:
                yield Suspicion(
                    str(node.name),
                    "scales at a concat",
                    f"'{name}' alone would fit scale {fitting_scale:g}, the output has {q.scale:g}",
                    f"less than {_MIN_SCALE_RATIO:g} times",
                    "bring the inputs to one range in the model, or skip the concat: --skip "
                    + quote_shell(str(node.name)),
                )


def _find_graph_concat_mismatches(graph: ir.Model) -> Iterator[Suspicion]:
    """Yield inputs of a Concat in an integer graph with a much finer scale than its output.

    Much finer is at least _MIN_SCALE_RATIO times.
    """
    for node in graph.graph:
        op = find_integer_op(node) if is_quantized_domain(node) else None
        if op is None or op is not CONCAT:
            continue
        attrs = read_attributes(op, node)
        scale = get_number(attrs, "scale_o")
        for index, q in op.input_qparams(attrs).items():
            if q.scale >= _MIN_SCALE_RATIO * scale:
                measured = (
                    f"'{ir.input_name(node, index)}' has scale {q.scale:g}, the output {scale:g}"
                )
                yield Suspicion(
                    str(node.name),
                    "scales at a concat",
                    measured,
                    f"less than {_MIN_SCALE_RATIO:g} times",
                    "bring the inputs to one range in the model",
                )


def _find_integer_outputs(graph: ir.Model) -> Iterator[Suspicion]:
    """Yield graph outputs that an integer operator other than Dequant writes as integers."""
    for value in graph.graph.outputs:
        node = ir.producer(value)
        op = None if node is None else find_integer_op(node)
        if node is None or op is None or op is DEQUANT:
            continue
        if _is_integer_output(value, node, op):
            yield Suspicion(
                str(value.name),
                "no Dequant",
                f"{node.op_type} {node.name} writes the output as integers",
                "outputs are real values",
                "run lingeronnx fix-dequant to insert the Dequant",
            )


def _is_integer_output(value: ir.Value, node: ir.Node, op: Format) -> bool:
    """Whether graph output `value`, which `node` of integer operator `op` writes, has integers.

    If the type of the output is known, it decides; else a quantized operator writes integers unless
    it may write wide (more than 8 bits) or float outputs.
    """
    if value.dtype is not None:
        return value.dtype.name in ("INT8", "INT16", "INT32")
    if not is_quantized_domain(node):
        return False
    lowering = get_rule_for_integer_op(op)
    return lowering is None or not lowering.allows_wide_output
