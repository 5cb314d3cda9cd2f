"""Refine the weights and biases layer by layer.

One walk through the integer graph in the simulator's own arithmetic. At each layer with weights,
with the integers that really reach it on calibration samples:

1. The weight is rounded again so that the layer's output changes least (`rounding`), and replaced
   if that is better. With `match_float_outputs`, the weights to round are first fitted to the float
   model's outputs for these inputs (`ridge_regression`).
2. The output is compared with the float model's per channel, where the integer tensor can represent
   the float value (and where it is positive, if a Relu follows), and the bias is corrected by the
   mean difference (`float_targets`).

Later layers get the refined output, so errors of earlier layers are not corrected twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...ir import ir
from ...ir.plan import Affine, PerGroup, Plan, make_bias_qparams
from ...runtime.data import Progress
from ...runtime.integer.runner import IntegerRunner
from ...runtime.memory import elements_per_sample, trim_memory
from ...runtime.runners import FloatRunner
from ...targets import Target
from ..lower import lower
from ..partition import Partition
from .activation_curves import ActivationCurve, sample_activation
from .block_reconstruction import compute_block_metric, minimize_block_error
from .float_targets import LayerTarget, collect_layer_targets, has_relu
from .output_gradients import OutputMoments, compute_output_moments
from .receptive_fields import MAX_FAN_IN, MAX_SAMPLED_ROWS, ReceptiveFields, compute_covariances
from .ridge_regression import fit_weights_to_outputs
from .rounding import (
    BEAM_WIDTH,
    minimize_by_coordinate_descent,
    output_error_change,
    round_with_compensation,
)

__all__ = [
    "RefinementOptions",
    "find_compensated_sums",
    "find_refinable_layers",
    "refine_layers",
    "required_float_tensors",
    "walk_bytes_per_sample",
]

_LOW_BITS = 4  # weights of at most so many bits gain most from refinement
_OUTPUT_BEAM_WIDTH = 16  # beam width if errors are weighted by output gradients
_RELEASE_BYTES = 4 << 20  # memory is returned to the system after layers with outputs this large
_LIVE_TENSORS = 4  # tensors that a step needs, or that are stored for a later one


@dataclass(frozen=True)
class RefinementOptions:
    """Methods of refining weights, in addition to rounding them with error compensation.

    Attributes
    ----------
    match_float_outputs
        Fit the weights to the float model's outputs, by ridge regression, before rounding.
    compensate_summands
        A layer whose output is only added to another tensor also compensates that tensor's error.
    coordinate_descent
        Coordinate descent after the rounding.
    block_reconstruction
        Coordinate descent by the error after the next layer.
    match_relu_means
        Biases match the means after a Relu instead of before it.
    match_activation_means
        Biases match the means after another activation function, such as a SiLU, instead of before
        it.
    correct_biases
        Biases are corrected at all.
    outputs
        Errors of low-bit weights are weighted by gradients of the model's outputs, and rounding
        uses a wider beam.
    max_rows
        Maximum number of receptive fields for the second moments of a layer's inputs.
    """

    match_float_outputs: bool = False
    compensate_summands: bool = False
    coordinate_descent: bool = False
    block_reconstruction: bool = False
    match_relu_means: bool = False
    match_activation_means: bool = False
    correct_biases: bool = True
    outputs: bool = False
    max_rows: int = MAX_SAMPLED_ROWS

    @classmethod
    def all(cls) -> RefinementOptions:
        """Return all methods that stay within a layer and are not a second choice.

        That excludes `block_reconstruction`, `outputs` and `match_relu_means`.
        """
        return cls(True, True, True)

    def for_weight(self, qparams: Affine) -> RefinementOptions:
        """Return the options for a weight with parameters `qparams`, by its bits.

        Above 4 bits the options are these without the gradients of the outputs. Up to that all
        methods within a layer are used, with these means, block reconstruction and gradients; with
        gradients they use no block reconstruction.
        """
        if qparams.bits > _LOW_BITS:
            return replace(self, outputs=False)
        # The gradients of the outputs include the effect on the next layer.
        return replace(
            self.all(),
            match_relu_means=self.match_relu_means,
            match_activation_means=self.match_activation_means,
            correct_biases=self.correct_biases,
            block_reconstruction=self.block_reconstruction and not self.outputs,
            outputs=self.outputs,
        )

    def is_equivalent(self, other: RefinementOptions, partition: Partition, plan: Plan) -> bool:
        """Whether `other` has the same effect as these options on every layer of `partition`.

        For example, all weights may have few bits under `plan`, or there is no sum to compensate.
        """
        layers = find_refinable_layers(partition)
        sums = _find_residual_sums(partition, layers)
        with_activation: set[str] = set()
        if self.match_activation_means != other.match_activation_means:
            with_activation.update(_sample_activations(partition.graph, layers, plan))

        def effective_options(options: RefinementOptions, name: str) -> RefinementOptions:
            """Return the `options` that apply to the layer `name`, by the bits of its weight.

            Compensation of summands counts only if the layer's output is added to another tensor,
            and where means are matched only if such a function follows.
            """
            node = layers[name]
            layer_options = options.for_weight(plan.tensors[ir.input_name(node, 1)])
            compensates = layer_options.compensate_summands and name in sums
            corrects = layer_options.correct_biases
            matches_relu = corrects and layer_options.match_relu_means
            matches_activation = corrects and layer_options.match_activation_means
            return replace(
                layer_options,
                compensate_summands=compensates,
                match_relu_means=matches_relu and (has_relu(node) or compensates),
                match_activation_means=matches_activation and name in with_activation,
            )

        return all(
            effective_options(self, name) == effective_options(other, name) for name in layers
        )


def walk_bytes_per_sample(model: ir.Model) -> int:
    """Return an estimate of the memory to run `model` in integers step by step, bytes per sample.

    It counts the inputs in float32 twice, as given and concatenated, and the largest tensor four
    times with 8 bits.
    """
    input_elements = sum(map(elements_per_sample, model.graph.inputs))
    tensor_elements = max(map(elements_per_sample, ir.iter_values(model)), default=0)
    return 8 * input_elements + _LIVE_TENSORS * tensor_elements


def find_refinable_layers(partition: Partition) -> dict[str, ir.Node]:
    """Return {output: node} of the integer Conv and Linear nodes, in graph order."""
    return {
        ir.output_name(node): node
        for node, _ in partition.integer_nodes
        if node.op_type in ("Conv", "Linear")
    }


def required_float_tensors(partition: Partition) -> set[str]:
    """Return the tensors whose float values are needed to refine the layers of `partition`.

    These are outputs of Conv and Linear layers, and the tensors that such an output is added to.
    """
    layers = find_refinable_layers(partition)
    return {*layers, *_find_residual_sums(partition, layers).values()}


def find_compensated_sums(
    partition: Partition, plan: Plan, options: RefinementOptions
) -> dict[str, str]:
    """Return {output of a layer: tensor that it is added to} of layers that compensate its error.

    These are layers whose output is read only by an Add with an integer tensor of the same shape,
    and whose options, by the bits of the weight in `plan`, have `compensate_summands`.
    """
    layers = {
        name: node
        for name, node in find_refinable_layers(partition).items()
        if options.for_weight(plan.tensors[ir.input_name(node, 1)]).compensate_summands
    }
    return _find_residual_sums(partition, layers) if layers else {}


def _find_residual_sums(partition: Partition, layers: Mapping[str, ir.Node]) -> dict[str, str]:
    """Return {output of a layer: other summand} of `layers` whose output is read only by an Add.

    The other summand must have the same shape, and both must become integers.
    """
    summands = {}
    activations = set(partition.activations)
    for name, node in layers.items():
        output = node.outputs[0]
        consumer = ir.sole_consumer(output)
        if consumer is None or consumer.op_type != "Add" or name not in activations:
            continue
        summand = ir.require_input(consumer, 0 if consumer.inputs[1] is output else 1)
        if str(summand.name) in activations and ir.get_shape(summand) == ir.get_shape(output):
            summands[name] = str(summand.name)
    return summands


def refine_layers(
    partition: Partition,
    plan: Plan,
    target: Target,
    feed: Mapping[str, np.ndarray],
    runner: FloatRunner,
    batches: Sequence[Mapping[str, np.ndarray]] = (),
    budget: int = 1 << 29,
    options: RefinementOptions = RefinementOptions(),
    progress: Progress | None = None,
    refined_layers: Collection[str] = (),
    measured_tensors: Sequence[str] = (),
) -> None:
    """Refine weights and biases of the float graph of `partition` in place.

    Layer by layer, with the integers that reach it, the weight is rounded again such that the
    output changes least, and the bias corrected by the mean error of the output. The new weights
    are multiples of 1 / scale. A weight that several nodes share is not changed, only their biases.

    Parameters
    ----------
    partition, plan, target
        The float graph, its plan, and the target.
    feed
        Calibration samples, some tens to hundreds.
    runner
        Runner of the unrefined graph's layers.
    batches
        The same samples in batches; used for the float model if its tensors have the batch on axis
        0.
    budget
        Memory budget in bytes.
    options
        Methods, adapted to each weight by `RefinementOptions.for_weight`.
    progress
        Callback for progress messages, called for each layer before it is refined.
    refined_layers
        Outputs of layers that are refined already, and not changed.
    measured_tensors
        Tensors whose errors count for `RefinementOptions.outputs`.
    """
    model = partition.graph
    layers = {
        name: node
        for name, node in find_refinable_layers(partition).items()
        if name not in refined_layers
    }
    layer_options = {
        name: options.for_weight(plan.tensors[ir.input_name(node, 1)])
        for name, node in layers.items()
    }
    sums = {
        name: summand_name
        for name, summand_name in find_compensated_sums(partition, plan, options).items()
        if name in layers
    }
    feeds = batches if batches and runner.has_batch_first({*layers, *sums.values()}) else [feed]
    gradient_layers = {name: node for name, node in layers.items() if layer_options[name].outputs}
    output_moments = compute_output_moments(model, gradient_layers, measured_tensors, feeds)
    targets = _collect_targets(
        model, layers, layer_options, sums, plan=plan, runner=runner, feeds=feeds, budget=budget
    )
    lowered = lower(partition, plan, target)
    integer_names = {float_name: name for name, float_name in lowered.floats.items()}
    refined_names = {name for name, layer in lowered.layer_outputs.items() if layer in layers}
    walk = IntegerRunner(lowered.graph, target=target).walk(feed, refined_names)
    completed = 0
    for step in walk:
        # A layer may have several steps; only the one with the weight computes, others move data.
        name = lowered.layer_outputs.get(step.output, "")
        node = layers.get(name)
        if node is None or name not in targets or not hasattr(step.kernel, "weight"):
            continue
        if progress is not None:
            progress("refining", completed, len(layers))
            completed += 1
        layer_target = targets[name] if name in sums.values() else targets.pop(name)
        summand_name = sums.get(name)
        if summand_name is not None:
            summand = walk.get_tensor(integer_names.get(summand_name, summand_name))
            if summand is not None:
                layer_target = layer_target.compensate_summand(
                    node, targets[summand_name], summand, plan.tensors[summand_name]
                )
        kernel = step.kernel
        is_shared = len(ir.require_input(node, 1).uses()) > 1  # by steps of a recurrent layer
        if not is_shared:
            weight = _refine_weight(
                kernel,
                step.inputs[0],
                node,
                plan,
                layer_target,
                layer_options[name],
                output_moments.get(name),
            )
            if weight is not None:
                kernel = replace(kernel, weight=weight)
                array = _dequantize_weight(weight, plan, node)
                ir.set_constant_input(model, node, 1, array, "refined")
        outputs = walk.compute(kernel)
        error = _measure_mean_error(outputs, layer_target, layer_options[name])
        output_bytes = outputs.nbytes
        del outputs  # so that the memory can be reused for the corrected ones
        if np.any(error):
            bias, float_shift = _correct_bias(kernel.bias, error, plan, node)
            walk.compute(replace(kernel, bias=bias))
            _subtract_from_bias(model, node, float_shift)
        if output_bytes > _RELEASE_BYTES:
            trim_memory()


def _collect_targets(
    model: ir.Model,
    layers: Mapping[str, ir.Node],
    layer_options: Mapping[str, RefinementOptions],
    sums: Mapping[str, str],
    plan: Plan,
    runner: FloatRunner,
    feeds: Sequence[Mapping[str, np.ndarray]],
    budget: int,
) -> dict[str, LayerTarget]:
    """Return the float outputs of all `layers`, and of the summands that some of them compensate.

    `sums` maps a layer to the tensor that its output is added to. Values (not only sums) are kept
    for these and for layers whose options match the float outputs or use block reconstruction. Keys
    are tensor names.
    """
    tensors = dict(layers)
    for name, summand in sums.items():
        if summand not in layers:
            tensors[summand] = layers[name]
    keep_values_for = {*sums, *sums.values()}
    match_means_for = set()
    for name, options in layer_options.items():
        if options.match_float_outputs or options.block_reconstruction:
            keep_values_for.add(name)
        if options.match_relu_means:
            match_means_for.add(name)
    matching = {name: layers[name] for name, o in layer_options.items() if o.match_activation_means}
    return collect_layer_targets(
        tensors,
        plan,
        runner,
        feeds,
        budget,
        keep_values_for,
        share_positions=bool(sums),
        match_means_for=match_means_for,
        curves=_sample_activations(model, matching, plan),
    )


def _sample_activations(
    model: ir.Model, layers: Mapping[str, ir.Node], plan: Plan
) -> dict[str, ActivationCurve]:
    """Return {output of a layer: activation function after it} of `layers` that have one."""
    curves = {}
    for name, node in layers.items():
        curve = sample_activation(model, node, plan.tensors.get(name))
        if curve is not None:
            curves[name] = curve
    return curves


def _correct_bias(
    bias: np.ndarray | None, error: np.ndarray, plan: Plan, node: ir.Node
) -> tuple[np.ndarray, np.ndarray]:
    """Return the integer bias of `node` corrected for a mean `error`, and the change as float.

    `error` is float64 [channels] in float units, `bias` integers, or None for zeros. The corrected
    bias saturates as a lowered one does. The change is to be subtracted from the float bias.
    """
    q, weight_q = plan.tensors[ir.input_name(node)], plan.tensors[ir.input_name(node, 1)]
    accumulator_scale = q.scale * weight_q.sums.scales
    limits = make_bias_qparams(1.0, max(q.bits, weight_q.bits) > 8)
    old = np.zeros(np.shape(error), np.int64) if bias is None else bias.astype(np.int64)
    room = 2.0 * limits.high  # more than any bias can change by
    steps = np.clip(np.floor(error * accumulator_scale + 0.5), -room, room).astype(np.int64)
    corrected = np.clip(old - steps, limits.low, limits.high)
    return corrected, (old - corrected) / accumulator_scale


def _dequantize_weight(weight: np.ndarray, plan: Plan, node: ir.Node) -> np.ndarray:
    """Return the real values of a layer's integer `weight`, float32 in its constant's shape.

    The scales are those of the weight of `node` in `plan`.
    """
    original = ir.const_value(node.inputs[1])
    assert original is not None
    scales = plan.tensors[ir.input_name(node, 1)].broadcast(original.shape)
    return (weight.reshape(original.shape) / scales).astype(np.float32)


# ---- weights -------------------------------------------------------------------------------------


def _refine_weight(
    kernel: Any,  # noqa: ANN401 - a dataclass of the layer's own
    source: np.ndarray,
    node: ir.Node,
    plan: Plan,
    layer_target: LayerTarget,
    options: RefinementOptions,
    output_moments: OutputMoments | None,
) -> np.ndarray | None:
    """Return the integers of a layer's weight, rounded so that its output error is small.

    Parameters
    ----------
    kernel
        Kernel that computes the layer.
    source
        Integer inputs of the layer.
    node
        The layer in the float graph.
    plan
        Parameters of the tensors.
    layer_target
        Float outputs of the layer.
    options
        Methods for this layer.
    output_moments
        Gradient moments of the model's outputs, or None if they are not used.

    Returns
    -------
    numpy.ndarray or None
        Integers in shape and type of the kernel's weight, [O, I/group, ...]. None if they equal
        the kernel's weight, or an output has more than MAX_FAN_IN inputs.
    """
    constant = ir.const_value(node.inputs[1])
    assert constant is not None
    qparams = plan.tensors[ir.input_name(node, 1)]
    weight = kernel.weight
    group = int(getattr(kernel, "group", 1))
    outputs, fields = len(weight) // group, int(np.prod(weight.shape[1:]))
    if fields > MAX_FAN_IN:
        return None
    grouped = (group, outputs, fields)
    scales = np.broadcast_to(qparams.sums.broadcast(constant.shape), constant.shape).reshape(
        grouped
    )
    step = None
    if isinstance(qparams.granularity, PerGroup):
        step = _group_steps(qparams, constant).reshape(grouped)
    counts = constant.astype(np.float64).reshape(grouped) * scales
    receptive_fields = ReceptiveFields(kernel, source, node)
    if options.match_float_outputs:
        positions = _sample_target_positions(layer_target)
        rows = list(receptive_fields.at(layer_target.index[positions]))
        input_scale = np.float32(plan.tensors[ir.input_name(node)].scale)
        _fit_to_float_outputs(counts, scales, rows, input_scale, layer_target, positions)
        input_moments = compute_covariances(rows)
    else:
        positions = receptive_fields.sample_positions(options.max_rows)
        input_moments = compute_covariances(receptive_fields.at(positions))
    if output_moments is not None:
        input_moments = output_moments.blend_input_moments(input_moments)
    search = _RoundingSearch(counts, input_moments, len(positions), qparams.low, qparams.high, step)
    original = weight.reshape(grouped).astype(np.float64) * (1.0 if step is None else step)
    best = search.run(original, _beam_width(qparams, options, output_moments), options)
    metric = None
    if output_moments is not None:
        metric = output_moments.metric
    elif options.block_reconstruction:
        sampled = _sample_target_positions(layer_target)
        metric = compute_block_metric(node, layer_target.values[sampled])
    if metric is not None:
        best = search.reduce_block_error(best, metric)
    integers = best if step is None else best / step
    result = integers.reshape(weight.shape).astype(weight.dtype)
    return None if np.array_equal(result, weight) else result


def _beam_width(
    qparams: Affine, options: RefinementOptions, output_moments: OutputMoments | None
) -> int:
    """Return the number of roundings of a row that are tracked while a weight is rounded.

    1 for weights of more than 4 bits and without coordinate descent; more with output moments than
    without.
    """
    if qparams.bits > _LOW_BITS or not options.coordinate_descent:
        return 1
    return BEAM_WIDTH if output_moments is None else _OUTPUT_BEAM_WIDTH


def _sample_target_positions(layer_target: LayerTarget) -> np.ndarray:
    """Return a fixed sample of at most `MAX_SAMPLED_ROWS` indices of compared positions, ascending.

    They index the positions of `layer_target`.
    """
    count = len(layer_target.index)
    return np.sort(np.random.default_rng(0).permutation(count)[:MAX_SAMPLED_ROWS])


def _fit_to_float_outputs(
    counts: np.ndarray,
    scales: np.ndarray,
    rows: Sequence[np.ndarray],
    input_scale: np.float32,
    layer_target: LayerTarget,
    positions: np.ndarray,
) -> None:
    """Fit the weights of each group to the float outputs at `positions`, in place.

    Parameters
    ----------
    counts
        Weights [group, O, K] in integer counts; modified, and no longer integers.
    scales
        Counts per unit, [group, O, K].
    rows
        Integer inputs at the positions in chunks, [group, K, n].
    input_scale
        Scale of the inputs, in counts per unit.
    layer_target
        Float outputs.
    positions
        Indices into the positions of `layer_target`.
    """
    group, outputs, _ = counts.shape
    values = layer_target.values[positions]
    thresholds = layer_target.relu_threshold_at(positions)
    in_first_half = layer_target.in_first_half[positions]
    for g in range(group):
        channels = slice(g * outputs, (g + 1) * outputs)
        inputs = np.concatenate([chunk[g] for chunk in rows], axis=1).T
        inputs = np.ascontiguousarray(inputs, np.float32) / input_scale
        fitted = fit_weights_to_outputs(
            counts[g] / scales[g],
            inputs,
            values[:, channels],
            thresholds[:, channels],
            in_first_half,
        )
        counts[g] = fitted * scales[g]


class _RoundingSearch(NamedTuple):
    """Rounding of the weights of a layer by the second moments of their inputs.

    Attributes
    ----------
    counts
        Exact weights [G, O, K] in integer counts.
    input_moments
        Second moments of the inputs, [G, K, K].
    samples
        Number of inputs that the moments are the mean of.
    low, high
        Range of the integers.
    step
        Counts per integer, [G, O, K], or None for 1.
    """

    counts: np.ndarray
    input_moments: np.ndarray
    samples: int
    low: int
    high: int
    step: np.ndarray | None

    def run(self, original: np.ndarray, beam_width: int, options: RefinementOptions) -> np.ndarray:
        """Round the weights; a group without a lower output error than `original` keeps that.

        Returns the integers times `step`, [G, O, K] like `original`. Rounds column by column with
        compensation, tracking `beam_width` roundings, then by coordinate descent if the options say
        so.
        """
        rounded = round_with_compensation(
            self.counts,
            self.input_moments,
            self.samples,
            self.low,
            self.high,
            self.step,
            beam_width=beam_width,
        )
        if options.coordinate_descent:
            rounded = minimize_by_coordinate_descent(
                rounded,
                self.counts,
                self.input_moments,
                self.samples,
                self.low,
                self.high,
                self.step,
            )
        change = output_error_change(original, rounded, self.counts, self.input_moments)
        return np.where((change < 0)[:, None, None], rounded, original)

    def reduce_block_error(self, integers: np.ndarray, metric: np.ndarray) -> np.ndarray:
        """Return `integers` [G, O, K] moved to a smaller error after the next layer.

        `metric` [G * O, G * O] weights products of the errors of two outputs. `integers` is not
        changed.
        """
        return minimize_block_error(
            integers,
            self.counts,
            self.input_moments,
            metric,
            self.samples,
            self.low,
            self.high,
            step=self.step,
        )


def _group_steps(qparams: Affine, weight: np.ndarray) -> np.ndarray:
    """Return the accumulator counts of one integer step of each weight [O, I].

    With scales per group of weights, that is the integer factor of its group.
    """
    return qparams.spread(qparams.factors[1].astype(np.float64), weight.shape)


# ---- biases --------------------------------------------------------------------------------------


def _measure_mean_error(
    outputs: np.ndarray, layer_target: LayerTarget, options: RefinementOptions
) -> np.ndarray:
    """Return the mean error of a layer's integer `outputs` that its bias is corrected by.

    The result is float64 [channels] in float units; empty if biases are not corrected.
    """
    return layer_target.mean_error(outputs) if options.correct_biases else np.zeros(0)


def _subtract_from_bias(model: ir.Model, node: ir.Node, error: np.ndarray) -> None:
    """Subtract `error` [channels] from the bias of `node`, in place; it gets one if it has none."""
    bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        ir.set_constant_input(model, node, 2, (bias - error).astype(np.float32), "refined")
        return
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_bias")
    node.replace_input_with(2, ir.add_initializer(model, name, (-error).astype(np.float32)))
