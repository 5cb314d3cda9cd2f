"""A float model in which every layer is there twice.

As it is, and reading what integers can hold of its inputs.
What a layer makes of inputs that were cut off before it is no error of its own. So the graph is
doubled: the first copy computes the model, and the second one reads of each tensor that is held in
integers

    Min(Max(tensor, low), high)        low and high: the ends of the integers, in the user's
    numbers, per channel

of the *first* copy. What was cut off before one layer is thus not cut off again behind it: each
layer is judged alone. Knows graphs, runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...graph import ir
from ..stats.stored_form import StoredForm

__all__ = ["MIN_OPSET", "duplicate_with_clipped_inputs"]

#: Max and Min of older opsets take arrays of one shape only.
MIN_OPSET = 8


def duplicate_with_clipped_inputs(
    graph: ir.Model, stored_forms: Mapping[str, StoredForm], real: Mapping[str, np.ndarray]
) -> tuple[ir.Model, dict[str, str]]:
    """Return `graph` and behind it its second copy, and {a tensor of the second copy.

    The one it stands for}.
    stored_forms : how tensors are held in integers, by name. real : the tensors, of which rank and
    type count here.
    """
    whole, second = ir.clone(graph), ir.clone(graph)
    taken = ir.get_tensor_names(whole)
    first = {
        str(v.name): v
        for v in (*ir.iter_values(whole), *whole.graph.initializers.values(), *whole.graph.inputs)
    }
    cut = {
        name: _append_clip(whole, first[name], form, real[name], taken)
        for name, form in stored_forms.items()
    }
    second.graph.outputs.clear()
    for value in (*second.graph.inputs, *second.graph.initializers.values()):
        _replace_readers(value, cut.get(str(value.name), first[str(value.name)]))
    names: dict[str, str] = {}
    for node in list(second.graph):
        for value in node.outputs:
            if not value.name:
                continue
            name = str(value.name)
            if name in cut:
                _replace_readers(value, cut[name])
            value.name = ir.reserve_name(f"{name}_own", taken)
            names[str(value.name)] = name
        second.graph.remove(node)
        node.name = f"{node.name}_own"
        whole.graph.append(node)
    return whole, names


def _replace_readers(value: ir.Value, other: ir.Value) -> None:
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, other)


def _append_clip(
    graph: ir.Model, value: ir.Value, stored_form: StoredForm, like: np.ndarray, taken: set[str]
) -> ir.Value:
    """Append to `graph` what cuts `value` off at the ends of its integers, and return that."""
    for op_type, end in zip(
        ("Max", "Min"), stored_form.representable_range(like.ndim), strict=True
    ):
        most = np.finfo(
            like.dtype
        ).max  # the lowest number there is, of a mask, may stand one step beyond
        bound = np.clip(end, -most, most).astype(like.dtype)
        constant = ir.add_initializer(
            graph, ir.reserve_name(f"{value.name}_{op_type}", taken), bound
        )
        name = ir.reserve_name(f"{value.name}_cut", taken)
        graph.graph.append(
            ir.make_node(op_type, [value, constant], output=name, name=name, like=value)
        )
        value = graph.graph[-1].outputs[0]
    return value
