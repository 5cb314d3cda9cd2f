"""The model-local function of a recurrent layer, as `recurrent` calls it.

Standard operators, for any runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import ir

__all__ = ["declare_recurrent_function"]


def declare_recurrent_function(model: ir.Model, kind: str, optional_inputs: Sequence[str]) -> str:
    """Add the function of an LSTM or GRU that is given `optional_inputs` to the model, once.

    Return its name.
    """
    function = "_".join(filter(None, (kind, "".join(key[0] for key in optional_inputs))))
    if any(f.domain == ir.FUNCTION_DOMAIN and f.name == function for f in model.functions.values()):
        return function
    version = ir.get_opset(model)
    x, w, r, b = (ir.Value(name=name) for name in ("x", "w", "r", "b"))
    further = {key: ir.Value(name=key) for key in optional_inputs}
    nodes: list[ir.Node] = []

    def add(
        op_type: str,
        inputs: Sequence[ir.Value | None],
        output: str,
        attrs: dict[str, Any] | None = None,
    ) -> ir.Value:
        new = ir.node(op_type, inputs, attrs or {})
        new.outputs[0].name = output
        nodes.append(new)
        return new.outputs[0]

    def axes(op_type: str, value: ir.Value, axis: int, output: str) -> ir.Value:
        if version < 13:
            return add(op_type, [value], output, {"axes": [axis]})
        number = add(
            "Constant", [], f"{output}_axis", {"value": ir.tensor(np.array([axis], np.int64))}
        )
        return add(op_type, [value, number], output)

    turned = add("Transpose", [x], "x_t", {"perm": [1, 0, 2]})
    wide = [axes("Unsqueeze", value, 0, f"{value.name}_d") for value in (w, r, b)]
    lengths = further.get("lengths")
    states: list[ir.Value | None] = [None, None]
    if further.keys() - {"lengths"}:  # a constant state has one row for all samples
        size = add("Shape", [x], "x_shape")
        first, ones = (
            add("Constant", [], name, {"value": ir.tensor(np.array(value, np.int64))})
            for name, value in (("first", 0), ("ones", [1, 1]))
        )
        rows = axes("Unsqueeze", add("Gather", [size, first], "count", {"axis": 0}), 0, "rows")
        target = add("Concat", [rows, ones], "state_shape", {"axis": 0})
        for index, key in enumerate("hc"):
            if key in further:
                full = add("Expand", [further[key], target], f"{key}_full")
                states[index] = add("Transpose", [full], f"{key}_t", {"perm": [1, 0, 2]})
    behind = [lengths, *states]
    while behind and behind[-1] is None:
        behind.pop()
    kinds = {"hidden_size": ir.AttributeType.INT, "direction": ir.AttributeType.STRING}
    if kind == "GRU":
        kinds["linear_before_reset"] = ir.AttributeType.INT
    count = 3 if kind == "LSTM" else 2 if optional_inputs else 1
    steps = ir.Node(
        "",
        kind,
        [turned, *wide, *behind],
        [ir.RefAttr(name, name, of) for name, of in kinds.items()],
        num_outputs=count,
    )
    for value, name in zip(steps.outputs, ("y_td", "h_d", "c_d"), strict=False):
        value.name = name
    nodes.append(steps)
    flat = axes("Squeeze", steps.outputs[0], 1, "y_t")
    y = add("Transpose", [flat], "y", {"perm": [1, 0, 2]})
    # all outputs are passed on: one without a reader would lose its name
    ends = ("h_last", "c_last") if optional_inputs else ("h", "c")
    last = [
        add("Transpose", [v], n, {"perm": [1, 0, 2]})
        for v, n in zip(steps.outputs[1:], ends, strict=False)
    ]
    body = ir.Graph(
        [x, w, r, b, *further.values()],
        [y, *last],
        nodes=nodes,
        opset_imports={"": version},
        name=function,
    )
    told = {"given": ir.AttributeType.STRINGS} if optional_inputs else {}
    options = [ir.Attr(name, of, None) for name, of in (kinds | told).items()]
    declared = ir.Function(ir.FUNCTION_DOMAIN, function, graph=body, attributes=options)
    model.functions[declared.identifier()] = declared
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return function
