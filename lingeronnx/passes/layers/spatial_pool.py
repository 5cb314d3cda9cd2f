"""Averages and maxima over space as pools.

GlobalAveragePool and ReduceMean over the last two axes of a 4-D tensor.
``ReduceMean(axes=(2, 3), keepdims=0)`` is an AveragePool over the whole map and a Flatten;
GlobalMaxPool and ReduceMax are a MaxPool likewise. Needs static spatial
dimensions. A ceil_mode that changes nothing is dropped; one that counts becomes padding behind the
map. An average whose padding does not count is one whose padding does, times (size of the window) /
(what of it counts), a constant per place.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason


def convert_spatial_pools(model: ir.Model) -> PassResult:
    """Rewrite spatial averages and maxima of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type in ("AveragePool", "MaxPool"):
            changed += _drop_ceil_mode(node)
            changed += _make_windows_full(model, node)
            if ir.get_attr(node, "ceil_mode", 0):
                why.append(SkipReason(node, "its windows reach beyond the map: ceil_mode counts"))
        keep = _match_spatial_reduction(node)
        source = node.inputs[0] if node.inputs else None
        shape = ir.get_shape(source) if source is not None else None
        if keep is None:
            continue
        if shape is None or len(shape) != 4 or shape[2] is None or shape[3] is None:
            why.append(
                SkipReason(node, "its input is not four-dimensional with static spatial dimensions")
            )
            continue
        size = [int(shape[2]), int(shape[3])]
        kind = "MaxPool" if "Max" in node.op_type else "AveragePool"
        pool = ir.make_node(
            kind, [source], {"kernel_shape": size, "strides": size}, origin=node, output=""
        )
        if keep:
            pool.outputs[0].shape, pool.outputs[0].type = (
                node.outputs[0].shape,
                node.outputs[0].type,
            )
            ir.replace_nodes(model, [node], [pool])
        else:
            pool.outputs[0].name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_pool")
            pool.outputs[0].type = node.outputs[0].type
            pool.outputs[0].shape = ir.make_shape([source.shape[0], shape[1], 1, 1])  # type: ignore[index,union-attr]
            flat = ir.make_node(
                "Flatten",
                [pool.outputs[0]],
                {"axis": 1},
                origin=node,
                suffix="flatten",
                output="",
                like=node.outputs[0],
            )
            ir.replace_nodes(model, [node], [pool, flat])
        changed += 1
    return PassResult(changed, why)


def _match_spatial_reduction(node: ir.Node) -> bool | None:
    """Return keepdims of a mean or maximum over space, or None when `node` is none."""
    kind = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    if kind is None or kind.name != "FLOAT":
        return None
    if node.op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        return True
    if node.op_type not in ("ReduceMean", "ReduceMax"):
        return None
    axes = ir.get_axes(node)
    if axes is None or sorted(a % 4 for a in axes) != [2, 3]:
        return None
    return bool(ir.get_attr(node, "keepdims", 1))


def _drop_ceil_mode(node: ir.Node) -> int:
    source = ir.get_shape(node.inputs[0]) if node.inputs[0] is not None else None
    if (
        not ir.get_attr(node, "ceil_mode", 0)
        or source is None
        or any(d is None for d in source[2:])
    ):
        return 0
    kernel = ir.get_attr(node, "kernel_shape")
    rank = len(kernel)
    strides, pads = (
        ir.get_attr(node, "strides", [1] * rank),
        ir.get_attr(node, "pads", [0] * 2 * rank),
    )
    dilations = ir.get_attr(node, "dilations", [1] * rank)
    for i, size in enumerate(source[2:]):
        assert size is not None
        room = size + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1
        if room % strides[i]:
            return 0
    ir.set_attr(node, "ceil_mode", 0)
    return 1


def _make_windows_full(model: ir.Model, node: ir.Node) -> int:
    """Let every window of the pool `node` of maps be full, its padding counted.

    1 where that changed something.
    """
    before, after = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    plain = (
        len(node.outputs) == 1
        and ir.get_attr(node, "auto_pad", "NOTSET") == "NOTSET"
        and not node.domain
    )
    if (
        not plain
        or before is None
        or after is None
        or len(before) != 4
        or None in (*before[2:], *after[2:])
    ):
        return 0
    kernel, pads = ir.get_attr(node, "kernel_shape"), list(ir.get_attr(node, "pads") or [0] * 4)
    strides, dilations = (ir.get_attr(node, name) or [1, 1] for name in ("strides", "dilations"))
    average, ceil = node.op_type == "AveragePool", ir.get_attr(node, "ceil_mode", 0)
    counted = average and bool(ir.get_attr(node, "count_include_pad", 0))
    if not ceil and (not average or counted or not any(pads)):
        return 0
    sizes = [(int(n or 0), int(m or 0)) for n, m in zip(before[2:], after[2:], strict=True)]
    counts = []
    for i, ((size, places), k, step, wide) in enumerate(
        zip(sizes, kernel, strides, dilations, strict=True)
    ):
        reach = [p * step - pads[i] + wide * tap for p in range(places) for tap in range(k)]
        least, most = (-pads[i], size + pads[2 + i]) if counted else (0, size)
        counts.append(np.reshape([least <= x < most for x in reach], (places, k)).sum(1))
        pads[2 + i] = max(pads[2 + i], reach[-1] + 1 - size)
    if any((count == 0).any() for count in counts):
        return 0
    ir.set_attr(node, "pads", pads)
    ir.set_attr(node, "ceil_mode", 0)
    if average:
        ir.set_attr(node, "count_include_pad", 1)
        factor = kernel[0] * kernel[1] / np.multiply.outer(*counts)
        if (factor != 1).any():
            _multiply_output(model, node, factor.astype(np.float32))
    return 1


def _multiply_output(model: ir.Model, node: ir.Node, factor: np.ndarray) -> None:
    """Multiply what `node` computes by `factor`, a constant per place."""
    make = SubgraphBuilder(model, node)
    shape = list(node.outputs[0].shape or ())
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    mean = make(node.op_type, [ir.require_input(node)], shape, "padded", attributes)
    make("Mul", [mean, make.constant(factor.reshape(1, 1, *factor.shape), "factor")], shape, "mean")
    make.replace_node()
