"""Recurrent layers: LSTMInt and GRUInt, one direction each.

Weights [G*H, I] and [G*H, H] in the gate order i, f, g, o and r, z, n; biases int32 at
scale_x*scale_iw and scale_o*scale_hw (the state that goes round is the output).

Between x and the weights stand lengths, the state as integers of the output's scale and the cell as
int32 with 15 fractional bits, each absent where it is not given. Chips begin at zero and walk to
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from simulator.kernel import Kernel

from ..errors import ModelError
from ..graph import ir
from ..graph.attributes import Attributes, AttributeValue, get_int, get_number
from ..plan import Affine
from ..targets import arithmetic as kinds
from . import recurrent_training
from . import shape_inference as rules
from ._base import Attr, Format, KernelInfo
from .float_model import FloatNodeBuilder
from .shape_inference import Signature

if TYPE_CHECKING:
    pass

__all__ = ["FAMILY", "LSTM", "GRU"]

#: What a layer may be given besides x, in the order of all its forms.
OPTIONAL_INPUTS = ("lengths", "h", "c")


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


#: `state_type` is the element type of the last states where a graph declares another than the integers': a check of
#: types puts it into its copy.
_EXTRA_ATTRIBUTES = (
    *(Attr(name, "f", None) for name in ("scale_c", "dropout")),
    *(Attr(name, "i", None) for name in ("has_hidden", "has_cell", "state_type")),
)


def _find_weight_inputs(node: ir.Node) -> list[int]:
    """Return the indices of the two weights of an integer node, in any variant."""
    arrays = {
        index: ir.find_constant(value)
        for index, value in enumerate(node.inputs)
        if index and value is not None
    }
    return [
        index
        for index, a in arrays.items()
        if a is not None and a.ndim == 2 and a.dtype.kind == "i" and a.dtype.itemsize < 8
    ]


def _require_weight_inputs(bound: KernelInfo) -> list[int]:
    """Return the indices of the two weights.

    ModelError where they are no constants, one behind the other.
    """
    weights = _find_weight_inputs(bound.node)
    if len(weights) != 2 or weights[1] != weights[0] + 1:
        raise ModelError(f"{bound.label}: its two weights must be constants")
    return weights


def _optional_input_indices(node: ir.Node) -> dict[str, int]:
    """Return {what: index} of what an integer node is given between x and its weights."""
    end = (_find_weight_inputs(node) or [len(node.inputs)])[0]
    keys = (
        OPTIONAL_INPUTS[1:] if ir.get_attr(node, "has_hidden", 0) else OPTIONAL_INPUTS
    )  # dialect v3 has no lengths
    return {
        key: index
        for index, key in enumerate(keys, 1)
        if index < end and node.inputs[index] is not None
    }


def input_indices(node: ir.Node) -> dict[str, int]:
    """Return {what: input index} of all that an integer node has besides x.

    Of `OPTIONAL_INPUTS`, and the kernel's constants.
    """
    first = (_find_weight_inputs(node) or [len(node.inputs)])[0]
    fields = zip(
        ("weight_x", "weight_h", "bias_x", "bias_h"), range(first, len(node.inputs)), strict=False
    )
    return {**_optional_input_indices(node), **dict(fields)}


class RecurrentIntegerOp(Format):
    """What LSTMInt and GRUInt share."""

    attributes: tuple[Attr, ...] = _ATTRIBUTES
    #: The older variants have lengths and states between x and the weights.
    signature = Signature("x:integer rest:any*", "any*", rules.infer_recurrent)
    extra_attributes = _EXTRA_ATTRIBUTES
    allows_float_output = True
    has_inexact_float_model = True
    weight_scales = MappingProxyType({"scale_iw": 1, "scale_hw": 2})
    kernel_gate_order: ClassVar[str]  # the simulator's order
    standard_op: ClassVar[str]
    standard_gate_order: ClassVar[str]
    kind: type[kinds.LstmArithmetic] | type[kinds.GruArithmetic]
    #: What a node gives besides the sequence, with its width (0: the sequence's).
    states: ClassVar[Mapping[str, int]]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return the attributes unchanged."""
        return dict(attrs)

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """What is given stands among the inputs, not in attributes."""
        gone = ("has_hidden", "has_cell", "scale_c")
        return {
            **{k: v for k, v in super().to_v1_attributes(attrs, node).items() if k not in gone},
            "dropout": 0.0,
        }

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """The output is the state."""
        o, h = attrs.get("scale_o"), attrs.get("scale_h")
        return f"scale_o = {o}, scale_h = {h}" if o != h else None

    def constant_parameters(self, node: ir.Node) -> dict[int, tuple[str, tuple[int, ...]]]:
        """The biases behind the two weights, which have two axes where they are found."""
        biases = (index for key, index in input_indices(node).items() if key.startswith("bias"))
        return {index: ("bias", ()) for index in biases if len(_find_weight_inputs(node)) == 2}

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """The input, lengths and states, but for constants."""
        return [
            0,
            *(
                index
                for index in _optional_input_indices(node).values()
                if ir.find_constant(node.inputs[index]) is None
            ),
        ]

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return the scale of the sequence."""
        return Affine(self.state_scale(attrs))

    def all_output_qparams(
        self, bound: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """The state's, and the training side's cell."""
        if not bound.expect_arithmetic(self.kind).trained:
            return super().all_output_qparams(bound, scales)
        state = Affine(recurrent_training.state_scale(bound))
        return [state, state, Affine(recurrent_training.cell_scale(bound), 16)]

    def float_outputs(self, bound: KernelInfo) -> list[int]:
        """To the training side the last states are real numbers, unless the graph declares integers."""
        types = [
            value.dtype.name if value.dtype is not None else "FLOAT" for value in bound.node.outputs
        ]
        return [
            i
            for i, kind in enumerate(types)
            if i and kind == "FLOAT" and bound.expect_arithmetic(self.kind).trained
        ]

    def state_scale(self, attrs: Attributes) -> float:
        """Return the scale of the state that goes round.

        Scale_o, and scale_h only where that is missing.
        """
        return get_number(attrs, "scale_o" if attrs["scale_o"] else "scale_h")

    def make_kernel_arguments(self, bound: KernelInfo) -> dict[str, Any]:
        """Return what every recurrent kernel takes, found among the inputs of any variant."""
        attrs, kept = bound.attributes, tuple(i for i, v in enumerate(bound.node.outputs) if v.name)
        weights = _require_weight_inputs(bound)
        if get_int(attrs, "num_layers") != 1:
            raise ModelError(
                f"{bound.label}: num_layers = {attrs['num_layers']}; one layer per node is computed"
            )
        extras = _optional_input_indices(bound.node)
        steps = bound.input_shapes[0][self.time_axis(bound)]
        fixed = {
            key: bound.constants[index] for key, index in extras.items() if index in bound.constants
        }
        fixed = {
            key: a for key, a in fixed.items() if (a != (steps if key == "lengths" else 0)).any()
        }
        run_time = tuple(key for key, index in extras.items() if index not in bound.constants)
        if bound.expect_arithmetic(self.kind).from_zero and (run_time or fixed):
            key = (*run_time, *fixed)[0]
            what = (
                "lengths other than the whole input's"
                if key == "lengths"
                else "initial states other than zero"
            )
            raise ModelError(
                f"{bound.label}: it is given {what} (input {extras[key]}), which is not simulated"
            )
        inner, outer = (bound.require_constant(i, "int8 int16", "weight") for i in weights)
        biases = [bound.bias(weights[1] + i, len(inner)) for i in (1, 2)]
        zero = np.zeros(len(inner), np.int64)
        held = (inner, outer, *(zero if bias is None else bias for bias in biases))
        named = dict(
            zip(
                ("weight_x", "weight_h", "bias_x", "bias_h"),
                map(self._make_gate_reorder(bound), held),
                strict=True,
            )
        )
        return {
            **named,
            "kept": kept,
            "given": run_time,
            "fixed": fixed,
            "time_axis": self.time_axis(bound),
        }

    def _make_gate_reorder(self, bound: KernelInfo) -> Callable[[np.ndarray], np.ndarray]:
        """Return what puts the gates of a weight or bias into the order of the kernels."""
        gates = bound.expect_arithmetic(self.kind).gates
        order = [gates.index(gate) for gate in self.kernel_gate_order]
        return lambda a: a.reshape(len(gates), -1, *a.shape[1:])[order].reshape(a.shape)

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Return the standard layer; its state goes round in real numbers.

        The standard has time on axis 0.
        """
        a, place_of, first = (
            builder.attrs,
            input_indices(builder.node),
            self.time_axis(builder.info),
        )
        gates = builder.info.expect_arithmetic(self.kind).gates
        order = [gates.index(gate) for gate in self.standard_gate_order]
        w, r = _require_weight_inputs(builder.info)

        def ordered(array: np.ndarray) -> np.ndarray:
            return array.reshape(len(gates), -1, *array.shape[1:])[order].reshape(1, *array.shape)

        bits, scales = (
            get_int(a, "parameter_bits", 8),
            [get_number(a, key) for key in ("scale_iw", "scale_hw")],
        )
        weights = [
            builder.held(i, s, view=ordered, bits=bits) for i, s in zip((w, r), scales, strict=True)
        ]
        sums = (get_number(a, "scale_x") * scales[0], self.state_scale(a) * scales[1])
        units = builder.info.constants[r].shape[1]
        halves = [
            ordered(builder.info.constants[index].ravel() / scale)
            if index in builder.info.constants
            else np.zeros((1, len(gates) * units))
            for index, scale in zip((r + 1, r + 2), sums, strict=True)
        ]
        bias = builder.add_constant(np.concatenate(halves, axis=1).astype(np.float32), "bias")
        turn = {"perm": [1, 0, 2]}
        lengths = builder.raw_input(place_of["lengths"]) if "lengths" in place_of else None
        if lengths is not None:
            lengths = builder("Cast", lengths, to=6)
        fixed = {"h": self.state_scale(a), "c": 2.0**15}
        states = [
            None
            if key not in place_of
            else builder.held(place_of[key], fixed[key])
            if place_of[key] in builder.info.constants
            else builder.float_input(place_of[key])
            for key in self.states
        ]
        inner = [
            builder("Transpose", state, **turn) if state is not None and first else state
            for state in states
        ]
        x = builder("Transpose", builder.float_input(), **turn) if first else builder.float_input()
        outer = builder.add_multi_output_node(
            self.standard_op,
            x,
            *weights,
            bias,
            lengths,
            *inner,
            outputs=1 + len(self.states),
            hidden_size=units,
            direction=None if get_int(a, "go_forward") else "reverse",
            **self.make_standard_attributes(a),
        )
        sequence = builder("Squeeze", outer[0], axes=[1])
        found_out = [sequence, *outer[1:]]
        return [builder("Transpose", value, **turn) if first else value for value in found_out][
            : len(builder.node.outputs)
        ]

    def make_standard_attributes(self, attrs: Attributes) -> dict[str, AttributeValue]:
        """Return what the standard layer says besides its sizes."""
        return {}

    def time_axis(self, bound: KernelInfo) -> int:
        """Return the axis of time: 1 with batch_first."""
        return 1 if bound.attributes["batch_first"] else 0

    def sums(self, bound: KernelInfo, bits: int, allow_left_shift: bool) -> dict[str, Any]:
        """Return the rescalings of both sums to `bits` fractional bits.

        `allow_left_shift`: whether one may go to the left.
        """
        from simulator.fixed_point import ChainedRescale, Rescale

        a = bound.attributes
        rescales: dict[str, Any] = {}
        for key, scales in (
            ("rescale_x", ("scale_x", "scale_iw")),
            ("rescale_h", ("", "scale_hw")),
        ):
            first = get_number(a, scales[0]) if scales[0] else self.state_scale(a)
            product = first * get_number(a, scales[1])
            if not bound.arithmetic.requantize.shifts:
                rescales[key] = Rescale.from_ratio(2.0**bits / product, 32)
                continue
            shift = bound.require_exponent(" * ".join(scales), product) - bits
            unshifted = Rescale.from_shift(
                0, 32
            )  # the accumulator leaves the matrix unit in 32 bits
            rescales[key] = ChainedRescale(
                unshifted, Rescale.from_shift(shift if allow_left_shift else max(shift, 0), 32)
            )
        return rescales


class Lstm(RecurrentIntegerOp):
    """Long short-term memory of one direction."""

    name = "LSTMInt"
    v3_name = "QLSTM"
    aliases = ("LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32")
    kernel_gate_order, kind = "ifgo", kinds.LstmArithmetic
    standard_op, standard_gate_order = "LSTM", "iofg"
    states = MappingProxyType({"h": 0, "c": 32})

    def time_axis(self, bound: KernelInfo) -> int:
        """The chips take [1, T, I] for either value of batch_first."""
        flat = (
            bound.input_shapes[0][0] == 1
            and not bound.expect_arithmetic(kinds.LstmArithmetic).trained
        )
        return 1 if bound.attributes["batch_first"] or flat else 0

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the kernel in the arithmetic of the row."""
        from simulator.kernels import Lstm as Kernel

        how = info.expect_arithmetic(kinds.LstmArithmetic)
        if how.trained:
            return recurrent_training.make_lstm_kernel(info, how, self.make_kernel_arguments(info))
        bits, table, scale = (
            get_int(info.attributes, "o_bits", 8),
            how.table.value,
            self.state_scale(info.attributes),
        )
        narrow = how.form is kinds.LstmFormat.WIDE and bits <= 8
        arithmetic = kinds.LstmFormat.Q27.value if narrow else how.form.value
        return Kernel(
            **self.make_kernel_arguments(info),
            **self.sums(info, Kernel.fraction_bits[arithmetic][0], True),
            rescale_o=Kernel.make_output_rescale(arithmetic, scale, bits),
            is_forward=bool(info.attributes["go_forward"]),
            arithmetic=arithmetic,
            table=table,
        )

    def all_output_qparams(
        self, bound: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """The cell has 15 fractional bits, or is packed and no plain tensor."""
        how = bound.expect_arithmetic(kinds.LstmArithmetic)
        if how.trained:
            return super().all_output_qparams(bound, scales)
        scale = self.output_qparams(bound.attributes, scales)
        return [scale, scale, None if how.form is kinds.LstmFormat.Q11 else Affine(2.0**15, 32)]


LSTM = Lstm()


class Gru(RecurrentIntegerOp):
    """Gated recurrent unit of one direction."""

    name = "GRUInt"
    v3_name = "QGRU"
    aliases = ("GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32")
    kernel_gate_order, kind = "rzn", kinds.GruArithmetic
    standard_op, standard_gate_order = "GRU", "zrn"
    states = MappingProxyType({"h": 0})
    attributes = (*_ATTRIBUTES, Attr("linear_before_reset", "i", 1))

    def make_standard_attributes(self, attrs: Attributes) -> dict[str, AttributeValue]:
        """Where the reset gate acts."""
        return {"linear_before_reset": get_int(attrs, "linear_before_reset")}

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Dialect v3 has one place for the reset gate."""
        return {**super().to_v1_attributes(attrs, node), "linear_before_reset": 1}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the operator's kernel, or the executor's."""
        from simulator.kernels import ExecutorGru
        from simulator.kernels import Gru as Kernel

        how = info.expect_arithmetic(kinds.GruArithmetic)
        if how.trained:
            return recurrent_training.make_gru_kernel(info, how, self.make_kernel_arguments(info))
        bits, scale = get_int(info.attributes, "o_bits", 8), self.state_scale(info.attributes)
        if how.form is not kinds.GruVariant.DEFINED:
            from simulator.fixed_point import Rescale

            out = Rescale.from_shift(14 - info.require_exponent("scale_o", scale), bits)
            return ExecutorGru(
                **self.make_kernel_arguments(info),
                **self.sums(info, 11, False),
                rescale_o=out,
                table=how.table.value,
                uses_state_sums=how.form is kinds.GruVariant.HALVED,
            )
        return Kernel(
            **self.make_kernel_arguments(info),
            **self.sums(info, 27, True),
            rescale_o=Kernel.make_output_rescale(scale, bits),
            is_forward=bool(info.attributes["go_forward"]),
            reset_after=bool(info.attributes["linear_before_reset"]),
            gate_bits=32 if bits <= 8 else 16,
        )


GRU = Gru()


FAMILY: tuple[Format, ...] = (LSTM, GRU)
