"""LSTM and GRU as one model-local function per direction, batch first.

``lingeronnx.LSTM(x, W, R, B) -> y, h, c``.
x [N, T, I] -> y [N, T, H] and, of an LSTM, the last state and cell [N, 1, H]; W, R and B keep
ONNX's gate order; states start at zero. Where the node is given lengths [N], a state h or a cell c
[N, 1, H], they are further inputs, and the attribute `optional_input_indices` names them:
``LSTM_lhc <given=["lengths", "h", "c"]> (x, W, R, B, lengths, h, c)``. Such a function has a body,
and so a name, of its own; nobody reads the name. States that are the same for every sample are
constants [1, 1, H]. Functions of that kind all give h.

What else the ONNX operator gives is made of y, h and c: Y by a Concat of the directions and
Transposes, Y_h by a Slice of the last step (the first one of the reverse direction), or h where
lengths are given. The Transposes meet those of exporters and cancel (`layout`).
`ops.recurrent.obstacle` says which nodes stay as they are.

onnxruntime does not run layout 1 (batch first) of the operators themselves: `convert_to_time_first`
makes it layout 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...formats.data_movement.selection import sliced_positions
from ...graph import ir, operators
from ...ops.layers.recurrent import (
    explain_unsupported,
    get_directions,
    has_full_length_sequences,
    optional_input_indices,
)
from .._pass import PassResult, SkipReason
from .recurrent_function import declare_recurrent_function

_RECURRENT_OPS = ("LSTM", "GRU")
_BATCH_TIME_PERM = (1, 0, 2)


# ---- layout 1 ----------------------------------------------------------------------------------------------------


def is_batch_first(node: ir.Node) -> bool:
    """Whether `node` is a recurrent layer of the standard that is told to read [N, T, I]."""
    return (
        node.op_type in (*_RECURRENT_OPS, "RNN")
        and not node.domain
        and bool(ir.get_attr(node, "layout", 0))
    )


def convert_to_time_first(model: ir.Model) -> int:
    """Give the batch-first LSTM, GRU and RNN nodes of `model` layout 0; return how many."""
    changed = 0
    for node in list(model.graph):
        if not is_batch_first(node):
            continue
        node.attributes.pop("layout")
        for index in (0, 5, 6):
            value = node.inputs[index] if len(node.inputs) > index else None
            if value is not None:
                turn = ir.make_node(
                    "Transpose",
                    [value],
                    {"perm": _BATCH_TIME_PERM},
                    origin=node,
                    suffix=f"turn{index}",
                    output=ir.unique_tensor_name(model, f"{value.name}_time_first"),
                )
                turn.outputs[0].type = value.type
                model.graph.insert_before(node, turn)
                node.replace_input_with(index, turn.outputs[0])
        for value, perm in zip(
            list(node.outputs), ((2, 0, 1, 3), _BATCH_TIME_PERM, _BATCH_TIME_PERM), strict=False
        ):
            if value.name:
                _insert_transpose_after(model, node, value, perm)
        changed += 1
    return changed


def _insert_transpose_after(
    model: ir.Model, node: ir.Node, value: ir.Value, perm: Sequence[int]
) -> None:
    """Let the readers of `value`, an output of `node`, read it transposed."""
    name = str(value.name)
    value.name = ir.unique_tensor_name(model, f"{name}_time_first")
    turn = ir.make_node(
        "Transpose",
        [value],
        {"perm": perm},
        origin=node,
        suffix=f"{name}_turn",
        output=name,
        like=value,
    )
    ir.replace_all_uses(value, turn.outputs[0])
    turn.replace_input_with(0, value)
    value.shape = None
    model.graph.insert_after(node, turn)


# ---- one direction, batch first ----------------------------------------------------------------------------------


def convert_recurrent_layers(model: ir.Model) -> PassResult:
    """Rewrite the LSTM and GRU nodes of `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain or node.op_type not in _RECURRENT_OPS:
            continue
        if (barred := explain_unsupported(node)) is not None:
            why.append(SkipReason(node, barred))
            continue
        _RecurrentRewriter(model, node).run()
        changed += 1
    return PassResult(changed, why)


class _RecurrentRewriter:
    """What replaces one node; new nodes are put in front of it."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self._model, self._node = model, node
        self._sizes = ir.get_shape(node.inputs[0]) or ()
        batch = (node.inputs[0].shape or (0, "N", 0))[1]  # type: ignore[union-attr]
        self._batch = batch if isinstance(batch, int) else "N"
        self._units = int((ir.get_shape(node.inputs[2]) or (0, 0, 0))[2] or 0)
        self._base = str(node.name)
        self._optional_inputs = optional_input_indices(node)
        if has_full_length_sequences(node):
            del self._optional_inputs["lengths"]
        self._function = declare_recurrent_function(
            model, node.op_type, list(self._optional_inputs)
        )

    def run(self) -> None:
        """Put the functions and what their outputs need in place of the node."""
        model, node = self._model, self._node
        x = self._batch_first_input()
        states = {
            key: self._initial_states(index)
            for key, index in self._optional_inputs.items()
            if key != "lengths"
        }
        kinds = get_directions(node)
        each = [self._add_direction(x, number, kind, states) for number, kind in enumerate(kinds)]
        if node.outputs[0].uses() or node.outputs[0].is_graph_output():
            self._replace_sequence_output(each)
        if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
            length = int(self._sizes[0] or 0)
            ends = [(0, 1) if kind == "reverse" else (length - 1, length) for kind in kinds]
            last = [
                self._add_slice(y, *end, f"last{i}")
                for i, (y, end) in enumerate(zip(each, ends, strict=True))
            ]
            if "lengths" in self._optional_inputs:
                last = [layer.outputs[1] for y in each if (layer := y.producer()) is not None]
            joined = (
                last[0]
                if len(last) == 1
                else self._add_node("Concat", last, "last", (len(last), self._units), {"axis": 1})
            )
            self._replace_output(node.outputs[1], joined, _BATCH_TIME_PERM)
        if _reads_cell(node):
            cells = [layer.outputs[2] for y in each if (layer := y.producer()) is not None]
            both = (
                cells[0]
                if len(cells) == 1
                else self._add_node(
                    "Concat", cells, "cells", (len(cells), self._units), {"axis": 1}
                )
            )
            self._replace_output(node.outputs[2], both, _BATCH_TIME_PERM)
        model.graph.remove(node, safe=True)

    def _add_node(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        sizes: Sequence[int],
        attrs: dict[str, Any],
        domain: str = "",
    ) -> ir.Value:
        """Add a node with output [N, *sizes] in front of the old one."""
        name = ir.unique_tensor_name(self._model, f"{self._base}_{suffix}")
        new = ir.make_node(
            kind, inputs, attrs, origin=self._node, suffix=suffix, output=name, domain=domain
        )
        new.outputs[0].type = ir.require_input(self._node).type
        new.outputs[0].shape = ir.make_shape([self._batch, *sizes])
        self._model.graph.insert_before(self._node, new)
        return new.outputs[0]

    def _batch_first_input(self) -> ir.Value:
        source = ir.require_input(self._node)
        maker = ir.producer(source)
        rows = _collect_last_axis_chain(source)
        if rows:
            return self._hoist_transpose(rows)
        if (
            maker is not None
            and maker.op_type == "Transpose"
            and tuple(ir.get_attr(maker, "perm", ())) == _BATCH_TIME_PERM
        ):
            return ir.require_input(maker)
        length, width = (int(self._sizes[i] or 0) for i in (0, 2))
        return self._add_node(
            "Transpose", [source], "x", (length, width), {"perm": _BATCH_TIME_PERM}
        )

    def _hoist_transpose(self, rows: list[ir.Node]) -> ir.Value:
        """Transpose the graph input that the layers `rows` work on, the last one first, in place of their result."""
        entry = ir.require_input(rows[-1])
        sizes = [int(d or 0) for i, d in enumerate(ir.get_shape(entry) or ()) if i != 1]
        turned = self._add_node("Transpose", [entry], "x", sizes, {"perm": _BATCH_TIME_PERM})
        maker = ir.require_producer(turned)
        self._model.graph.remove(maker)
        self._model.graph.insert_before(rows[-1], maker)
        rows[-1].replace_input_with(0, turned)
        for row in rows:
            value = row.outputs[0]
            value.name = ir.unique_tensor_name(
                self._model, f"{value.name}_batch_first"
            )  # another shape, another name
            value.shape = ir.make_shape(
                [self._batch, sizes[0], (ir.get_shape(value) or (None,))[-1]]
            )
        return rows[0].outputs[0]

    def _initial_states(self, index: int) -> list[ir.Value]:
        """Return the states [D, N, H] of input `index` as [N, 1, H] per direction, [1, 1, H] of a constant."""
        value, count = ir.require_input(self._node, index), len(get_directions(self._node))
        array = constant_state_row(value)
        if array is not None:
            names = [
                ir.unique_tensor_name(self._model, f"{value.name}_{kind}")
                for kind in get_directions(self._node)
            ]
            return [
                ir.add_initializer(self._model, name, np.ascontiguousarray(array[i : i + 1]))
                for i, name in enumerate(names)
            ]
        maker, what = ir.producer(value), f"state{index}"
        if (
            maker is not None
            and maker.op_type == "Transpose"
            and tuple(ir.get_attr(maker, "perm", ())) == _BATCH_TIME_PERM
        ):
            turned = ir.require_input(maker)
        else:
            turned = self._add_node(
                "Transpose", [value], what, (count, self._units), {"perm": _BATCH_TIME_PERM}
            )
        return (
            [turned]
            if count == 1
            else [self._add_slice(turned, i, i + 1, f"{what}_{i}") for i in range(count)]
        )

    def _add_direction(
        self, x: ir.Value, number: int, direction: str, states: dict[str, list[ir.Value]]
    ) -> ir.Value:
        """Add the function of one direction and return its y [N, T, H]."""
        node, model = self._node, self._model
        weights: list[ir.Value | None] = [x]
        many = len(get_directions(node)) > 1
        for index in (1, 2, 3):
            value = node.inputs[index] if len(node.inputs) > index else None
            rows = (ir.get_shape(node.inputs[1]) or (0, 0))[1]
            array = ir.const_value(value)
            part = np.zeros(2 * int(rows or 0), np.float32) if array is None else array[number]
            base = f"{value.name if value is not None else f'{self._base}_bias'}_{direction if many else 'one'}"
            weights.append(ir.add_initializer(model, ir.unique_tensor_name(model, base), part))
        attrs: dict[str, Any] = {"direction": direction, "hidden_size": self._units}
        if node.op_type == "GRU":
            attrs["linear_before_reset"] = int(ir.get_attr(node, "linear_before_reset", 0))
        if self._optional_inputs:
            attrs["given"] = list(self._optional_inputs)
        for key, index in self._optional_inputs.items():
            weights.append(
                ir.require_input(node, index) if key == "lengths" else states[key][number]
            )
        what, sizes = f"y_{direction}" if many else "y", (int(self._sizes[0] or 0), self._units)
        y = self._add_node(self._function, weights, what, sizes, attrs, ir.FUNCTION_DOMAIN)
        layer = ir.require_producer(y)
        if not many:
            layer.name = self._base  # selectors go by it
        if node.op_type == "LSTM" or self._optional_inputs:
            layer.resize_outputs(3 if node.op_type == "LSTM" else 2)
            for value, key in zip(layer.outputs[1:], ("state", "cell"), strict=False):
                value.name, value.type = ir.unique_tensor_name(model, f"{y.name}_{key}"), y.type
                value.shape = ir.make_shape([self._batch, 1, self._units])
        return y

    def _add_slice(self, y: ir.Value, start: int, end: int, what: str) -> ir.Value:
        bounds = [
            ir.add_initializer(
                self._model,
                ir.unique_tensor_name(self._model, f"{self._base}_{what}{key}"),
                np.array([value], np.int64),
            )
            for key, value in (("start", start), ("end", end), ("axis", 1))
        ]
        return self._add_node("Slice", [y, *bounds], what, (1, self._units), {})

    def _replace_sequence_output(self, each: list[ir.Value]) -> None:
        """Put what is made of the directions' y in place of Y [T, D, N, H] and of the ways exporters flatten it."""
        whole, length = self._node.outputs[0], int(self._sizes[0] or 0)
        for use in list(whole.uses()):
            if _concatenates_directions(use.node, len(each)):
                width = len(each) * self._units
                both = (
                    each[0]
                    if len(each) == 1
                    else self._find_or_add_concat("both", each, (length, width))
                )
                self._replace_output(_flat_output(use.node), both, _BATCH_TIME_PERM)
                continue
            for result, number in _find_single_directions(use.node, len(each)):
                self._replace_output(result, each[number], _BATCH_TIME_PERM)
            if use.node.graph is not None and not any(
                v.uses() or v.is_graph_output() for v in use.node.outputs
            ):
                self._model.graph.remove(use.node, safe=True)
        if whole.uses() or whole.is_graph_output():
            axis = np.array([1], np.int64)
            parts = []
            for number, y in enumerate(each):
                attrs: dict[str, Any] = {"axes": [1]} if self._has_axes_attribute else {}
                more = (
                    []
                    if self._has_axes_attribute
                    else [
                        ir.add_initializer(
                            self._model,
                            ir.unique_tensor_name(self._model, f"{self._base}_axis{number}"),
                            axis,
                        )
                    ]
                )
                parts.append(
                    self._add_node(
                        "Unsqueeze", [y, *more], f"y{number}", (1, length, self._units), attrs
                    )
                )
            sizes = (len(each), length, self._units)
            apart = (
                parts[0]
                if len(parts) == 1
                else self._add_node("Concat", parts, "apart", sizes, {"axis": 1})
            )
            self._replace_output(whole, apart, (2, 1, 0, 3))

    @property
    def _has_axes_attribute(self) -> bool:
        """Whether axes are attributes (before opset 13)."""
        return ir.get_opset(self._model) < 13

    def _find_or_add_concat(
        self, what: str, each: list[ir.Value], sizes: Sequence[int]
    ) -> ir.Value:
        for use in each[0].uses():
            if (
                use.node.op_type == "Concat"
                and list(use.node.inputs) == each
                and ir.get_attr(use.node, "axis") == 2
            ):
                return use.node.outputs[0]
        return self._add_node("Concat", each, what, sizes, {"axis": 2})

    def _replace_output(self, old: ir.Value, new: ir.Value, perm: Sequence[int]) -> None:
        """Let the readers of `old` read `new` transposed.

        A reader that turns it back reads `new` itself.
        """
        model = self._model
        for use in list(old.uses()):
            turn = use.node
            if (
                turn.op_type == "Transpose"
                and tuple(ir.get_attr(turn, "perm", ())) == tuple(perm) == _BATCH_TIME_PERM
            ):
                ir.bypass_node(model, turn, new) if ir.can_bypass_node(turn, new) else None
        maker = ir.require_producer(old)
        if not old.uses() and not old.is_graph_output():
            if maker is not self._node:
                model.graph.remove(maker, safe=True)
            return
        name = str(old.name)
        turn = ir.make_node(
            "Transpose",
            [new],
            {"perm": perm},
            origin=self._node,
            suffix=f"{name}_turn",
            output="",
            like=old,
        )
        model.graph.insert_before(self._node, turn)
        ir.replace_all_uses(old, turn.outputs[0])
        if maker is self._node:
            old.name = ir.unique_tensor_name(model, f"{name}_old")
        else:
            model.graph.remove(maker, safe=True)
        turn.outputs[0].name = name


def _collect_last_axis_chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes from `value` [T, N, I] back to a graph input, where all work on the last axis alone."""
    nodes: list[ir.Node] = []
    while (node := ir.producer(value)) is not None:
        weight = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
        linear = node.op_type == "MatMul" and weight is not None and weight.ndim == 2
        summand = node.op_type in operators.AFFINE_OPS and weight is not None and weight.ndim <= 1
        unary = node.op_type in operators.UNARY_ELEMENTWISE_OPS
        if (
            node.domain
            or not (linear or summand or unary)
            or len(value.uses()) != 1
            or value.is_graph_output()
        ):
            return []
        nodes.append(node)
        value = ir.require_input(node)
    return nodes if value.is_graph_input() and len(ir.get_shape(value) or ()) == 3 else []


def constant_state_row(value: ir.Value | None) -> np.ndarray | None:
    """Return [D, 1, H] where the states `value` [D, N, H] are one constant row for every sample, else None."""
    array = ir.const_value(value)
    if array is not None:
        return array[:, :1] if array.ndim == 3 and (array == array[:, :1]).all() else None
    maker = ir.producer(value)
    if maker is None or maker.domain:
        return None
    if maker.op_type == "Identity":
        return constant_state_row(maker.inputs[0])
    if maker.op_type == "Transpose" and tuple(ir.get_attr(maker, "perm", ())) == _BATCH_TIME_PERM:
        constant_rows, axis = _repeated_constant(ir.producer(maker.inputs[0])), 0
    else:
        constant_rows, axis = _repeated_constant(maker), 1
    if constant_rows is None or constant_rows.ndim != 3 or constant_rows.shape[axis] != 1:
        return None
    result = constant_rows if axis else constant_rows.transpose(_BATCH_TIME_PERM)
    sizes = ir.get_shape(value)
    whole = (
        sizes is not None
        and len(sizes) == 3
        and (result.shape[0], result.shape[2]) == (sizes[0], sizes[2])
    )
    return result if whole else None


def _repeated_constant(node: ir.Node | None) -> np.ndarray | None:
    """Return the constant that `node` repeats."""
    return (
        ir.const_value(node.inputs[0])
        if node is not None and node.op_type in ("Expand", "Tile")
        else None
    )


def _reads_cell(node: ir.Node) -> bool:
    """Whether anybody reads Y_c."""
    return len(node.outputs) > 2 and bool(
        node.outputs[2].uses() or node.outputs[2].is_graph_output()
    )


def _concatenates_directions(node: ir.Node, count: int) -> bool:
    """Whether `node`, which reads Y [T, D, N, H], makes [T, N, D*H] of it, alone or with the node behind it."""
    if node.domain:
        return False
    if node.op_type == "Squeeze":
        rank = len(ir.get_shape(node.outputs[0]) or ())
        return count == 1 and rank == 3 and ir.get_axes(node) in ([1], [-3])
    if node.op_type != "Transpose" or tuple(ir.get_attr(node, "perm", ())) != (0, 2, 1, 3):
        return False
    flat = ir.sole_consumer(node.outputs[0])
    before, after = (
        ir.get_shape(node.outputs[0]),
        ir.get_shape(flat.outputs[0]) if flat is not None else None,
    )
    if (
        flat is None
        or flat.op_type != "Reshape"
        or before is None
        or after is None
        or len(after) != 3
    ):
        return False
    return after[0] == before[0] and after[2] == int(before[2] or 0) * int(before[3] or 0)


def _find_single_directions(node: ir.Node, count: int) -> list[tuple[ir.Value, int]]:
    """Return the tensors [T, N, H] of one direction each that `node` takes from Y [T, D, N, H], with their numbers."""
    if node.domain:
        return []
    if node.op_type == "Gather":
        chosen = ir.const_value(node.inputs[1])
        one = chosen is not None and chosen.ndim == 0 and ir.get_attr(node, "axis", 0) in (1, -3)
        return [(node.outputs[0], int(chosen) % count)] if one and chosen is not None else []
    if node.op_type == "Slice":
        taken = sliced_positions(node, 1)
        parts = list(taken) if taken is not None and len(taken) == 1 else []
    elif (
        node.op_type == "Split"
        and ir.get_attr(node, "axis", 0) in (1, -3)
        and len(node.outputs) == count
    ):
        parts = list(range(count))
    else:
        return []
    squeezed = [
        (ir.sole_consumer(value), number)
        for value, number in zip(node.outputs, parts, strict=False)
    ]
    return [
        (flat.outputs[0], number)
        for flat, number in squeezed
        if flat is not None
        and flat.op_type == "Squeeze"
        and not flat.domain
        and ir.get_axes(flat) in ([1], [-3])
    ]


def _flat_output(node: ir.Node) -> ir.Value:
    """Return the tensor [T, N, D*H] that `node` begins."""
    if node.op_type == "Squeeze":
        return node.outputs[0]
    flat = ir.sole_consumer(node.outputs[0])
    assert flat is not None
    return flat.outputs[0]
