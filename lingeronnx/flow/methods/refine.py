"""Refine layer by layer.

Round weights with error compensation, then take the mean error out through the bias.
One walk through the integer graph in the simulator's own arithmetic. At each weight layer, with the
integers that really reach it on some calibration samples:

1. the weight is rounded again so that the layer's output changes least (`rounding`), and taken over where it does;
   with `aim`, what is rounded are weights that come nearer to the float model's outputs from these
   inputs (`ridge_regression`);
2. the output is compared with the float model's, per channel, where the float value lies inside what the integer tensor
   can hold (and is positive, where a Relu follows), and the bias is moved by the mean difference
   (`float_targets`).

Later layers see the refined output, so errors of earlier layers are not corrected twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph import ir
from ...plan import Affine, PerGroup, Plan
from ...run.data import Progress
from ...run.integer.runner import IntegerRunner
from ...run.memory import trim_memory
from ...run.runners import FloatRunner
from ...targets import Target
from ..lower import lower
from ..partition import Partition
from .block_reconstruction import compute_block_metric, minimize_block_error
from .float_targets import LayerTarget, collect_layer_targets
from .output_gradients import OutputMoments, compute_output_moments
from .receptive_fields import MAX_FAN_IN, MAX_SAMPLED_ROWS, ReceptiveFields, compute_covariances
from .ridge_regression import fit_weights_to_outputs
from .rounding import (
    BEAM_WIDTH,
    minimize_by_coordinate_descent,
    output_error,
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

_LOW_BITS = 4  # of a weight, where refinement has most to gain
_OUTPUT_BEAM_WIDTH = (
    16  # roundings of a row that are kept where errors count by what they do at the outputs
)
_RELEASE_BYTES = 4 << 20  # bytes of a tensor after which freed memory is given back: it takes time
_LIVE_TENSORS = 4  # tensors that a step needs, and those that wait for a later one


@dataclass(frozen=True)
class RefinementOptions:
    """What refinement may do beyond rounding the model's own weights with error compensation.

    match_float_outputs : round weights that come nearer to the float model's outputs
    (`ridge_regression`). behind : a layer that alone feeds one side of a sum makes up for the error
    of the other side, too. descend : coordinate descent behind the rounding. block : such a descent
    by the error behind the next layer (`block_reconstruction`). means : biases make means right
    behind a Relu, not in front of it (`float_targets`). outputs : errors of weights of few bits
    count by what they do at the model's outputs (`output_gradients`), and rounding keeps more ways
    open.
    """

    match_float_outputs: bool = False
    compensate_summands: bool = False
    coordinate_descent: bool = False
    block_reconstruction: bool = False
    match_relu_means: bool = False
    outputs: bool = False

    @classmethod
    def all(cls) -> RefinementOptions:
        """Return all but `block_reconstruction` and `outputs`, which look beyond the layer, and `match_relu_means`."""
        return cls(True, True, True)

    def for_weight(self, qparams: Affine) -> RefinementOptions:
        """Return what is done for a weight held as `qparams`: with few bits, `all` as well."""
        if qparams.bits <= _LOW_BITS:
            block = (
                self.block_reconstruction and not self.outputs
            )  # what is behind the next layer counts there, too
            return replace(
                self.all(),
                match_relu_means=self.match_relu_means,
                block_reconstruction=block,
                outputs=self.outputs,
            )
        return replace(self, outputs=False)

    def is_equivalent(self, other: RefinementOptions, partition: Partition, plan: Plan) -> bool:
        """Whether `other` does the same to every layer of `partition`.

        So it is where all weights have few bits, or where `compensate_summands` finds no sum.
        """
        layers = find_refinable_layers(partition)
        sums = _find_residual_sums(partition, layers)

        def effective_options(options: RefinementOptions, name: str) -> RefinementOptions:
            own = options.for_weight(plan.tensors[ir.input_name(layers[name], 1)])
            return replace(own, compensate_summands=own.compensate_summands and name in sums)

        return all(
            effective_options(self, name) == effective_options(other, name) for name in layers
        )


def walk_bytes_per_sample(model: ir.Model) -> int:
    """Return the bytes that a walk keeps of one sample.

    Inputs as they come and joined, some tensors of 8 bits.
    """
    sizes = [
        math.prod(int(d or 1) for d in (ir.get_shape(v) or (0, 0))[1:])
        for v in ir.iter_values(model)
    ]
    inputs = sum(
        math.prod(int(d or 1) for d in (ir.get_shape(v) or (0, 0))[1:]) for v in model.graph.inputs
    )
    return 8 * inputs + _LIVE_TENSORS * max(sizes, default=0)


def find_refinable_layers(partition: Partition) -> dict[str, ir.Node]:
    """Return the layers that `refine_layers` works on, by their outputs."""
    return {
        ir.output_name(node): node
        for node, _ in partition.integer_nodes
        if node.op_type in ("Conv", "Linear")
    }


def required_float_tensors(partition: Partition) -> set[str]:
    """Return the tensors whose float values `refine_layers` may ask for."""
    layers = find_refinable_layers(partition)
    return {*layers, *_find_residual_sums(partition, layers).values()}


def find_compensated_sums(
    partition: Partition, plan: Plan, options: RefinementOptions
) -> dict[str, str]:
    """Return {output of a layer.

    What it is added to} where the layer makes up for the other side of the sum.
    """
    layers = find_refinable_layers(partition)
    weights = {name: plan.tensors[ir.input_name(node, 1)] for name, node in layers.items()}
    return {
        name: other
        for name, other in _find_residual_sums(partition, layers).items()
        if options.for_weight(weights[name]).compensate_summands
    }


def _find_residual_sums(partition: Partition, layers: Mapping[str, ir.Node]) -> dict[str, str]:
    """Return {output of a layer that only a sum reads.

    What it is added to}, where the two have one shape.
    """
    summands = {}
    inside = set(partition.activations)
    for name, node in layers.items():
        reader = ir.sole_consumer(node.outputs[0])
        if reader is None or reader.op_type != "Add" or name not in inside:
            continue
        other = ir.require_input(reader, 0 if reader.inputs[1] is node.outputs[0] else 1)
        if str(other.name) in inside and ir.get_shape(other) == ir.get_shape(node.outputs[0]):
            summands[name] = str(other.name)
    return summands


def refine_layers(
    partition: Partition,
    plan: Plan,
    target: Target,
    feed: Mapping[str, np.ndarray],
    runner: FloatRunner,
    pieces: Sequence[Mapping[str, np.ndarray]] = (),
    budget: int = 1 << 29,
    options: RefinementOptions = RefinementOptions(),
    progress: Progress | None = None,
    refined_layers: Collection[str] = (),
    measured_tensors: Sequence[str] = (),
) -> None:
    """Refine weights and biases of the float graph of `partition` in place, for `plan` on `target`.

    feed : calibration samples, some tens to hundreds. runner : of the graph's layers as they are
    now. pieces : the same samples, in pieces that are run one after the other. budget : bytes that
    may be taken. methods : for weights of more than 4 bits; others take `RefinementOptions.all`.
    The new weights lie on the plan's grid. progress : called layer by layer. known : layers that
    are refined already. wanted : the tensors whose errors count for `RefinementOptions.outputs`.
    """
    model = partition.graph
    layers = {
        name: node
        for name, node in find_refinable_layers(partition).items()
        if name not in refined_layers
    }
    how = {
        name: options.for_weight(plan.tensors[ir.input_name(node, 1)])
        for name, node in layers.items()
    }
    sums = {
        name: other
        for name, other in find_compensated_sums(partition, plan, options).items()
        if name in layers
    }
    tensors = {
        **layers,
        **{other: layers[name] for name, other in sums.items() if other not in layers},
    }
    feeds = pieces if pieces and runner.has_batch_first(tensors) else [feed]
    looked_at = {
        *sums,
        *sums.values(),
        *(
            name
            for name, methods in how.items()
            if methods.match_float_outputs or methods.block_reconstruction
        ),
    }
    means = {name for name, methods in how.items() if methods.match_relu_means}
    behind = compute_output_moments(
        model, {n: node for n, node in layers.items() if how[n].outputs}, measured_tensors, feeds
    )
    targets_of = collect_layer_targets(
        tensors,
        plan,
        runner,
        feeds,
        budget,
        looked_at,
        share_positions=bool(sums),
        match_means_for=means,
    )
    lowered = lower(partition, plan, target)
    integer_of = {name: integer for integer, name in lowered.floats.items()}
    refined_names = {name for name, layer in lowered.layer_outputs.items() if layer in layers}
    walk = IntegerRunner(lowered.graph, target=target).walk(feed, refined_names)
    done = 0
    for step in walk:
        # Of the steps that are made for a layer, that with the weight: the others move its data.
        name = lowered.layer_outputs.get(step.output, "")
        node = layers.get(name)
        if node is None or name not in targets_of or not hasattr(step.kernel, "weight"):
            continue
        kernel = step.kernel
        shared = (
            len(ir.require_input(node, 1).uses()) > 1
        )  # by the steps of a recurrent layer, which keep it in common
        if progress is not None:
            progress("refining", done, len(layers))
            done += 1
        want = targets_of[name] if name in sums.values() else targets_of.pop(name)
        if (other := sums.get(name)) is not None and (
            array := walk.held(integer_of.get(other, other))
        ) is not None:
            want = want.compensate_summand(node, targets_of[other], array, plan.tensors[other])
        weight = (
            None
            if shared
            else _refine_weight(
                kernel, step.inputs[0], node, plan, want, how[name], behind.get(name)
            )
        )
        if weight is not None:
            kernel = replace(kernel, weight=weight)
            ir.set_constant_input(model, node, 1, _dequantize_weight(weight, plan, node), "refined")
            walk.redo(kernel)
        if np.any(error := want.mean_error(step.array)):
            shift, moved = _bias_shift(error, plan, node)
            walk.redo(replace(kernel, bias=(0 if kernel.bias is None else kernel.bias) - shift))
            _subtract_from_bias(model, node, moved)
        if step.array.nbytes > _RELEASE_BYTES:
            trim_memory()


def _bias_shift(error: np.ndarray, plan: Plan, node: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much the bias of a layer moves against its mean error, in steps of its sums, and as a number."""
    scale = (
        plan.tensors[ir.input_name(node)].scale * plan.tensors[ir.input_name(node, 1)].sums.scales
    )
    shift = np.floor(error * scale + 0.5).astype(np.int64)
    return shift, shift / scale


def _dequantize_weight(weight: np.ndarray, plan: Plan, node: ir.Node) -> np.ndarray:
    old = ir.const_value(node.inputs[1])
    assert old is not None
    scales = plan.tensors[ir.input_name(node, 1)].broadcast(old.shape)
    return (weight.reshape(old.shape) / scales).astype(np.float32)


# ---- weights -------------------------------------------------------------------------------------


def _refine_weight(
    kernel: Any,  # noqa: ANN401 - a dataclass of the layer's own
    source: np.ndarray,
    node: ir.Node,
    plan: Plan,
    want: LayerTarget,
    options: RefinementOptions,
    behind: OutputMoments | None,
) -> np.ndarray | None:
    """Return better integers for the kernel's weight [O, I/group, ...], or None when rounding to nearest is as good.

    want : the float model's outputs. behind : what errors do at the model's outputs, None where
    that is not looked at.
    """
    target = ir.const_value(node.inputs[1])
    assert target is not None
    q = plan.tensors[ir.input_name(node, 1)]
    group = int(getattr(kernel, "group", 1))
    weight = kernel.weight
    outputs, fields = len(weight) // group, int(np.prod(weight.shape[1:]))
    if fields > MAX_FAN_IN:
        return None
    held_at = np.broadcast_to(q.sums.broadcast(target.shape), target.shape).reshape(
        group, outputs, fields
    )
    step = (
        _group_steps(q, target).reshape(held_at.shape)
        if isinstance(q.granularity, PerGroup)
        else None
    )
    counts = target.astype(np.float64).reshape(held_at.shape) * held_at
    read = ReceptiveFields.for_layer(kernel, source, node)
    if options.match_float_outputs:
        places = np.sort(np.random.default_rng(0).permutation(len(want.index))[:MAX_SAMPLED_ROWS])
        count, rows = len(places), list(read.at(want.index[places]))
        values, floor, first = (
            want.values[places],
            want.relu_threshold_at(places),
            want.in_first_half[places],
        )
        scale = np.float32(plan.tensors[ir.input_name(node)].scale)
        for g in range(group):
            of = slice(g * outputs, (g + 1) * outputs)
            inputs = np.concatenate([part[:, g] for part in rows]).astype(np.float32) / scale
            counts[g] = (
                fit_weights_to_outputs(
                    counts[g] / held_at[g], inputs, values[:, of], floor[:, of], first
                )
                * held_at[g]
            )
        input_moments = compute_covariances(rows)
    else:
        places = read.sample_positions()
        count, input_moments = len(places), compute_covariances(read.at(places))
    old = weight.reshape(group, outputs, fields).astype(np.float64) * (
        1.0 if step is None else step
    )
    few = q.bits <= _LOW_BITS and options.coordinate_descent
    ways = 1 if not few else BEAM_WIDTH if behind is None else _OUTPUT_BEAM_WIDTH
    if behind is not None:
        input_moments = behind.blend_input_moments(input_moments)
    better = round_with_compensation(
        counts, input_moments, count, q.low, q.high, step, beam_width=ways
    )
    if options.coordinate_descent:
        better = minimize_by_coordinate_descent(
            better, counts, input_moments, count, q.low, q.high, step
        )
    worse = output_error(better - counts, input_moments) >= output_error(
        old - counts, input_moments
    )
    best = np.where(worse[:, None, None], old, better)
    if behind is not None:
        best = minimize_block_error(
            best, counts, input_moments, behind.metric, count, q.low, q.high, step=step
        )
    elif options.block_reconstruction:
        best = _refine_by_block_error(best, counts, input_moments, count, node, want, q, step=step)
    result = (best if step is None else best / step).reshape(weight.shape).astype(weight.dtype)
    return None if np.array_equal(result, weight) else result


def _refine_by_block_error(
    integers: np.ndarray,
    counts: np.ndarray,
    input_moments: np.ndarray,
    samples: int,
    node: ir.Node,
    want: LayerTarget,
    qparams: Affine,
    step: np.ndarray | None,
) -> np.ndarray:
    """Return better `integers` [G, O, K] by the error behind the next layer, where one alone reads this one."""
    places = np.sort(np.random.default_rng(0).permutation(len(want.index))[:MAX_SAMPLED_ROWS])
    metric = compute_block_metric(node, want.values[places])
    if metric is None:
        return integers
    return minimize_block_error(
        integers, counts, input_moments, metric, samples, qparams.low, qparams.high, step=step
    )


def _group_steps(qparams: Affine, weight: np.ndarray) -> np.ndarray:
    """Return how many counts of its row's products an integer of each of the weights [O, I] stands for."""
    return qparams.spread(qparams.factors[1].astype(np.float64), weight.shape)


# ---- biases --------------------------------------------------------------------------------------


def _subtract_from_bias(model: ir.Model, node: ir.Node, error: np.ndarray) -> None:
    """Subtract `error` from the bias of `node`, which gets one when it has none."""
    bias = ir.const_value(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        ir.set_constant_input(model, node, 2, (bias - error).astype(np.float32), "refined")
        return
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_bias")
    node.replace_input_with(2, ir.add_initializer(model, name, (-error).astype(np.float32)))
