"""Import a model that another tool has quantized: its float graph and its scales.

QuantizeLinear and DequantizeLinear are removed in pairs; integers between them may be rearranged by
data movement. Weights are dequantized exactly. The clipping of a pair is restored as an operator: a
range that begins at 0 clipped negative numbers, so a Relu is inserted unless the producer does the
same, and a Clip if the range ended at 6. onnxruntime's quantizer removes these operators.

Scales are stored as `Affine`s by tensor, `scale = 1 / y_scale` in float32, or the exact scale that
`qdq_writer` stored in the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...common.errors import ModelError
from ...ir import float_ops, ir
from ...ir.plan import Affine, PerAxis, PerGroup, PerTensor, Rounding
from .block_quantization import read_block_qparams
from .constant_types import format_element_type, is_number
from .dynamic_layers import restore_dynamic_layers
from .qdq_writer import SCALES_KEY, scale_from_step
from .qoperator import MOVES
from .qoperators import (
    expand_qoperators,
    reshape_constant,
    transpose_constant,
)

__all__ = ["ImportedQuantization", "import_quantized_model"]

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"

_RELU6_MAX = 6.0

#: Range in which a y_scale and its inverse are finite in float32.
_MIN_SCALE, _MAX_SCALE = 3e-39, 1e38


@dataclass(frozen=True)
class ImportedQuantization:
    """The float graph and the scales of a quantized model.

    Attributes
    ----------
    graph
        Float graph.
    activations, weights
        Quantization parameters of tensors and of constants, by name.
    layers
        Node -> (quantization parameters, values) of the constants that it reads, because their
        names and values may change later.
    notes
        Messages about changes of the graph.
    source_tool
        Tool that wrote the scales into a separate file for a float model, whose weights may be
        requantized; "" for a quantized model.
    rejected
        Tensor of such a file -> reason why its scale is not used.
    """

    graph: ir.Model
    activations: Mapping[str, Affine]
    weights: Mapping[str, Affine]
    layers: Mapping[str, tuple[tuple[Affine, np.ndarray], ...]]
    notes: tuple[str, ...]
    source_tool: str = ""
    rejected: Mapping[str, str] = field(default_factory=dict)


def import_quantized_model(model: ir.Model) -> ImportedQuantization:
    """Return the float graph and the scales of `model`, which another tool quantized.

    Parameters
    ----------
    model
        Quantized model, with QDQ nodes or integer operators of ONNX; not modified.

    Returns
    -------
    ImportedQuantization
        Float graph and quantization parameters.

    Raises
    ------
    ModelError
        If activation scales are computed at run time, if nodes compute with integers, or if the
        model is malformed.
    """
    return _ModelImporter(model.clone()).run()


class _IntegerTensor(NamedTuple):
    """The float tensor that an integer tensor represents, and its quantization parameters."""

    real: ir.Value
    qparams: Affine


@dataclass
class _ModelImporter:
    """Removes the QuantizeLinear and DequantizeLinear (QDQ) nodes of `model`, and notes scales."""

    model: ir.Model
    notes: list[str] = field(default_factory=list)
    activations: dict[ir.Value, Affine] = field(default_factory=dict)
    weights: dict[ir.Value, Affine] = field(default_factory=dict)
    integer_tensors: dict[ir.Value, _IntegerTensor] = field(default_factory=dict)
    #: Integers of constants that a QuantizeLinear quantizes, by its output.
    constant_integers: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    #: Number of inserted activations by operator type.
    restored_counts: dict[str, int] = field(default_factory=dict)

    def run(self) -> ImportedQuantization:
        """Remove all QDQ nodes and integer operators, in place.

        Return the float model and its scales. Scales are recorded by tensor for activations and
        weights, and by node for the weights that it reads. ModelError if activation scales are
        computed at run time, or nodes compute with integers.
        """
        self._prepare()
        for node in list(self.model.graph):
            self._convert_node(node)
        for op_type, count in self.restored_counts.items():
            self.notes.append(
                f"{count} {op_type} restored, which the quantized model had replaced by saturation"
            )
        self._replace_integer_outputs()
        ir.remove_unused(self.model)
        self.model.graph.sort()
        layers = {str(node.name): self._get_weights(node) for node in self.model.graph}
        return ImportedQuantization(
            self.model,
            {str(value.name): qparams for value, qparams in self.activations.items()},
            {str(value.name): qparams for value, qparams in self.weights.items()},
            {name: weights for name, weights in layers.items() if weights},
            tuple(self.notes),
        )

    def _prepare(self) -> None:
        """Restore dynamically quantized layers, inline functions, expand integer operators.

        Also makes Constant nodes initializers, and takes the exact scales from the metadata. Raises
        ModelError for dynamic quantization.
        """
        model = self.model
        restore_dynamic_layers(model)
        for function in model.functions.values():
            if any(node.op_type in (_Q, _DQ) for node in function.all_nodes()):
                ir.InlinePass()(model)
                break
        ir.lift_constants(model)
        self.exact_scales = ir.read_json_metadata(model, SCALES_KEY)
        model.metadata_props.pop(SCALES_KEY, None)
        expand_qoperators(model)

    def _convert_node(self, node: ir.Node) -> None:
        """Remove a QDQ node, or let a data movement of integers move float values.

        A node that reads no integer tensor stays as it is. Raises ModelError for a QDQ node without
        input, scale or output.
        """
        if node.op_type in (_Q, _DQ):
            if len(node.inputs) < 2 or None in node.inputs[:2] or not node.outputs:
                raise ModelError(
                    f"{node.op_type} {node.name}: it lacks an input, a scale or an output; the "
                    "file is malformed"
                )
            if node.op_type == _Q:
                self._remove_quantize(node)
            else:
                self._remove_dequantize(node)
        elif any(value in self.integer_tensors for value in node.inputs if value is not None):
            self._move_real_values(node)

    def _get_weights(self, node: ir.Node) -> tuple[tuple[Affine, np.ndarray], ...]:
        """Return (parameters, array) of each constant input of `node` that was a quantized weight.

        In input order; the array has float values.
        """
        pairs = []
        for value in node.inputs:
            array = ir.const_value(value)
            if value in self.weights and array is not None:
                pairs.append((self.weights[value], array))
        return tuple(pairs)

    # ---- quantization parameters of a node -------------------------------------------------------

    def _read_qparams(self, node: ir.Node, kind: ir.DataType | None) -> tuple[Affine, np.ndarray]:
        """Return scale, zero point and type of a QDQ node with integers of `kind`, and its y_scale.

        An exact scale in the metadata is used if y_scale is its rounding. ModelError if the scale
        is not constant, or the type unknown or wider than 32 bits.
        """
        label, scale_value = f"{node.op_type} {node.name}", node.inputs[1]
        assert scale_value is not None
        step = _resolve_constant(scale_value)
        zero = _resolve_constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if step is None:
            raise ModelError(
                f"{label}: its scale is computed at run time; it must be stored in the file"
            )
        if kind is None or not kind.is_integer() or kind.bitwidth > 32:
            type_name = "unknown" if kind is None else kind.name.lower()
            raise ModelError(
                f"{label}: its integer type is {type_name}; int4 to int32 are supported"
            )
        _check_constant_qparams(label, step, zero)
        name = str(scale_value.name)
        if int(ir.get_attr(node, "block_size", 0) or 0) or np.ndim(step) > 1:
            exact_scales = _parse_exact_scales(self.exact_scales.get(name))
            return read_block_qparams(node, kind, step, zero, exact_scales), step
        scale = scale_from_step(step)
        exact_scale = _parse_exact_scales(self.exact_scales.get(name, scale))
        if exact_scale.shape == scale.shape and np.allclose(exact_scale, scale, rtol=1e-6, atol=0):
            scale = exact_scale
        signed, axis = kind.name.startswith("I"), int(ir.get_attr(node, "axis", 1))
        return make_file_qparams(scale, zero, kind.bitwidth, signed, axis), step

    # ---- nodes -----------------------------------------------------------------------------------

    def _remove_quantize(self, node: ir.Node) -> None:
        """Record which float tensor the output of a QuantizeLinear represents, and its parameters.

        The node itself is not removed here. A constant's integers are computed; a variable's
        parameters become those of its activation, where the widest range of several QuantizeLinear
        nodes wins, and of several scales the coarsest. A Relu or Clip that the saturation replaced
        is inserted.
        """
        out, source = node.outputs[0], ir.require_input(node)
        qparams, _ = self._read_qparams(node, self._integer_type(node))
        array = _resolve_constant(source)
        if array is not None:
            _check_channels(node, array, qparams)
            self.constant_integers[out] = qparams.integers(array)
        else:
            if not qparams.single:
                self.notes.append(
                    f"'{source.name}' has one scale per channel ({qparams.scales.size}); the "
                    "coarsest is used"
                )
            source = self._restore_activation(node, source, qparams)
            previous = self.activations.get(source)
            if previous is None or previous.ends[1] < qparams.ends[1]:
                self.activations[source] = qparams.coarsest
        self.integer_tensors[out] = _IntegerTensor(source, qparams)

    def _integer_type(self, node: ir.Node) -> ir.DataType | None:
        """Return the integer type that `node`, a QuantizeLinear, writes; None if it is unknown.

        It is that of the zero point, else the attribute output_dtype, else that of the output, else
        uint8, the default of ONNX.
        """
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        if zero is not None:
            return zero.dtype if zero.dtype is not None else node.outputs[0].dtype
        output_dtype = ir.get_attr(node, "output_dtype")
        if output_dtype:
            return ir.DataType(output_dtype)
        return node.outputs[0].dtype or ir.DataType.UINT8

    def _restore_activation(self, node: ir.Node, source: ir.Value, qparams: Affine) -> ir.Value:
        """Insert the Relu or Clip (0 to 6) that the saturation of a QuantizeLinear `node` replaces.

        Returns its output. Returns `source`, the quantized tensor, if the range does not begin at
        0, or if the tensor is never negative anyway, or is a graph input or output.
        """
        low, high = qparams.ends
        step = 1.0 / float(qparams.scales.flat[0])
        if abs(low) > 0.01 * step or source.is_graph_input() or source.is_graph_output():
            return source
        if self._is_nonnegative(source):
            return source
        is_relu6 = abs(high - _RELU6_MAX) <= 0.5 * step
        activation_type = "Clip" if is_relu6 else "Relu"
        bounds = []
        if is_relu6:
            for suffix, bound in (("low", 0.0), ("high", _RELU6_MAX)):
                bound_name = ir.unique_tensor_name(self.model, f"{source.name}_{suffix}")
                bounds.append(
                    ir.add_initializer(self.model, bound_name, np.array(bound, np.float32))
                )
        name = str(source.name)
        source.name = ir.unique_tensor_name(self.model, f"{name}_sum")
        activation = ir.make_node(
            activation_type,
            [source, *bounds],
            output=name,
            name=f"{node.name}_{activation_type}",
            like=source,
        )
        self.model.graph.insert_before(node, activation)
        self.restored_counts[activation_type] = self.restored_counts.get(activation_type, 0) + 1
        return activation.outputs[0]

    def _is_nonnegative(self, value: ir.Value, depth: int = 8) -> bool:
        """Whether `value` provably has no negative elements, from up to `depth` nodes upstream.

        True for a constant without negative elements, and for the output of a Clip from 0 or more,
        of an operator that never writes negative values, or of one that keeps the sign of such
        inputs.
        """
        integer_tensor = self.integer_tensors.get(value)
        producer = ir.producer(value if integer_tensor is None else integer_tensor.real)
        if producer is None or not depth:
            array = ir.const_value(value)
            return array is not None and is_number(array) and bool((array >= 0).all())
        if producer.op_type == "Clip":
            low = _resolve_constant(producer.inputs[1]) if len(producer.inputs) > 1 else None
            return low is not None and is_number(low) and bool((low >= 0).all())
        if producer.op_type in float_ops.NONNEGATIVE_OPS:
            return True
        if producer.op_type not in float_ops.NONNEGATIVITY_PRESERVING_OPS:
            return False
        inputs = producer.inputs[:1] if producer.op_type in MOVES else producer.inputs
        return all(x is None or self._is_nonnegative(x, depth - 1) for x in inputs)

    def _remove_dequantize(self, node: ir.Node) -> None:
        """Let consumers of a DequantizeLinear read its float tensor or constant instead.

        For an integer graph input, float operators take its place. ModelError if the scale is not
        that of the QuantizeLinear, or another operator computes the integers.
        """
        source, out = ir.require_input(node), node.outputs[0]
        if source in self.integer_tensors:
            real, written = self.integer_tensors[source]
            qparams, step = self._read_qparams(node, _integer_type_of(written))
            has_same_scales = qparams.scales.size == written.scales.size and np.allclose(
                qparams.scales, written.scales, rtol=1e-5
            )
            has_same_range = (qparams.low, qparams.high) == (written.low, written.high)
            if not has_same_range or not has_same_scales:
                raise ModelError(
                    f"{_DQ} {node.name}: its scale differs from the QuantizeLinear that wrote the "
                    "integers; export the model again"
                )
            if source in self.constant_integers:
                self._replace_constant(node, self.constant_integers[source], written, step)
            else:
                self._reconnect(out, real)
            return
        array = ir.const_value(source)
        if array is not None:
            self._replace_constant(node, array, *self._read_qparams(node, source.dtype))
        elif source.is_graph_input():
            self._expand_input_dequantize(node, source)
        else:
            raise ModelError(
                f"{_DQ} {node.name}: its integers '{source.name}' are computed by another "
                "operator, not by a QuantizeLinear"
            )

    def _replace_constant(
        self, node: ir.Node, integers: np.ndarray, qparams: Affine, step: np.ndarray
    ) -> None:
        """Replace a DequantizeLinear of constant `integers`, and a Transpose after it, by floats.

        `step` is y_scale. The initializer takes the name of the replaced output, and its parameters
        are recorded in `weights` if it has at most 16 bits. Weights in int32 that fit 8 bits, as
        those of recurrent layers, have 8.
        """
        out = node.outputs[0]
        _check_channels(node, integers, qparams)
        real = _dequantize(qparams, np.asarray(integers), step)
        if qparams.axis is not None:
            qparams = qparams.along(qparams.axis % real.ndim)
        consumer = ir.sole_consumer(out)
        if consumer is not None and consumer.op_type == "Transpose" and real.ndim == 2:
            perm = ir.get_attr(consumer, "perm") or [1, 0]
            if qparams.axis is not None:
                qparams = qparams.along(perm.index(qparams.axis))
            real, out = transpose_constant(real, consumer), consumer.outputs[0]
        name = str(out.name)
        out.name = ir.unique_tensor_name(self.model, f"{name}_gone")
        value = ir.add_initializer(self.model, name, np.ascontiguousarray(real))
        out.replace_all_uses_with(value, replace_graph_outputs=True)
        if (
            qparams.bits == 32
            and real.ndim > 1
            and np.abs(integers.astype(np.int64)).max(initial=0) < 128
        ):
            qparams = qparams.changed(bits=8)
        if qparams.bits <= 16:
            self.weights[value] = qparams

    def _reconnect(self, out: ir.Value, real: ir.Value) -> None:
        """Replace all uses of `out` by the float tensor `real`; a graph output keeps its name.

        `real` then takes that name; a graph input or output is copied by an Identity first.
        """
        if not out.is_graph_output():
            out.replace_all_uses_with(real, replace_graph_outputs=True)
            return
        name = str(out.name)
        if real.is_graph_input() or real.is_graph_output():
            identity = ir.make_node("Identity", [real], output="", like=real)
            node = ir.producer(out)
            assert node is not None
            self.model.graph.insert_before(node, identity)
            real = identity.outputs[0]
        out.name = ir.unique_tensor_name(self.model, f"{name}_gone")
        out.replace_all_uses_with(real, replace_graph_outputs=True)
        real.name, real.type = name, ir.TensorType(ir.DataType.FLOAT)
        real.shape = real.shape if real.shape is not None else out.shape

    def _expand_input_dequantize(self, node: ir.Node, source: ir.Value) -> None:
        """Replace the DequantizeLinear of an integer graph input by Cast, Sub and Mul.

        The caller still feeds integers. Sub is omitted for zero point 0. Raises ModelError for
        several scales.
        """
        qparams, step = self._read_qparams(node, source.dtype)
        if not qparams.single:
            raise ModelError(
                f"{_DQ} {node.name}: an integer input with {qparams.scales.size} scales; only one "
                "is supported"
            )
        name, new_nodes = str(node.outputs[0].name), []

        def add(op_type: str, inputs: list[ir.Value], suffix: str, **attributes: int) -> ir.Value:
            """Append a node to `new_nodes`, and return its only output, named ``NAME_SUFFIX``."""
            new_nodes.append(
                ir.make_node(
                    op_type,
                    inputs,
                    attributes,
                    output=ir.unique_tensor_name(self.model, f"{name}_{suffix}"),
                    origin=node,
                    suffix=suffix,
                )
            )
            return new_nodes[-1].outputs[0]

        def add_constant(value: float, suffix: str) -> ir.Value:
            """Add a float32 constant named after `suffix`, and return it."""
            constant_name = ir.unique_tensor_name(self.model, f"{name}_{suffix}")
            return ir.add_initializer(self.model, constant_name, np.array(value, np.float32))

        value = add("Cast", [source], "cast", to=1)
        if qparams.zero_point:
            value = add("Sub", [value, add_constant(qparams.zero_point, "zero")], "centred")
        value = add("Mul", [value, add_constant(float(np.ravel(step)[0]), "step")], "real")
        value.shape, value.type = node.outputs[0].shape, ir.TensorType(ir.DataType.FLOAT)
        self.model.graph.insert_before(node, new_nodes)
        node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
        self.activations[value] = qparams

    def _move_real_values(self, node: ir.Node) -> None:
        """Insert the data movement of integers `node` again, for the float tensors of its inputs.

        Its outputs get the parameters of the inputs. ModelError if the node computes with integers,
        or its inputs have different parameters.
        """
        inputs: list[ir.Value | None] = []
        input_qparams: list[Affine] = []
        for value in node.inputs:
            if value is not None and value in self.integer_tensors:
                value, qparams = self.integer_tensors[value]
                input_qparams.append(qparams)
            inputs.append(value)
        qparams, op_type = input_qparams[0], node.op_type
        if not _moves_integers(node, qparams) or input_qparams.count(qparams) < len(input_qparams):
            raise ModelError(
                f"{op_type} {node.name}: it computes with integers; only data movement of integers "
                "is supported"
            )
        moved = ir.node(op_type, inputs, {}, num_outputs=len(node.outputs), name=node.name)
        moved.attributes.update(node.attributes)
        self.model.graph.insert_before(node, moved)
        for old, new in zip(node.outputs, moved.outputs, strict=True):
            new.name, new.shape, new.type = old.name, old.shape, ir.TensorType(ir.DataType.FLOAT)
            old.name = ir.unique_tensor_name(self.model, f"{old.name}_gone")
            self.integer_tensors[old] = _IntegerTensor(new, qparams)
            self.activations[new] = qparams

    def _replace_integer_outputs(self) -> None:
        """Replace integer outputs of the graph by float ones of the same name, with a note each."""
        for value in list(self.model.graph.outputs):
            if value in self.integer_tensors:
                self.notes.append(f"output '{value.name}' is float now; it was integer")
                self._reconnect(value, self.integer_tensors[value].real)


def _moves_integers(node: ir.Node, qparams: Affine) -> bool:
    """Whether `node` gives the same result on integers with `qparams` as on float values.

    So do data movement, MaxPool, Resize, and Relu if the zero point is 0.
    """
    if node.domain:
        return False
    if node.op_type == "Relu":
        return not qparams.shifted
    return node.op_type in float_ops.DATA_MOVEMENT_OPS or node.op_type in ("MaxPool", "Resize")


def _check_constant_qparams(label: str, step: np.ndarray, zero: np.ndarray | None) -> None:
    """Raise ModelError if the constants y_scale `step` or zero point `zero` of a node are invalid.

    Neither may be empty, `step` must be numbers within limits, and `zero` (or None) integers.
    `label` names the node.
    """
    if not is_number(step):
        raise ModelError(
            f"{label}: its scale is {format_element_type(step)}; it must be a positive number"
        )
    if np.size(step) == 0:
        raise ModelError(f"{label}: its scale is empty; it must be a positive number")
    if zero is not None and (np.size(zero) == 0 or not is_number(zero) or zero.dtype.kind == "f"):
        actual = format_element_type(zero) if np.size(zero) else "empty"
        raise ModelError(f"{label}: its zero point is {actual}; it must be an integer")
    if not ((step > _MIN_SCALE) & (step < _MAX_SCALE)).all():
        raise ModelError(
            f"{label}: its scale is {np.ravel(step)[0]:g}; it must be a number from "
            f"{_MIN_SCALE:g} to {_MAX_SCALE:g}"
        )


def _parse_exact_scales(value: object) -> np.ndarray:
    """Return scales read from the metadata as float32; an empty array if they are malformed."""
    try:
        return np.asarray(value, np.float32)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(0, np.float32)


def make_file_qparams(
    scale: npt.ArrayLike, zero: npt.ArrayLike | None, bits: int, signed: bool, axis: int
) -> Affine:
    """Create the quantization parameters of integers in a file, which round ties to even.

    Parameters
    ----------
    scale
        Integer steps per unit, one or one per channel.
    zero
        Zero points, one or one per channel; None is 0. If their number is not that of the scales,
        the first one is used for all.
    bits, signed
        Integer type.
    axis
        Channel axis; used if there are several scales.

    Raises
    ------
    ModelError
        If the parameters are inconsistent.
    """
    scales = np.ravel(scale)
    zeros = np.zeros(1) if zero is None else np.ravel(zero).astype(np.int64)
    is_per_channel = len(scales) > 1
    granularity = PerAxis(axis) if is_per_channel else PerTensor()
    zeros = zeros if len(zeros) == len(scales) > 1 else zeros[0]
    try:
        return Affine(
            scales if is_per_channel else scales[0],
            bits,
            granularity,
            zeros,
            signed,
            Rounding.HALF_EVEN,
        )
    except ValueError as error:
        raise ModelError(
            f"scales and zero points in the file: {error}; the file is malformed"
        ) from error


def _dequantize(qparams: Affine, integers: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return (integers - zero point) * `step` in float32, as DequantizeLinear does.

    `step` is the y_scale: per tensor, per axis or per group, as `qparams`, whose own scale is not
    used.
    """
    centered = integers.astype(np.int64) - qparams.centre(integers.shape)
    if step.ndim <= 1:
        step = np.ravel(step) if qparams.axis is not None else np.ravel(step)[0]
    steps = qparams.changed(step).broadcast(integers.shape)
    return np.asarray(centered.astype(np.float32) * np.asarray(steps, np.float32))


def _integer_type_of(qparams: Affine) -> ir.DataType:
    """Return the ONNX integer type for the range of `qparams`, such as INT8 or UINT4."""
    name = f"{'INT' if qparams.low < 0 else 'UINT'}{qparams.bits}"
    return next(dtype for dtype in ir.DataType if dtype.name == name)


def _check_channels(node: ir.Node, array: np.ndarray, qparams: Affine) -> None:
    """Raise ModelError if the constant `array` of `node` has not as many channels as scales.

    One scale, and scales of groups, need no check here.
    """
    if qparams.axis is None or isinstance(qparams.granularity, PerGroup):  # checked when read
        return
    axis = qparams.axis
    channels = array.shape[axis] if -array.ndim <= axis < array.ndim else "no"
    if channels != qparams.scales.size:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {qparams.scales.size} scales for {channels} "
            f"channels along axis {axis}; the file is malformed, export it again"
        )


def _resolve_constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of `value` if it is constant, also through data movement and Cast.

    Else None. Only movements that keep all elements count: Reshape, Transpose, Identity and similar
    ones.
    """
    array, node = ir.const_value(value), ir.producer(value)
    if array is not None or node is None or node.domain or not node.inputs:
        return array
    if node.op_type not in float_ops.PERMUTATION_OPS | {"Cast"}:
        return None
    source = _resolve_constant(node.inputs[0])
    if source is None or node.op_type in float_ops.IDENTITY_OPS:
        return source
    if node.op_type == "Cast":
        return source.astype(ir.DataType(ir.get_attr(node, "to")).numpy())
    if node.op_type == "Transpose":
        return transpose_constant(source, node)
    shape = _resolve_constant(node.inputs[1]) if node.op_type == "Reshape" else None
    return None if shape is None else reshape_constant(source, shape, node)
