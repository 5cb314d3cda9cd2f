"""Transforms that the packer applies to a graph before it plans memory.

No-op slices and reshapes are removed, grouped convolutions and large layers are split, and padding
of small maps is hoisted into separate nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from ....common.arithmetic import round_up
from ....operators.integer_ops import CONCAT, CONV2D, LINEAR, PAD
from ....targets import Target
from ...packer_profile import get_packer_profile
from ..options import PackerOptions
from ..packer_graph import PackerGraph, PackerStep, PackerTensor
from .steps import infer_tensors, sort_topologically

__all__ = ["apply_packer_transforms"]


def apply_packer_transforms(
    net: PackerGraph, target: Target, options: PackerOptions
) -> PackerGraph:
    """Return a copy of `net` after the transforms that the packer makes before it plans memory.

    Slices of a whole tensor and repeated reshapes are removed, groups split, padding of small maps
    hoisted (if this chip's packer does it), and layers with many weights split. `origin` of each
    step still names the node of the user's graph.
    """
    result = PackerGraph(
        list(net.steps), list(net.inputs), list(net.outputs), dict(net.tensors), dict(net.arrays)
    )
    for transform in (_remove_noop_slices, _simplify_reshapes, _split_groups):
        transform(result)
        result.steps = sort_topologically(result.steps, result.outputs)
    if get_packer_profile(target).conv.hoists_padding:
        _hoist_padding(result)
    _split_large_layers(result, target, options)
    return result


def _bypass_steps(net: PackerGraph, steps: Sequence[PackerStep]) -> None:
    """Remove `steps` from `net`; consumers of the first output of each get its first input.

    In place. A step whose output is a graph output stays.
    """
    graph_outputs = set(net.outputs)
    sources: dict[str, str] = {}
    bypassed_ids = set()
    for step in steps:
        source, name = step.inputs[0], step.outputs[0]
        if name not in graph_outputs:
            sources[name] = sources.get(source, source)
            bypassed_ids.add(id(step))
    remaining = [step for step in net.steps if id(step) not in bypassed_ids]
    net.steps = [_replace_inputs(step, sources) for step in remaining]


def _replace_inputs(step: PackerStep, new_names: Mapping[str, str]) -> PackerStep:
    """Return `step` with its inputs renamed by {old name: new name}; a copy if any is renamed."""
    if not any(name in new_names for name in step.inputs):
        return step
    return step.with_changes(inputs=tuple(new_names.get(name, name) for name in step.inputs))


def _remove_noop_slices(net: PackerGraph) -> None:
    """Remove each Slice of `net` whose output shape equals its input shape, in place.

    One whose output is a graph output stays.
    """
    slices = [step for step in net.steps if step.op == "Slice"]
    shapes = {name: tensor.shape for name, tensor in net.tensors.items()}
    _bypass_steps(
        net, [step for step in slices if shapes[step.inputs[0]] == shapes[step.outputs[0]]]
    )


def _simplify_reshapes(net: PackerGraph) -> None:
    """Turn each Transpose of `net` that moves only axes of size 1 into a Reshape, in place.

    Then removes each Reshape whose only consumer is another Reshape, unless its output is a graph
    output.
    """
    for index, step in enumerate(net.steps):
        if step.op != "Transpose":
            continue
        if net.is_reshape(step):
            new_shape = list(net.tensors[step.outputs[0]].shape)
            net.steps[index] = step.with_changes(op="Reshape", attributes={"shape": new_shape})
    consumer_ops: dict[str, list[str]] = {}
    for step in net.steps:
        for name in set(step.inputs):
            consumer_ops.setdefault(name, []).append(step.op)
    reshapes = [step for step in net.steps if step.op == "Reshape"]
    _bypass_steps(
        net, [step for step in reshapes if consumer_ops.get(step.outputs[0]) == ["Reshape"]]
    )


def _split_groups(net: PackerGraph) -> None:
    """Replace each grouped Conv2dInt of `net` by Split, a convolution per group, and iqCat.

    In place. Depthwise convolutions (as many groups as outputs) stay.
    """
    net.steps = list(chain.from_iterable(_split_group(net, step) for step in net.steps))


def _split_group(net: PackerGraph, step: PackerStep) -> list[PackerStep]:
    """Return the steps that replace `step` of `net`, itself if it is no grouped convolution.

    Adds their tensors to `net`.
    """
    group = net.get_split_groups(step)
    if not group:
        return [step]
    weight = net.tensors[step.inputs[1]]
    channels = net.tensors[step.inputs[0]].shape[1] // group
    outputs = weight.shape[0] // group
    group_outputs = [f"{step.outputs[0]}#group{i}" for i in range(group)]
    group_inputs = [f"{name}#in" for name in group_outputs]
    split = PackerStep(
        "Split",
        f"{step.name}#split",
        step.inputs[:1],
        tuple(group_inputs),
        {"axis": 1, "dims": [channels] * group},
        step.origin,
    )
    convolutions = []
    for i, name in enumerate(group_outputs):
        start = i * outputs
        constants = [_slice_constant(net, step.inputs[1], start, outputs, f"{name}#w")]
        for bias in step.inputs[2:]:
            constants.append(_slice_constant(net, bias, start, outputs, f"{name}#b"))
        convolutions.append(
            step.with_changes(
                name=f"{step.name}#{i}",
                inputs=(group_inputs[i], *constants),
                outputs=(name,),
                created_as="group",
                attributes={**step.attributes, "group": 1},
            )
        )
    return _add_tensors(net, [split, *convolutions, _make_concat(step, group_outputs, axis=1)])


def _make_concat(step: PackerStep, inputs: Sequence[str], axis: int) -> PackerStep:
    """Make the iqCat along `axis` that joins tensors `inputs`, the parts of split layer `step`.

    It has the outputs, `scale_o` and `origin` of `step`.
    """
    attributes = {"dim": axis, "scale_o": step.get("scale_o")}
    return PackerStep(
        CONCAT.name, f"{step.name}#cat", tuple(inputs), step.outputs, attributes, step.origin
    )


def _add_tensors(net: PackerGraph, new_steps: list[PackerStep]) -> list[PackerStep]:
    """Add the inferred output tensors of `new_steps` to `net`, and return the steps.

    Findings of the shape inference are ignored.
    """
    infer_tensors(PackerGraph(new_steps, [], [], net.tensors, net.arrays))
    return new_steps


def _slice_constant(net: PackerGraph, name: str, start: int, count: int, new_name: str) -> str:
    """Add rows `start` to `start + count` of constant `name` to `net` as `new_name`, in place.

    Axis 0 has the outputs of a layer. Returns `new_name`.
    """
    array = net.arrays[name][start : start + count]
    net.arrays[new_name] = array
    net.tensors[new_name] = PackerTensor(new_name, tuple(array.shape), array.dtype.itemsize, True)
    return new_name


def _hoist_padding(net: PackerGraph) -> None:
    """Move padding of each Conv2dInt over a map smaller than its kernel into an iqPad, in place.

    The pads of the rows move if there are fewer channels (per group, depthwise: of the input) than
    kernel rows, those of the columns if there are fewer map rows than kernel columns. All consumers
    of the input get the padded tensor. The pass ends at the first such convolution on a graph
    input.
    """
    step_by_outputs = {step.outputs: step for step in net.steps}
    for outputs in [step.outputs for step in net.steps if step.op == CONV2D.name]:
        step = step_by_outputs[outputs]
        source, weight = net.tensors[step.inputs[0]], net.tensors[step.inputs[1]].shape
        kernel, pads = step.get("kernel_shape"), step.get("pads") or [0] * 4
        is_depthwise = step.get("group", 1) == weight[0] > 1
        channels = source.shape[1] if is_depthwise else weight[1]
        hoists_rows = channels < kernel[0]
        hoists_columns = source.shape[2] < kernel[1]
        is_hoisted = (hoists_rows, hoists_columns)  # pads are top, left, bottom, right
        hoisted = [pad if is_hoisted[i % 2] else 0 for i, pad in enumerate(pads)]
        if not any(hoisted):
            continue
        if source.name in net.inputs:
            return
        remaining = [pad - amount for pad, amount in zip(pads, hoisted, strict=True)]
        _insert_pad(net, step, hoisted, remaining)
        step_by_outputs = {step.outputs: step for step in net.steps}


def _insert_pad(
    net: PackerGraph, step: PackerStep, hoisted_pads: list[int], remaining_pads: list[int]
) -> None:
    """Insert an iqPad for input 0 of `step` and redirect all consumers of that input to it.

    In place. `hoisted_pads` and `remaining_pads` are top, left, bottom, right; every consumer that
    has `pads`, not only `step`, gets `remaining_pads`.
    """
    source = step.inputs[0]
    padded, amounts = f"{source}#pad", f"{source}#pad#amounts"
    net.arrays[amounts] = np.array([0, 0, *hoisted_pads[:2], 0, 0, *hoisted_pads[2:]], np.int64)
    net.tensors[amounts] = PackerTensor(amounts, (8,), 8, True)
    pad = PackerStep(PAD.name, padded, (source, amounts), (padded,), {}, step.origin, "pad")
    steps = []
    for consumer in net.steps:
        if source in consumer.inputs:
            attributes = consumer.attributes
            if "pads" in attributes:
                attributes = {**attributes, "pads": remaining_pads}
            consumer = _replace_inputs(consumer, {source: padded})
            consumer = consumer.with_changes(attributes=attributes)
        steps.append(consumer)
    net.steps = steps
    net.steps.insert(next(i for i, s in enumerate(steps) if padded in s.inputs), pad)
    infer_tensors(net)


def _split_large_layers(net: PackerGraph, target: Target, options: PackerOptions) -> None:
    """Split each large Conv2dInt with one group and LinearInt of `net` by outputs, in place.

    A layer becomes several layers with slices of its constants, and an iqCat that joins their
    outputs.
    """
    parts = (_split_layer(net, step, target, options) for step in net.steps)
    net.steps = list(chain.from_iterable(parts))


def _split_layer(
    net: PackerGraph, step: PackerStep, target: Target, options: PackerOptions
) -> list[PackerStep]:
    """Return the steps that replace `step` of `net`, itself if it is not split.

    Adds their tensors and constants to `net`.
    """
    sizes = None
    if step.op == CONV2D.name and step.get("group", 1) == 1:
        sizes = _get_conv_split(net, step, target, options)
    elif step.op == LINEAR.name:
        sizes = _get_linear_split(net, step, target, options)
    if not sizes or len(sizes) < 2:
        return [step]
    axis = 1 if step.op == CONV2D.name else len(net.tensors[step.outputs[0]].shape) - 1
    parts, start = [], 0
    for i, size in enumerate(sizes):
        name = f"{step.outputs[0]}#part{i}"
        constants = [
            _slice_constant(net, constant, start, size, f"{name}#{k}")
            for k, constant in enumerate(step.inputs[1:])
        ]
        parts.append(
            step.with_changes(
                name=f"{step.name}#{i}",
                inputs=(step.inputs[0], *constants),
                outputs=(name,),
                created_as="part",
            )
        )
        start += size
    return _add_tensors(
        net, [*parts, _make_concat(step, [part.outputs[0] for part in parts], axis)]
    )


def _split_evenly(total: int, size: int) -> list[int]:
    """Return the sizes of the parts of `total` items: `size` each, the last one the remainder."""
    return [min(size, total - start) for start in range(0, total, size)]


def _get_conv_split(
    net: PackerGraph, step: PackerStep, target: Target, options: PackerOptions
) -> list[int] | None:
    """Return the output channels of each part of Conv2dInt `step`, or None if it is not split.

    It is split if its padded weights or its output bytes (of one row for a large map) exceed limits
    that combine the chip's profile with --threshold1 and --threshold2. Sizes are multiples of the
    profile's alignment, except the last.
    """
    limits = get_packer_profile(target).layer_split
    align = get_packer_profile(target).conv.weight_slice_outputs
    outputs, channels, kh, kw = net.tensors[step.inputs[1]].shape
    _, _, height, width = net.tensors[step.inputs[0]].shape
    output_shape = net.tensors[step.outputs[0]].shape
    bytes_per_output = round_up(channels, 8) * kh * kw
    choose_limit = min if limits.threshold_lowers_limit else max
    max_weight_bytes = choose_limit(limits.weight_bytes, options.thresholds[0])
    max_output_bytes = max(limits.outputs, options.thresholds[1])
    stride = (step.get("strides") or [1, 1])[1]
    map_bytes = round_up(channels, 8) * round_up(width, limits.width_align * stride) * height
    rows = 1 if map_bytes > limits.row_mode_bytes else output_shape[2]
    output_bytes = output_shape[1] * rows * output_shape[3]
    weights_fit = round_up(outputs, align) * bytes_per_output <= max_weight_bytes
    if weights_fit and output_bytes <= max_output_bytes:
        return None
    if weights_fit:
        count = math.ceil(output_bytes / max_output_bytes)
    else:
        max_outputs = max(max_weight_bytes // bytes_per_output // align * align, align)
        count = math.ceil(outputs / max_outputs)
    size = round_up(outputs // count, align)
    while (size + align) * bytes_per_output <= max_weight_bytes and size < outputs:
        size += align
    return _split_evenly(outputs, size)


def _get_linear_split(
    net: PackerGraph, step: PackerStep, target: Target, options: PackerOptions
) -> list[int] | None:
    """Return the outputs of each part of LinearInt `step`, or None if it is not split.

    It is split into the fewest parts whose padded weights fit in the larger of the profile's limit
    and --threshold3. None also for weights that are not 2-D.
    """
    limits = get_packer_profile(target).layer_split
    shape = net.tensors[step.inputs[1]].shape
    if len(shape) != 2:
        return None  # not a valid weight; another check reports it
    outputs, inputs = shape
    max_weight_bytes = max(limits.linear_weight_bytes, options.thresholds[2])
    padded_inputs = round_up(inputs, 8)

    def fits(count: int) -> bool:
        """Whether the padded weights of each of `count` equal parts are within the limit."""
        padded_outputs = round_up(math.ceil(outputs / count), limits.linear_output_align)
        return padded_inputs * padded_outputs <= max_weight_bytes

    if fits(1):
        return None
    count = 2
    while not fits(count):
        count += 1
    return _split_evenly(outputs, round_up(math.ceil(outputs / count), limits.linear_output_align))
