"""Recurrent layers of one direction: LSTMInt and GRUInt.

Weights are [G*H, I] and [G*H, H] in the gate order i, f, g, o or r, z, n; biases are int32 at
scale_x*scale_iw and scale_o*scale_hw (the recurrent state is the output).

Optional inputs between x and the weights are lengths, the initial state as integers at the scale of
the output, and the initial cell as int32 with 15 fractional bits. Chips start at zero and process
the whole sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from simulator.kernel import Kernel

from ...common.errors import ModelError
from ...ir import ir
from ...ir.attributes import Attributes, AttributeValue, get_int, get_number
from ...ir.plan import Affine
from ...targets import arithmetic as kinds
from .. import shape_inference as rules
from .._integer_op import Attr, Format, WidthAxes
from .._kernel_info import KernelInfo
from ..float_model import FloatNodeBuilder
from ..shape_inference import Signature
from . import training_kernels as recurrent_training

__all__ = ["FAMILY", "LSTM", "GRU"]

#: Optional inputs of a layer, in the order of all variants.
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


#: `state_type` is the element type of last states that a graph declares as other than integers; the
#: type check adds it to its copy.
_EXTRA_ATTRIBUTES = (
    *(Attr(name, "f", None) for name in ("scale_c", "dropout")),
    *(Attr(name, "i", None) for name in ("has_hidden", "has_cell", "state_type")),
)


def _find_weight_inputs(node: ir.Node) -> list[int]:
    """Return the indices of constant integer matrices among the inputs of `node` after x.

    These are the two weights of an integer LSTM or GRU; int64 matrices do not count.
    """
    indices = []
    for index, value in enumerate(node.inputs):
        array = ir.find_constant(value) if index and value is not None else None
        if array is None or array.ndim != 2:
            continue
        if array.dtype.kind == "i" and array.dtype.itemsize < 8:
            indices.append(index)
    return indices


def _require_weight_inputs(info: KernelInfo) -> list[int]:
    """Return the indices of the two weights of an integer LSTM or GRU.

    Raises
    ------
    ModelError
        If they are not two consecutive constants.
    """
    weights = _find_weight_inputs(info.node)
    if len(weights) != 2 or weights[1] != weights[0] + 1:
        raise ModelError(f"{info.label}: its two weights must be constants")
    return weights


def _reorder_gates(info: KernelInfo, array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return `array` [G*H, ...], whose rows are gate by gate, with the gates in `order`.

    Raises ModelError if the number of rows is not a multiple of that of gates.
    """
    if len(array) % len(order):
        raise ModelError(
            f"{info.label}: its weights and biases must have a multiple of {len(order)} rows, as "
            f"many for each gate; one has {len(array)}"
        )
    by_gate = array.reshape(len(order), -1, *array.shape[1:])
    return by_gate[list(order)].reshape(array.shape)


def _has_state_first(node: ir.Node, input_shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the first optional input of `node`, an integer LSTM or GRU, is a state, not lengths.

    True in dialect v3, which has attribute `has_hidden`, or if the shape of input 1 has rank 3. It
    is in `input_shapes`, the shapes of all inputs, or if these are empty in the graph.
    """
    if ir.get_attr(node, "has_hidden", 0):
        return True
    first = node.inputs[1] if len(node.inputs) > 1 else None
    if first is None:
        return False
    shape = input_shapes[1] if input_shapes else ir.get_shape(first)
    return len(shape or ()) == 3


def _optional_input_indices(
    node: ir.Node, input_shapes: Sequence[tuple[int, ...]] = ()
) -> dict[str, int]:
    """Return name -> input index of "lengths", "h" and "c", as far as `node` has them.

    `node` is an integer LSTM or GRU. They stand in this order between x and the weights; lengths
    may be missing, see `_has_state_first`. `input_shapes` are the shapes of all inputs, if known.
    """
    end = (_find_weight_inputs(node) or [len(node.inputs)])[0]
    keys = OPTIONAL_INPUTS[1:] if _has_state_first(node, input_shapes) else OPTIONAL_INPUTS
    indices = {}
    for index, key in enumerate(keys, 1):
        if index < end and node.inputs[index] is not None:
            indices[key] = index
    return indices


def input_indices(node: ir.Node, input_shapes: Sequence[tuple[int, ...]] = ()) -> dict[str, int]:
    """Return name -> index of the inputs of an integer LSTM or GRU other than x.

    "lengths", "h" and "c" as far as present, then weight_x, weight_h, bias_x and bias_h, which
    follow each other from the first weight on. `input_shapes` are the shapes of all inputs, if
    known.
    """
    first = (_find_weight_inputs(node) or [len(node.inputs)])[0]
    fields = zip(
        ("weight_x", "weight_h", "bias_x", "bias_h"), range(first, len(node.inputs)), strict=False
    )
    return {**_optional_input_indices(node, input_shapes), **dict(fields)}


#: Older variants have lengths and states between x and the weights.
_SIGNATURE_INPUTS = "x:integer rest:any*"


class RecurrentIntegerOp(Format):
    """Base of LSTMInt and GRUInt, recurrent layers of one direction."""

    attributes: tuple[Attr, ...] = _ATTRIBUTES
    extra_attributes = _EXTRA_ATTRIBUTES
    allows_float_output = True
    has_inexact_float_model = True
    width_axes = WidthAxes(-1, -1)
    rounds_inside = True
    weight_scales = MappingProxyType({"scale_iw": 1, "scale_hw": 2})
    kernel_gate_order: ClassVar[str]  # of the simulator
    standard_op: ClassVar[str]
    standard_gate_order: ClassVar[str]
    kind: type[kinds.LstmArithmetic] | type[kinds.GruArithmetic]

    def to_v3_attributes(self, attrs: Attributes, inputs: int) -> dict[str, AttributeValue]:
        """Return a copy of `attrs`: dialect v3 has the same attributes for recurrent layers."""
        return dict(attrs)

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1, where inputs show which states are present.

        Removes has_hidden, has_cell and scale_c, and sets dropout to 0.
        """
        converted = super().to_v1_attributes(attrs, node)
        for name in ("has_hidden", "has_cell", "scale_c"):
            converted.pop(name, None)
        return {**converted, "dropout": 0.0}

    def explain_v1_obstacle(self, attrs: Attributes, node: ir.Node) -> str | None:
        """Explain why dialect v1 cannot express the recurrent layer `node`, or None if it can.

        It can if `scale_o` (output) and `scale_h` (hidden state) are equal.
        """
        o, h = attrs.get("scale_o"), attrs.get("scale_h")
        return f"scale_o = {o}, scale_h = {h}" if o != h else None

    def constant_parameters(self, node: ir.Node) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Return input index -> ("bias", ()) for the biases of `node`, which may have any rank.

        {} unless both weights are constant matrices; weights are checked elsewhere.
        """
        if len(_find_weight_inputs(node)) != 2:
            return {}
        biases = [index for key, index in input_indices(node).items() if key.startswith("bias")]
        return dict.fromkeys(biases, ("bias", ()))

    def kernel_inputs(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that the simulator kernel reads at run time.

        These are x (0), and lengths and initial states that are not constant.
        """
        indices = [0]
        for index in _optional_input_indices(node).values():
            if ir.find_constant(node.inputs[index]) is None:
                indices.append(index)
        return indices

    def output_qparams(self, attrs: Attributes, scales: Sequence[Affine | None]) -> Affine | None:
        """Return the scale of the output sequence (scale_o, else scale_h) with 8 bits."""
        return Affine(self.state_scale(attrs))

    def all_output_qparams(
        self, info: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return scale and bits of each output: those of the sequence for all.

        In training software: sequence and state at its state scale, and 16 bits at its cell scale
        for the cell.
        """
        if not info.expect_arithmetic(self.kind).trained:
            return super().all_output_qparams(info, scales)
        state = Affine(recurrent_training.state_scale(info))
        return [state, state, Affine(recurrent_training.cell_scale(info), 16)]

    def float_outputs(self, info: KernelInfo) -> list[int]:
        """Return the indices of last states that the training software outputs as float.

        These are outputs after the first of type float32 or unknown type; none in the executor.
        """
        if not info.expect_arithmetic(self.kind).trained:
            return []
        indices = []
        for index, value in enumerate(info.node.outputs):
            if index and (value.dtype is None or value.dtype.name == "FLOAT"):
                indices.append(index)
        return indices

    def state_scale(self, attrs: Attributes) -> float:
        """Return the scale of the recurrent state: scale_o, or scale_h if that is missing."""
        return get_number(attrs, "scale_o" if attrs["scale_o"] else "scale_h")

    def make_kernel_arguments(self, info: KernelInfo) -> dict[str, Any]:
        """Return name -> value of the arguments that all recurrent simulator kernels share.

        Raises
        ------
        ModelError
            If the node has several layers, its weights are not constant, or it has inputs that its
            arithmetic does not support.
        """
        num_layers = get_int(info.attributes, "num_layers")
        if num_layers != 1:
            raise ModelError(f"{info.label}: num_layers = {num_layers}; a node must have one layer")
        parameters = self._reorder_parameters(info)
        constants, run_time_names = self._split_optional_inputs(info)
        self._check_optional_inputs(info, constants, run_time_names)
        return {
            **parameters,
            "output_indices": tuple(i for i, value in enumerate(info.node.outputs) if value.name),
            "state_inputs": run_time_names,
            "constant_states": constants,
            "time_axis": self.time_axis(info),
        }

    def _split_optional_inputs(
        self, info: KernelInfo
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return constant lengths and initial states by name, and names of computed ones.

        Constants equal to the default (the number of steps for lengths, 0 for states) are omitted.
        """
        steps = info.input_shapes[0][self.time_axis(info)]
        constants = {}
        run_time_names = []
        for name, index in _optional_input_indices(info.node, info.input_shapes).items():
            default = steps if name == "lengths" else 0
            if index not in info.constants:
                run_time_names.append(name)
            elif (info.constants[index] != default).any():
                constants[name] = info.constants[index]
        return constants, tuple(run_time_names)

    def _check_optional_inputs(
        self, info: KernelInfo, constants: Mapping[str, np.ndarray], run_time_names: Sequence[str]
    ) -> None:
        """Raise ModelError for lengths or initial states if the arithmetic starts from zero.

        `constants` has the constant ones that are not the default, `run_time_names` names the
        computed ones.
        """
        given_names = (*run_time_names, *constants)
        if not (info.expect_arithmetic(self.kind).from_zero and given_names):
            return
        name = given_names[0]
        subject = "lengths of parts of the input" if name == "lengths" else "initial states"
        index = _optional_input_indices(info.node, info.input_shapes)[name]
        raise ModelError(f"{info.label}: {subject} (input {index}) are not simulated")

    def _reorder_parameters(self, info: KernelInfo) -> dict[str, np.ndarray]:
        """Return weight_x, weight_h, bias_x and bias_h by name, in the gate order of the kernels.

        Absent biases are zeros. Raises ModelError if the weights are not constant.
        """
        index_x, index_h = _require_weight_inputs(info)
        weight_x = info.require_constant(index_x, "int8 int16", "weight")
        weight_h = info.require_constant(index_h, "int8 int16", "weight")
        parameters = {"weight_x": weight_x, "weight_h": weight_h}
        for key, index in (("bias_x", index_h + 1), ("bias_h", index_h + 2)):
            bias = info.bias(index, len(weight_x))
            parameters[key] = np.zeros(len(weight_x), np.int64) if bias is None else bias
        gates = info.expect_arithmetic(self.kind).gates
        order = [gates.index(gate) for gate in self.kernel_gate_order]
        return {key: _reorder_gates(info, array, order) for key, array in parameters.items()}

    def build_float_nodes(self, builder: FloatNodeBuilder) -> list[ir.Value]:
        """Append the standard LSTM or GRU to `builder`.

        Return its outputs, as many as the node has. Weights and states are dequantized. The
        standard layer's time axis is 0, so that inputs and outputs of a batch-first node are
        transposed.
        """
        attrs = builder.attrs
        indices = input_indices(builder.node, builder.info.input_shapes)
        batch_first = bool(self.time_axis(builder.info))

        def swap_time_and_batch(value: ir.Value) -> ir.Value:
            """Return `value` with axes 0 and 1 swapped by a Transpose if the node is batch first.

            Otherwise `value` itself.
            """
            return builder("Transpose", value, perm=[1, 0, 2]) if batch_first else value

        weights, bias, hidden_size = self._build_float_parameters(builder)
        lengths = builder.raw_input(indices["lengths"]) if "lengths" in indices else None
        if lengths is not None:
            lengths = builder("Cast", lengths, to=6)
        scales = {"h": self.state_scale(attrs), "c": 2.0**15}
        states: list[ir.Value | None] = []
        for key in self.states:
            index = indices.get(key)
            if index is None:
                states.append(None)
            elif index in builder.info.constants:
                states.append(builder.dequantize_constant(index, scales[key]))
            else:
                states.append(builder.float_input(index))
        initial = [None if state is None else swap_time_and_batch(state) for state in states]
        x = swap_time_and_batch(builder.float_input())
        outputs = builder.add_multi_output_node(
            self.standard_op,
            x,
            *weights,
            bias,
            lengths,
            *initial,
            outputs=1 + len(self.states),
            hidden_size=hidden_size,
            direction=None if get_int(attrs, "go_forward") else "reverse",
            **self.make_standard_attributes(attrs),
        )
        outputs[0] = builder("Squeeze", outputs[0], axes=[1])
        swapped = [swap_time_and_batch(value) for value in outputs]
        return swapped[: len(builder.node.outputs)]

    def _build_float_parameters(
        self, builder: FloatNodeBuilder
    ) -> tuple[list[ir.Value], ir.Value, int]:
        """Add weights and joint bias of the float LSTM or GRU as constants, in standard order.

        Returns the weights [1, G*H, I] and [1, G*H, H], the bias [1, 2*G*H] (that of x, then that
        of h) and the hidden size H.
        """
        attrs = builder.attrs
        gates = builder.info.expect_arithmetic(self.kind).gates
        order = [gates.index(gate) for gate in self.standard_gate_order]
        index_x, index_h = _require_weight_inputs(builder.info)

        def reorder(array: np.ndarray) -> np.ndarray:
            """Return `array` [G*H, ...] with gates in the standard's order, as [1, G*H, ...]."""
            return _reorder_gates(builder.info, array, order)[np.newaxis]

        bits = get_int(attrs, "parameter_bits", 8)
        # OpenVINO takes constant weights only, and folds no DequantizeLinear of int8.
        stored_bits = 32 if bits == 8 else bits
        scale_x, scale_h = get_number(attrs, "scale_iw"), get_number(attrs, "scale_hw")
        weights = [
            builder.dequantize_constant(index_x, scale_x, view=reorder, bits=stored_bits),
            builder.dequantize_constant(index_h, scale_h, view=reorder, bits=stored_bits),
        ]
        hidden_size = builder.info.constants[index_h].shape[1]
        biases = []
        for index, scale in (
            (index_h + 1, get_number(attrs, "scale_x") * scale_x),
            (index_h + 2, self.state_scale(attrs) * scale_h),
        ):
            if index in builder.info.constants:
                biases.append(reorder(builder.info.constants[index].ravel() / scale))
            else:
                biases.append(np.zeros((1, len(gates) * hidden_size)))
        bias = builder.add_constant(np.concatenate(biases, axis=1).astype(np.float32), "bias")
        return weights, bias, hidden_size

    def make_standard_attributes(self, attrs: Attributes) -> dict[str, AttributeValue]:
        """Return attributes of the standard layer that only some operators have; {} by default.

        Called for the float model; hidden_size and direction are set by the caller.
        """
        return {}

    def time_axis(self, info: KernelInfo) -> int:
        """Return the axis of time in the input of the node: 1 if batch_first is not 0, else 0."""
        return 1 if info.attributes["batch_first"] else 0

    def make_sum_rescales(
        self, info: KernelInfo, bits: int, allow_left_shift: bool
    ) -> dict[str, Any]:
        """Return the rescalings of the sums over input and state to `bits` fractional bits.

        Both give 32 bits. Keys are "rescale_x" and "rescale_h". On shift-only targets the sum is
        first saturated to 32 bits, and without `allow_left_shift` left shifts are omitted; raises
        ModelError there if a product of scales is not a power of two.
        """
        from simulator.fixed_point import ChainedRescale, Rescale

        a = info.attributes
        rescales: dict[str, Any] = {}
        for key, scales in (
            ("rescale_x", ("scale_x", "scale_iw")),
            ("rescale_h", ("", "scale_hw")),
        ):
            first = get_number(a, scales[0]) if scales[0] else self.state_scale(a)
            product = first * get_number(a, scales[1])
            if not info.arithmetic.requantize.shifts:
                rescales[key] = Rescale.from_ratio(2.0**bits / product, 32)
                continue
            shift = info.require_exponent(" * ".join(scales), product) - bits
            if not allow_left_shift:
                shift = max(shift, 0)
            # The matrix unit outputs the accumulator saturated to 32 bits.
            saturate = Rescale.from_shift(0, 32)
            rescales[key] = ChainedRescale(saturate, Rescale.from_shift(shift, 32))
        return rescales


class Lstm(RecurrentIntegerOp):
    """Long short-term memory of one direction."""

    name = "LSTMInt"
    v3_name = "QLSTM"
    aliases = ("LSTMInt_Is8_Is64", "LSTMInt_Is8_Is64_If32_If32")
    kernel_gate_order, kind = "ifgo", kinds.LstmArithmetic
    standard_op, standard_gate_order = "LSTM", "iofg"
    signature = Signature(_SIGNATURE_INPUTS, "any*", rules.infer_lstm)
    states = MappingProxyType({"h": 0, "c": 32})

    def time_axis(self, info: KernelInfo) -> int:
        """Return the axis of time: 1 if batch_first is not 0, or axis 0 has size 1, else 0.

        The second condition holds only for chips that treat [1, T, I] as batch first in any case,
        not for training software or executors that follow the attribute.
        """
        if info.attributes["batch_first"]:
            return 1
        arithmetic = info.expect_arithmetic(kinds.LstmArithmetic)
        follows_attribute = arithmetic.trained or arithmetic.follows_batch_first
        return 1 if info.input_shapes[0][0] == 1 and not follows_attribute else 0

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the LSTM kernel in the arithmetic of the target (an executor, or training).

        Format WIDE counts as Q27 for an output of at most 8 bits. Raises ModelError for nodes that
        the arithmetic does not support.
        """
        from simulator.kernels import Lstm as Kernel

        arithmetic = info.expect_arithmetic(kinds.LstmArithmetic)
        arguments = self.make_kernel_arguments(info)
        if arithmetic.trained:
            return recurrent_training.make_lstm_kernel(info, arithmetic, arguments)
        bits = get_int(info.attributes, "o_bits", 8)
        form = arithmetic.form
        if form is kinds.LstmFormat.WIDE and bits <= 8:
            form = kinds.LstmFormat.Q27
        if form is kinds.LstmFormat.Q15_WIDE_CELL:
            _require_cell_scale(info)
        scale, option = self.state_scale(info.attributes), form.kernel_option
        return Kernel(
            **arguments,
            **self.make_sum_rescales(info, Kernel.fraction_bits[option][0], True),
            rescale_o=Kernel.make_output_rescale(option, scale, bits),
            is_forward=bool(info.attributes["go_forward"]),
            arithmetic=option,
            table=arithmetic.table.value,
        )

    def all_output_qparams(
        self, info: KernelInfo, scales: Sequence[Affine | None]
    ) -> list[Affine | None]:
        """Return scale and bits of sequence, hidden state and cell.

        The cell has 15 fractional bits in 32; where it is packed (formats Q11 and
        Q15_CLIPPED_CELL), it is None. In training software sequence and state have its state scale,
        and the cell 16 bits at its cell scale.
        """
        arithmetic = info.expect_arithmetic(kinds.LstmArithmetic)
        if arithmetic.trained:
            return super().all_output_qparams(info, scales)
        qparams = self.output_qparams(info.attributes, scales)
        is_packed = arithmetic.form in (
            kinds.LstmFormat.Q11,
            kinds.LstmFormat.Q15_CLIPPED_CELL,
        )
        cell = None if is_packed else Affine(2.0**15, 32)
        return [qparams, qparams, cell]


LSTM = Lstm()


def _require_cell_scale(info: KernelInfo) -> None:
    """Raise ModelError if an LSTM has an attribute scale_c other than 2^15."""
    scale = info.attributes.get("scale_c")
    if scale is not None and scale != 2.0**15:
        raise ModelError(f"{info.label}: scale_c = {scale:g}; it must be 32768")


class Gru(RecurrentIntegerOp):
    """Gated recurrent unit of one direction."""

    name = "GRUInt"
    v3_name = "QGRU"
    aliases = ("GRUInt_Is8_Is64", "GRUInt_Is8_Is64_If32")
    kernel_gate_order, kind = "rzn", kinds.GruArithmetic
    standard_op, standard_gate_order = "GRU", "zrn"
    signature = Signature(_SIGNATURE_INPUTS, "any*", rules.infer_gru)
    states = MappingProxyType({"h": 0})
    attributes = (*_ATTRIBUTES, Attr("linear_before_reset", "i", 1))

    def make_standard_attributes(self, attrs: Attributes) -> dict[str, AttributeValue]:
        """Return the attribute that only the standard GRU has: linear_before_reset."""
        return {"linear_before_reset": get_int(attrs, "linear_before_reset")}

    def to_v1_attributes(self, attrs: Attributes, node: ir.Node) -> dict[str, AttributeValue]:
        """Return the attributes for dialect v1, with linear_before_reset 1, as v3 always computes.

        Removes has_hidden, has_cell and scale_c, and sets dropout to 0.
        """
        return {**super().to_v1_attributes(attrs, node), "linear_before_reset": 1}

    def make_kernel(self, info: KernelInfo) -> Kernel:
        """Return the GRU kernel in the arithmetic of the target.

        This is that of the training software, that of an executor's version, or for variant DEFINED
        the generic one (27 fractional bits in the sums).
        """
        from simulator.kernels import Gru as Kernel

        arithmetic = info.expect_arithmetic(kinds.GruArithmetic)
        arguments = self.make_kernel_arguments(info)
        if arithmetic.trained:
            return recurrent_training.make_gru_kernel(info, arithmetic, arguments)
        if arithmetic.form in (
            kinds.GruVariant.HALVED,
            kinds.GruVariant.HALVED_NOT_IN_GATES,
        ):
            return self._make_halving_kernel(info, arithmetic, arguments)
        if arithmetic.form is kinds.GruVariant.CANDIDATE_WEIGHTED:
            return self._make_candidate_kernel(info, arithmetic, arguments)
        if arithmetic.form is not kinds.GruVariant.DEFINED:
            return self._make_shifting_kernel(info, arithmetic, arguments)
        bits, scale = get_int(info.attributes, "o_bits", 8), self.state_scale(info.attributes)
        return Kernel(
            **arguments,
            **self.make_sum_rescales(info, 27, True),
            rescale_o=Kernel.make_output_rescale(scale, bits),
            is_forward=bool(info.attributes["go_forward"]),
            reset_after=bool(info.attributes["linear_before_reset"]),
            gate_bits=32 if bits <= 8 else 16,
        )

    def _make_halving_kernel(
        self, info: KernelInfo, arithmetic: kinds.GruArithmetic, arguments: Mapping[str, Any]
    ) -> Kernel:
        """Return the kernel of variants HALVED: 11 fractional bits in the sums, 7 in the gates."""
        from simulator.fixed_point import Rescale
        from simulator.kernels import ExecutorGru

        bits, scale = get_int(info.attributes, "o_bits", 8), self.state_scale(info.attributes)
        return ExecutorGru(
            **arguments,
            **self.make_sum_rescales(info, 11, False),
            rescale_o=Rescale.from_shift(14 - info.require_exponent("scale_o", scale), bits),
            table=arithmetic.table.value,
            uses_state_sums=arithmetic.form is kinds.GruVariant.HALVED,
        )

    def _make_candidate_kernel(
        self, info: KernelInfo, arithmetic: kinds.GruArithmetic, arguments: Mapping[str, Any]
    ) -> Kernel:
        """Return the kernel of variant CANDIDATE_WEIGHTED.

        n is at scale_h, and the increment is shifted from it to scale_o. Raises ModelError if a
        gate sum has less than 11 fractional bits.
        """
        from simulator.fixed_point import Rescale
        from simulator.kernels import CandidateGru

        for key, exponent in zip("ih", recurrent_training.get_sum_exponents(info), strict=True):
            if exponent < 11:
                raise ModelError(
                    f"{info.label}: the scale of its gate sums (scale_{key}w) is 2^{exponent}; it "
                    "must be at least 2^11"
                )
        q_h = self._state_exponent(info)
        q_o = info.require_exponent("scale_o", self.state_scale(info.attributes))
        return CandidateGru(
            **arguments,
            **self._make_shifted_sums(info, 11),
            rescale_o=Rescale.from_shift(15 - q_h, get_int(info.attributes, "o_bits", 8)),
            is_forward=bool(info.attributes["go_forward"]),
            table=arithmetic.table.value,
            increment_rescale=Rescale.from_shift(15 + q_h - q_o, 32),
        )

    def _make_shifting_kernel(
        self, info: KernelInfo, arithmetic: kinds.GruArithmetic, arguments: Mapping[str, Any]
    ) -> Kernel:
        """Return the kernel of variants RESET_BEFORE and RESET_AFTER, with scale_h of the state.

        The sums have 27 fractional bits, or as many as the finer of the two with RESET_AFTER.
        """
        from simulator.fixed_point import Rescale
        from simulator.kernels import Gru as Kernel

        is_reset_after = arithmetic.form is kinds.GruVariant.RESET_AFTER
        fraction_bits = max(recurrent_training.get_sum_exponents(info)) if is_reset_after else 27
        shift = 31 - self._state_exponent(info)
        return Kernel(
            **arguments,
            **self._make_shifted_sums(info, fraction_bits),
            rescale_o=Rescale.from_shift(shift, get_int(info.attributes, "o_bits", 8)),
            is_forward=bool(info.attributes["go_forward"]),
            reset_after=is_reset_after,
            table=arithmetic.table.value,
            saturates_candidate=False,
            sum_fraction_bits=fraction_bits,
        )

    def _state_exponent(self, info: KernelInfo) -> int:
        """Return log2 of scale_h, the state that later executors multiply."""
        return info.require_exponent("scale_h", get_number(info.attributes, "scale_h"))

    def _make_shifted_sums(self, info: KernelInfo, fraction_bits: int) -> dict[str, Any]:
        """Return the shifts of both sums to `fraction_bits`, of accumulators saturated to 32 bits.

        Keys are "rescale_x" and "rescale_h".
        """
        from simulator.fixed_point import ChainedRescale, Rescale

        saturate = Rescale.from_shift(0, 32)
        return {
            key: ChainedRescale(saturate, Rescale.from_shift(exponent - fraction_bits, 32))
            for key, exponent in zip(
                ("rescale_x", "rescale_h"), recurrent_training.get_sum_exponents(info), strict=True
            )
        }


GRU = Gru()


FAMILY: tuple[Format, ...] = (LSTM, GRU)
