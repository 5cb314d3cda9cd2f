"""Convert means and maxima over space to pools, and pools to full windows.

GlobalAveragePool, and ReduceMean over the last two axes of a four-dimensional tensor, become an
AveragePool over the complete feature map, with a Flatten if ``keepdims=0``; GlobalMaxPool and
ReduceMax become a MaxPool. Needs static spatial dimensions. A ceil_mode without effect is removed;
one with an effect becomes padding after the map. An average that does not count padding becomes one
that counts it, multiplied by (window size) / (number of counted elements), a constant per position.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason


def convert_spatial_pools(model: ir.Model) -> PassResult:
    """Convert means and maxima over height and width of `model` to AveragePool and MaxPool.

    In place. Their input must have four axes and known spatial sizes. Pools also lose a `ceil_mode`
    without effect, or are padded so that all windows are full. Other reductions and remaining
    `ceil_mode` are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type in ("AveragePool", "MaxPool"):
            changes += _drop_ceil_mode(node)
            changes += _make_windows_full(model, node)
            if ir.get_attr(node, "ceil_mode", 0):
                reason = "its ceil_mode has an effect: windows extend beyond the feature map"
                skipped.append(SkipReason(node, reason))
        keeps_axes = _match_spatial_reduction(node)
        if keeps_axes is None:
            continue
        shape = ir.get_shape(node.inputs[0])
        if shape is None or len(shape) != 4 or shape[2] is None or shape[3] is None:
            reason = "its input is not four-dimensional with static spatial dimensions"
            skipped.append(SkipReason(node, reason))
            continue
        _replace_with_pool(model, node, keeps_axes)
        changes += 1
    return PassResult(changes, skipped)


def _replace_with_pool(model: ir.Model, node: ir.Node, keeps_axes: bool) -> None:
    """Replace a spatial mean or maximum by a pool, and a Flatten if the axes are removed.

    The window of the pool is the whole space; `keeps_axes` says whether the axes stay with size 1.
    """
    source, result = ir.require_input(node), node.outputs[0]
    shape = ir.require_shape(source)
    kernel = [int(shape[2] or 0), int(shape[3] or 0)]
    pool = ir.make_node(
        "MaxPool" if "Max" in node.op_type else "AveragePool",
        [source],
        {"kernel_shape": kernel, "strides": kernel},
        origin=node,
        output="",
    )
    pooled = pool.outputs[0]
    pooled.type = result.type
    if keeps_axes:
        pooled.shape = result.shape
        ir.replace_nodes(model, [node], [pool])
        return
    pooled.name = ir.unique_tensor_name(model, f"{result.name}_pool")
    pooled.shape = ir.Shape([source.shape[0], shape[1], 1, 1])  # type: ignore[index]
    flatten = ir.make_node(
        "Flatten", [pooled], {"axis": 1}, origin=node, suffix="flatten", output="", like=result
    )
    ir.replace_nodes(model, [node], [pool, flatten])


def _match_spatial_reduction(node: ir.Node) -> bool | None:
    """Return whether `node`, a mean or maximum over axes 2 and 3, keeps them as size 1.

    True for global pools. None if `node` is no such reduction of a float32 tensor.
    """
    source = node.inputs[0] if node.inputs else None
    if source is None or source.dtype is None or source.dtype.name != "FLOAT":
        return None
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        return True
    if node.op_type not in ("ReduceMean", "ReduceMax"):
        return None
    axes = ir.get_axes(node)
    if axes is None or sorted(axis % 4 for axis in axes) != [2, 3]:
        return None
    return bool(ir.get_attr(node, "keepdims", 1))


def _drop_ceil_mode(node: ir.Node) -> int:
    """Set `ceil_mode` of the pool `node` to 0 if it has no effect, and return 1.

    It has none if the windows cover the padded input exactly. Returns 0, without a change, if they
    do not along some axis, if `ceil_mode` is 0 already, or if a spatial dimension is unknown.
    """
    shape = ir.get_shape(node.inputs[0])
    if not ir.get_attr(node, "ceil_mode", 0) or shape is None or None in shape[2:]:
        return 0
    kernel = ir.get_attr(node, "kernel_shape")
    rank = len(kernel)
    strides = ir.get_attr(node, "strides", [1] * rank)
    dilations = ir.get_attr(node, "dilations", [1] * rank)
    pads = ir.get_attr(node, "pads", [0] * 2 * rank)
    for axis, dim in enumerate(shape[2:]):
        padded_size = int(dim or 0) + pads[axis] + pads[axis + rank]
        free_steps = padded_size - dilations[axis] * (kernel[axis] - 1) - 1
        if free_steps % strides[axis]:
            return 0
    ir.set_attr(node, "ceil_mode", 0)
    return 1


def _make_windows_full(model: ir.Model, node: ir.Node) -> int:
    """Pad the two-dimensional pool `node` so that all windows are full; return 1.

    `ceil_mode` and padding that an average does not count become counted padding and a Mul by a
    factor per position. Returns 0, without a change, if there is neither, for `auto_pad`, unknown
    sizes, and windows without elements.
    """
    shapes = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if node.domain or len(node.outputs) != 1 or not _are_static_maps(*shapes):
        return 0
    if ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET" or not _has_partial_windows(node):
        return 0
    pads = list(ir.get_attr(node, "pads") or [0] * 4)
    counts = []
    for axis, size in enumerate(ir.get_sample_dims(node.inputs[0])[1:]):
        indices = _window_indices(node, axis)
        low, high = 0, size
        if _counts_padding(node):
            low, high = -pads[axis], size + pads[2 + axis]
        counts.append(((low <= indices) & (indices < high)).sum(1))
        pads[2 + axis] = max(pads[2 + axis], int(indices[-1, -1]) + 1 - size)
    if not all(count.all() for count in counts):
        return 0
    ir.set_attr(node, "pads", pads)
    ir.set_attr(node, "ceil_mode", 0)
    if node.op_type == "AveragePool":
        ir.set_attr(node, "count_include_pad", 1)
        factor = math.prod(ir.get_attr(node, "kernel_shape")) / np.multiply.outer(*counts)
        if (factor != 1).any():
            _multiply_output(model, node, factor.astype(np.float32))
    return 1


def _counts_padding(node: ir.Node) -> bool:
    """Whether `node` is an AveragePool with `count_include_pad`: its mean counts padded zeros."""
    return node.op_type == "AveragePool" and bool(ir.get_attr(node, "count_include_pad", 0))


def _has_partial_windows(node: ir.Node) -> bool:
    """Whether windows of the pool `node` may extend beyond the elements that it counts.

    That is with `ceil_mode`, or for an AveragePool with pads that are not counted.
    """
    if ir.get_attr(node, "ceil_mode", 0):
        return True
    if node.op_type != "AveragePool" or _counts_padding(node):
        return False
    return any(ir.get_attr(node, "pads") or ())


def _window_indices(node: ir.Node, axis: int) -> np.ndarray:
    """Return the input index of each element of each window along a spatial axis, [positions, k].

    `axis` is 0 or 1 for a 2-D pool. Indices in the padding are negative or past the input.
    """
    positions = int(ir.require_shape(node.outputs[0])[2 + axis] or 0)
    stride = (ir.get_attr(node, "strides") or [1, 1])[axis]
    dilation = (ir.get_attr(node, "dilations") or [1, 1])[axis]
    first_pad = (ir.get_attr(node, "pads") or [0, 0])[axis]
    starts = np.arange(positions) * stride - first_pad
    size = int(ir.get_attr(node, "kernel_shape")[axis])
    indices: np.ndarray = starts[:, None] + np.arange(size) * dilation
    return indices


def _are_static_maps(
    shape: tuple[int | None, ...] | None, result_shape: tuple[int | None, ...] | None
) -> bool:
    """Whether input and output are four-dimensional with static spatial dimensions."""
    if shape is None or result_shape is None or len(shape) != 4:
        return False
    return None not in (*shape[2:], *result_shape[2:])


def _multiply_output(model: ir.Model, node: ir.Node, factor: np.ndarray) -> None:
    """Replace the pool `node` by itself followed by a Mul with `factor` [height, width].

    `factor` becomes a constant [1, 1, height, width].
    """
    build = SubgraphBuilder(model, node)
    shape = list(node.outputs[0].shape or ())
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    mean = build(node.op_type, [ir.require_input(node)], shape, "padded", attributes)
    factor_value = build.constant(factor.reshape(1, 1, *factor.shape), "factor")
    build("Mul", [mean, factor_value], shape, "mean")
    build.replace_node()
