"""Write an integer graph in standard ONNX: float operators between QDQ nodes.

Every integer tensor becomes ``T -> QuantizeLinear -> T_quantized -> DequantizeLinear``; the format
of an operator defines the float operator between. Weights are stored as integers with a
DequantizeLinear, biases as int32 at the product of both scales.

    y_scale = float32(1 / scale)        with the tensor's zero point; int8, or int4 and int16

The opset is 13, 17 with layer normalization, 21 with integers of 4 or 16 bits, or that of the
graph's float nodes if it is higher. The metadata `SCALES_KEY` contains the scales that cannot be
recovered from y_scale to the last bit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...common.errors import ModelError
from ...ir import ir
from ...ir.plan import Affine
from ...ir.plan.synthetic_calibration import CALIBRATION_KEY as CALIBRATION
from ...operators.float_model import MIN_OPSET, FloatNodeBuilder, integer_storage_type
from ...operators.integer_ops import (
    DEQUANT,
    Format,
    KernelInfo,
    is_quantized_domain,
    read_attributes,
    require_integer_op,
)
from ...runtime.integer.dialects import ArithmeticSide
from ...runtime.integer.runner import detect_target
from ...runtime.integer.sizes import infer_shapes
from .opset import upgrade_nodes

__all__ = ["PLATFORM_KEY", "QdqGraph", "QdqWriter", "SCALES_KEY", "scale_from_step", "write_qdq"]

#: Metadata: name of a y_scale -> scale in integer steps per unit, one or a list; for groups the
#: scales of the products.
SCALES_KEY = "lingeronnx.scales"

#: Metadata: the platform that the graph was quantized for.
PLATFORM_KEY = "lingeronnx.platform"

_IR_VERSIONS = {13: 7, 17: 8, 21: 10}


def scale_from_step(step: np.ndarray) -> np.ndarray:
    """Return 1 / `step` in float32: integer steps per unit; no warning for invalid values.

    `step` is y_scale, the float value of an integer step.
    """
    with np.errstate(all="ignore"):  # invalid values are rejected when they are read
        return np.asarray(1.0 / np.asarray(step, np.float64), np.float32)


@dataclass(frozen=True)
class QdqGraph:
    """A QDQ graph that was written for an integer graph.

    Attributes
    ----------
    graph
        The QDQ graph.
    quantized_names
        Integer tensor of the integer graph -> name of its integers in the QDQ graph.
    formats
        Integer tensor of the integer graph -> format of the operator that computes it.
    notes
        Messages about tensors that are stored in another form.
    """

    graph: ir.Model
    quantized_names: dict[str, str]
    formats: dict[str, Format]
    notes: tuple[str, ...]


def write_qdq(model: ir.Model) -> QdqGraph:
    """Write the integer graph `model` in standard ONNX: float operators between QDQ nodes.

    Parameters
    ----------
    model
        Integer graph; not modified.

    Raises
    ------
    ModelError
        If an operator has no counterpart in standard ONNX.
    """
    return QdqWriter(model.clone()).run()


@dataclass
class _HeldTensor:
    """The QDQ form of an integer tensor: float value, quantization parameters and integers.

    `integers` is None if the QDQ graph has the float value only.
    """

    real: ir.Value
    q: Affine
    integers: ir.Value | None = None


@dataclass
class QdqWriter:
    """Converts one integer graph in place; a subclass may override `write_node`.

    Attributes
    ----------
    held
        Integer tensor of the graph -> its QDQ form.
    integer_values
        Integer tensors that `write_node` returned in place of float ones.
    unsigned
        Whether to store 8-bit constants as uint8, with zero point 128.
    """

    model: ir.Model
    quantized_names: dict[str, str] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Initialize the state, infer missing shapes, and inline functions in the model.

        The opset is that of the model, at least MIN_OPSET. 8-bit constants are stored as int8.
        """
        self.side = ArithmeticSide.resolve(self.model, detect_target(self.model), None)
        self.inferred_shapes: dict[ir.Value, tuple[int | None, ...]] = {}
        if any(ir.get_shape(value) is None for value in ir.iter_values(self.model)):
            self.inferred_shapes = infer_shapes(self.model)
        functions = self.model.functions.values()
        if any(function.domain == ir.FUNCTION_DOMAIN for function in functions):
            ir.InlinePass()(self.model)
        self.held: dict[ir.Value, _HeldTensor] = {}
        self.integer_values: set[ir.Value] = set()
        self.unsigned = False
        self.reserved_names = ir.get_tensor_names(self.model)
        self.renamed_values: set[ir.Value] = set()
        self.new_nodes: set[ir.Node] = set()
        self.opset = max(MIN_OPSET, ir.get_opset(self.model))
        self.scales_by_y_scale: dict[str, float | Sequence[float]] = {}

    def run(self) -> QdqGraph:
        """Convert every integer node, then set the opset and metadata of the model.

        Integer nodes are removed, and older standard nodes upgraded to the opset. ModelError if
        another node reads integers. Returns the model with the names and formats of the quantized
        tensors.
        """
        model, original_opset = self.model, ir.get_opset(self.model)
        converted = []
        for node in list(model.graph):
            op_format = self._integer_format(node)
            if op_format is not None:
                self._convert_node(op_format, node)
                converted.append(node)
        self._check_consumers(converted)
        for node in reversed(converted):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            model.graph.remove(node, safe=True)
        model.graph.sort()
        ir.remove_unused(model)
        upgrade_nodes(model, original_opset, self.opset, self.new_nodes)
        opsets = {"": self.opset}
        ir.import_opsets(opsets, model.graph, model)
        model.graph.opset_imports.clear()
        model.graph.opset_imports.update(opsets)
        model.ir_version = max(v for opset, v in _IR_VERSIONS.items() if opset <= self.opset)
        self._infer_float_types()
        self._update_metadata()
        ir.assign_node_names(model)
        return QdqGraph(model, self.quantized_names, self.formats, tuple(self.notes))

    def _infer_float_types(self) -> None:
        """Set the element types of constants and of float nodes; files may declare others.

        A constant has that of its values. A type that cannot be inferred stays as it is declared.
        """
        for value in self.model.graph.initializers.values():
            if value.const_value is not None:
                value.type = ir.TensorType(value.const_value.dtype)
        nodes = [node for node in self.model.graph if node not in self.new_nodes]
        declared = {value: value.type for node in nodes for value in node.outputs}
        for value in declared:
            value.type = None
        ir.infer_types(self.model)
        for value, declared_type in declared.items():
            if value.type is None:
                value.type = declared_type

    def _update_metadata(self) -> None:
        """Remove the metadata of integer graphs from the model, store scales that y_scale rounds.

        The platform and the calibration stay.
        """
        model = self.model
        for key in list(model.metadata_props):
            if key.startswith("lingeronnx.") and key not in (PLATFORM_KEY, CALIBRATION):
                del model.metadata_props[key]
        exact_scales = {
            name: scale
            for name, scale in self.scales_by_y_scale.items()
            if not _is_recoverable_scale(model, name, scale)
        }
        if exact_scales:
            model.metadata_props[SCALES_KEY] = json.dumps(exact_scales)

    @staticmethod
    def _check_consumers(converted: Sequence[ir.Node]) -> None:
        """Raise ModelError if a node outside `converted` reads an output of one in it.

        Outputs of converted integer nodes are integers, which no other node can read.
        """
        removed = set(converted)
        for node in converted:
            for value in node.outputs:
                consumers = [use.node for use in value.uses() if use.node not in removed]
                if consumers:
                    raise ModelError(
                        f"{consumers[0].op_type} {consumers[0].name}: it reads the integers "
                        f"'{value.name}', but is not an integer operator; insert a Dequant before "
                        "it"
                    )

    def _integer_format(self, node: ir.Node) -> Format | None:
        """Return the integer operator of `node`, or None for a float node.

        A node of a standard operator is an integer node if its first input is an integer tensor
        that was converted, or a constant table of integers. ModelError for an unknown operator of a
        quantized domain.
        """
        op_format = require_integer_op(node)
        if is_quantized_domain(node):
            return op_format
        if op_format is None or op_format.domain or not node.inputs or node.inputs[0] is None:
            return None
        source = node.inputs[0]
        if source in self.held or (ir.const_value(source) is not None and _has_integer_table(node)):
            return op_format
        return None

    def _convert_node(self, op_format: Format, node: ir.Node) -> None:
        """Insert the float form of the integer node `node` before it, and record its outputs.

        The node itself stays, to be removed later. `write_node` decides the form. ModelError for
        invalid attributes, and for a graph input that is fed in integers.
        """
        attrs = read_attributes(op_format, node)
        declared_qparams = op_format.input_qparams(attrs)
        for index in op_format.kernel_inputs(node):
            self._check_input(node.inputs[index], declared_qparams.get(index))
        inputs = [None if value is None else self.held.get(value) for value in node.inputs]
        info = KernelInfo(
            node,
            attrs,
            _get_constants(node),
            self.side.arithmetic(op_format, node),
            [self._shape(value) for value in node.inputs],
            input_dtypes=[self._get_element_type(value) for value in node.inputs],
        )
        writer = FloatNodeBuilder(
            self.model,
            info,
            [None if form is None else form.real for form in inputs],
            [
                declared_qparams.get(index) if form is None else form.q
                for index, form in enumerate(inputs)
            ],
            self.reserved_names,
            self.unsigned,
        )
        output_qparams = op_format.all_output_qparams(
            info, [None if form is None else form.q for form in inputs]
        )
        bits = op_format.bits(attrs)
        if not bits:
            bits = inputs[0].q.bits if inputs and inputs[0] is not None else 8
        outputs = self.write_node(op_format, writer, output_qparams, bits)
        self.opset = max(self.opset, writer.opset)
        self._bind_outputs(op_format, writer, outputs, output_qparams, bits)
        self.new_nodes.update(writer.nodes)
        self.scales_by_y_scale.update(writer.scales_by_y_scale)
        self.model.graph.insert_before(node, writer.nodes)

    def _bind_outputs(
        self,
        op_format: Format,
        writer: FloatNodeBuilder,
        outputs: Sequence[ir.Value],
        output_qparams: Sequence[Affine | None],
        bits: int,
    ) -> None:
        """Quantize the new outputs of a node, or rename float ones; adds nodes to `writer`.

        Outputs that nothing reads are left out.

        Parameters
        ----------
        op_format
            Format of the integer node.
        writer
            Builder with the new nodes so far.
        outputs
            New float outputs, or integer ones in `integer_values`.
        output_qparams
            Quantization parameters of the outputs; None for a float output.
        bits
            Width of the integers, except for int32 outputs after the first.
        """
        new_values = set(itertools.chain.from_iterable(node.outputs for node in writer.nodes))
        for index, (old, new) in enumerate(zip(writer.node.outputs, outputs, strict=False)):
            if not old.name or not (old.uses() or old.is_graph_output()):
                continue
            is_new, qparams = new in new_values, output_qparams[index]
            if qparams is None:
                writer.nodes += self._bind_real_output(op_format, old, new, is_new)
                continue
            if index == 0 or qparams.bits < 32:  # the cell of an LSTM has 32 bits
                qparams = qparams.changed(bits=bits)
            self.formats[str(old.name)] = op_format
            writer.nodes += self._append_quantize(writer, old, new, is_new, qparams)

    def write_node(
        self, op_format: Format, writer: FloatNodeBuilder, out: Sequence[Affine | None], bits: int
    ) -> list[ir.Value]:
        """Append the nodes of an integer operator to `writer`; return its outputs.

        By default these are the float operators of its format; subclasses may override this.

        Parameters
        ----------
        op_format
            Format of the operator.
        writer
            Builder that collects the new nodes.
        out
            Quantization parameters of the outputs; None for a float output.
        bits
            Width of the output integers.

        Returns
        -------
        list of ir.Value
            Float values of the outputs, or integer ones, which are added to `integer_values`.
        """
        return op_format.build_float_nodes(writer)

    def _check_input(self, value: ir.Value | None, qparams: Affine | None) -> None:
        """Raise ModelError if `value` is a graph input that is fed in integers.

        That is one for which its consumer declares `qparams` (None: it declares none) and that no
        Quant converts.
        """
        if value is None or value in self.held or not value.is_graph_input() or qparams is None:
            return
        raise ModelError(
            f"input '{value.name}' is fed in integers at scale {qparams.scale:g}, but "
            "QuantizeLinear requires float inputs; add a Quant to the graph"
        )

    def _shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """Return the shape of `value`, inferred if not stored, with 1 for unknown dimensions.

        () for an absent tensor or an unknown shape.
        """
        if value is None:
            return ()
        shape = ir.get_shape(value)
        shape = self.inferred_shapes.get(value) if shape is None else shape
        return tuple(1 if size is None else size for size in shape or ())

    def _get_element_type(self, value: ir.Value | None) -> np.dtype | None:
        """Return the element type that `value` has in a run; None if it is absent or unknown.

        It follows from the node that computes it. The type that the file declares is used for graph
        inputs and float tensors only.
        """
        if value is None:
            return None
        if value in self.held:
            return np.dtype(integer_storage_type(self.held[value].q.bits).numpy())
        array = ir.find_constant(value)
        if array is not None:
            return array.dtype
        return None if value.dtype is None else np.dtype(value.dtype.numpy())

    def _bind_real_output(
        self, op_format: Format, old: ir.Value, new: ir.Value, is_new: bool
    ) -> list[ir.Node]:
        """Replace the float tensor `old` by `new`, under its name; return the additional nodes.

        `is_new` is whether a new node produces `new`. If not, an Identity (the returned node)
        stands between them, unless `old` is the output of a Dequant and `new` can be renamed.
        """
        added = []
        is_internal = not (new.is_graph_input() or new.is_graph_output() or new.is_initializer())
        can_rename = op_format is DEQUANT and is_internal and new not in self.renamed_values
        if not is_new and not can_rename:
            added.append(ir.make_node("Identity", [new], output="", name=f"{old.name}_Identity"))
            new = added[0].outputs[0]
        new.name, new.shape, new.type = old.name, old.shape, ir.TensorType(ir.DataType.FLOAT)
        self.renamed_values.add(new)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        return added

    def _append_quantize(
        self, writer: FloatNodeBuilder, old: ir.Value, new: ir.Value, is_new: bool, qparams: Affine
    ) -> list[ir.Node]:
        """Return nodes that quantize and dequantize `new`, the float form of the tensor `old`.

        A Clip comes first if the type is wider than the integers. `is_new` is whether a new node
        produces `new`. More than 16 bits stay float with a note (and no nodes); ModelError if that
        is a graph output.
        """
        name, bits = str(old.name), qparams.bits
        integer_name = name if old.is_graph_output() else self._name(f"{name}_quantized")
        if new in self.integer_values:
            new.name = integer_name
            return self._append_dequantize(writer, old, new, qparams)
        if is_new:
            new.shape, new.type = old.shape, ir.TensorType(ir.DataType.FLOAT)
            new.name = f"{name}_real" if old.is_graph_output() else name
        if bits > 16:
            if old.is_graph_output():
                raise ModelError(
                    f"output '{name}' has integers of {bits} bits, but QuantizeLinear writes at "
                    f"most 16; quantize with --override '{name}=out_bits:float'"
                )
            self.notes.append(
                f"'{name}' has {bits} bits and stays float: QuantizeLinear writes at most 16 bits"
            )
            self.held[old] = _HeldTensor(new, qparams)
            return []
        dtype, added = integer_storage_type(bits), []
        if dtype.bitwidth != bits:
            bounds = [
                writer.add_constant(np.float32(bound), suffix)
                for bound, suffix in zip(qparams.ends, ("least", "most"), strict=True)
            ]
            added.append(
                ir.make_node(
                    "Clip",
                    [new, *bounds],
                    output=self._name(f"{name}_cut"),
                    origin=writer.node,
                    suffix="cut",
                )
            )
            new = added[-1].outputs[0]
        parameters = self._make_parameters(writer, name, qparams)
        quantize = ir.make_node(
            "QuantizeLinear",
            [new, *parameters],
            output=integer_name,
            name=f"{name}_QuantizeLinear",
        )
        dequantize = self._append_dequantize(writer, old, quantize.outputs[0], qparams, parameters)
        return [*added, quantize, *dequantize]

    def _make_parameters(
        self, writer: FloatNodeBuilder, name: str, qparams: Affine
    ) -> list[ir.Value]:
        """Return [y_scale, zero point] as initializers for the QDQ nodes of tensor `name`.

        The zero point is left out for 32 bits.
        """
        dtype, y_scale = integer_storage_type(qparams.bits), writer.add_y_scale(name, qparams.scale)
        return [y_scale, *writer.zero_point_inputs(dtype, zero_point=qparams.zero_point)]

    def _append_dequantize(
        self,
        writer: FloatNodeBuilder,
        old: ir.Value,
        integers: ir.Value,
        qparams: Affine,
        parameters: Sequence[ir.Value] = (),
    ) -> list[ir.Node]:
        """Return [a new DequantizeLinear] of `integers`, which stand for the integer tensor `old`.

        `parameters` are y_scale and zero point if they exist already. Records the tensor; if `old`
        is a graph output, `integers` takes its place.
        """
        name = str(old.name)
        parameters = parameters or self._make_parameters(writer, name, qparams)
        self.opset = max(self.opset, writer.opset)
        integers.shape, integers.type = old.shape, ir.TensorType(integer_storage_type(qparams.bits))
        node = ir.make_node(
            "DequantizeLinear",
            [integers, *parameters],
            output=self._name(f"{name}_dequantized"),
            name=f"{name}_DequantizeLinear",
        )
        node.outputs[0].shape, node.outputs[0].type = old.shape, ir.TensorType(ir.DataType.FLOAT)
        self.held[old] = _HeldTensor(node.outputs[0], qparams, integers)
        self.quantized_names[name] = str(integers.name)
        if old.is_graph_output():
            outputs = self.model.graph.outputs
            outputs[list(outputs).index(old)] = integers
        return [node]

    def _name(self, base: str) -> str:
        """Reserve and return a tensor name: `base`, or `base` with a number if it is in use."""
        return ir.reserve_name(base, self.reserved_names)


def _get_constants(node: ir.Node) -> dict[int, np.ndarray]:
    """Return input index -> array, for each constant input of `node`."""
    constants = {}
    for index, value in enumerate(node.inputs):
        array = ir.find_constant(value)
        if array is not None:
            constants[index] = array
    return constants


def _is_recoverable_scale(model: ir.Model, name: str, scale: float | Sequence[float]) -> bool:
    """Whether `scale` is exactly 1 / y_scale in float32, for the y_scale initializer `name`.

    True if there is no such initializer; False for scales per group (more than one axis).
    """
    array = ir.const_value(model.graph.initializers.get(name))
    if array is None:
        return True
    if array.ndim > 1:  # groups: `scale` is that of their products
        return False
    return np.array_equal(scale_from_step(array), np.asarray(scale, np.float32))


def _has_integer_table(node: ir.Node) -> bool:
    """Whether `node` has `scale_o` and selects from a constant of signed integers.

    Integers of 64 bits are indices or shapes, and do not count.
    """
    array = ir.const_value(node.inputs[0])
    return (
        array is not None
        and array.dtype.kind == "i"
        and array.dtype.itemsize < 8
        and ir.get_attr(node, "scale_o") is not None
    )
