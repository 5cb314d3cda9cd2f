"""Folding of sizes that a graph computes from shapes, found by running the graph.

Exporters write ``x.view(x.size(0), -1)`` as Shape, Gather, Concat and Reshape, and lose the shape
of tensors after a recurrent layer. A tensor that depends on shapes alone and is equal in all the
given runs, which differ in every dynamic axis, is constant. A Reshape target that is not constant
gets 0 (copy the input size) or -1 (infer) where it varies. This module knows graphs, but no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import float_ops, ir
from ...runtime.runners import FloatRunner

__all__ = ["fold_constant_sizes"]

#: Limit of elements: larger tensors are no shapes.
_MAX_ELEMENTS = 64
#: Operators that generate large tensors from sizes.
_DATA_OPERATORS = float_ops.DATA_GENERATING_OPS | float_ops.CONTROL_FLOW_OPS

#: The values of one tensor in all runs.
Arrays = Sequence[np.ndarray]


@dataclass(frozen=True, eq=False)
class _ShapeRead:
    """Input `index` of a node that reads the tensor `value`, which depends on shapes alone."""

    node: ir.Node
    index: int
    value: ir.Value

    @property
    def is_reshape_target(self) -> bool:
        """Whether the input is the target shape of a Reshape."""
        return self.node.op_type == "Reshape" and self.index == 1 and not self.node.domain


def fold_constant_sizes(model: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Replace inputs computed from shapes alone by constants if they are equal on all `feeds`.

    A Reshape target that varies is also replaced, if 0 (copy) and -1 (infer) express it; values of
    more than `_MAX_ELEMENTS` elements are not. In place, also removing unused nodes. Returns the
    number of replaced inputs.
    """
    reads = _find_shape_reads(model)
    if not reads:
        return 0
    names = {str(read.value.name) for read in reads}
    names |= {ir.input_name(read.node) for read in reads if read.node.op_type == "Reshape"}
    runner = FloatRunner(model, names)
    runs = []
    for feed in feeds:
        runs.append({name: array for name, array, _ in runner.run(feed)})
    change_count = 0
    for read in reads:
        constant = _find_constant(read, runs)
        if constant is not None:
            name = ir.unique_tensor_name(model, f"{read.value.name}_size")
            initializer = ir.add_initializer(model, name, constant)
            read.node.replace_input_with(read.index, initializer)
            change_count += 1
    ir.remove_unused(model)
    return change_count


def _find_shape_reads(model: ir.Model) -> list[_ShapeRead]:
    """Return all reads (node, input index, value) of values that are computed from shapes alone.

    Reads by nodes that belong to such a computation themselves are left out; in graph order.
    """
    shape_tensors = _find_shape_tensors(model)
    reads = []
    for node in model.graph:
        if node.outputs[0] in shape_tensors:
            continue
        for index, value in enumerate(node.inputs):
            if value in shape_tensors:
                reads.append(_ShapeRead(node, index, value))
    return reads


def _find_constant(read: _ShapeRead, runs: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray | None:
    """Return the constant that can replace an input, or None if it varies between the runs.

    None too for more than _MAX_ELEMENTS elements. For a varying Reshape target with an equivalent
    constant, the attribute `allowzero` is removed from the node.
    """
    arrays = [run[str(read.value.name)] for run in runs]
    if arrays[0].size > _MAX_ELEMENTS:
        return None
    if all(np.array_equal(arrays[0], array) for array in arrays[1:]):
        return arrays[0]
    if not read.is_reshape_target:
        return None
    target = _make_reshape_target(arrays, [run[ir.input_name(read.node)] for run in runs])
    if target is not None:
        read.node.attributes.pop("allowzero", None)  # a 0 in the target copies the input size
    return target


def _find_shape_tensors(model: ir.Model) -> set[ir.Value]:
    """Return the tensors computed from nothing but shapes and constants, without graph outputs."""
    shape_tensors: set[ir.Value] = set()
    for node in model.graph:
        is_query = node.op_type in float_ops.SHAPE_QUERY_OPS and not node.domain
        if is_query or _computes_with_shapes(node, shape_tensors):
            shape_tensors.update(node.outputs)
    return shape_tensors - set(model.graph.outputs)


def _computes_with_shapes(node: ir.Node, shape_tensors: set[ir.Value]) -> bool:
    """Whether all variable inputs of a node are in `shape_tensors`, and there is at least one.

    False for operators in `_DATA_OPERATORS`.
    """
    inputs = [value for value in node.inputs if value and ir.const_value(value) is None]
    if not inputs or node.op_type in _DATA_OPERATORS:
        return False
    return all(value in shape_tensors for value in inputs)


def _make_reshape_target(targets: Arrays, sources: Arrays) -> np.ndarray | None:
    """Return a constant target of a Reshape that has the same result in all runs, or None.

    `targets` (values of its target, equally long) and `sources` (its data inputs, of which only
    the shapes count) have an array per run. Sizes equal in all runs stay, those that are the data
    input's size along the same axis become 0, and one other becomes -1. None if a size is 0 in all
    runs, or if more than one would be -1.
    """
    constant = []
    for axis, first in enumerate(targets[0]):
        if all(target[axis] == first for target in targets):
            if first == 0:
                return None  # an empty tensor, or a copied size already
            constant.append(int(first))
        elif _copies_size(axis, targets, sources):
            constant.append(0)
        elif -1 in constant:
            return None
        else:
            constant.append(-1)
    return np.array(constant, np.int64) if constant.count(-1) < 2 else None


def _copies_size(axis: int, targets: Arrays, sources: Arrays) -> bool:
    """Whether, in each run, ``target[axis]`` is the size of the Reshape's data input along `axis`.

    `targets` (values of the target) and `sources` (data inputs) have an array per run.
    """
    return all(
        axis < source.ndim and source.shape[axis] == target[axis]
        for target, source in zip(targets, sources, strict=True)
    )
