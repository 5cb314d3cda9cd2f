"""Sizes that a graph computes from shapes become constants, found by running it.

Exporters write ``x.view(x.size(0), -1)`` as Shape, Gather, Concat and Reshape, and lose what they
knew of a tensor behind a recurrent layer. What depends on shapes alone and is the same on all the
given runs, which differ in every dynamic axis, is a constant; a Reshape target that is not has 0
("as before") or -1 ("the rest") where it varies. Knows graphs; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...graph import ir, operators
from ...run.runners import FloatRunner

__all__ = ["fold_constant_sizes"]

_MAX_ELEMENTS = 64  # elements: what is larger is no shape
#: The tensors behind these may be large, though they are made of sizes.
_DATA_OPERATORS = operators.DATA_GENERATING_OPS | operators.CONTROL_FLOW_OPS

Arrays = Sequence[np.ndarray]  # the same tensor in every run


def fold_constant_sizes(model: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> int:
    """Make sizes in `model` constant where they are on all `feeds`; return how many."""
    derived = _find_shape_tensors(model)
    ends = [
        (node, index, value)
        for node in model.graph
        if node.outputs[0] not in derived
        for index, value in enumerate(node.inputs)
        if value in derived
    ]
    if not ends:
        return 0
    wanted = {str(value.name) for _, _, value in ends}
    wanted |= {ir.input_name(node) for node, _, _ in ends if node.op_type == "Reshape"}
    runner = FloatRunner(model, wanted)
    runs = [{name: array for name, array, _ in runner.run(feed)} for feed in feeds]
    changed = 0
    for node, index, value in ends:
        arrays = [run[str(value.name)] for run in runs]
        if arrays[0].size > _MAX_ELEMENTS:
            continue
        target = arrays[0] if _are_equal(arrays) else None
        if target is None and node.op_type == "Reshape" and index == 1 and not node.domain:
            target = _make_reshape_target(arrays, [run[ir.input_name(node)] for run in runs])
            if target is not None:
                node.attributes.pop("allowzero", None)  # the 0 of the target means "as before"
        if target is not None:
            name = ir.unique_tensor_name(model, f"{value.name}_size")
            node.replace_input_with(index, ir.add_initializer(model, name, target))
            changed += 1
    ir.remove_unused(model)
    return changed


def _find_shape_tensors(model: ir.Model) -> set[ir.Value]:
    """Return the tensors of numbers that depend on nothing but shapes and constants."""
    found: set[ir.Value] = set()
    for node in model.graph:
        shape = node.op_type in operators.SHAPE_QUERY_OPS and not node.domain
        known = [value for value in node.inputs if value and ir.const_value(value) is None]
        if shape or (
            known and all(value in found for value in known) and node.op_type not in _DATA_OPERATORS
        ):
            found.update(node.outputs)
    return found - set(model.graph.outputs)


def _are_equal(arrays: Arrays) -> bool:
    return all(np.array_equal(arrays[0], other) for other in arrays[1:])


def _make_reshape_target(arrays: Arrays, sources: Arrays) -> np.ndarray | None:
    """Return a constant Reshape target that gives the sizes `arrays` of `sources`, or None where there is none."""
    target = []
    for axis, first in enumerate(arrays[0]):
        if all(array[axis] == first for array in arrays):
            target.append(int(first))
            if first == 0:
                return None  # an empty tensor, or "as before" already
        elif all(
            axis < s.ndim and s.shape[axis] == array[axis]
            for array, s in zip(arrays, sources, strict=True)
        ):
            target.append(0)
        elif -1 in target:
            return None
        else:
            target.append(-1)
    return np.array(target, np.int64) if target.count(-1) < 2 else None
