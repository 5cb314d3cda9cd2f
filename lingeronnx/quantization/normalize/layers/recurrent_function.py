"""Declare the model-local function of a recurrent layer, with a body of standard operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....ir import ir

__all__ = ["declare_recurrent_function"]


def declare_recurrent_function(
    model: ir.Model, op_type: str, optional_inputs: Sequence[str]
) -> str:
    """Add the function of an LSTM or GRU to the model, unless it has it already.

    Parameters
    ----------
    model
        Changed in place.
    op_type
        "LSTM" or "GRU".
    optional_inputs
        Additional inputs of the function: "lengths", "h", "c".

    Returns
    -------
    str
        The name of the function.
    """
    initials = "".join(key[0] for key in optional_inputs)
    name = f"{op_type}_{initials}" if initials else op_type
    functions = model.functions.values()
    if any(f.domain == ir.FUNCTION_DOMAIN and f.name == name for f in functions):
        return name
    attribute_types = {"hidden_size": ir.AttributeType.INT, "direction": ir.AttributeType.STRING}
    if op_type == "GRU":
        attribute_types["linear_before_reset"] = ir.AttributeType.INT
    body = _make_body(op_type, attribute_types, optional_inputs, ir.get_opset(model), name)
    if optional_inputs:
        attribute_types["given"] = ir.AttributeType.STRINGS
    attributes = [ir.Attr(key, kind, None) for key, kind in attribute_types.items()]
    function = ir.Function(ir.FUNCTION_DOMAIN, name, graph=body, attributes=attributes)
    model.functions[function.identifier()] = function
    model.graph.opset_imports[ir.FUNCTION_DOMAIN] = 1
    model.ir_version = max(model.ir_version or 8, 8)
    return name


def _make_body(
    op_type: str,
    attribute_types: Mapping[str, ir.AttributeType],
    optional_inputs: Sequence[str],
    opset: int,
    name: str,
) -> ir.Graph:
    """Return the body of a function for one direction of an LSTM or GRU with the batch on axis 0.

    It is the standard operator `op_type` between Transposes. The inputs are x, w, r, b and
    `optional_inputs`; weights have no axis of directions. The outputs are y, and the last state
    (and cell) of an LSTM, or of a GRU with optional inputs.
    """
    builder = _BodyBuilder(opset)
    x, w, r, b = (ir.Value(name=value_name) for value_name in ("x", "w", "r", "b"))
    optional_values = {key: ir.Value(name=key) for key in optional_inputs}
    transposed = builder.transpose(x, "x_t")
    weights = [builder.change_axes("Unsqueeze", v, 0, f"{v.name}_d") for v in (w, r, b)]
    states = _add_states(builder, x, optional_values)
    operands = [optional_values.get("lengths"), *states]
    while operands and operands[-1] is None:
        operands.pop()
    output_count = 3 if op_type == "LSTM" else 1 + bool(optional_inputs)
    inputs = [transposed, *weights, *operands]
    attributes = [ir.RefAttr(key, key, kind) for key, kind in attribute_types.items()]
    layer = ir.Node("", op_type, inputs, attributes, num_outputs=output_count)
    for value, value_name in zip(layer.outputs, ("y_td", "h_d", "c_d"), strict=False):
        value.name = value_name
    builder.nodes.append(layer)
    y = builder.transpose(builder.change_axes("Squeeze", layer.outputs[0], 1, "y_t"), "y")
    # all outputs are returned: one without a consumer would lose its name
    state_names = ("h_last", "c_last") if optional_inputs else ("h", "c")
    last_states = [
        builder.transpose(value, state_name)
        for value, state_name in zip(layer.outputs[1:], state_names, strict=False)
    ]
    return ir.Graph(
        [x, w, r, b, *optional_values.values()],
        [y, *last_states],
        nodes=builder.nodes,
        opset_imports={"": opset},
        name=name,
    )


class _BodyBuilder:
    """Collects the nodes of a function body, written for the opset `opset`."""

    def __init__(self, opset: int) -> None:
        """Start without nodes; `opset` is the version of the operators that will be added."""
        self.opset = opset
        self.nodes: list[ir.Node] = []

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        output: str,
        attrs: dict[str, Any] | None = None,
    ) -> ir.Value:
        """Append a node with one output named `output`; return that output."""
        node = ir.node(op_type, inputs, attrs or {})
        node.outputs[0].name = output
        self.nodes.append(node)
        return node.outputs[0]

    def transpose(self, value: ir.Value, output: str) -> ir.Value:
        """Append a Transpose that swaps the first two of three axes of `value`.

        Return its output.
        """
        return self.add("Transpose", [value], output, {"perm": [1, 0, 2]})

    def constant(self, array: np.ndarray, output: str) -> ir.Value:
        """Append a Constant node of `array` with an output named `output`; return that output."""
        return self.add("Constant", [], output, {"value": ir.tensor(array)})

    def change_axes(self, op_type: str, value: ir.Value, axis: int, output: str) -> ir.Value:
        """Append a Squeeze or Unsqueeze (`op_type`) of `axis`, and return its output.

        The axis is an attribute before opset 13, else a constant input.
        """
        if self.opset < 13:
            return self.add(op_type, [value], output, {"axes": [axis]})
        axes = self.constant(np.array([axis], np.int64), f"{output}_axis")
        return self.add(op_type, [value, axes], output)


def _add_states(
    builder: _BodyBuilder, x: ir.Value, optional_values: Mapping[str, ir.Value]
) -> list[ir.Value | None]:
    """Append nodes that make initial state "h" and cell "c" [1, N, H] for the operator.

    Return both. `optional_values` has those that are inputs of the function, [N, 1, H]; None for
    others. A constant state has one row for all samples, which is repeated to the batch size of
    `x`.
    """
    if not optional_values.keys() - {"lengths"}:
        return [None, None]
    shape = builder.add("Shape", [x], "x_shape")
    first = builder.constant(np.array(0, np.int64), "first")
    ones = builder.constant(np.array([1, 1], np.int64), "ones")
    batch_size = builder.add("Gather", [shape, first], "count", {"axis": 0})
    rows = builder.change_axes("Unsqueeze", batch_size, 0, "rows")
    target = builder.add("Concat", [rows, ones], "state_shape", {"axis": 0})
    states: list[ir.Value | None] = [None, None]
    for index, key in enumerate("hc"):
        if key in optional_values:
            full = builder.add("Expand", [optional_values[key], target], f"{key}_full")
            states[index] = builder.transpose(full, f"{key}_t")
    return states
