"""What the packer does to a graph before it plans.

Fusions, vanishing moves, groups, pads of their own, cuts.
"""

from __future__ import annotations

import math

import numpy as np

from .....formats import CONCAT, CONV2D, LINEAR, PAD
from .... import Target
from ...packer_profile import get_packer_profile
from ..options import PackerOptions
from ..packer_graph import PackerGraph, PackerStep, PackerTensor
from ..window import round_up
from .steps import infer_tensors, sort_topologically

__all__ = ["apply_packer_transforms"]


def apply_packer_transforms(
    net: PackerGraph, target: Target, options: PackerOptions
) -> PackerGraph:
    """Return the graph that is planned.

    The steps keep the names of the nodes that they come from.
    """
    result = PackerGraph(
        list(net.steps), list(net.inputs), list(net.outputs), dict(net.tensors), dict(net.arrays)
    )
    for change in (_remove_noop_slices, _simplify_reshapes, _split_groups):
        change(result)
        result.steps = sort_topologically(result.steps, result.outputs)
    if get_packer_profile(target).conv.hoists_padding:
        _hoist_padding(result)
    _split_large_layers(result, target, options)
    return result


def _bypass(net: PackerGraph, step: PackerStep) -> bool:
    """Let the readers of a step read its input; false where a graph output would lose its name."""
    source, name = step.inputs[0], step.outputs[0]
    if name in net.outputs:
        return False
    net.steps.remove(step)
    net.steps = [
        s.with_changes(inputs=tuple(source if n == name else n for n in s.inputs))
        for s in net.steps
    ]
    return True


def _remove_noop_slices(net: PackerGraph) -> None:
    """A Slice over all vanishes."""
    for step in list(net.steps):
        if (
            step.op == "Slice"
            and net.tensors[step.inputs[0]].shape == net.tensors[step.outputs[0]].shape
        ):
            _bypass(net, next(s for s in net.steps if s.outputs == step.outputs))


def _simplify_reshapes(net: PackerGraph) -> None:
    """A Transpose that moves axes of length 1 only is a Reshape.

    One that only a Reshape reads vanishes.
    """
    for index, step in enumerate(net.steps):
        if step.op == "Transpose":
            shape = net.tensors[step.inputs[0]].shape
            moved = [axis for axis in step.get("perm") if shape[axis] != 1]
            if moved == sorted(moved):
                net.steps[index] = step.with_changes(
                    op="Reshape", attributes={"shape": list(net.tensors[step.outputs[0]].shape)}
                )
    for step in [s for s in net.steps if s.op == "Reshape"]:
        readers = net.find_consumers(step.outputs[0])
        if len(readers) == 1 and readers[0].op == "Reshape":
            _bypass(net, next(s for s in net.steps if s.outputs == step.outputs))


def _split_groups(net: PackerGraph) -> None:
    """A grouped convolution that is not depthwise becomes Split, one convolution for each group, iqCat."""
    for step in list(net.steps):
        group = step.get("group", 1)
        weight = net.tensors[step.inputs[1]] if len(step.inputs) > 1 else None
        if step.op != CONV2D.name or weight is None or group in (1, weight.shape[0]):
            continue
        source, outputs = net.tensors[step.inputs[0]], weight.shape[0] // group
        parts = [f"{step.outputs[0]}#group{i}" for i in range(group)]
        slices = [f"{part}#in" for part in parts]
        new = [
            PackerStep(
                "Split",
                f"{step.name}#split",
                step.inputs[:1],
                tuple(slices),
                {"axis": 1, "dims": [source.shape[1] // group] * group},
                step.origin,
            )
        ]
        for i, part in enumerate(parts):
            names = [
                slices[i],
                _slice_constant(net, step.inputs[1], i * outputs, outputs, f"{part}#w"),
            ]
            names += [
                _slice_constant(net, n, i * outputs, outputs, f"{part}#b") for n in step.inputs[2:]
            ]
            new.append(
                step.with_changes(
                    name=f"{step.name}#{i}",
                    inputs=tuple(names),
                    outputs=(part,),
                    created_as="group",
                    attributes={**step.attributes, "group": 1},
                )
            )
        new.append(
            PackerStep(
                CONCAT.name,
                f"{step.name}#cat",
                tuple(parts),
                step.outputs,
                {"dim": 1, "scale_o": step.get("scale_o")},
                step.origin,
            )
        )
        at = net.steps.index(step)
        net.steps[at : at + 1] = new
        infer_tensors(PackerGraph(new, [], [], net.tensors, net.arrays))


def _slice_constant(net: PackerGraph, name: str, start: int, count: int, label: str) -> str:
    """Make `count` outputs of a constant a constant of its own."""
    array = net.arrays[name][start : start + count]
    net.arrays[label] = array
    net.tensors[label] = PackerTensor(label, tuple(array.shape), array.dtype.itemsize, True)
    return label


def _hoist_padding(net: PackerGraph) -> None:
    """A convolution over a map smaller than its kernel gets pads in a node of its own.

    All readers then read it.
    Fewer channels than kernel rows: the pads of the rows; fewer rows than kernel columns: those of
    the columns. All readers get the pads that are left. The first such convolution on a graph input
    ends the pass.
    """
    for done in [s.outputs for s in net.steps if s.op == CONV2D.name]:
        step = next(s for s in net.steps if s.outputs == done)
        source, weight = net.tensors[step.inputs[0]], net.tensors[step.inputs[1]].shape
        kernel, pads = step.get("kernel_shape"), step.get("pads") or [0] * 4
        depthwise = step.get("group", 1) == weight[0] > 1
        rows = (source.shape[1] if depthwise else weight[1]) < kernel[0]
        columns = source.shape[2] < kernel[1]
        if not rows and not columns:
            continue
        if source.name in net.inputs:
            return
        moved = [p if (rows, columns)[i % 2] else 0 for i, p in enumerate(pads)]
        _insert_pad(net, step, moved, [p - m for p, m in zip(pads, moved, strict=True)])


def _insert_pad(
    net: PackerGraph, step: PackerStep, hoisted_pads: list[int], remaining_pads: list[int]
) -> None:
    """Put an iqPad in front of a convolution and of all that read the same tensor."""
    source = step.inputs[0]
    label, amounts = f"{source}#pad", f"{source}#pad#amounts"
    net.arrays[amounts] = np.array([0, 0, *hoisted_pads[:2], 0, 0, *hoisted_pads[2:]], np.int64)
    net.tensors[amounts] = PackerTensor(amounts, (8,), 8, True)
    pad = PackerStep(PAD.name, label, (source, amounts), (label,), {}, step.origin, "pad")
    changed = []
    for other in net.steps:
        if source in other.inputs:
            attributes = (
                {**other.attributes, "pads": remaining_pads}
                if "pads" in other.attributes
                else other.attributes
            )
            other = other.with_changes(
                inputs=tuple(label if n == source else n for n in other.inputs),
                attributes=attributes,
            )
        changed.append(other)
    net.steps = changed
    net.steps.insert(next(i for i, s in enumerate(changed) if label in s.inputs), pad)
    infer_tensors(net)


def _split_large_layers(net: PackerGraph, target: Target, options: PackerOptions) -> None:
    """Cut layers with many weights over their outputs, into several and an iqCat."""
    for step in list(net.steps):
        sizes = (
            _get_conv_split(net, step, target, options)
            if step.op == CONV2D.name and step.get("group", 1) == 1
            else None
        )
        if step.op == LINEAR.name:
            sizes = _get_linear_split(net, step, target, options)
        if not sizes or len(sizes) < 2:
            continue
        axis = 1 if step.op == CONV2D.name else len(net.tensors[step.outputs[0]].shape) - 1
        new, start = [], 0
        for i, size in enumerate(sizes):
            label = f"{step.outputs[0]}#part{i}"
            names = [
                step.inputs[0],
                *(
                    _slice_constant(net, n, start, size, f"{label}#{k}")
                    for k, n in enumerate(step.inputs[1:])
                ),
            ]
            new.append(
                step.with_changes(
                    name=f"{step.name}#{i}",
                    inputs=tuple(names),
                    outputs=(label,),
                    created_as="part",
                )
            )
            start += size
        cat = PackerStep(
            CONCAT.name,
            f"{step.name}#cat",
            tuple(s.outputs[0] for s in new),
            step.outputs,
            {"dim": axis, "scale_o": step.get("scale_o")},
            step.origin,
        )
        at = net.steps.index(step)
        net.steps[at : at + 1] = [*new, cat]
        infer_tensors(PackerGraph(new, [], [], net.tensors, net.arrays))


def _split_evenly(total: int, size: int) -> list[int]:
    """Return `total` in parts of `size`, the last one smaller."""
    return [min(size, total - start) for start in range(0, total, size)]


def _get_conv_split(
    net: PackerGraph, step: PackerStep, target: Target, options: PackerOptions
) -> list[int] | None:
    """Return the outputs of the parts of a convolution; None where it stays whole."""
    cut, most = (
        get_packer_profile(target).layer_split,
        get_packer_profile(target).conv.weight_slice_outputs,
    )
    outputs, channels, kh, kw = net.tensors[step.inputs[1]].shape
    _, _, height, width = net.tensors[step.inputs[0]].shape
    result = net.tensors[step.outputs[0]].shape
    one = round_up(channels, 8) * kh * kw
    weights = (
        min(cut.weight_bytes, options.thresholds[0])
        if cut.threshold_lowers_limit
        else max(cut.weight_bytes, options.thresholds[0])
    )
    room = max(cut.outputs, options.thresholds[1])
    strides = step.get("strides") or [1, 1]
    whole = round_up(channels, 8) * round_up(width, cut.width_align * strides[1]) * height
    rows = 1 if whole > cut.row_mode_bytes else result[2]
    out = result[1] * rows * result[3]
    if round_up(outputs, most) * one <= weights and out <= room:
        return None
    largest = max(weights // one // most * most, most)
    count = math.ceil(outputs / largest)
    if round_up(outputs, most) * one <= weights:
        count = math.ceil(out / room)
    size = round_up(outputs // count, most)
    while (size + most) * one <= weights and size < outputs:
        size += most
    return _split_evenly(outputs, size)


def _get_linear_split(
    net: PackerGraph, step: PackerStep, target: Target, options: PackerOptions
) -> list[int] | None:
    """Return the outputs of the parts of a LinearInt; None where it stays whole."""
    cut = get_packer_profile(target).layer_split
    shape = net.tensors[step.inputs[1]].shape
    if len(shape) != 2:
        return None  # no weight of such a layer; its limits say so
    outputs, inputs = shape
    limit = max(cut.linear_weight_bytes, options.thresholds[2])
    deep = round_up(inputs, 8)
    if deep * round_up(outputs, cut.linear_output_align) <= limit:
        return None
    count = 2
    while deep * round_up(math.ceil(outputs / count), cut.linear_output_align) > limit:
        count += 1
    return _split_evenly(outputs, round_up(math.ceil(outputs / count), cut.linear_output_align))
