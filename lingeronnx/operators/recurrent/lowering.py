"""Recurrent layers: LSTMInt and GRUInt; a limit returns None if kept, else the offending value.

A layer has one direction.

Weights are [G*H, I] and [G*H, H] in the gate order i, f, g, o or r, z, n. Biases are int32 at
scale_x*scale_iw and scale_o*scale_hw; the recurrent state has the scale of the output.

The float operators are ``lingeronnx.LSTM`` and ``lingeronnx.GRU``
(`quantization.normalize.layers.recurrent`): x [N, T, I], W, R and B in ONNX's gate order, then the
optional inputs that attribute `given` names: lengths, initial state and cell. Outputs are y [N, T,
H], and of an LSTM the last state and cell. `explain_unsupported` says why an ONNX LSTM or GRU
cannot become one.

The integer operators have these optional inputs between x and the weights: lengths, the state as
integers at the scale of the output, the cell as int32 with 15 fractional bits. Chips start at zero
and process the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ...ir import ir
from ...ir.attributes import AttributeValue
from ...ir.plan import Affine
from ...targets import Target
from ...targets import arithmetic as kinds
from ...targets.limits import RecurrentLimits
from .. import integer_ops
from .._lowering import Op, ScalePair, Scaling, make_fixed_max_exponent
from ..lowering_context import LoweringContext
from .integer_op import OPTIONAL_INPUTS, RecurrentIntegerOp

__all__ = [
    "LSTM",
    "Gru",
    "Lstm",
    "get_directions",
    "has_full_length_sequences",
    "optional_input_indices",
    "explain_unsupported",
]


#: Quantization parameters of initial and last cells.
_CELL_QPARAMS = Affine(2.0**15, 32)

_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}


def get_directions(node: ir.Node) -> list[str]:
    """Return the directions of an ONNX LSTM or GRU `node`, in the order of the direction axis.

    They are ["forward", "reverse"] for a bidirectional one, otherwise one of the two.
    """
    direction = str(ir.get_attr(node, "direction", "forward")).lower()
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def optional_input_indices(node: ir.Node) -> dict[str, int]:
    """Return the indices of the optional inputs that the recurrent `node` has, by key.

    The keys are lengths, h (initial state) and c (initial cell). A function layer of the project
    lists them in its attribute `given`, and they follow its four inputs; an ONNX layer has them
    from index 4 on.
    """
    if node.domain == ir.FUNCTION_DOMAIN:
        return {key: 4 + i for i, key in enumerate(ir.get_attr(node, "given", []))}
    indices = {}
    for index, key in enumerate(OPTIONAL_INPUTS, 4):
        if len(node.inputs) > index and node.inputs[index]:
            indices[key] = index
    return indices


def has_full_length_sequences(node: ir.Node) -> bool:
    """Whether the ONNX LSTM or GRU `node` gets constant lengths that all equal that of its input.

    False without lengths or if they are computed.
    """
    index, shape = optional_input_indices(node).get("lengths"), ir.get_shape(node.inputs[0])
    lengths = None if index is None else ir.const_value(node.inputs[index])
    return lengths is not None and shape is not None and bool((lengths == shape[0]).all())


def explain_unsupported(node: ir.Node) -> str | None:
    """Explain why the ONNX LSTM or GRU `node` cannot become layers of one direction, or None.

    Reasons: an unknown number of steps or features, weights or biases computed at run time,
    peepholes other than 0, other activations than the default ones, clipping, and coupled gates.
    """
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
    """Explain why an attribute of the ONNX LSTM or GRU `node` has no integer form, or None.

    Reasons, in this order: `activations` other than the default ones, a `clip` attribute, or
    `input_forget` other than 0.
    """
    names = [str(name).lower() for name in ir.get_attr(node, "activations", [])]
    if names and names != _ACTIVATIONS[node.op_type] * len(get_directions(node)):
        return f"its activations are {', '.join(names)}"
    if "clip" in node.attributes:
        return "it clips its gates"
    if ir.get_attr(node, "input_forget", 0):
        return "its input and forget gates are coupled"
    return None


def _is_zero(value: ir.Value | None) -> bool:
    """Whether `value` is a constant with only zeros; False for None and for a computed tensor."""
    array = ir.const_value(value)
    return array is not None and not array.any()


def _has_recurrent_limits(target: Target, node: ir.Node) -> bool:
    """Whether `target` restricts recurrent layers of the kind (LSTM or GRU) of `node`.

    Such limits require zero initial states, full lengths and an unused cell output.
    """
    form = integer_ops.LSTM if "LSTM" in node.op_type else integer_ops.GRU
    return target.get_limits(form.name, RecurrentLimits) is not None


def check_square_input(node: ir.Node, target: Target) -> str | None:
    """a sequence has as many steps as a step has elements, which the quantizer sees to | pad the
    shorter axis.
    """
    limits = target.recurrent_limits
    if limits is None or not limits.needs_square_input or node.domain == ir.FUNCTION_DOMAIN:
        return None
    shape = ir.get_shape(node.inputs[0])
    if shape is None or len(shape) != 3 or None in shape[1:] or shape[1] == shape[2]:
        return None
    return f"{shape[1]} steps of {shape[2]} elements"


def check_full_sequences(node: ir.Node, target: Target) -> str | None:
    """every sequence is as long as the input, to whose end a chip walks | leave sequence_lens
    out.
    """
    if not _has_recurrent_limits(target, node) or node.domain != ir.FUNCTION_DOMAIN:
        return None
    if "lengths" not in optional_input_indices(node):
        return None
    return "sequence_lens is given, and some may be shorter"


def check_zero_initial_state(node: ir.Node, target: Target) -> str | None:
    """states start at zero, as in every run of a chip: up to 64 steps are written out instead |
    leave them out.
    """
    if not _has_recurrent_limits(target, node) or node.domain != ir.FUNCTION_DOMAIN:
        return None
    states = [f"initial_{key}" for key in optional_input_indices(node) if key != "lengths"]
    if not states:
        return None
    return f"{' and '.join(states)} {'are' if len(states) > 1 else 'is'} given"


def check_cell_unread(node: ir.Node, target: Target) -> str | None:
    """nobody reads the last cell, held in 32 bits: up to 64 steps are written out instead | use the
    last state.
    """
    if not _has_recurrent_limits(target, node) or node.domain != ir.FUNCTION_DOMAIN:
        return None
    return "it is read" if _is_read(node, 2) else None


def _is_read(node: ir.Node, index: int) -> bool:
    """Whether output `index` of `node` exists and is read by a node or is a graph output."""
    value = node.outputs[index] if len(node.outputs) > index else None
    return value is not None and bool(value.uses() or value.is_graph_output())


def check_gru_support(node: ir.Node, target: Target) -> str | None:
    """the executor must compute a GRU correctly; for {target.name} up to 64 steps are unrolled
    | use an LSTM.
    """
    return target.why.get(integer_ops.GRU.name)


def _activation_inputs(node: ir.Node) -> list[int]:
    """Return the indices of the quantized inputs of `node`: [0], or [0, index of initial state h].

    The state is left out if it is absent or constant, and for ONNX nodes.
    """
    state = optional_input_indices(node).get("h") if node.domain == ir.FUNCTION_DOMAIN else None
    return [0] if state is None or ir.const_value(node.inputs[state]) is not None else [0, state]


def _quantized_outputs(node: ir.Node) -> list[int]:
    """Return the indices of the quantized outputs: [0], or [0, 1] if the last state is read too.

    That is only so for function layers with lengths; without, the last state is a step of the
    sequence (output 0).
    """
    has_lengths = node.domain == ir.FUNCTION_DOMAIN and "lengths" in optional_input_indices(node)
    return [0, 1] if has_lengths and _is_read(node, 1) else [0]


def _shared_state_scales(node: ir.Node, target: Target) -> list[ScalePair]:
    """Return the pairs that give first and last states of `node` the scale of its sequence output.

    Initial states come first, as (state, sequence); last states as (sequence, state). Constant
    initial states, and last states that are not quantized, are left out; `target` is not used.
    """
    y = ir.output_name(node)
    states_in = [ir.input_name(node, index) for index in _activation_inputs(node)[1:]]
    states_out = [str(node.outputs[index].name) for index in _quantized_outputs(node)[1:]]
    return [
        *(ScalePair(state, y) for state in states_in),
        *(ScalePair(y, state) for state in states_out),
    ]


#: A state is in [-1, 1].
_SCALE_CONSTRAINTS = Scaling(
    factor_behavior="fixed", shared_scales=_shared_state_scales, strict_output_bound=1.0
)


class _RecurrentRule(Op):
    """Base of the rules for LSTMInt and GRUInt."""

    scale_constraints = _SCALE_CONSTRAINTS
    integer_op: RecurrentIntegerOp
    onnx_gate_order: ClassVar[str]

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs of `node` that carry activations: 0 and initial state h.

        The state is left out if it is absent or constant.
        """
        return _activation_inputs(node)

    def quantized_outputs(self, node: ir.Node) -> list[int]:
        """Return [0], the sequence, or [0, 1] if the last state is read and lengths are given."""
        return _quantized_outputs(node)

    def weight_inputs(self, node: ir.Node) -> list[int]:
        """Return [1, 2], the indices of the weights of the input and of the state."""
        return [1, 2]

    def explain_rejection(self, node: ir.Node) -> str | None:
        """Return None for a one-direction function layer, or why an ONNX `node` was not made one.

        If there is no particular reason, that is the text that it was not converted.
        """
        if node.domain == ir.FUNCTION_DOMAIN:
            return None
        return explain_unsupported(node) or "it was not converted to one direction"

    def macs(self, node: ir.Node) -> int:
        """Return the number of steps (axis 1 of the input) times the elements of both weights.

        An unknown dimension counts as 1.
        """
        steps = int((ir.get_shape(node.inputs[0]) or (1, 1))[1] or 1)
        count = 0
        for value in node.inputs[1:3]:
            count += math.prod(int(dim or 1) for dim in ir.get_shape(value) or ())
        return steps * count

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer layer into `context`, with the target's gate order and two biases.

        Chips that need square inputs [N, T, T] get zero features (by a LinearInt), or zero steps
        whose outputs a Slice removes, at the end for a forward layer. The last state and, as float,
        the last cell are bound if they are used.
        """
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        w, r = context.input_qparams(node, 1), context.input_qparams(node, 2)
        hidden_size = int(ir.get_attr(node, "hidden_size"))
        source = context.get_integer_input(node, 0)
        length, width = (int(d or 0) for d in ir.require_shape(node.inputs[0])[1:])
        limits = context.target.recurrent_limits
        needs_square = limits is not None and limits.needs_square_input
        padding = length - width if needs_square and length > width else 0
        if padding:
            source = self._emit_padded_last_axis(
                node, context, "wide", source, (length, width), length, x
            )
        elif needs_square and length < width:
            source = self._emit_extended_sequence(node, context, source, x)
        inputs = [
            source,
            *self._emit_optional_inputs(node, context, o),
            *self._emit_parameters(node, context, hidden_size, padding),
        ]
        attrs = {
            "input_size": width + padding,
            "hidden_size": hidden_size,
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
        state_outputs = [
            (state, (batch, 1, hidden_size), bits or o.bits)
            for state, bits in self.integer_op.states.items()
        ]
        if needs_square and length < width:
            steps = context.emit_intermediate(
                self.integer_op,
                node,
                "steps",
                inputs,
                attrs,
                (batch, width, hidden_size),
                o,
                extra_outputs=state_outputs,
            )
            first = 0 if attrs["go_forward"] else width - length
            bounds = (("start", first), ("end", first + length), ("axis", 1), ("step", 1))
            slice_bounds = [
                context.array(f"{ir.output_name(node)}_{key}", np.array([v], np.int64))
                for key, v in bounds
            ]
            context.emit(integer_ops.SLICE, node, [steps, *slice_bounds], {})
        else:
            context.emit(self.integer_op, node, inputs, attrs, extra_outputs=state_outputs)
        for index in self.quantized_outputs(node)[1:]:
            context.bind_extra_output(node, index, "h")
        if _is_read(node, 2):
            context.emit_float_output(node, 2, "c", _CELL_QPARAMS.scale)

    def _emit_parameters(
        self, node: ir.Node, context: LoweringContext, hidden_size: int, padding: int
    ) -> list[ir.Value]:
        """Add the constants of a recurrent `node` to `context` and return them.

        They are the weights of input and state, then the two biases. Gates, of `hidden_size` rows
        each, are reordered as the target stores them; the input weights get `padding` zero columns.
        A bias has the scale of its accumulator.
        """
        x, o = context.input_qparams(node, 0), context.output_qparams(node)
        w, r = context.input_qparams(node, 1), context.input_qparams(node, 2)
        gates, bias_name = self._target_gate_order(context.target), ir.input_name(node, 3)

        def reorder(array: np.ndarray) -> np.ndarray:
            """Return `array` with the gates on its axis 0 in the order of the target."""
            return self._reorder_gates(array, hidden_size, gates)

        def reorder_and_pad(array: np.ndarray) -> np.ndarray:
            """Return the matrix `array` with reordered gates (rows) and `padding` zero columns."""
            return np.pad(reorder(array), ((0, 0), (0, padding)))

        def take_bias(index: int) -> Callable[[np.ndarray], np.ndarray]:
            """Return a function that selects bias 0 (input) or 1 (state), its gates reordered."""
            return lambda biases: reorder(biases).reshape(2, -1)[index]

        return [
            context.add_quantized_constant(node, 1, w, reorder_and_pad),
            context.add_quantized_constant(node, 2, r, reorder),
            *context.bias(node, 3, x.scale * w.scale, take_bias(0), f"{bias_name}_ih"),
            *context.bias(node, 3, o.scale * r.scale, take_bias(1), f"{bias_name}_hh"),
        ]

    def _emit_optional_inputs(
        self, node: ir.Node, low: LoweringContext, o: Affine
    ) -> list[ir.Value | None]:
        """Return the inputs lengths, state and (LSTM only) cell in this order.

        Absent ones are None. `o` are the state's scale and bits. Absent ones at the end are left
        out, so that the list may be empty. Constants and Requants are added to `low`.
        """
        indices = optional_input_indices(node)
        inputs: list[ir.Value | None] = []
        for key in OPTIONAL_INPUTS[: 1 + len(self.integer_op.states)]:
            index = indices.get(key)
            if index is None:
                inputs.append(None)
            elif key == "lengths":
                inputs.append(self._emit_lengths(node, low, index))
            else:
                inputs.append(self._emit_state(node, low, index, o if key == "h" else None))
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs

    @staticmethod
    def _emit_lengths(node: ir.Node, low: LoweringContext, index: int) -> ir.Value:
        """Return the sequence lengths, input `index`: the tensor itself, or an int64 constant."""
        lengths = ir.const_value(node.inputs[index])
        if lengths is None:
            return low.real(node, index)
        return low.array(ir.input_name(node, index), lengths.astype(np.int64), keeps_name=True)

    @staticmethod
    def _emit_state(
        node: ir.Node, low: LoweringContext, index: int, qparams: Affine | None
    ) -> ir.Value:
        """Return initial state or cell, input `index` of `node`, as integers of format `qparams`.

        None means that of cells, 32 bits at scale 2^15. Constants are quantized, tensors
        requantized if they have other parameters.
        """
        if ir.const_value(node.inputs[index]) is not None:
            return low.add_quantized_constant(node, index, qparams or _CELL_QPARAMS)
        if qparams is None:
            return low.get_input_at_qparams(node, index, _CELL_QPARAMS)
        return low.get_integer_input(node, index, qparams)

    def make_integer_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes that only this operator has, for subclasses to override.

        Here none.
        """
        return {}

    def _target_gate_order(self, target: Target) -> str:
        """Return the order of gates in the weights of `target`, as a string of their letters.

        It is that of the operator if the target does not say.
        """
        arithmetic = target.get_arithmetic(self.name, self.integer_op.kind)
        return self.integer_op.kernel_gate_order if arithmetic is None else arithmetic.gates

    def _reorder_gates(self, array: np.ndarray, hidden_size: int, gates: str) -> np.ndarray:
        """Return `array` with the gates on axis 0 reordered from ONNX's order to `gates`.

        `gates` is a permutation of their letters (LSTM "iofg", GRU "zrn"), and a gate has
        `hidden_size` rows. In a bias, both sets of gates (of the input, then of the state) are
        reordered.
        """
        # The biases of inputs and states follow each other: two times all gates.
        by_gate = array.reshape(-1, len(gates), hidden_size, *array.shape[1:])
        return by_gate[:, [self.onnx_gate_order.index(gate) for gate in gates]].reshape(array.shape)

    def _emit_extended_sequence(
        self, node: ir.Node, low: LoweringContext, source: ir.Value, q: Affine
    ) -> ir.Value:
        """Append steps of zeros to the input [N, T, I], so that it has I steps; return the result.

        A chip needs as many steps as features; T < I. A reverse layer gets the zeros before the
        others. `q` are scale and bits of `source`; nodes (two Transposes and a LinearInt) are
        emitted into `low`.
        """
        batch, length, width = ir.get_shape(node.inputs[0]) or (None, 0, 0)
        length, width, swap = int(length or 0), int(width or 0), {"perm": [0, 2, 1]}
        turned = low.emit_intermediate(
            integer_ops.TRANSPOSE, node, "turned", [source], swap, (batch, width, length), q
        )
        before = 0 if ir.get_attr(node, "direction") != "reverse" else width - length
        long = self._emit_padded_last_axis(
            node, low, "long", turned, sizes=(width, length), size=width, q=q, before=before
        )
        return low.emit_intermediate(
            integer_ops.TRANSPOSE, node, "back", [long], swap, (batch, width, width), q
        )

    def _emit_padded_last_axis(
        self,
        node: ir.Node,
        low: LoweringContext,
        suffix: str,
        source: ir.Value,
        sizes: tuple[int, int],
        size: int,
        q: Affine,
        before: int = 0,
    ) -> ir.Value:
        """Pad the last axis of `source` [N, *sizes] with zeros to `size`, and return the result.

        It is done exactly by a LinearInt emitted into `low`; `before` zeros precede the values, the
        others follow. `q` are scale and bits of input and result.
        """
        weight_qparams = Affine(64.0)
        weight = (np.eye(size, sizes[1], -before) * weight_qparams.scale).astype(np.int8)
        identity = low.array(f"{ir.output_name(node)}_{suffix}_weight", weight)
        batch = (ir.get_shape(node.inputs[0]) or (None,))[0]
        return low.emit_intermediate(
            integer_ops.LINEAR,
            node,
            suffix,
            [source, identity],
            integer_ops.LINEAR.make_qparams_attributes(q, weight_qparams, q),
            (batch, sizes[0], size),
            q,
        )


class Lstm(_RecurrentRule):
    """LSTM of one direction: LSTMInt."""

    integer_op = integer_ops.LSTM
    # o * tanh(c) has 14 fractional bits on the coarsest chip.
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
        """Return the largest product of forget gate and cell on `target`, or None if unlimited.

        It is 2 if the target's LSTM saturates the cell (format Q27 or WIDE).
        """
        arithmetic = target.get_arithmetic(self.name, kinds.LstmArithmetic)
        if arithmetic is None:
            return None
        saturates = arithmetic.form in (kinds.LstmFormat.Q27, kinds.LstmFormat.WIDE)
        return 2.0 if saturates else None


LSTM = Lstm()


class Gru(_RecurrentRule):
    """GRU of one direction: GRUInt."""

    integer_op = integer_ops.GRU
    floats = ((ir.FUNCTION_DOMAIN, "GRU"), ("", "GRU"))
    constraints = (check_gru_support, check_full_sequences, check_zero_initial_state)
    onnx_gate_order = "zrn"

    def make_integer_attributes(self, node: ir.Node) -> dict[str, AttributeValue]:
        """Return {"linear_before_reset": 0 or 1}: 1 if the reset gate acts after the product."""
        return {"linear_before_reset": int(ir.get_attr(node, "linear_before_reset", 0))}
