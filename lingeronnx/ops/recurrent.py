"""Recurrent layers: LSTMInt and GRUInt, one direction each, weights [G*H, I] and [G*H, H] in the gate order i, f, g, o
and r, z, n, biases int32 at scale_x*scale_iw and scale_o*scale_hw (the state that goes round is the output).

The float operators are ``lingeronnx.LSTM`` and ``lingeronnx.GRU`` (`passes.recurrent`): x [N, T, I], W, R and B in
ONNX's gate order, then lengths, a state and a cell where they are `given` -> y [N, T, H], of an LSTM the last state and
cell too. `obstacle` says what keeps an ONNX LSTM or GRU from becoming one.

The integer operators take the same between x and the weights: lengths, the state as integers of the output's scale, the
cell as int32 with 15 fractional bits, each absent where it is not given. Chips begin at zero and walk to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ..emit import Lowering
from ..errors import ModelError
from ..graph import ir
from ..plan import QParams
from ..platforms import Platform
from ..platforms import arithmetic as kinds
from ..platforms.faults import Fault
from ..platforms.limits import RecurrentLimits
from . import recurrent_trained
from ._base import Attr, Bound, Op, Tie
from .select import Slice

__all__ = ["GIVEN", "Gru", "Lstm", "directions", "full_length", "given", "obstacle", "places"]

#: What a layer may be given besides x, in the order of all its forms.
GIVEN = ("lengths", "h", "c")

_ATTRIBUTES = (
    Attr("input_size", "i"),
    Attr("hidden_size", "i"),
    Attr("num_layers", "i", 1),
    Attr("batch_first", "i", 0),
    Attr("go_forward", "i", 1),
    Attr("data_bits", "i", 8),
    Attr("parameter_bits", "i", 8),
    Attr("o_bits", "i", None),
    Attr("scale_x", "f"),
    Attr("scale_h", "f"),
    Attr("scale_iw", "f"),
    Attr("scale_hw", "f"),
    Attr("scale_o", "f", None),
)

SLICE = Slice()

#: How the cell that goes in or comes out is held.
_CELL = QParams(2.0**15, 32)

_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}


# ---- ONNX's operators --------------------------------------------------------------------------------------------


def directions(node: ir.Node) -> list[str]:
    """Return the directions of an ONNX LSTM or GRU, in the order of its outputs' axis of directions."""
    direction = str(ir.attr(node, "direction", "forward")).lower()
    return ["forward", "reverse"] if direction == "bidirectional" else [direction]


def given(node: ir.Node) -> dict[str, int]:
    """Return {what: input index} of the lengths and states that a float layer is given, in ONNX's form or ours."""
    if node.domain == ir.DOMAIN:
        letters = node.op_type.partition("_")[2]
        return {key: 4 + i for i, key in enumerate(k for k in GIVEN if k[0] in letters)}
    return {key: index for index, key in enumerate(GIVEN, 4) if len(node.inputs) > index and node.inputs[index]}


def full_length(node: ir.Node) -> bool:
    """Whether the ONNX LSTM or GRU `node` is given lengths that are known to be the whole input's."""
    index, shape = given(node).get("lengths"), ir.shape(node.inputs[0])
    lengths = None if index is None else ir.const(node.inputs[index])
    return lengths is not None and shape is not None and bool((lengths == shape[0]).all())


def obstacle(node: ir.Node) -> str | None:
    """Return why the ONNX LSTM or GRU `node` cannot be one layer per direction."""
    shape = ir.shape(node.inputs[0])
    if shape is None or len(shape) != 3 or None in (shape[0], shape[2]):
        return "its length is not known before the run"
    if any(ir.const(node.inputs[i]) is None for i in (1, 2)):
        return "its weights are computed at run time"
    present = {i: value for i, value in enumerate(node.inputs) if value is not None}
    if 3 in present and ir.const(present[3]) is None:
        return "its biases are computed at run time"
    if 7 in present and not _is_zero(present[7]):
        return "it has peepholes"
    return _attribute_obstacle(node)


def _attribute_obstacle(node: ir.Node) -> str | None:
    names = [str(name).lower() for name in ir.attr(node, "activations", [])]
    if names and names != _ACTIVATIONS[node.op_type] * len(directions(node)):
        return f"its activations are {', '.join(names)}"
    if "clip" in node.attributes or ir.attr(node, "input_forget", 0):
        return "it clips its gates" if "clip" in node.attributes else "its input and forget gates are coupled"
    return None


def _is_zero(value: ir.Value | None) -> bool:
    array = ir.const(value)
    return array is not None and not array.any()


# ---- what the chips compute wrong --------------------------------------------------------------------------------


def _limited(row: Platform, node: ir.Node) -> bool:
    """Whether layers begin at zero, walk to the end of the input and keep their cell to themselves."""
    kind = "LSTMInt" if "LSTM" in node.op_type else "GRUInt"
    return row.limits(kind, RecurrentLimits) is not None


def square_input(node: ir.Node, row: Platform) -> Any:
    """a sequence has as many steps as a step has elements, which the quantizer sees to | pad the shorter axis."""
    shape = ir.shape(node.inputs[0])
    if Fault.LSTM_SQUARE not in row.faults or node.domain == ir.DOMAIN or shape is None or None in shape[1:]:
        return None
    return None if len(shape) != 3 or shape[1] == shape[2] else f"{shape[1]} steps of {shape[2]} elements"


def whole_sequences(node: ir.Node, row: Platform) -> Any:
    """every sequence is as long as the input, to whose end a chip walks | leave sequence_lens out."""
    if not _limited(row, node) or node.domain != ir.DOMAIN or "lengths" not in given(node):
        return None
    return "sequence_lens is given, and some may be shorter"


def from_zero(node: ir.Node, row: Platform) -> Any:
    """states start at zero, as in every run of a chip: up to 64 steps are written out instead | leave them out."""
    if not _limited(row, node) or node.domain != ir.DOMAIN:
        return None
    states = [f"initial_{key}" for key in given(node) if key != "lengths"]
    return f"{' and '.join(states)} {'are' if len(states) > 1 else 'is'} given" if states else None


def cell_inside(node: ir.Node, row: Platform) -> Any:
    """nobody reads the last cell, held in 32 bits: up to 64 steps are written out instead | use the last state."""
    return "it is read" if _limited(row, node) and node.domain == ir.DOMAIN and _is_read(node, 2) else None


def _is_read(node: ir.Node, index: int) -> bool:
    value = node.outputs[index] if len(node.outputs) > index else None
    return value is not None and bool(value.uses() or value.is_graph_output())


def right_gru(node: ir.Node, row: Platform) -> Any:
    """the executor computes a GRU right, not as {row.name} does: up to 64 steps are written out | use an LSTM."""
    return row.fault(Fault.GRU_HALVED, Fault.GRU_FORMAT)


# ---- the integer operators ---------------------------------------------------------------------------------------


def _array(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant of an integer graph: an initializer, or what a Constant node holds."""
    maker = ir.producer(value)
    return np.asarray(ir.attr(maker, "value")) if maker is not None and maker.op_type == "Constant" else ir.const(value)


def _weights(node: ir.Node) -> list[int]:
    """Return the indices of the two weights of an integer node, in any variant."""
    arrays = {index: _array(value) for index, value in enumerate(node.inputs) if index and value is not None}
    return [index for index, a in arrays.items() if a is not None and a.ndim == 2 and a.dtype.kind == "i"
            and a.dtype.itemsize < 8]  # fmt: skip


def _extras(node: ir.Node) -> dict[str, int]:
    """Return {what: index} of what an integer node is given between x and its weights."""
    end = (_weights(node) or [len(node.inputs)])[0]
    keys = GIVEN[1:] if ir.attr(node, "has_hidden", 0) else GIVEN  # generation 3 has no lengths
    return {key: index for index, key in enumerate(keys, 1) if index < end and node.inputs[index] is not None}


def places(node: ir.Node) -> dict[str, int]:
    """Return {what: input index} of all that an integer node has besides x: of `GIVEN`, and the kernel's constants."""
    first = (_weights(node) or [len(node.inputs)])[0]
    fields = zip(("weight_x", "weight_h", "bias_x", "bias_h"), range(first, len(node.inputs)), strict=False)
    return {**_extras(node), **dict(fields)}


class _Recurrent(Op):
    """What LSTMInt and GRUInt share."""

    attributes: tuple[Attr, ...] = _ATTRIBUTES
    factor = "fixed"
    reach: float | None = 1.0
    weight_scales = MappingProxyType({"scale_iw": 1, "scale_hw": 2})
    onnx_gates: ClassVar[str]  # ONNX's order
    kernel_gates: ClassVar[str]  # the simulator's
    kind: type[kinds.Lstm] | type[kinds.Gru]

    def data(self, node: ir.Node) -> list[int]:
        """The input, and a state that is computed."""
        state = given(node).get("h") if node.domain == ir.DOMAIN else None
        return [0] if state is None or ir.const(node.inputs[state]) is not None else [0, state]

    def results(self, node: ir.Node) -> list[int]:
        """The sequence; where lengths are given the last state is no step of it."""
        return [0, 1] if node.domain == ir.DOMAIN and "lengths" in given(node) and _is_read(node, 1) else [0]

    def parameters(self, node: ir.Node) -> list[int]:
        """Both weights."""
        return [1, 2]

    def reject(self, node: ir.Node) -> str | None:
        """An ONNX operator that the pass left has an obstacle."""
        if node.domain == ir.DOMAIN:
            return None
        return obstacle(node) or "it was not brought into the form of one direction"

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """Input and state have scales of their own; the state that goes in is what comes out."""
        y = ir.written_name(node)
        return [Tie(ir.read_name(node, index), y) for index in self.data(node)[1:]] + [
            Tie(y, str(node.outputs[index].name)) for index in self.results(node)[1:]
        ]

    def macs(self, node: ir.Node) -> int:
        """Steps times weights."""
        steps = int((ir.shape(node.inputs[0]) or (1, 1))[1] or 1)
        return steps * sum(math.prod(int(d or 1) for d in ir.shape(v) or ()) for v in node.inputs[1:3])

    # ---- lowering ----

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit with the gates in the vendor's order and the two halves of the bias apart."""
        x, o, w, r = low.read(node, 0), low.written(node), low.read(node, 1), low.read(node, 2)
        units, gates = int(ir.attr(node, "hidden_size")), self._gates(low.row)
        source = low.integer(node, 0)
        length, width = (int(d or 0) for d in (ir.shape(node.inputs[0]) or ())[1:])
        square = Fault.LSTM_SQUARE in low.row.faults
        missing = length - width if square and length > width else 0
        if missing:
            source = self._padded(node, low, "wide", source, (length, width), length, x)
        elif square and length < width:
            source = self._lengthened(node, low, source, x)
        name = ir.read_name(node, 3)

        def half(index: int) -> Callable[[np.ndarray], np.ndarray]:
            return lambda a: self._ordered(a, units, gates).reshape(2, -1)[index]

        inputs = [
            source,
            *self._given(node, low, o),
            low.constant(node, 1, w, lambda a: np.pad(self._ordered(a, units, gates), ((0, 0), (0, missing)))),
            low.constant(node, 2, r, lambda a: self._ordered(a, units, gates)),
            *low.bias(node, 3, x.scale * w.scale, half(0), f"{name}_ih"),
            *low.bias(node, 3, o.scale * r.scale, half(1), f"{name}_hh"),
        ]
        attrs = {
            "input_size": width + missing, "hidden_size": units, "num_layers": 1, "batch_first": 1, "dropout": 0.0,
            "go_forward": int(ir.attr(node, "direction") != "reverse"), "data_bits": x.bits, "parameter_bits": w.bits,
            "o_bits": o.bits, "scale_x": x.scale, "scale_h": o.scale, "scale_iw": w.scale, "scale_hw": r.scale,
            "scale_o": o.scale, **self.lowered_attributes(node),
        }  # fmt: skip
        batch = (ir.shape(node.inputs[0]) or (None,))[0]
        also = [(what, (batch, 1, units), bits or o.bits) for what, bits in self.states.items()]
        if square and length < width:
            steps = low.insert(self.name, node, "steps", inputs, attrs, (batch, width, units), o, also=also)
            first = 0 if attrs["go_forward"] else width - length
            bounds = (("start", first), ("end", first + length), ("axis", 1), ("step", 1))
            given = [low.array(f"{ir.written_name(node)}_{key}", np.array([v], np.int64)) for key, v in bounds]
            low.emit(SLICE, node, [steps, *given], {}, domain="")
        else:
            low.emit(self, node, inputs, attrs, also=also)
        for index in self.results(node)[1:]:
            low.further_output(node, index, "h")
        if _is_read(node, 2):
            low.real_output(node, 2, "c", _CELL.scale)

    def _given(self, node: ir.Node, low: Lowering, o: QParams) -> list[ir.Value | None]:
        """Return lengths, state and cell as far as they are given; what the state is tied to is held as `o`."""
        found: list[ir.Value | None] = []
        for key in GIVEN[: 1 + len(self.states)]:
            index = given(node).get(key)
            array = None if index is None else ir.const(node.inputs[index])
            if index is None:
                found.append(None)
            elif key == "lengths":
                name = ir.read_name(node, index)
                found.append(
                    low.real(node, index) if array is None else low.array(name, array.astype(np.int64), own=True)
                )
            elif array is None:
                found.append(low.integer_as(node, index, o) if key == "h" else low.integer_at(node, index, _CELL))
            else:
                found.append(low.constant(node, index, o if key == "h" else _CELL))
        while found and found[-1] is None:
            found.pop()
        return found

    #: What the integer node gives besides the sequence, with its width (0: the sequence's).
    states: ClassVar[dict[str, int]]

    def lowered_attributes(self, node: ir.Node) -> dict[str, Any]:
        """Return the attributes of this operator alone."""
        return {}

    def _gates(self, row: Platform) -> str:
        """Return the order in which the platform wants the gates."""
        how = row.computes(self.name, self.kind)
        return self.kernel_gates if how is None else how.gates

    def _ordered(self, array: np.ndarray, units: int, gates: str) -> np.ndarray:
        """Return weights or biases, whose gates stand as in ONNX, with the gates in the order `gates`."""
        held = array.reshape(-1, len(gates), units, *array.shape[1:])  # the biases are two times all gates
        return held[:, [self.onnx_gates.index(gate) for gate in gates]].reshape(array.shape)

    def _lengthened(self, node: ir.Node, low: Lowering, source: ir.Value, q: QParams) -> ir.Value:
        """Return the input with steps of zeros behind what is walked through, for chips that take square inputs only.

        What they give is cut off: y is causal, so nothing else changes.
        """
        batch, length, width = ir.shape(node.inputs[0]) or (None, 0, 0)
        length, width, turn = int(length or 0), int(width or 0), {"perm": [0, 2, 1]}
        turned = low.insert("Transpose", node, "turned", [source], turn, (batch, width, length), q, "")
        before = 0 if ir.attr(node, "direction") != "reverse" else width - length
        long = self._padded(node, low, "long", turned, (width, length), width, q, before)
        return low.insert("Transpose", node, "back", [long], turn, (batch, width, width), q, "")

    def _padded(
        self, node: ir.Node, low: Lowering, what: str, source: ir.Value, sizes: tuple[int, int], size: int, q: QParams,
        before: int = 0,
    ) -> ir.Value:  # fmt: skip
        """Return `source` [N, *sizes] with zeros around its last axis: a linear layer does that exactly."""
        one = QParams(64.0)
        weight = (np.eye(size, sizes[1], -before) * one.scale).astype(np.int8)
        identity = low.array(f"{ir.written_name(node)}_{what}_weight", weight)
        attrs = {"data_bits": q.bits, "parameter_bits": one.bits, "o_bits": q.bits,
                 "scale_x": q.scale, "scale_w": one.scale, "scale_o": q.scale}  # fmt: skip
        batch = (ir.shape(node.inputs[0]) or (None,))[0]
        return low.insert("LinearInt", node, what, [source, identity], attrs, (batch, sizes[0], size), q)

    # ---- integer side ----

    def operands(self, node: ir.Node) -> list[int]:
        """The input, lengths and states, but for constants."""
        return [0, *(index for index in _extras(node).values() if _array(node.inputs[index]) is None)]

    def out_scale(self, attrs: Any, scales: Sequence[float | None]) -> float | None:
        """The sequence's."""
        return self.state_scale(attrs)

    def out_scales(self, bound: Bound, scales: Sequence[float | None]) -> list[float | None]:
        """The state's, and the training side's cell."""
        if not bound.how(self.kind).trained:
            return super().out_scales(bound, scales)
        state = recurrent_trained.state_scale(bound)
        return [state, state, recurrent_trained.cell_scale(bound)]

    def reals(self, bound: Bound) -> list[int]:
        """To the training side the last states are real numbers, unless the graph declares integers."""
        types = [value.dtype.name if value.dtype is not None else "FLOAT" for value in bound.node.outputs]
        return [i for i, kind in enumerate(types) if i and kind == "FLOAT" and bound.how(self.kind).trained]

    def state_scale(self, attrs: Any) -> float:
        """Return the scale of the state that goes round: scale_o, and scale_h only where that is missing."""
        return float(attrs["scale_o"] or attrs["scale_h"])

    def parts(self, bound: Bound) -> dict[str, Any]:
        """Return what every recurrent kernel takes, found among the inputs of any variant."""
        attrs, kept = bound.attrs, tuple(i for i, v in enumerate(bound.node.outputs) if v.name)
        weights = _weights(bound.node)
        if len(weights) != 2 or weights[1] != weights[0] + 1:
            raise ModelError(f"{bound.where}: its two weights must be constants")
        if int(attrs["num_layers"]) != 1:
            raise ModelError(f"{bound.where}: num_layers = {attrs['num_layers']}; one layer per node is computed")
        extras = _extras(bound.node)
        steps = bound.source_shapes[0][self.time_axis(bound)]
        fixed = {key: bound.consts[index] for key, index in extras.items() if index in bound.consts}
        fixed = {key: a for key, a in fixed.items() if (a != (steps if key == "lengths" else 0)).any()}
        run_time = tuple(key for key, index in extras.items() if index not in bound.consts)
        if bound.how(self.kind).from_zero and (run_time or fixed):
            key = (*run_time, *fixed)[0]
            what = "lengths other than the whole input's" if key == "lengths" else "initial states other than zero"
            raise ModelError(f"{bound.where}: it is given {what} (input {extras[key]}), which is not simulated")
        inner, outer = (bound.constant(i, "int8 int16", "weight") for i in weights)
        biases = [bound.bias(weights[1] + i, len(inner)) for i in (1, 2)]
        zero = np.zeros(len(inner), np.int64)
        held = (inner, outer, *(zero if bias is None else bias for bias in biases))
        named = dict(zip(("weight_x", "weight_h", "bias_x", "bias_h"), map(self._kernel_order(bound), held),
                         strict=True))  # fmt: skip
        return {**named, "kept": kept, "given": run_time, "fixed": fixed, "time_axis": self.time_axis(bound)}

    def _kernel_order(self, bound: Bound) -> Callable[[np.ndarray], np.ndarray]:
        """Return what puts the gates of a weight or bias into the order of the kernels."""
        gates = bound.how(self.kind).gates
        order = [gates.index(gate) for gate in self.kernel_gates]
        return lambda a: a.reshape(len(gates), -1, *a.shape[1:])[order].reshape(a.shape)

    def time_axis(self, bound: Bound) -> int:
        """Return the axis of time: 1 with batch_first."""
        return 1 if bound.attrs["batch_first"] else 0

    def sums(self, bound: Bound, bits: int, left: bool) -> dict[str, Any]:
        """Return the rescalings of both sums to `bits` fractional bits; `left`: whether one may go to the left."""
        from simulator.fixed import Chain, Rescale

        a = bound.attrs
        found: dict[str, Any] = {}
        for key, scales in (("rescale_x", ("scale_x", "scale_iw")), ("rescale_h", ("", "scale_hw"))):
            first = float(a[scales[0]]) if scales[0] else self.state_scale(a)
            product = first * float(a[scales[1]])
            if not bound.arithmetic.requantize.shifts:
                found[key] = Rescale.from_ratio(2.0**bits / product, 32)
                continue
            shift = bound.exponent(" * ".join(scales), product) - bits
            held = Rescale.from_shift(0, 32)  # the accumulator leaves the matrix unit in 32 bits
            found[key] = Chain(held, Rescale.from_shift(shift if left else max(shift, 0), 32))
        return found


class Lstm(_Recurrent):
    """Long short-term memory."""

    name = "LSTMInt"
    aliases = ("LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32", "QLSTM")
    floats = ((ir.DOMAIN, "LSTM"), ("", "LSTM"))
    constraints = (square_input, whole_sequences, from_zero, cell_inside)
    onnx_gates, kernel_gates, kind = "iofg", "ifgo", kinds.Lstm
    states: ClassVar[dict[str, int]] = {"h": 0, "c": 32}

    def time_axis(self, bound: Bound) -> int:
        """The chips take [1, T, I] for either value of batch_first."""
        flat = bound.source_shapes[0][0] == 1 and not bound.how(kinds.Lstm).trained
        return 1 if bound.attrs["batch_first"] or flat else 0

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """A state in [-1, 1] has at most 14 fractional bits, which is what o * tanh(c) has on the coarsest chip."""
        return 14

    def cell_limit(self, row: Platform) -> float | None:
        """Return the largest product of forget gate and cell that `row` holds, None where it holds any."""
        how = row.computes(self.name, kinds.Lstm)
        return 2.0 if how is not None and how.form in (kinds.LstmForm.Q27, kinds.LstmForm.WIDE) else None

    def bind(self, bound: Bound) -> Any:
        """Return the kernel in the arithmetic of the row."""
        from simulator.kernels import Lstm as Kernel

        how = bound.how(kinds.Lstm)
        if how.trained:
            return recurrent_trained.lstm(bound, how, self.parts(bound))
        bits, table, scale = int(bound.attrs["o_bits"] or 8), how.table.value, self.state_scale(bound.attrs)
        narrow = how.form is kinds.LstmForm.WIDE and bits <= 8
        arithmetic = kinds.LstmForm.Q27.value if narrow else how.form.value
        return Kernel(
            **self.parts(bound), **self.sums(bound, Kernel.formats[arithmetic][0], True),
            rescale_o=Kernel.output(arithmetic, scale, bits),
            forward=bool(bound.attrs["go_forward"]), arithmetic=arithmetic, table=table,
        )  # fmt: skip

    def out_scales(self, bound: Bound, scales: Sequence[float | None]) -> list[float | None]:
        """The cell has 15 fractional bits, or is packed and no plain tensor."""
        how = bound.how(kinds.Lstm)
        if how.trained:
            return super().out_scales(bound, scales)
        scale = self.out_scale(bound.attrs, scales)
        return [scale, scale, None if how.form is kinds.LstmForm.Q11 else 2.0**15]


class Gru(_Recurrent):
    """Gated recurrent unit."""

    name = "GRUInt"
    aliases = ("GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32", "QGRU")
    floats = ((ir.DOMAIN, "GRU"), ("", "GRU"))
    attributes = (*_ATTRIBUTES, Attr("linear_before_reset", "i", 1))
    constraints = (right_gru, whole_sequences, from_zero)
    onnx_gates, kernel_gates, kind = "zrn", "rzn", kinds.Gru
    states: ClassVar[dict[str, int]] = {"h": 0}

    def lowered_attributes(self, node: ir.Node) -> dict[str, Any]:
        """Where the reset gate acts."""
        return {"linear_before_reset": int(ir.attr(node, "linear_before_reset", 0))}

    def bind(self, bound: Bound) -> Any:
        """Return the operator's kernel, or the executor's."""
        from simulator.kernels import ExecutorGru
        from simulator.kernels import Gru as Kernel

        how = bound.how(kinds.Gru)
        if how.trained:
            return recurrent_trained.gru(bound, how, self.parts(bound))
        bits, scale = int(bound.attrs["o_bits"] or 8), self.state_scale(bound.attrs)
        if how.form is not kinds.GruForm.DEFINED:
            from simulator.fixed import Rescale

            out = Rescale.from_shift(14 - bound.exponent("scale_o", scale), bits)
            return ExecutorGru(**self.parts(bound), **self.sums(bound, 11, False), rescale_o=out,
                               table=how.table.value, joined=how.form is kinds.GruForm.HALVED)  # fmt: skip
        return Kernel(
            **self.parts(bound), **self.sums(bound, 27, True), rescale_o=Kernel.output(scale, bits),
            forward=bool(bound.attrs["go_forward"]), reset_after=bool(bound.attrs["linear_before_reset"]),
            gate_bits=32 if bits <= 8 else 16,
        )  # fmt: skip
