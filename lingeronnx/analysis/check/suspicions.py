"""What looks wrong in a model as it will be held in integers, without running it.

    output at 8 bits       a layer whose output leaves the integers could keep more than 8 bits
    there, and does not bias saturates         a bias lies at the end of its integer type
    scale cut              the platform holds a coarser scale than the calibrator chose, by a bit or
    more dead channels          output channels whose weights are all zero, or become zero at the
    weight's scale outlier range          the range is over 10 times the 0.99 quantile of the
    absolute values scales at a concat     an input fits a scale at least 4 times finer than the
    output has no Dequant             an output leaves the graph as integers
    in float               an operator between integers computes in float: its values go to the host
    and back limit                  a limit of the platform is broken

Judged on the calibration data's statistics, the plan and the integer graph. Knows no file and no
command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...flow import QuantizedModel
from ...flow.assign import calibrate_activations, group_shared_scales
from ...flow.observe import TensorStats
from ...flow.partition import Partition
from ...formats import CONCAT, DEQUANT, find_integer_op, is_quantized_domain, read_attributes
from ...graph import ir
from ...graph.attributes import get_number
from ...ops import Violation, get_rule_for_integer_op
from ..profile.outliers import MAX_RATIO, QUANTILE, compute_outlier_rows

__all__ = ["LIMIT_KIND", "Suspicion", "find_graph_suspicions", "find_model_suspicions"]

#: The kind of a suspicion that `check` has told already.
LIMIT_KIND = "limit"

_MIN_SCALE_RATIO = 4.0  # times finer: an input of a concat that gives up two bits


@dataclass(frozen=True)
class Suspicion:
    """One thing that looks wrong.

    Where, what was measured, the limit, and a remedy in words or as an option.
    """

    layer: str
    kind: str
    measured: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.kind}: {self.measured}; {self.limit}; {self.remedy}"


def find_model_suspicions(
    result: QuantizedModel, violations: Sequence[Violation] = ()
) -> list[Suspicion]:
    """Return what looks wrong in a quantized float model."""
    parts = Partition.build(result.float_graph, result.plan.floats, result.platform)
    return [
        *_find_narrow_outputs(parts, result),
        *_find_saturated_biases(result.graph),
        *_find_coarsened_scales(parts, result),
        *_find_dead_channels(result),
        *_find_outlier_ranges(parts, result.basis.stats),
        *_find_concat_scale_mismatches(parts, result),
        *_find_integer_outputs(result.graph),
        *_find_float_between_integers(parts),
        *map(_from_violation, violations),
    ]


def find_graph_suspicions(graph: ir.Model, violations: Sequence[Violation] = ()) -> list[Suspicion]:
    """Return what looks wrong in an integer graph, as far as the file shows it."""
    dead = (
        suspicion
        for node, weight in _iter_layer_weights(graph)
        if (suspicion := _dead_channel_suspicion(node, weight, None)) is not None
    )
    return [
        *_find_saturated_biases(graph),
        *dead,
        *_find_graph_concat_mismatches(graph),
        *_find_integer_outputs(graph),
        *map(_from_violation, violations),
    ]


def _format_override(tensor: str, setting: str) -> str:
    return f"--override {shlex.quote(f'{tensor}={setting}')}"


def _from_violation(violation: Violation) -> Suspicion:
    return Suspicion(violation.node, LIMIT_KIND, violation.value, violation.rule, violation.remedy)


def _find_narrow_outputs(partition: Partition, result: QuantizedModel) -> Iterator[Suspicion]:
    """Layers whose output could leave the integers wider.

    On a chip that changes what its program reads: no mistake.
    """
    widest = 8 if result.platform.has_packer else max(result.platform.out_bits)
    for node, op in partition.integer_nodes:
        name = ir.output_name(node)
        q = result.plan.tensors.get(name)
        leaves = op.allows_wide_output and not any(
            id(use.node) in partition.integer_node_ids for use in node.outputs[0].uses()
        )
        if leaves and q is not None and q.bits <= 8 < widest:
            measured = f"'{name}' leaves the integers in {q.bits} bits"
            limit = f"{result.platform.name} gives it up to {widest}"
            yield Suspicion(
                str(node.name),
                "output at 8 bits",
                measured,
                limit,
                _format_override(name, f"out_bits:{widest}"),
            )


def _find_float_between_integers(partition: Partition) -> Iterator[Suspicion]:
    """Operators in float that integers are computed from and that are computed from integers."""
    after, before = set[int](), set[int]()
    nodes = list(partition.graph.graph)
    for node in nodes:
        makers = [ir.producer(value) for value in node.inputs]
        if any(
            m is not None and (id(m) in partition.integer_node_ids or id(m) in after)
            for m in makers
        ):
            after.add(id(node))
    for node in reversed(nodes):
        users = [use.node for value in node.outputs for use in value.uses()]
        if any(id(user) in partition.integer_node_ids or id(user) in before for user in users):
            before.add(id(node))
    for node in nodes:
        if id(node) in after & before and id(node) not in partition.integer_node_ids:
            yield Suspicion(
                str(node.name),
                "in float",
                (
                    f"{node.op_type} stays in float between integers: "
                    f"{partition.floats.get(str(node.name), '')}"
                ),
                "integers from the first layer to the last",
                "keep the limit that is told, or give the operator another form",
            )


def _find_saturated_biases(graph: ir.Model) -> Iterator[Suspicion]:
    """Biases of the integer graph that lie at the end of their type."""
    for node in graph.graph:
        for index, value in enumerate(node.inputs if is_quantized_domain(node) else ()):
            array = ir.const_value(value)
            if (
                value is None
                or array is None
                or index < 2
                or array.dtype.kind != "i"
                or array.dtype.itemsize < 4
            ):
                continue
            limits = np.iinfo(array.dtype)
            full = int(np.count_nonzero((array == limits.min) | (array == limits.max)))
            if full:
                yield Suspicion(
                    str(node.name),
                    "bias saturates",
                    (
                        f"{full} of {array.size} values of '{value.name}' lie at an end of "
                        f"{array.dtype}"
                    ),
                    f"{limits.min} to {limits.max}",
                    "clamp the bias, or give input and weight coarser scales",
                )


def _find_coarsened_scales(partition: Partition, result: QuantizedModel) -> Iterator[Suspicion]:
    """Scales that the platform holds coarser than the calibrator chose."""
    choice, stats, row = result.basis.policy, result.basis.stats, result.platform
    if choice is None:
        return
    for group in group_shared_scales(partition, row):
        name = group.tensors[-1]
        wish = calibrate_activations(partition, [group], stats, row, choice, [])[name].scale
        q = result.plan.tensors.get(name)
        if q is None or not set(group.tensors) & stats.keys() or wish < 2 * q.scale:
            continue
        most = 2.0 ** row.exponents[1]
        shifts = (
            "an output's scale is at most what its inputs' scales give: the chip shifts right only"
        )
        limit = f"{row.name} holds scales up to {most:g}" if q.scale >= most else shifts
        also = f" (and {len(group.tensors) - 1} tied to it)" if len(group.tensors) > 1 else ""
        yield Suspicion(
            name,
            "scale cut",
            f"{wish:g} fits the data, {q.scale:g} is held{also}",
            limit,
            "scale the model's values up, or give what it is computed from finer scales",
        )


def _iter_layer_weights(graph: ir.Model) -> Iterator[tuple[ir.Node, np.ndarray]]:
    """Yield the integer layers with their weights, output channels on axis 0."""
    for node in graph.graph:
        op = find_integer_op(node) if is_quantized_domain(node) else None
        array = ir.const_value(node.inputs[1]) if op is not None and len(node.inputs) > 1 else None
        if op is not None and op.channel_axis is not None and array is not None and array.ndim > 1:
            yield node, np.moveaxis(array, op.channel_axis, 0)


def _find_dead_channels(result: QuantizedModel) -> Iterator[Suspicion]:
    """Output channels without a weight."""
    floats = {
        name: ir.const_value(value) for name, value in result.float_graph.graph.initializers.items()
    }
    for node, weight in _iter_layer_weights(result.graph):
        suspicion = _dead_channel_suspicion(node, weight, floats.get(ir.input_name(node, 1)))
        if suspicion is not None:
            yield suspicion


def _dead_channel_suspicion(
    node: ir.Node, weight: np.ndarray, real: np.ndarray | None
) -> Suspicion | None:
    dead = ~weight.reshape(len(weight), -1).any(axis=1)
    if not dead.any():
        return None
    lost = 0
    if real is not None and real.ndim == weight.ndim:
        axis = next((i for i in range(real.ndim) if real.shape[i] == len(weight)), None)
        kept = (
            None
            if axis is None
            else np.moveaxis(real, axis, 0).reshape(len(weight), -1).any(axis=1)
        )
        lost = 0 if kept is None else int(np.count_nonzero(dead & kept))
    numbers = np.flatnonzero(dead)
    which = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return Suspicion(
        str(node.name),
        "dead channels",
        (
            f"{len(numbers)} of {len(weight)} output channels have no weight ({which}), {lost} of "
            "them "
            "by rounding"
        ),
        "each channel has one that is not zero",
        "equalize or train the layer again, --weight-scales channel on generic"
        if lost
        else "remove the channels",
    )


def _find_outlier_ranges(
    partition: Partition, stats: Mapping[str, TensorStats]
) -> Iterator[Suspicion]:
    """Tensors and weights whose range a few values made."""
    for name, observed in stats.items():
        largest, dynamic = max(observed.high, -observed.low), _abs_quantile(observed)
        if largest > MAX_RATIO * dynamic:
            yield _outlier_suspicion(
                name, largest, dynamic, _format_override(name, "calibrator:percentile")
            )
    for node, op in partition.integer_nodes:
        weights = (
            (ir.input_name(node, i), ir.const_value(node.inputs[i])) for i in op.weight_inputs(node)
        )
        for row in compute_outlier_rows(
            (name, array) for name, array in weights if array is not None
        ):
            if row.is_outlier and row.max_abs > 0:
                yield _outlier_suspicion(
                    row.name,
                    row.max_abs,
                    row.quantile_99,
                    "clamp or normalise this layer in training",
                )


def _outlier_suspicion(name: str, largest: float, dynamic: float, remedy: str) -> Suspicion:
    times = f"{largest / dynamic:.3g} times" if dynamic > 0 else "infinitely many times"
    return Suspicion(
        name,
        "outlier range",
        f"largest value {largest:.4g}, {times} the 0.99 quantile {dynamic:.4g}",
        f"at most {MAX_RATIO:g} times",
        remedy,
    )


def _abs_quantile(stats: TensorStats) -> float:
    """Return the 0.99 quantile of the absolute values, to a bin's width."""
    centres, counts = stats.nonzero_bins()
    order = np.argsort(np.abs(centres), kind="stable")
    reached = np.cumsum(counts[order])
    return (
        float(np.abs(centres)[order][np.searchsorted(reached, QUANTILE * reached[-1])])
        if len(order)
        else 0.0
    )


def _find_concat_scale_mismatches(
    partition: Partition, result: QuantizedModel
) -> Iterator[Suspicion]:
    """Inputs of a Concat that would fit a much finer scale than its output has."""
    choice, stats = result.basis.policy, result.basis.stats
    for node, op in partition.integer_nodes:
        q = result.plan.tensors.get(ir.output_name(node))
        if op.integer_op is not CONCAT or q is None or choice is None:
            continue
        for value in node.inputs:
            name = "" if value is None else str(value.name)
            observed = stats.get(name)
            own = (
                None
                if observed is None or observed.sum_of_squares == 0
                else choice.policy_for_tensors([name], q.bits).choose_scale(observed)
            )
            if own is not None and own >= _MIN_SCALE_RATIO * q.scale:
                yield Suspicion(
                    str(node.name),
                    "scales at a concat",
                    f"'{name}' alone would fit scale {own:g}, the output has {q.scale:g}",
                    f"less than {_MIN_SCALE_RATIO:g} times",
                    "bring the inputs to one range in the model, or leave the concat out: --skip "
                    + shlex.quote(str(node.name)),
                )


def _find_graph_concat_mismatches(graph: ir.Model) -> Iterator[Suspicion]:
    """The same, as the attributes of an integer graph show it."""
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
    """Outputs of an integer graph that no Dequant writes."""
    for value in graph.graph.outputs:
        node = ir.producer(value)
        op = None if node is None else find_integer_op(node)
        small = value.dtype is not None and value.dtype.name in ("INT8", "INT16", "INT32")
        if node is None or op is None or op is DEQUANT or not (small or is_quantized_domain(node)):
            continue
        lowering = get_rule_for_integer_op(op)
        if small or (
            value.dtype is None and not (lowering is not None and lowering.allows_wide_output)
        ):
            yield Suspicion(
                str(value.name),
                "no Dequant",
                f"{node.op_type} {node.name} writes the output as integers",
                "outputs are real values",
                "lingeronnx fix-dequant puts the Dequant in",
            )
