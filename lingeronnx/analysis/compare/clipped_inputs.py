"""A float model with a second copy of every layer, whose inputs are clipped to their integer range.

An error due to values that were clipped before a layer is not an error of that layer. So the graph
is duplicated: the first copy computes the model, and each layer of the second copy reads every
tensor that is stored as integers as

    Min(Max(tensor, low), high)        low and high: the representable range in the user's units,
                                       per channel

of the *first* copy. Values clipped before one layer are thus not clipped again downstream, and each
layer is judged in isolation. This module knows graphs, but runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir import ir
from ..stats.stored_form import StoredForm

__all__ = ["MIN_OPSET", "duplicate_with_clipped_inputs"]

#: Max and Min of older opsets do not broadcast.
MIN_OPSET = 8


def duplicate_with_clipped_inputs(
    graph: ir.Model, stored_forms: Mapping[str, StoredForm], real: Mapping[str, np.ndarray]
) -> tuple[ir.Model, dict[str, str]]:
    """Append a second copy of every layer, which reads clipped tensors of the first copy.

    Parameters
    ----------
    graph
        The float model, which is not modified.
    stored_forms
        How tensors are stored as integers, by name; only these are clipped.
    real
        These tensors; only their rank and data type matter.

    Returns
    -------
    model : ir.Model
        The model with both copies; its graph outputs are those of the first copy.
    names : dict of str to str
        Original tensor by the name of the tensor of the second copy.
    """
    model, second = graph.clone(), graph.clone()
    used_names = ir.get_tensor_names(model)
    values = (*ir.iter_values(model), *model.graph.initializers.values(), *model.graph.inputs)
    first_copy = {str(value.name): value for value in values}
    clipped = {
        name: _append_clip(model, first_copy[name], form, real[name], used_names)
        for name, form in stored_forms.items()
    }
    second.graph.outputs.clear()
    for value in (*second.graph.inputs, *second.graph.initializers.values()):
        name = str(value.name)
        _replace_consumers(value, clipped.get(name, first_copy[name]))
    names: dict[str, str] = {}
    for node in list(second.graph):
        for value in node.outputs:
            if not value.name:
                continue
            name = str(value.name)
            if name in clipped:
                _replace_consumers(value, clipped[name])
            value.name = ir.reserve_name(f"{name}_own", used_names)
            names[str(value.name)] = name
        second.graph.remove(node)
        node.name = f"{node.name}_own"
        model.graph.append(node)
    return model, names


def _replace_consumers(value: ir.Value, replacement: ir.Value) -> None:
    """Let all nodes that read `value` read `replacement` instead; graph outputs stay."""
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, replacement)


def _append_clip(
    graph: ir.Model,
    value: ir.Value,
    stored_form: StoredForm,
    array: np.ndarray,
    used_names: set[str],
) -> ir.Value:
    """Append Max and Min nodes that clip `value` to the range of its integers; return the result.

    `array` has the rank and data type of the value. New names are added to `used_names`.
    """
    max_float = np.finfo(array.dtype).max
    bounds = stored_form.representable_range(array.ndim)
    for op_type, bound in zip(("Max", "Min"), bounds, strict=True):
        # a bound may be one step beyond the lowest float, such as for a mask
        finite_bound = np.clip(bound, -max_float, max_float).astype(array.dtype)
        constant_name = ir.reserve_name(f"{value.name}_{op_type}", used_names)
        constant = ir.add_initializer(graph, constant_name, finite_bound)
        name = ir.reserve_name(f"{value.name}_cut", used_names)
        graph.graph.append(
            ir.make_node(op_type, [value, constant], output=name, name=name, like=value)
        )
        value = graph.graph[-1].outputs[0]
    return value
