"""Make the target of Reshape and Expand and the sizes of Resize constants.

Exporters compute them at run time.
A Reshape of whose traced result only the batch is not known becomes ``Reshape(x, [0, ...])``, an
Expand of these ``Expand(x, [1, ...])``; a Resize whose samples have one size before and one behind
gets the factors in place of sizes. The chain of Shape, Gather and Concat that computed these dies
with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason

#: Operator -> the input that holds its target.
_TARGET_INPUTS = {"Reshape": 1, "Expand": 1, "Resize": 3}


def has_computed_target(node: ir.Node) -> bool:
    """Whether `node` is a Reshape, an Expand or a Resize whose target is computed at run time."""
    place = _TARGET_INPUTS.get(node.op_type, len(node.inputs))
    target = None if node.domain or place >= len(node.inputs) else node.inputs[place]
    return target is not None and ir.const_value(target) is None


def make_targets_constant(model: ir.Model) -> PassResult:
    """Make targets of `model` constant where the shapes allow it."""
    changed, why = 0, list[SkipReason]()
    for node in model.graph:
        if not has_computed_target(node):
            continue
        reason = _TARGET_REWRITES[node.op_type](model, node)
        if reason:
            why.append(SkipReason(node, reason))
        changed += not reason
    if changed:
        ir.remove_unused(model)
    return PassResult(changed, why)


def _fix_reshape_target(model: ir.Model, node: ir.Node) -> str:
    """Give a Reshape a constant target; return why not, or nothing."""
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if source is None or result is None or not source or not result:
        return "it makes or takes a tensor without axes"
    (before, inner), (after, outer) = _separate_batch(source), _separate_batch(result)
    if inner is None or outer is None:
        return "an axis other than the batch is not known"
    if before != after or (after and source.count(None) != result.count(None)):
        return "the batch moves to another axis"
    first = result[after]
    if first is None or source[before] is None:
        first = 0 if before == after and math.prod(inner) == math.prod(outer) else -1
    target = [*outer[:after], first, *outer[after:]]
    node.attributes.pop("allowzero", None)  # the 0 of the target means "as before"
    _set_shape_input(model, node, target)
    return ""


def _separate_batch(shape: Sequence[int | None]) -> tuple[int, list[int] | None]:
    """Return the axis that is not known, else the first, and the sizes of the others.

    None where one is not known.
    """
    axis = shape.index(None) if None in shape else 0
    others = [size for size in (*shape[:axis], *shape[axis + 1 :]) if size is not None]
    return axis, others if len(others) + 1 == len(shape) else None


def _fix_expand_shape(model: ir.Model, node: ir.Node) -> str:
    """Give an Expand constant sizes; return why not, or nothing."""
    source, result = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if not source or not result or None in result[1:]:
        return "an axis other than the first is not known"
    if result[0] is None and (len(source) != len(result) or source[0] is not None):
        return "it makes as many samples as there are elsewhere"
    _set_shape_input(model, node, [int(d or 1) for d in result])  # 1 means "as before"
    return ""


def _set_shape_input(model: ir.Model, node: ir.Node, target: Sequence[int]) -> None:
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_shape")
    node.replace_input_with(1, ir.add_initializer(model, name, np.array(target, np.int64)))


def _fix_resize_scales(model: ir.Model, node: ir.Node) -> str:
    """Give a Resize factors in place of the sizes that they lead to; return why not, or nothing."""
    source, result = (ir.get_shape(v) or () for v in (node.inputs[0], node.outputs[0]))
    if not result or len(source) != len(result) or None in (*source[1:], *result[1:]):
        return "an axis other than the first is not known"
    if (
        ir.get_attr(node, "axes")
        or ir.get_attr(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        return "it resizes some axes, or keeps their ratio"
    sizes = [(int(n or 0), int(m or 0)) for n, m in zip(source[1:], result[1:], strict=True)]
    factors = np.array([1.0, *(m / max(n, 1) for n, m in sizes)], np.float32)
    reached = [int(n * float(f)) for (n, _), f in zip(sizes, factors[1:], strict=True)]
    if source[0] != result[0] or reached != [
        m for _, m in sizes
    ]:  # a factor that float32 rounds down loses a row
        return "no factor leads to its sizes"
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_scales")
    node.replace_input_with(2, ir.add_initializer(model, name, factors))
    node.replace_input_with(3, None)
    return ""


_TARGET_REWRITES: dict[str, Callable[[ir.Model, ir.Node], str]] = {
    "Reshape": _fix_reshape_target,
    "Expand": _fix_expand_shape,
    "Resize": _fix_resize_scales,
}
