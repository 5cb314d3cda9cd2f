"""An integer graph written in standard ONNX.

QuantizeLinear and DequantizeLinear around operators on real numbers.
Every integer tensor becomes ``T -> QuantizeLinear -> T_quantized -> DequantizeLinear``, the
operator between as its format means it. Weights stand in integers behind a DequantizeLinear, biases
in int32 at the product of both scales.

    y_scale = float32(1 / scale)        the tensor's zero point, int8; int4 and int16 where it has
    such integers

The opset is 13, 17 with layer normalisation, 21 with integers of 4 or 16 bits, or that of the
graph's float nodes where it is higher. `SCALES_KEY` in the metadata has the scales that cannot be
read back from y_scale to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import ModelError
from ..formats import (
    DEQUANT,
    Format,
    KernelInfo,
    is_quantized_domain,
    read_attributes,
    require_integer_op,
)
from ..formats.float_model import MIN_OPSET, FloatNodeBuilder, integer_storage_type
from ..graph import ir
from ..plan import Affine
from ..plan.synthetic_calibration import CALIBRATION_KEY as CALIBRATION
from ..run.integer.dialects import ArithmeticSide
from ..run.integer.runner import detect_target
from ..run.integer.sizes import infer_shapes
from .opset import upgrade_nodes

__all__ = ["PLATFORM_KEY", "QdqGraph", "QdqWriter", "SCALES_KEY", "scale_from_step", "write_qdq"]

#: Metadata: {initializer with y_scale: the scale in counts per unit, or a list; of groups the products' scales}.
SCALES_KEY = "lingeronnx.scales"

#: Metadata: the platform that the integers were made for.
PLATFORM_KEY = "lingeronnx.platform"

_IR_VERSIONS = {13: 7, 17: 8, 21: 10}


def scale_from_step(step: np.ndarray) -> np.ndarray:
    """Return the scale, counts per unit in float32, that a y_scale says."""
    with np.errstate(all="ignore"):  # a step that is no positive number is refused where it is read
        return np.asarray(1.0 / np.asarray(step, np.float64), np.float32)


@dataclass(frozen=True)
class QdqGraph:
    """A graph of QuantizeLinear and DequantizeLinear.

    quantized_names : {integer tensor of the old graph: the tensor that holds it here}.
    formats : {integer tensor: what computes it}. notes : what is held otherwise.
    """

    graph: ir.Model
    quantized_names: dict[str, str]
    formats: dict[str, Format]
    notes: tuple[str, ...]


def write_qdq(model: ir.Model) -> QdqGraph:
    """Return the integer graph `model`, which is left as it is, in standard ONNX.

    Raises ModelError where an operator has no counterpart.
    """
    return QdqWriter(ir.clone(model)).run()


@dataclass
class _HeldTensor:
    """An integer tensor: its real value here, how it is held, and its integers where they are a tensor here."""

    real: ir.Value
    q: Affine
    integers: ir.Value | None = None


@dataclass
class QdqWriter:
    """Writes one graph; `write_node` is what a subclass may do otherwise.

    integer_values : integer tensors that `write_node` gave in place of real ones.
    """

    model: ir.Model
    quantized_names: dict[str, str] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.side = ArithmeticSide.resolve(self.model, detect_target(self.model), None)
        self.sizes: dict[ir.Value, tuple[int | None, ...]] = {}
        for value in ir.iter_values(self.model):
            shape = ir.get_shape(value)
            if shape is None:
                self.sizes = infer_shapes(self.model)
                break
        if any(f.domain == ir.FUNCTION_DOMAIN for f in self.model.functions.values()):
            ir.inline_functions(self.model)
        self.held: dict[ir.Value, _HeldTensor] = {}
        self.integer_values: set[ir.Value] = set()
        self.unsigned = False
        self.taken = ir.get_tensor_names(self.model)
        self.named: set[ir.Value] = set()
        self.new_nodes: set[ir.Node] = set()
        self.opset = max(MIN_OPSET, ir.get_opset(self.model))
        self.steps: dict[str, float | Sequence[float]] = {}

    def run(self) -> QdqGraph:
        """Replace every integer node, then give the file its opset and metadata."""
        model, before = self.model, ir.get_opset(self.model)
        old = []
        for node in list(model.graph):
            form = self._integer_format(node)
            if form is not None:
                self._convert_node(form, node)
                old.append(node)
        self._check_readers(old)
        for node in reversed(old):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            model.graph.remove(node, safe=True)
        model.graph.sort()
        ir.remove_unused(model)
        upgrade_nodes(model, before, self.opset, self.new_nodes)
        opsets = {"": self.opset}
        ir.import_opsets(opsets, model.graph, model)
        model.graph.opset_imports.clear()
        model.graph.opset_imports.update(opsets)
        model.ir_version = max(v for opset, v in _IR_VERSIONS.items() if opset <= self.opset)
        kept = (PLATFORM_KEY, CALIBRATION)
        for key in [
            key for key in model.metadata_props if key.startswith("lingeronnx.") and key not in kept
        ]:
            del model.metadata_props[key]
        if exact := {
            name: scale
            for name, scale in self.steps.items()
            if not _is_recoverable_scale(model, name, scale)
        }:
            model.metadata_props[SCALES_KEY] = json.dumps(exact)
        ir.assign_node_names(model)
        return QdqGraph(model, self.quantized_names, self.formats, tuple(self.notes))

    @staticmethod
    def _check_readers(replaced: Sequence[ir.Node]) -> None:
        """Raise ModelError where a node that stays reads the integers of one that goes."""
        gone = set(replaced)
        for node in replaced:
            for value in node.outputs:
                reader = next((use.node for use in value.uses() if use.node not in gone), None)
                if reader is not None:
                    raise ModelError(
                        f"{reader.op_type} {reader.name}: it reads the integers '{value.name}', "
                        "and is no integer "
                        "operator; put a Dequant before it"
                    )

    def _integer_format(self, node: ir.Node) -> Format | None:
        form = require_integer_op(node)
        if is_quantized_domain(node):
            return form
        if form is None or form.domain or not node.inputs or node.inputs[0] is None:
            return None
        return (
            form
            if self._is_held(node.inputs[0])
            or (ir.const_value(node.inputs[0]) is not None and _is_quantized_table(node))
            else None
        )

    def _is_held(self, value: ir.Value) -> bool:
        return value in self.held

    def _convert_node(self, op_format: Format, node: ir.Node) -> None:
        attrs = read_attributes(op_format, node)
        consts = {
            i: a
            for i, value in enumerate(node.inputs)
            if (a := ir.find_constant(value)) is not None
        }
        told = op_format.input_qparams(attrs)
        for index in op_format.kernel_inputs(node):
            self._check_input(node.inputs[index], told.get(index))
        inputs = [None if value is None else self.held.get(value) for value in node.inputs]
        read = [
            told.get(i) if standard is None else standard.q for i, standard in enumerate(inputs)
        ]
        bound = KernelInfo(
            node,
            attrs,
            consts,
            self.side.arithmetic(op_format, node),
            [self._shape(value) for value in node.inputs],
            input_dtypes=[
                None if v is None or v.dtype is None else np.dtype(v.dtype.numpy())
                for v in node.inputs
            ],
        )
        real = FloatNodeBuilder(
            self.model,
            bound,
            [None if f is None else f.real for f in inputs],
            read,
            self.taken,
            self.unsigned,
        )
        out = op_format.all_output_qparams(bound, [None if f is None else f.q for f in inputs])
        widths = op_format.bits(attrs) or (
            inputs[0].q.bits if inputs and inputs[0] is not None else 8
        )
        standard = self.write_node(op_format, real, out, widths)
        self.opset = max(self.opset, real.opset)
        fresh = {value for new_node in real.nodes for value in new_node.outputs}
        for index, (old, new) in enumerate(zip(node.outputs, standard, strict=False)):
            if not old.name or not (old.uses() or old.is_graph_output()):
                continue
            bits = 32 if index and old.dtype == ir.DataType.INT32 else widths
            q = out[index]
            if q is None:
                real.nodes += self._bind_real_output(op_format, old, new, new in fresh)
            else:
                self.formats[str(old.name)] = op_format
                real.nodes += self._append_quantize(
                    real, old, new, new in fresh, q.changed(bits=bits)
                )
        self.new_nodes.update(real.nodes)
        self.steps.update(real.scales_by_y_scale)
        self.model.graph.insert_before(node, real.nodes)

    def write_node(
        self, op_format: Format, writer: FloatNodeBuilder, out: Sequence[Affine | None], bits: int
    ) -> list[ir.Value]:
        """Return the real values of a node's outputs, or integers that are `integer_values`.

        Out, bits : how these are held.
        """
        return op_format.build_float_nodes(writer)

    def _check_input(self, value: ir.Value | None, qparams: Affine | None) -> None:
        """Give a graph input that is fed in integers its real value."""
        if value is None or value in self.held or not value.is_graph_input() or qparams is None:
            return
        raise ModelError(
            f"input '{value.name}' is fed in integers at scale {qparams.scale:g}; QuantizeLinear "
            "starts from real "
            "numbers: "
            "give the graph a Quant"
        )

    def _shape(self, value: ir.Value | None) -> tuple[int, ...]:
        if value is None:
            return ()
        shape = ir.get_shape(value)
        shape = self.sizes.get(value) if shape is None else shape
        return tuple(1 if d is None else d for d in shape or ())

    def _bind_real_output(
        self, op_format: Format, old: ir.Value, new: ir.Value, fresh: bool
    ) -> list[ir.Node]:
        """Let `new` stand for the real tensor `old`, under its name.

        Return the nodes that this takes.
        """
        more = []
        free = not (new.is_graph_input() or new.is_graph_output() or new.is_initializer())
        if not fresh and not (op_format is DEQUANT and free and new not in self.named):
            more.append(ir.make_node("Identity", [new], output="", name=f"{old.name}_Identity"))
            new = more[0].outputs[0]
        new.name, new.shape, new.type = old.name, old.shape, ir.TensorType(ir.DataType.FLOAT)
        self.named.add(new)
        ir.replace_all_uses(old, new)
        return more

    def _append_quantize(
        self, writer: FloatNodeBuilder, old: ir.Value, new: ir.Value, fresh: bool, qparams: Affine
    ) -> list[ir.Node]:
        """Quantize `new`, which stands for the integer tensor `old`, as `qparams`.

        Return the nodes that this takes.
        """
        name, bits = str(old.name), qparams.bits
        integer_name = name if old.is_graph_output() else self._name(f"{name}_quantized")
        if new in self.integer_values:
            new.name = integer_name
            return self._append_dequantize(writer, old, new, qparams)
        if fresh:
            new.shape, new.type = old.shape, ir.TensorType(ir.DataType.FLOAT)
            new.name = f"{name}_real" if old.is_graph_output() else name
        if bits > 16:
            if old.is_graph_output():
                raise ModelError(
                    f"output '{name}' is in integers of {bits} bits, which QuantizeLinear cannot "
                    "write; "
                    f"quantize with --override '{name}=out_bits:float'"
                )
            self.notes.append(
                f"'{name}' has {bits} bits: it stays real, QuantizeLinear writes 16 at most"
            )
            self.held[old] = _HeldTensor(new, qparams)
            return []
        kind, added = integer_storage_type(bits), []
        if kind.bitwidth != bits:
            ends = [
                writer.add_constant(np.float32(end), what)
                for end, what in zip(qparams.ends, ("least", "most"), strict=True)
            ]
            added.append(
                ir.make_node(
                    "Clip",
                    [new, *ends],
                    output=self._name(f"{name}_cut"),
                    origin=writer.node,
                    suffix="cut",
                )
            )
            new = added[-1].outputs[0]
        inputs = [
            new,
            writer.step(name, qparams.scale),
            *writer.zero_point_inputs(kind, zero_point=qparams.zero_point),
        ]
        added.append(
            ir.make_node(
                "QuantizeLinear", inputs, output=integer_name, name=f"{name}_QuantizeLinear"
            )
        )
        return added + self._append_dequantize(
            writer, old, added[-1].outputs[0], qparams, inputs[1:]
        )

    def _append_dequantize(
        self,
        writer: FloatNodeBuilder,
        old: ir.Value,
        integers: ir.Value,
        qparams: Affine,
        parameters: Sequence[ir.Value] = (),
    ) -> list[ir.Node]:
        """Let `integers` stand for the tensor `old`; return the node of their real value.

        parameters : y_scale and zero point, where there are some already.
        """
        name, kind = str(old.name), integer_storage_type(qparams.bits)
        parameters = parameters or [
            writer.step(name, qparams.scale),
            *writer.zero_point_inputs(kind, zero_point=qparams.zero_point),
        ]
        self.opset = max(self.opset, writer.opset)
        integers.shape, integers.type = old.shape, ir.TensorType(kind)
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
        return ir.reserve_name(base, self.taken)


def _is_recoverable_scale(model: ir.Model, name: str, scale: float | Sequence[float]) -> bool:
    """Whether the y_scale in initializer `name` gives back `scale`.

    One that is not used needs not.
    """
    array = ir.const_value(model.graph.initializers.get(name))
    if array is not None and array.ndim > 1:  # of groups: told is the scale of their products
        return False
    return array is None or np.array_equal(scale_from_step(array), np.asarray(scale, np.float32))


def _is_quantized_table(node: ir.Node) -> bool:
    """Whether `node` chooses from integers that it holds itself."""
    array = ir.const_value(node.inputs[0])
    return (
        array is not None
        and array.dtype.kind == "i"
        and array.dtype.itemsize < 8
        and ir.get_attr(node, "scale_o") is not None
    )
