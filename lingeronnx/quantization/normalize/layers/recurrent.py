"""Convert LSTM and GRU to one model-local function per direction, with the batch on axis 0.

``lingeronnx.LSTM(x, W, R, B) -> y, h, c`` maps x [N, T, I] to y [N, T, H] and, for an LSTM, to the
last state and cell [N, 1, H]. W, R and B keep ONNX's gate order; initial states are zero. Lengths
[N], an initial state h or a cell c [N, 1, H] are additional inputs, which the attribute `given`
names: ``LSTM_lhc <given=["lengths", "h", "c"]> (x, W, R, B, lengths, h, c)``. Such a function has
its own body, and therefore its own name, which has no meaning. Initial states that are equal for
all samples are constants [1, 1, H]. Functions with additional inputs always return h.

The other outputs of the ONNX operator are derived from y, h and c: Y by a Concat of the directions
and Transposes, Y_h by a Slice of the last step (the first step of the reverse direction), or from h
if there are lengths. The Transposes cancel with those of exporters (`cancel_transposes`).
`float_ops.rules.layers.recurrent.explain_unsupported` tells which nodes remain unchanged.

onnxruntime does not run layout 1 (batch first) of the standard operators: `convert_to_time_first`
converts it to layout 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....ir import float_ops, ir
from ....operators.recurrent.lowering import (
    explain_unsupported,
    get_directions,
    has_full_length_sequences,
    optional_input_indices,
)
from ....operators.selection.integer_op import sliced_positions
from .._pass import PassResult, SkipReason
from .recurrent_function import declare_recurrent_function

_RECURRENT_OPS = ("LSTM", "GRU")
_BATCH_TIME_PERM = (1, 0, 2)

#: Suffix of the node that concatenates both directions, after the name of the layer.
BOTH_DIRECTIONS = "both"


# ---- layout 1 ------------------------------------------------------------------------------------


def is_batch_first(node: ir.Node) -> bool:
    """Whether `node` is an LSTM, GRU or RNN with `layout` 1: the batch is on axis 0."""
    if node.op_type not in (*_RECURRENT_OPS, "RNN") or node.domain:
        return False
    return bool(ir.get_attr(node, "layout", 0))


def convert_to_time_first(model: ir.Model) -> int:
    """Convert the LSTM, GRU and RNN nodes of `model` with layout 1 to layout 0; return how many.

    In place: Transposes are inserted around each node, for its input, states and outputs.
    """
    changes = 0
    for node in list(model.graph):
        if not is_batch_first(node):
            continue
        node.attributes.pop("layout")
        for index in (0, 5, 6):
            value = node.inputs[index] if len(node.inputs) > index else None
            if value is None:
                continue
            transpose = ir.make_node(
                "Transpose",
                [value],
                {"perm": _BATCH_TIME_PERM},
                origin=node,
                suffix=f"turn{index}",
                output=ir.unique_tensor_name(model, f"{value.name}_time_first"),
            )
            transpose.outputs[0].type = value.type
            model.graph.insert_before(node, transpose)
            node.replace_input_with(index, transpose.outputs[0])
        output_perms = ((2, 0, 1, 3), _BATCH_TIME_PERM, _BATCH_TIME_PERM)
        for value, perm in zip(list(node.outputs), output_perms, strict=False):
            if value.name:
                _insert_transpose_after(model, node, value, perm)
        changes += 1
    return changes


def _insert_transpose_after(
    model: ir.Model, node: ir.Node, value: ir.Value, perm: Sequence[int]
) -> None:
    """Let the consumers of `value`, an output of `node`, read it transposed by `perm`.

    The Transpose's output takes over the name; `value` gets a new one, and an unknown shape.
    """
    name = str(value.name)
    value.name = ir.unique_tensor_name(model, f"{name}_time_first")
    transpose = ir.make_node(
        "Transpose",
        [value],
        {"perm": perm},
        origin=node,
        suffix=f"{name}_turn",
        output=name,
        like=value,
    )
    value.replace_all_uses_with(transpose.outputs[0], replace_graph_outputs=True)
    transpose.replace_input_with(0, value)
    value.shape = None
    model.graph.insert_after(node, transpose)


# ---- one direction, batch first ------------------------------------------------------------------


def convert_recurrent_layers(model: ir.Model) -> PassResult:
    """Convert LSTM and GRU nodes of `model` to calls of model-local functions, in place.

    There is one call per direction, with the batch on axis 0. Nodes that `explain_unsupported`
    rejects are skipped with its reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.domain or node.op_type not in _RECURRENT_OPS:
            continue
        reason = explain_unsupported(node)
        if reason is not None:
            skipped.append(SkipReason(node, reason))
            continue
        _RecurrentRewriter(model, node).run()
        changes += 1
    return PassResult(changes, skipped)


class _Direction(NamedTuple):
    """The function call of one direction of a recurrent layer, and its output y [N, T, H]."""

    layer: ir.Node
    y: ir.Value


class _RecurrentRewriter:
    """Replaces one LSTM or GRU node by function calls with the batch on axis 0.

    New nodes are inserted before the node, which is removed at the end.
    """

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        """Read the sizes of `node`, an LSTM or GRU, and declare its function in `model`.

        The function computes one direction with the batch on axis 0. An input of sequence lengths
        that are all the full length is left out of the function's inputs.
        """
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
        """Replace the node by function calls and the nodes that derive its outputs from theirs.

        There is one call per direction. Only outputs that are used are derived: the sequence, the
        last state, and the last cell.
        """
        node = self._node
        x = self._batch_first_input()
        states = {
            key: self._initial_states(index)
            for key, index in self._optional_inputs.items()
            if key != "lengths"
        }
        directions = [
            self._add_direction(x, index, name, states)
            for index, name in enumerate(get_directions(node))
        ]
        if _is_used(node.outputs[0]):
            self._replace_sequence_output([direction.y for direction in directions])
        if len(node.outputs) > 1 and _is_used(node.outputs[1]):
            last_states = self._last_states(directions)
            state = self._concatenate(last_states, "last", (len(last_states), self._units), 1)
            self._replace_output(node.outputs[1], state, _BATCH_TIME_PERM)
        if len(node.outputs) > 2 and _is_used(node.outputs[2]):
            cells = [direction.layer.outputs[2] for direction in directions]
            cell = self._concatenate(cells, "cells", (len(cells), self._units), 1)
            self._replace_output(node.outputs[2], cell, _BATCH_TIME_PERM)
        self._model.graph.remove(node, safe=True)

    def _last_states(self, directions: Sequence[_Direction]) -> list[ir.Value]:
        """Return the last hidden state [N, 1, H] of each of `directions`.

        With sequence lengths it is an output of the function call; else a slice of y: the last
        step, or the first in the reverse direction.
        """
        if "lengths" in self._optional_inputs:
            return [direction.layer.outputs[1] for direction in directions]
        length = int(self._sizes[0] or 0)
        states = []
        for index, name in enumerate(get_directions(self._node)):
            start = 0 if name == "reverse" else length - 1
            states.append(self._add_slice(directions[index].y, start, start + 1, f"last{index}"))
        return states

    def _concatenate(
        self, values: list[ir.Value], suffix: str, sizes: Sequence[int], axis: int
    ) -> ir.Value:
        """Return the concatenation [N, *sizes] of `values` along `axis`; of a single one itself.

        `suffix` is for the name of the new node.
        """
        if len(values) == 1:
            return values[0]
        return self._add_node("Concat", values, suffix, sizes, {"axis": axis})

    def _add_node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        sizes: Sequence[int],
        attrs: dict[str, Any],
        domain: str = "",
    ) -> ir.Value:
        """Insert an operator before the recurrent node.

        Return its output, of shape [batch, *sizes]. `suffix` is for its name; the element type is
        that of the layer's input.
        """
        name = ir.unique_tensor_name(self._model, f"{self._base}_{suffix}")
        node = ir.make_node(
            op_type, inputs, attrs, origin=self._node, suffix=suffix, output=name, domain=domain
        )
        node.outputs[0].type = ir.require_input(self._node).type
        node.outputs[0].shape = ir.Shape([self._batch, *sizes])
        self._model.graph.insert_before(self._node, node)
        return node.outputs[0]

    def _add_transpose(self, value: ir.Value, suffix: str, sizes: Sequence[int]) -> ir.Value:
        """Insert a Transpose that swaps batch and time axis of `value`.

        Return its output [N, *sizes].
        """
        return self._add_node("Transpose", [value], suffix, sizes, {"perm": _BATCH_TIME_PERM})

    def _batch_first_input(self) -> ir.Value:
        """Return the input of the recurrent node, [T, N, I], as [N, T, I].

        A Transpose before the node that swaps batch and time is bypassed. Else one is inserted:
        before the operators between a graph input and the node, if all work on the last axis only,
        otherwise before the node.
        """
        source = ir.require_input(self._node)
        chain = _collect_last_axis_chain(source)
        if chain:
            return self._hoist_transpose(chain)
        producer = ir.producer(source)
        if producer is not None and _swaps_batch_and_time(producer):
            return ir.require_input(producer)
        length, width = (int(self._sizes[i] or 0) for i in (0, 2))
        return self._add_transpose(source, "x", (length, width))

    def _hoist_transpose(self, chain: list[ir.Node]) -> ir.Value:
        """Transpose the graph input that `chain` reads, instead of the result of `chain`.

        Return the result. `chain` are nodes that work on the last axis, the last one first. Their
        outputs get new names and shapes [N, T, width].
        """
        graph_input = ir.require_input(chain[-1])
        dims = ir.get_shape(graph_input) or ()
        sizes = [int(dim or 0) for axis, dim in enumerate(dims) if axis != 1]
        transposed = self._add_transpose(graph_input, "x", sizes)
        transpose = ir.require_producer(transposed)
        self._model.graph.remove(transpose)
        self._model.graph.insert_before(chain[-1], transpose)
        chain[-1].replace_input_with(0, transposed)
        for node in chain:
            value = node.outputs[0]
            # a new name, because its shape differs from that of the original tensor
            value.name = ir.unique_tensor_name(self._model, f"{value.name}_batch_first")
            width = (ir.get_shape(value) or (None,))[-1]
            value.shape = ir.Shape([self._batch, sizes[0], width])
        return chain[0].outputs[0]

    def _initial_states(self, index: int) -> list[ir.Value]:
        """Return the initial states [D, N, H] of input `index`, as one [N, 1, H] per direction.

        A state that is equal for all samples becomes a constant [1, 1, H]; others are transposed
        and sliced by new nodes.
        """
        value, directions = ir.require_input(self._node, index), get_directions(self._node)
        array = constant_state_row(value)
        if array is not None:
            names = [
                ir.unique_tensor_name(self._model, f"{value.name}_{direction}")
                for direction in directions
            ]
            return [
                ir.add_initializer(self._model, name, np.ascontiguousarray(array[i : i + 1]))
                for i, name in enumerate(names)
            ]
        count, suffix = len(directions), f"state{index}"
        producer = ir.producer(value)
        if producer is not None and _swaps_batch_and_time(producer):
            transposed = ir.require_input(producer)
        else:
            transposed = self._add_transpose(value, suffix, (count, self._units))
        if count == 1:
            return [transposed]
        return [self._add_slice(transposed, i, i + 1, f"{suffix}_{i}") for i in range(count)]

    def _add_direction(
        self, x: ir.Value, index: int, direction: str, states: dict[str, list[ir.Value]]
    ) -> _Direction:
        """Insert the function call of one direction, whose weights have the index `index`.

        `direction` is its name; `x` is [N, T, I]; `states` maps the optional inputs "h" and "c" to
        their values by direction. The call of the only direction keeps the node's name.
        """
        node = self._node
        is_bidirectional = len(get_directions(node)) > 1
        inputs: list[ir.Value | None] = [x]
        inputs += self._add_weights(index, direction if is_bidirectional else "one")
        for key, input_index in self._optional_inputs.items():
            is_lengths = key == "lengths"
            inputs.append(ir.require_input(node, input_index) if is_lengths else states[key][index])
        suffix = f"y_{direction}" if is_bidirectional else "y"
        sizes = (int(self._sizes[0] or 0), self._units)
        attributes = self._make_attributes(direction)
        y = self._add_node(self._function, inputs, suffix, sizes, attributes, ir.FUNCTION_DOMAIN)
        layer = ir.require_producer(y)
        if not is_bidirectional:
            layer.name = self._base  # selectors refer to it
        if node.op_type == "LSTM" or self._optional_inputs:
            layer.resize_outputs(3 if node.op_type == "LSTM" else 2)
            for value, key in zip(layer.outputs[1:], ("state", "cell"), strict=False):
                value.name, value.type = (
                    ir.unique_tensor_name(self._model, f"{y.name}_{key}"),
                    y.type,
                )
                value.shape = ir.Shape([self._batch, 1, self._units])
        return _Direction(layer, y)

    def _make_attributes(self, direction: str) -> dict[str, Any]:
        """Return the attributes of the function call for `direction` ("forward" or "reverse").

        `given` lists the optional inputs, if there are any; `linear_before_reset` is for GRU only.
        """
        attributes: dict[str, Any] = {"direction": direction, "hidden_size": self._units}
        if self._node.op_type == "GRU":
            linear_before_reset = ir.get_attr(self._node, "linear_before_reset", 0)
            attributes["linear_before_reset"] = int(linear_before_reset)
        if self._optional_inputs:
            attributes["given"] = list(self._optional_inputs)
        return attributes

    def _add_weights(self, index: int, suffix: str) -> list[ir.Value]:
        """Add the weights W, R and B (inputs 1, 2, 3) of direction `index` as initializers.

        Return them. They have no axis of directions. An absent bias becomes zeros, 2 * gate rows.
        Names end in `suffix`.
        """
        node = self._node
        gate_rows = int((ir.get_shape(node.inputs[1]) or (0, 0))[1] or 0)
        weights = []
        for input_index in (1, 2, 3):
            value = node.inputs[input_index] if len(node.inputs) > input_index else None
            array = ir.const_value(value)
            weight = np.zeros(2 * gate_rows, np.float32) if array is None else array[index]
            base = f"{self._base}_bias" if value is None else value.name
            name = ir.unique_tensor_name(self._model, f"{base}_{suffix}")
            weights.append(ir.add_initializer(self._model, name, weight))
        return weights

    def _add_slice(self, y: ir.Value, start: int, end: int, suffix: str) -> ir.Value:
        """Insert a Slice of positions `start` to `end` - 1 of axis 1 of `y`.

        Return its output [N, 1, H]. `y` is [N, T, H], or [N, D, H]; callers pass `end` = `start` +
        1. `suffix` is for the names.
        """
        bounds = []
        for key, bound in (("start", start), ("end", end), ("axis", 1)):
            name = ir.unique_tensor_name(self._model, f"{self._base}_{suffix}{key}")
            bounds.append(ir.add_initializer(self._model, name, np.array([bound], np.int64)))
        return self._add_node("Slice", [y, *bounds], suffix, (1, self._units), {})

    def _replace_sequence_output(self, outputs: list[ir.Value]) -> None:
        """Let the consumers of Y [T, D, N, H] read `outputs`, [N, T, H] per direction.

        Nodes by which exporters flatten Y or select one direction are removed where they only
        revert the layout; the rest read a stacked and transposed copy.
        """
        sequence, count = self._node.outputs[0], len(outputs)
        sizes = (int(self._sizes[0] or 0), count * self._units)
        for use in list(sequence.uses()):
            if _concatenates_directions(use.node, count):
                both = (
                    outputs[0]
                    if count == 1
                    else self._find_or_add_concat(BOTH_DIRECTIONS, outputs, sizes)
                )
                self._replace_output(_flat_output(use.node), both, _BATCH_TIME_PERM)
                continue
            for result, index in _find_single_directions(use.node, count):
                self._replace_output(result, outputs[index], _BATCH_TIME_PERM)
            if use.node.graph is not None and not any(map(_is_used, use.node.outputs)):
                self._model.graph.remove(use.node, safe=True)
        if _is_used(sequence):
            stacked = self._stack_directions(outputs)
            self._replace_output(sequence, stacked, (2, 1, 0, 3))

    def _stack_directions(self, outputs: list[ir.Value]) -> ir.Value:
        """Return `outputs`, [N, T, H] per direction, stacked along axis 1: [N, D, T, H]."""
        length = int(self._sizes[0] or 0)
        has_axes_attribute = ir.get_opset(self._model) < 13
        unsqueezed = []
        for index, y in enumerate(outputs):
            attrs: dict[str, Any] = {}
            inputs = [y]
            if has_axes_attribute:
                attrs["axes"] = [1]
            else:
                name = ir.unique_tensor_name(self._model, f"{self._base}_axis{index}")
                inputs.append(ir.add_initializer(self._model, name, np.array([1], np.int64)))
            sizes = (1, length, self._units)
            unsqueezed.append(self._add_node("Unsqueeze", inputs, f"y{index}", sizes, attrs))
        return self._concatenate(unsqueezed, "apart", (len(outputs), length, self._units), 1)

    def _find_or_add_concat(
        self, suffix: str, outputs: list[ir.Value], sizes: Sequence[int]
    ) -> ir.Value:
        """Return the concatenation of `outputs` along axis 2; an existing Concat of them is reused.

        `suffix` and `sizes` (the dimensions after the batch) are those of a new one.
        """
        for use in outputs[0].uses():
            node = use.node
            if node.op_type != "Concat" or list(node.inputs) != outputs:
                continue
            if ir.get_attr(node, "axis") == 2:
                return node.outputs[0]
        return self._concatenate(outputs, suffix, sizes, 2)

    def _replace_output(self, old: ir.Value, new: ir.Value, perm: Sequence[int]) -> None:
        """Let the consumers of `old` read `new`, transposed by `perm`; `old` disappears.

        If `perm` swaps batch and time, consumers that swap them back read `new` itself. A Transpose
        is only added if others are left, and takes over the name of `old`. The producer of `old` is
        removed unless it is the recurrent node.
        """
        model = self._model
        if tuple(perm) == _BATCH_TIME_PERM:
            for use in list(old.uses()):
                if _swaps_batch_and_time(use.node) and ir.can_bypass_node(use.node, new):
                    ir.bypass_node(model, use.node, new)
        producer = ir.require_producer(old)
        if not _is_used(old):
            if producer is not self._node:
                model.graph.remove(producer, safe=True)
            return
        name = str(old.name)
        transpose = ir.make_node(
            "Transpose",
            [new],
            {"perm": perm},
            origin=self._node,
            suffix=f"{name}_turn",
            output="",
            like=old,
        )
        model.graph.insert_before(self._node, transpose)
        old.replace_all_uses_with(transpose.outputs[0], replace_graph_outputs=True)
        if producer is self._node:
            old.name = ir.unique_tensor_name(model, f"{name}_old")
        else:
            model.graph.remove(producer, safe=True)
        transpose.outputs[0].name = name


def _collect_last_axis_chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes from `value` [T, N, I] upstream to a graph input, last first.

    Empty if one of them does not work on the last axis alone, or is used elsewhere.
    """
    nodes: list[ir.Node] = []
    while (node := ir.producer(value)) is not None:
        if not _works_on_last_axis(node) or len(value.uses()) != 1 or value.is_graph_output():
            return []
        nodes.append(node)
        value = ir.require_input(node)
    return nodes if value.is_graph_input() and len(ir.get_shape(value) or ()) == 3 else []


def _works_on_last_axis(node: ir.Node) -> bool:
    """Whether `node` works on the last axis of its input or on single elements.

    These are unary elementwise operators, MatMul with a constant matrix at input 1, and add, sub,
    mul or div with a constant scalar or vector at input 1.
    """
    if node.domain:
        return False
    if node.op_type in float_ops.UNARY_ELEMENTWISE_OPS:
        return True
    array = ir.const_value(node.inputs[1]) if len(node.inputs) > 1 else None
    if array is None:
        return False
    if node.op_type == "MatMul":
        return array.ndim == 2
    return node.op_type in float_ops.AFFINE_OPS and array.ndim <= 1


def _swaps_batch_and_time(node: ir.Node) -> bool:
    """Whether `node` is a Transpose between [T, N, I] and [N, T, I]."""
    if node.op_type != "Transpose":
        return False
    return tuple(ir.get_attr(node, "perm", ())) == _BATCH_TIME_PERM


def _is_used(value: ir.Value) -> bool:
    """Whether `value` has consumers or is a graph output."""
    return bool(value.uses()) or value.is_graph_output()


def constant_state_row(value: ir.Value | None) -> np.ndarray | None:
    """Return constant states [D, N, H] that all samples share as [D, 1, H], or None.

    Looks through Identity, a swap of batch and time, and Expand or Tile of a constant.
    """
    array = ir.const_value(value)
    if array is not None:
        is_equal = array.ndim == 3 and bool((array == array[:, :1]).all())
        return array[:, :1] if is_equal else None
    producer = ir.producer(value)
    if producer is None or producer.domain:
        return None
    if producer.op_type == "Identity":
        return constant_state_row(producer.inputs[0])
    if _swaps_batch_and_time(producer):
        repeated = _repeated_constant(ir.producer(producer.inputs[0]), 0)
        row = None if repeated is None else repeated.transpose(_BATCH_TIME_PERM)
    else:
        row = _repeated_constant(producer, 1)
    shape = ir.get_shape(value)
    if row is None or shape is None or len(shape) != 3:
        return None
    return row if (row.shape[0], row.shape[2]) == (shape[0], shape[2]) else None


def _repeated_constant(node: ir.Node | None, axis: int) -> np.ndarray | None:
    """Return the constant that `node`, an Expand or Tile, repeats along `axis`, or None.

    The constant must have three axes and size 1 on `axis`.
    """
    if node is None or node.op_type not in ("Expand", "Tile"):
        return None
    array = ir.const_value(node.inputs[0])
    return array if array is not None and array.ndim == 3 and array.shape[axis] == 1 else None


def _concatenates_directions(node: ir.Node, count: int) -> bool:
    """Whether `node` begins the conversion of Y [T, D, N, H] to [T, N, D*H].

    Either it does so alone, a Squeeze of axis 1 for `count` = 1 direction, or it is a Transpose
    with perm [0, 2, 1, 3] whose only consumer is a Reshape that flattens the last two axes.
    """
    if ir.is_standard_op(node, "Squeeze"):
        rank = len(ir.get_shape(node.outputs[0]) or ())
        return count == 1 and rank == 3 and ir.get_axes(node) in ([1], [-3])
    if not ir.is_standard_op(node, "Transpose"):
        return False
    if tuple(ir.get_attr(node, "perm", ())) != (0, 2, 1, 3):
        return False
    reshape = ir.sole_consumer(node.outputs[0])
    return reshape is not None and _flattens_last_axes(reshape)


def _flattens_last_axes(node: ir.Node) -> bool:
    """Whether `node` is a Reshape from [T, N, D, H] to [T, N, D*H].

    Only axis 0 and the product are compared; False if a shape is unknown.
    """
    if node.op_type != "Reshape":
        return False
    shape, flat_shape = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if shape is None or flat_shape is None or len(flat_shape) != 3:
        return False
    return flat_shape[0] == shape[0] and flat_shape[2] == int(shape[2] or 0) * int(shape[3] or 0)


def _find_single_directions(node: ir.Node, count: int) -> list[tuple[ir.Value, int]]:
    """Return the tensors [T, N, H] that `node` selects from Y [T, D, N, H], with the direction.

    `node` is a Gather of one direction by a constant scalar on axis 1, or selects parts whose only
    consumers squeeze axis 1; `count` is D. Empty for other nodes.
    """
    if ir.is_standard_op(node, "Gather"):
        index = ir.const_value(node.inputs[1])
        if index is None or index.ndim or ir.get_attr(node, "axis", 0) not in (1, -3):
            return []
        return [(node.outputs[0], int(index) % count)]
    single_directions = []
    for value, direction in zip(node.outputs, _selected_directions(node, count), strict=False):
        squeeze = ir.sole_consumer(value)
        if ir.is_standard_op(squeeze, "Squeeze") and ir.get_axes(squeeze) in ([1], [-3]):
            single_directions.append((squeeze.outputs[0], direction))
    return single_directions


def _selected_directions(node: ir.Node, count: int) -> list[int]:
    """Return the direction in each output [T, 1, N, H] of a Slice or Split, or an empty list.

    A Slice selects one direction; a Split has an output for each of the `count` directions.
    """
    if ir.is_standard_op(node, "Slice"):
        positions = sliced_positions(node, 1)
        return list(positions) if positions is not None and len(positions) == 1 else []
    if not ir.is_standard_op(node, "Split") or ir.get_attr(node, "axis", 0) not in (1, -3):
        return []
    return list(range(count)) if len(node.outputs) == count else []


def _flat_output(node: ir.Node) -> ir.Value:
    """Return the tensor [T, N, D*H] to which `node` begins to convert Y [T, D, N, H].

    That is the output of `node`, a Squeeze, or else of the Reshape that alone reads the Transpose
    `node`.
    """
    if node.op_type == "Squeeze":
        return node.outputs[0]
    reshape = ir.sole_consumer(node.outputs[0])
    assert reshape is not None
    return reshape.outputs[0]
