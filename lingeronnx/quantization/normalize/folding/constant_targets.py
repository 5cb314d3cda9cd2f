"""Make the targets of Reshape and Expand and the sizes of Resize constant.

Exporters compute them at run time. A Reshape whose traced result is known except for the batch
becomes ``Reshape(x, [0, ...])``, and such an Expand ``Expand(x, [1, ...])``; a Resize whose samples
have the same size in all runs gets scales in place of sizes. The chain of Shape, Gather and Concat
that computed these becomes dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ....ir import ir
from .._pass import PassResult, SkipReason

#: Operator -> the input that is its target.
TARGET_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3}


def has_computed_target(node: ir.Node) -> bool:
    """Whether `node` is a Reshape, Expand or Resize whose shape is computed at run time."""
    index = TARGET_INPUTS.get(node.op_type)
    if index is None or node.domain or index >= len(node.inputs):
        return False
    return node.inputs[index] is not None and ir.const_value(node.inputs[index]) is None


def make_targets_constant(model: ir.Model) -> PassResult:
    """Make the targets of `model` constant if the shapes allow it, in place.

    Targets are the computed shapes and sizes that Reshape, Expand and Resize read; those that
    remain computed are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in model.graph:
        if not has_computed_target(node):
            continue
        reason = _TARGET_REWRITES[node.op_type](model, node)
        if reason:
            skipped.append(SkipReason(node, reason))
        else:
            changes += 1
    if changes:
        ir.remove_unused(model)
    return PassResult(changes, skipped)


def _fix_reshape_target(model: ir.Model, node: ir.Node) -> str:
    """Give the Reshape `node` a constant target, in place; return "", or why that is not possible.

    The target has the output's sizes, and for an unknown batch 0 (copied), or -1 if the elements
    per sample differ. Reasons: unknown sizes besides the batch, and a batch that moves to another
    axis.
    """
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if not source or not result:
        return "its input or output has no axes"
    source_axis, source_dims = _separate_batch(source)
    result_axis, result_dims = _separate_batch(result)
    if source_dims is None or result_dims is None:
        return "an axis other than the batch is not known"
    if source_axis != result_axis:
        return "it moves the batch to another axis"
    if result_axis and source.count(None) != result.count(None):
        return "it moves the batch to another axis"
    batch = result[result_axis]
    if batch is None or source[source_axis] is None:
        batch = 0 if math.prod(source_dims) == math.prod(result_dims) else -1
    node.attributes.pop("allowzero", None)  # a 0 in the target copies the size of the input
    _set_shape_input(model, node, [*result_dims[:result_axis], batch, *result_dims[result_axis:]])
    return ""


def _separate_batch(shape: Sequence[int | None]) -> tuple[int, list[int] | None]:
    """Return the axis of `shape` that is unknown, or else 0, and the list of the other sizes.

    The list is None if another axis is unknown too.
    """
    axis = shape.index(None) if None in shape else 0
    others = [size for size in (*shape[:axis], *shape[axis + 1 :]) if size is not None]
    return axis, others if len(others) + 1 == len(shape) else None


def _fix_expand_shape(model: ir.Model, node: ir.Node) -> str:
    """Give the Expand `node` a constant shape, in place; return "", or why that is not possible.

    An unknown batch becomes 1, which copies the size of the input.
    """
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if not source or not result or None in result[1:]:
        return "an axis other than the first is not known"
    if result[0] is None and (len(source) != len(result) or source[0] is not None):
        return "its batch size is that of another tensor"
    _set_shape_input(model, node, [int(d or 1) for d in result])  # 1 copies the size of the input
    return ""


def _set_shape_input(model: ir.Model, node: ir.Node, target: Sequence[int]) -> None:
    """Set input 1 of `node` to a new int64 constant `target`, in place."""
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_shape")
    node.replace_input_with(1, ir.add_initializer(model, name, np.array(target, np.int64)))


def _fix_resize_scales(model: ir.Model, node: ir.Node) -> str:
    """Replace the sizes of the Resize `node` by constant scales.

    Return "", or why that is not possible. The scales must give exactly the same sizes, and the
    batch is not resized.
    """
    source, result = ir.get_shape(node.inputs[0]) or (), ir.get_shape(node.outputs[0]) or ()
    if not result or len(source) != len(result) or None in (*source[1:], *result[1:]):
        return "an axis other than the first is not known"
    if (
        ir.get_attr(node, "axes")
        or ir.get_attr(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        return "it resizes only some axes, or keeps their ratio"
    scales = None
    if source[0] == result[0]:
        source_dims = np.array(source[1:], np.int64)
        scales = _find_exact_scales(source_dims, np.array(result[1:], np.int64))
    if scales is None:
        return "no scale results in exactly its sizes"
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_scales")
    node.replace_input_with(2, ir.add_initializer(model, name, scales))
    node.replace_input_with(3, None)
    return ""


def _find_exact_scales(source_dims: np.ndarray, result_dims: np.ndarray) -> np.ndarray | None:
    """Return float32 scales [1, ...] that resize `source_dims` exactly to `result_dims`, or None.

    The dimensions are those after the batch. None if float32 rounds a scale so that a size differs.
    """
    ratios = result_dims / np.maximum(source_dims, 1)
    scales = np.concatenate([[1.0], ratios]).astype(np.float32)
    scaled_dims = (source_dims * scales[1:].astype(np.float64)).astype(np.int64)
    return scales if np.array_equal(scaled_dims, result_dims) else None


_TARGET_REWRITES: dict[str, Callable[[ir.Model, ir.Node], str]] = {
    "Reshape": _fix_reshape_target,
    "Expand": _fix_expand_shape,
    "Resize": _fix_resize_scales,
}
