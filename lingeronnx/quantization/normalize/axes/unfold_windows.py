"""Keep windows of a sample, or heads, on an axis of their own instead of in the batch.

    [N, 4, 4, w, C] -> Reshape [N*16, w, C] -> attention in each window -> Reshape [N, 4, 4, w, C]

becomes the same operators on [N, 16, w, C], between Reshapes that keep the batch. All nodes that
such tensors pass through are changed together, or none: they work along named axes, element by
element, or multiply matrices. A product of more than four axes is one of [N, windows * heads, ..]
between Reshapes. Needs traced shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from ....ir.disjoint import DisjointSets
from .._pass import PassResult, SkipReason
from .unfold_linear_batch import set_sample_target

__all__ = ["unfold_windows"]

#: Operators with an attribute "axis", and its default; None if that is 0, or it is required.
_AXIS_DEFAULTS = {
    "Softmax": -1,
    "LogSoftmax": -1,
    "LayerNormalization": -1,
    "RMSNormalization": -1,
    "Concat": None,
    "Split": None,
}
#: Operators with axes as an input, and its index.
_AXES_INPUTS = {
    "Slice": 3,
    "Squeeze": 1,
    "Unsqueeze": 1,
    "ReduceMean": 1,
    "ReduceSum": 1,
    "ReduceMax": 1,
}
_MAX_PRODUCT_AXES = 4


def unfold_windows(model: ir.Model) -> PassResult:
    """Give windows that a Reshape folds into the batch of `model` an axis of their own, in place.

    Counted by the Reshapes that fold them. Those are skipped, with a reason, from which a tensor
    with folded windows reaches a node that cannot have one more axis, or a graph output.
    """
    changes, skipped = 0, list[SkipReason]()
    counts = _count_windows(model)
    for nodes in _find_regions(model, counts):
        folds = [node for node in nodes if not _list_folded(node.inputs, counts)]
        reason = _explain_obstacle(nodes, counts)
        if reason is None:
            _unfold_region(model, nodes, counts)
            changes += len(folds)
        else:
            skipped += [SkipReason(node, reason) for node in folds]
    return PassResult(changes, skipped)


def _count_windows(model: ir.Model) -> dict[str, int]:
    """Return {tensor: rows of axis 0 per sample} of the tensors with windows in their batch.

    Tensors that were traced have a mark; passes add others without, behind those that have one.
    """
    counts: dict[str, int] = {}
    for node in model.graph:
        folded_inputs = _list_folded(node.inputs, counts)
        count = max(map(counts.__getitem__, folded_inputs), default=1)
        for value in node.outputs:
            if node.op_type == "Reshape" and not node.domain:
                elements = count * math.prod(ir.get_sample_dims(node.inputs[0]))
                count = elements // math.prod(ir.get_sample_dims(value))
            is_unmarked = bool(folded_inputs) and not ir.is_batch_traced(value)
            if ir.has_folded_batch(value) or (is_unmarked and count > 1):
                counts[str(value.name)] = count
    return counts


def _list_folded(values: Iterable[ir.Value | None], counts: Mapping[str, int]) -> list[str]:
    """Return the names of those of `values` that are in `counts`."""
    names = [str(value.name) for value in values if value is not None]
    return [name for name in names if name in counts]


def _find_regions(model: ir.Model, counts: Mapping[str, int]) -> list[list[ir.Node]]:
    """Return the nodes of each connected region of the tensors in `counts`, in graph order."""
    sets, nodes_by_name = DisjointSets(), dict[str, list[ir.Node]]()
    region_nodes = []
    for node in model.graph:
        names = _list_folded((*node.inputs, *node.outputs), counts)
        for name in names:
            sets.union(names[0], name)
        if names:
            region_nodes.append((node, names[0]))
    for node, name in region_nodes:
        nodes_by_name.setdefault(sets.find(name), []).append(node)
    return list(nodes_by_name.values())


def _explain_obstacle(nodes: Sequence[ir.Node], counts: Mapping[str, int]) -> str | None:
    """Return the reason why the region of `nodes` keeps its folded batch, None without one."""
    for node in nodes:
        for value in node.outputs:
            if value.is_graph_output() and str(value.name) in counts:
                return f"'{value.name}' is an output of the model"
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        computed = [value for value in values if ir.const_value(value) is None]
        if any(None in (ir.get_shape(value) or (0, None))[1:] for value in computed):
            return f"a size of {node.op_type} '{node.name}' is not known"
        if not _can_gain_axis(node, counts):
            return f"{node.op_type} '{node.name}' cannot have one more axis"
    return None


def _can_gain_axis(node: ir.Node, counts: Mapping[str, int]) -> bool:
    """Whether `node` is known to compute the same with windows on an axis behind the batch."""
    if node.op_type == "Reshape" and not node.domain:
        return ir.const_value(node.inputs[1]) is not None
    computed = [value for value in node.inputs if value and ir.const_value(value) is None]
    if any(str(value.name) not in counts for value in (*computed, *node.outputs)):
        return False
    if node.domain:
        return (node.domain, node.op_type) == (ir.FUNCTION_DOMAIN, "Linear")
    if node.op_type in float_ops.UNARY_ELEMENTWISE_OPS:
        return True
    if node.op_type == "Transpose":
        perm: list[int] | None = ir.get_attr(node, "perm")
        return perm is not None and perm[0] == 0
    if node.op_type in _AXIS_DEFAULTS or node.op_type in _AXES_INPUTS:
        has_constant_part = node.op_type == "Concat" and len(computed) < len(node.inputs)
        return not has_constant_part and 0 not in (_get_named_axes(node) or [0])
    if node.op_type == "MatMul" or node.op_type in float_ops.BROADCASTING_OPS:
        return _have_equal_axes(node)
    return False


def _get_named_axes(node: ir.Node) -> list[int] | None:
    """Return the axes along which `node` works, from 0 to its rank - 1; None if unknown."""
    if node.op_type in _AXES_INPUTS:
        axes = ir.get_axes(node, _AXES_INPUTS[node.op_type])
    else:
        axis = ir.get_attr(node, "axis", _AXIS_DEFAULTS[node.op_type])
        axes = None if axis is None else [axis]
    rank = _get_axes_rank(node)
    return None if axes is None else [axis % rank for axis in axes]


def _get_axes_rank(node: ir.Node) -> int:
    """Return the rank that the axes of `node` count in: of the output of an Unsqueeze."""
    value = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
    return len(ir.require_shape(value))


def _have_equal_axes(node: ir.Node) -> bool:
    """Whether all operands of `node` have the same axes, or are constants for all windows."""
    rank = len(ir.require_shape(node.outputs[0]))
    for value in node.inputs:
        constant = ir.const_value(value)
        if constant is None and len(ir.require_shape(value)) != rank:
            return False
        if constant is not None and rank <= constant.ndim and constant.shape[:1] != (1,):
            return False
    return node.op_type != "MatMul" or rank > 2 or ir.const_value(node.inputs[1]) is not None


def _unfold_region(model: ir.Model, nodes: Sequence[ir.Node], counts: Mapping[str, int]) -> None:
    """Give the tensors in `counts` ({name: windows}) an axis 1 of windows, and adapt `nodes`.

    Tensors get new names, since their shapes differ from those of the original ones.
    """
    for node in nodes:
        if node.op_type == "Transpose":
            perm = ir.get_attr(node, "perm")
            ir.set_attr(node, "perm", [0, 1, *(axis + 1 for axis in perm[1:])])
        elif node.op_type in _AXIS_DEFAULTS or node.op_type in _AXES_INPUTS:
            _count_axes_from_end(model, node)
    entry = next(node for node in nodes if not _list_folded(node.inputs, counts))
    batch = (ir.require_input(entry).shape or ["N"])[0]
    for node in nodes:
        for value in node.outputs:
            count = counts.get(str(value.name))
            if count is not None:
                value.shape = ir.Shape([batch, count, *ir.get_sample_dims(value)])
                ir.mark_folded_batch(value, False)
                value.name = ir.unique_tensor_name(model, f"{value.name}_windows")
        if node.op_type == "Reshape":
            _keep_batch(model, node)
    for node in nodes:
        if node.op_type == "MatMul" and len(ir.require_shape(node.outputs[0])) > _MAX_PRODUCT_AXES:
            _merge_product_axes(model, node)


def _count_axes_from_end(model: ir.Model, node: ir.Node) -> None:
    """Let the axes of `node` count from the last, so that one more does not change them."""
    rank = _get_axes_rank(node)
    axes = [axis - rank for axis in _get_named_axes(node) or []]
    if node.op_type in _AXIS_DEFAULTS:
        ir.set_attr(node, "axis", axes[0])
    elif "axes" in node.attributes:
        ir.set_attr(node, "axes", axes)
    else:
        index = _AXES_INPUTS[node.op_type]
        ir.set_constant_input(model, node, index, np.array(axes, np.int64), "from_end")


def _keep_batch(model: ir.Model, node: ir.Node) -> None:
    """Let the Reshape `node` keep the batch, or remove it if it keeps all sizes."""
    source = ir.require_input(node)
    keeps_sizes = ir.get_sample_dims(source) == ir.get_sample_dims(node.outputs[0])
    if keeps_sizes and ir.can_bypass_node(node, source):
        ir.bypass_node(model, node, source)
    else:
        set_sample_target(model, node)


def _merge_product_axes(model: ir.Model, node: ir.Node) -> None:
    """Replace a product of matrices by one whose axes between batch and matrices are merged.

    It stays if those of its factors differ.
    """
    *lead, rows, columns = ir.get_sample_dims(node.outputs[0])
    factors = [ir.require_input(node, index) for index in range(2)]
    if any(ir.get_sample_dims(factor)[:-2] != lead for factor in factors):
        return
    build, merged = SubgraphBuilder(model, node), math.prod(lead)
    left, right = (
        build.reshape(factor, [merged, *ir.get_sample_dims(factor)[-2:]], suffix)
        for factor, suffix in zip(factors, ("left", "right"), strict=True)
    )
    shape = [(node.outputs[0].shape or ["N"])[0], merged, rows, columns]
    product = build("MatMul", [left, right], shape, "merged")
    build.reshape(product, [*lead, rows, columns], "apart")
    build.replace_node()
