"""Recurrent layers: LSTMInt and GRUInt, one direction each, weights [G*H, I] and [G*H, H] in the
gate order i, f, g, o
and r, z, n, biases int32 at scale_x*scale_iw and scale_o*scale_hw (the state that goes round is the
output).

The float operators are ``lingeronnx.LSTM`` and ``lingeronnx.GRU`` (`passes.recurrent`): x [N, T,
I], W, R and B in ONNX's gate order, then lengths, a state and a cell as the attribute
`optional_input_indices` names them -> y [N, T, H], of an LSTM the last state and cell too.
`explain_unsupported` says what keeps an ONNX LSTM or GRU from becoming one.

The integer operators take the same between x and the weights: lengths, the state as integers of the
output's scale, the cell as int32 with 15 fractional bits, each absent where it is not given. Chips
begin at zero and walk to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ... import formats
from ...formats.recurrent import OPTIONAL_INPUTS, RecurrentIntegerOp
from ...graph import ir
from ...graph.attributes import AttributeValue
from ...lowering import LoweringContext
from ...plan import Affine
from ...targets import Target
from ...targets import arithmetic as kinds
from ...targets.limits import RecurrentLimits
from .._base import Op
from ..scale_constraints import ScalePair, Scaling, make_fixed_max_exponent

__all__ = [
    "LSTM",
    "Gru",
    "Lstm",
    "get_directions",
    "has_full_length_sequences",
    "optional_input_indices",
    "explain_unsupported",
]


#: How the cell that goes in or comes out is held.
_CELL_QPARAMS = Affine(2.0**15, 32)

_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}


# ---- ONNX's operators --------------------------------------------------------------------------------------------


def get_directions(node: ir.Node) -> list[str]:
    """Return the directions of an ONNX LSTM or GRU, in the order of its outputs' axis of
    directions.
    """
    direction = str(ir.get_attr(node, "direction", "forward")).lower()
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def optional_input_indices(node: ir.Node) -> dict[str, int]:
    """Return {what: input index} of the lengths and states that a float layer is given, in ONNX's
    form or ours.
    """
    if node.domain == ir.FUNCTION_DOMAIN:
        return {key: 4 + i for i, key in enumerate(ir.get_attr(node, "given", []))}
    return {
        key: index
        for index, key in enumerate(OPTIONAL_INPUTS, 4)
        if len(node.inputs) > index and node.inputs[index]
    }


def has_full_length_sequences(node: ir.Node) -> bool:
    """Whether the ONNX LSTM or GRU `node` is given lengths that are known to be the whole
    input's.
    """
    index, shape = optional_input_indices(node).get("lengths"), ir.get_shape(node.inputs[0])
    lengths = None if index is None else ir.const_value(node.inputs[index])
    return lengths is not None and shape is not None and bool((lengths == shape[0]).all())


def explain_unsupported(node: ir.Node) -> str | None:
    """Return why the ONNX LSTM or GRU `node` cannot be one layer per direction."""
    shape = ir.get_shape(node.inputs[0])
    if shape is None or len(shape) != 3 or None in (shape[0], shape[2]):
        return "its length is not known before the run"
    if any(ir.const_value(node.inputs[i]) is None for i in (1, 2)):
        return "its weights are computed at run time"
    present = {i: value for i, value in enumerate(node.inputs) if value is not None}
    if 3 in present and ir.const_value(present[3]) is None:
        return "its biases are computed at run time"
    if 7 in present and not _is_zero(present[7]):
        return "it has peepholes"
    return _explain_unsupported_attribute(node)


def _explain_unsupported_attribute(node: ir.Node) -> str | None:
    names = [str(name).lower() for name in ir.get_attr(node, "activations", [])]
    if names and names != _ACTIVATIONS[node.op_type] * len(get_directions(node)):
        return f"its activations are {', '.join(names)}"
    if "clip" in node.attributes or ir.get_attr(node, "input_forget", 0):
        return (
            "it clips its gates"
            if "clip" in node.attributes
            else "its input and forget gates are coupled"
        )
    return None


def _is_zero(value: ir.Value | None) -> bool:
    array = ir.const_value(value)
    return array is not None and not array.any()


# ---- what the chips compute wrong --------------------------------------------------------------------------------


def _has_recurrent_limits(target: Target, node: ir.Node) -> bool:
    """Whether layers begin at zero, walk to the end of the input and keep their cell to
    themselves.
    """
    form = formats.LSTM if "LSTM" in node.op_type else formats.GRU
    return target.get_limits(form.name, RecurrentLimits) is not None


def check_square_input(node: ir.Node, target: Target) -> object:
    """a sequence has as many steps as a step has elements, which the quantizer sees to | pad the
    shorter axis.
    """
    shape, limits = ir.get_shape(node.inputs[0]), target.recurrent_limits
    if (
        limits is None
        or not limits.needs_square_input
        or node.domain == ir.FUNCTION_DOMAIN
        or shape is None
        or None in shape[1:]
    ):
        return None
    return (
        None
        if len(shape) != 3 or shape[1] == shape[2]
        else f"{shape[1]} steps of {shape[2]} elements"
    )


def check_full_sequences(node: ir.Node, target: Target) -> object:
    """every sequence is as long as the input, to whose end a chip walks | leave sequence_lens
    out.
    """
    if (
        not _has_recurrent_limits(target, node)
        or node.domain != ir.FUNCTION_DOMAIN
        or "lengths" not in optional_input_indices(node)
    ):
        return None
    return "sequence_lens is given, and some may be shorter"


def check_zero_initial_state(node: ir.Node, target: Target) -> object:
    """states start at zero, as in every run of a chip: up to 64 steps are written out instead |
    leave them out.
    """
    if not _has_recurrent_limits(target, node) or node.domain != ir.FUNCTION_DOMAIN:
        return None
    states = [f"initial_{key}" for key in optional_input_indices(node) if key != "lengths"]
    return f"{' and '.join(states)} {'are' if len(states) > 1 else 'is'} given" if states else None


def check_cell_unread(node: ir.Node, target: Target) -> object:
    """nobody reads the last cell, held in 32 bits: up to 64 steps are written out instead | use the
    last state.
    """
    return (
        "it is read"
        if _has_recurrent_limits(target, node)
        and node.domain == ir.FUNCTION_DOMAIN
        and _is_read(node, 2)
        else None
    )


def _is_read(node: ir.Node, index: int) -> bool:
    value = node.outputs[index] if len(node.outputs) > index else None
    return value is not None and bool(value.uses() or value.is_graph_output())


def check_gru_support(node: ir.Node, target: Target) -> object:
    """the executor computes a GRU right, not as {target.name} does: up to 64 steps are written out
    | use an LSTM.
    """
    return target.why.get(formats.GRU.name)


# ---- the integer operators ---------------------------------------------------------------------------------------


def _activation_inputs(node: ir.Node) -> list[int]:
    """The input, and a state that is computed."""
    state = optional_input_indices(node).get("h") if node.domain == ir.FUNCTION_DOMAIN else None
    return [0] if state is None or ir.const_value(node.inputs[state]) is not None else [0, state]


def _quantized_outputs(node: ir.Node) -> list[int]:
    """The sequence; where lengths are given the last state is no step of it."""
    return (
        [0, 1]
        if node.domain == ir.FUNCTION_DOMAIN
        and "lengths" in optional_input_indices(node)
        and _is_read(node, 1)
        else [0]
    )


def _shared_state_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """Input and state have scales of their own; the state that goes in is what comes out."""
    y = ir.output_name(node)
    return [ScalePair(ir.input_name(node, index), y) for index in _activation_inputs(node)[1:]] + [
        ScalePair(y, str(node.outputs[index].name)) for index in _quantized_outputs(node)[1:]
    ]


#: A state is in [-1, 1].
_SCALE_CONSTRAINTS = Scaling(
    factor_behavior="fixed", shared_scales=_shared_state_scales, strict_output_bound=1.0
)


class _RecurrentRule(Op):
    """What LSTMInt and GRUInt share."""

    scale_constraints = _SCALE_CONSTRAINTS
    integer_op: RecurrentIntegerOp
    onnx_gate_order: ClassVar[str]  # ONNX's order

    def data(self, node: ir.Node) -> list[int]:
        """The input, and a state that is computed."""
        return _activation_inputs(node)

    def quantized_outputs(self, node: ir.Node) -> list[int]:
        """The sequence; where lengths are given the last state is no step of it."""
        return _quantized_outputs(node)

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return the weights of inputs and states."""
        return [1, 2]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """An ONNX operator that the pass left has an obstacle."""
        if node.domain == ir.FUNCTION_DOMAIN:
            return None
        return explain_unsupported(node) or "it was not brought into the form of one direction"

    def macs(self, node: ir.Node) -> int:
        """Return the steps times the size of both weights."""
        steps = int((ir.get_shape(node.inputs[0]) or (1, 1))[1] or 1)
        return steps * sum(
            math.prod(int(d or 1) for d in ir.get_shape(v) or ()) for v in node.inputs[1:3]
        )

    # ---- lowering ----

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit with the gates in the vendor's order and the two halves of the bias apart."""
        x, o, w, r = (
            context.input_qparams(node, 0),
            context.output_qparams(node),
            context.input_qparams(node, 1),
            context.input_qparams(node, 2),
        )
        units, gates = (
            int(ir.get_attr(node, "hidden_size")),
            self._target_gate_order(context.target),
        )
        source = context.get_integer_input(node, 0)
        length, width = (int(d or 0) for d in ir.require_shape(node.inputs[0])[1:])
        square = (
            context.target.recurrent_limits is not None
            and context.target.recurrent_limits.needs_square_input
        )
        missing = length - width if square and length > width else 0
        if missing:
            source = self._emit_padded_last_axis(
                node, context, "wide", source, (length, width), length, x
            )
        elif square and length < width:
            source = self._emit_extended_sequence(node, context, source, x)
        name = ir.input_name(node, 3)

        def half(index: int) -> Callable[[np.ndarray], np.ndarray]:
            return lambda a: self._reorder_gates(a, units, gates).reshape(2, -1)[index]

        inputs = [
            source,
            *self._emit_optional_inputs(node, context, o),
            context.add_quantized_constant(
                node,
                1,
                w,
                lambda a: np.pad(self._reorder_gates(a, units, gates), ((0, 0), (0, missing))),
            ),
            context.add_quantized_constant(
                node, 2, r, lambda a: self._reorder_gates(a, units, gates)
            ),
            *context.bias(node, 3, x.scale * w.scale, half(0), f"{name}_ih"),
            *context.bias(node, 3, o.scale * r.scale, half(1), f"{name}_hh"),
        ]
        attrs = {
            "input_size": width + missing,
            "hidden_size": units,
            "num_layers": 1,
            "batch_first": 1,
            "dropout": 0.0,
            "go_forward": int(ir.get_attr(node, "direction") != "reverse"),
            "data_bits": x.bits,
            "parameter_bits": w.bits,
            "o_bits": o.bits,
            "scale_x": x.scale,
            "scale_h": o.scale,
            "scale_iw": w.scale,
            "scale_hw": r.scale,
            "scale_o": o.scale,
            **self.make_integer_attributes(node),
        }
        batch = (ir.get_shape(node.inputs[0]) or (None,))[0]
        also = [
            (what, (batch, 1, units), bits or o.bits)
            for what, bits in self.integer_op.states.items()
        ]
        if square and length < width:
            steps = context.emit_intermediate(
                self.integer_op,
                node,
                "steps",
                inputs,
                attrs,
                (batch, width, units),
                o,
                extra_outputs=also,
            )
            first = 0 if attrs["go_forward"] else width - length
            bounds = (("start", first), ("end", first + length), ("axis", 1), ("step", 1))
            slice_bounds = [
                context.array(f"{ir.output_name(node)}_{key}", np.array([v], np.int64))
                for key, v in bounds
            ]
            context.emit(formats.SLICE, node, [steps, *slice_bounds], {})
        else:
            context.emit(self.integer_op, node, inputs, attrs, extra_outputs=also)
        for index in self.quantized_outputs(node)[1:]:
            context.bind_extra_output(node, index, "h")
        if _is_read(node, 2):
            context.emit_float_output(node, 2, "c", _CELL_QPARAMS.scale)

    def _emit_optional_inputs(
        self, node: ir.Node, low: LoweringContext, o: Affine
    ) -> list[ir.Value | None]:
        """Return lengths, state and cell as far as they are given; what the state is tied to is
        held as `o`.
        """
        states: list[ir.Value | None] = []
        for key in OPTIONAL_INPUTS[: 1 + len(self.integer_op.states)]:
            index = optional_input_indices(node).get(key)
            array = None if index is None else ir.const_value(node.inputs[index])
            if index is None:
                states.append(None)
            elif key == "lengths":
                name = ir.input_name(node, index)
                states.append(
                    low.real(node, index)
                    if array is None
                    else low.array(name, array.astype(np.int64), keeps_name=True)
                )
            elif array is None:
                states.append(
                    low.get_requantized_input(node, index, o)
                    if key == "h"
                    else low.get_input_at_qparams(node, index, _CELL_QPARAMS)
                )
            else:
                states.append(
                    low.add_quantized_constant(node, index, o if key == "h" else _CELL_QPARAMS)
                )
        while states and states[-1] is None:
            states.pop()
        return states

    def make_integer_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes of this operator alone."""
        return {}

    def _target_gate_order(self, target: Target) -> str:
        """Return the order in which the platform wants the gates."""
        how = target.get_arithmetic(self.name, self.integer_op.kind)
        return self.integer_op.kernel_gate_order if how is None else how.gates

    def _reorder_gates(self, array: np.ndarray, units: int, gates: str) -> np.ndarray:
        """Return weights or biases, whose gates stand as in ONNX, with the gates in the order
        `gates`.
        """
        by_gate = array.reshape(
            -1, len(gates), units, *array.shape[1:]
        )  # the biases are two times all gates
        return by_gate[:, [self.onnx_gate_order.index(gate) for gate in gates]].reshape(array.shape)

    def _emit_extended_sequence(
        self, node: ir.Node, low: LoweringContext, source: ir.Value, q: Affine
    ) -> ir.Value:
        """Return the input with steps of zeros behind what is walked through, for chips that take
        square inputs only.

        What they give is cut off: y is causal, so nothing else changes.
        """
        batch, length, width = ir.get_shape(node.inputs[0]) or (None, 0, 0)
        length, width, turn = int(length or 0), int(width or 0), {"perm": [0, 2, 1]}
        turned = low.emit_intermediate(
            formats.TRANSPOSE, node, "turned", [source], turn, (batch, width, length), q
        )
        before = 0 if ir.get_attr(node, "direction") != "reverse" else width - length
        long = self._emit_padded_last_axis(
            node, low, "long", turned, sizes=(width, length), size=width, q=q, before=before
        )
        return low.emit_intermediate(
            formats.TRANSPOSE, node, "back", [long], turn, (batch, width, width), q
        )

    def _emit_padded_last_axis(
        self,
        node: ir.Node,
        low: LoweringContext,
        what: str,
        source: ir.Value,
        sizes: tuple[int, int],
        size: int,
        q: Affine,
        before: int = 0,
    ) -> ir.Value:
        """Return `source` [N, *sizes] with zeros around its last axis: a linear layer does that
        exactly.
        """
        one = Affine(64.0)
        weight = (np.eye(size, sizes[1], -before) * one.scale).astype(np.int8)
        identity = low.array(f"{ir.output_name(node)}_{what}_weight", weight)
        batch = (ir.get_shape(node.inputs[0]) or (None,))[0]
        return low.emit_intermediate(
            formats.LINEAR,
            node,
            what,
            [source, identity],
            formats.LINEAR.scales(q, one, q),
            (batch, sizes[0], size),
            q,
        )

    # ---- integer side ----


class Lstm(_RecurrentRule):
    """A long short-term memory of one direction becomes LSTMInt."""

    integer_op = formats.LSTM
    # At most 14 fractional bits, which is what o * tanh(c) has on the coarsest chip.
    scale_constraints = replace(_SCALE_CONSTRAINTS, max_output_exponent=make_fixed_max_exponent(14))
    floats = ((ir.FUNCTION_DOMAIN, "LSTM"), ("", "LSTM"))
    constraints = (
        check_square_input,
        check_full_sequences,
        check_zero_initial_state,
        check_cell_unread,
    )
    onnx_gate_order = "iofg"

    def max_cell_magnitude(self, target: Target) -> float | None:
        """Return the largest product of forget gate and cell that `target` holds, None where it
        holds any.
        """
        how = target.get_arithmetic(self.name, kinds.LstmArithmetic)
        return (
            2.0
            if how is not None and how.form in (kinds.LstmFormat.Q27, kinds.LstmFormat.WIDE)
            else None
        )


LSTM = Lstm()


class Gru(_RecurrentRule):
    """A gated recurrent unit of one direction becomes GRUInt."""

    integer_op = formats.GRU
    floats = ((ir.FUNCTION_DOMAIN, "GRU"), ("", "GRU"))
    constraints = (check_gru_support, check_full_sequences, check_zero_initial_state)
    onnx_gate_order = "zrn"

    def make_integer_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Where the reset gate acts."""
        return {"linear_before_reset": int(ir.get_attr(node, "linear_before_reset", 0))}
