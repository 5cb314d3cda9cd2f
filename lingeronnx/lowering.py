"""The integer graph while it is built.

What operators ask for, and the nodes, borders and constants they emit.
Float tensors keep their names; where a tensor exists in integers and in float, the integer one is
called `name_q` (`name_q16` for another width), with a number where that is taken. Quant, Dequant
and Requant stand only at borders, one per tensor. Stands below the operators: it is handed the rule
by which each node is lowered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .errors import InternalError, ModelError
from .formats import DEQUANT, QUANT, REQUANT, Format
from .graph import ir
from .graph.batch_axes import BATCH_AXES_KEY
from .plan import (
    Affine,
    ArrayTransform,
    ConstantSource,
    Plan,
    identity_transform,
    make_bias_qparams,
)
from .plan.synthetic_calibration import CALIBRATION_KEY as CALIBRATION
from .plan.synthetic_calibration import SYNTHETIC_VALUE
from .targets import Target

__all__ = ["LoweringContext", "LoweringResult", "SupportsLowering", "integer_storage_type"]

#: The opset and IR versions of the vendor's graphs: Squeeze carries its axes as an attribute.

_TYPES = {8: ir.DataType.INT8, 16: ir.DataType.INT16, 32: ir.DataType.INT32}


def integer_storage_type(bits: int) -> ir.DataType:
    """Return the storage type of signed `bits`."""
    return _TYPES[next(width for width in sorted(_TYPES) if bits <= width)]


@dataclass(frozen=True)
class LoweringResult:
    """An integer graph, and what became of the float one.

    floats : integer tensor -> the float tensor it holds, where the two have different names.
    layer_outputs : tensor -> the first output of the float node that it was made for.
    constant_sources : the integer initializers that hold a float one.
    integer_ops : float node -> the integer operators that stand for it, in their order.
    """

    graph: ir.Model
    floats: Mapping[str, str]
    layer_outputs: Mapping[str, str]
    constant_sources: Mapping[str, ConstantSource]
    integer_ops: Mapping[str, Sequence[Format]]


class SupportsLowering(Protocol):
    """What is asked of the rule by which a float node is lowered.

    allows_wide_output : whether its output may leave the integers in float.
    """

    allows_wide_output: bool

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer form of the float `node` through `context`."""

    def quantized_outputs(self, node: ir.Node) -> Sequence[int]:
        """Return which outputs of the float `node` are integers."""


class LoweringContext:
    """The integer graph while it is built; rules' `lower` emit their nodes through it.

    lowering_rules : the one for each float node, by the node's name; nodes without one stay.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        target: Target,
        lowering_rules: Mapping[str, SupportsLowering],
    ) -> None:
        self.model, self.plan, self.target = model, plan, target
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        #: By the name that was asked for: where that was taken, the constant has another.
        self._constants_by_base_name: dict[str, list[ir.Value]] = {}
        #: The integer initializers that hold a float one, by name.
        self._sources: dict[str, ConstantSource] = {}
        self._float_names: dict[str, str] = {}
        self._layers: dict[str, str] = {}
        self._forms: dict[str, list[Format]] = {}
        #: What was made on the way to a node's output, by that output's name and by what it is.
        self._intermediates: dict[tuple[str, str], ir.Value] = {}
        self._used_tensor_names = ir.get_tensor_names(model)
        self._used_node_names = {str(node.name) for node in model.graph}
        self._floats: dict[str, ir.Value] = {}
        self._integers: dict[tuple[str, Affine], ir.Value] = {}
        self._has_float_nodes = False
        lowered = {
            id(node): lowering_rules[str(node.name)]
            for node in model.graph
            if str(node.name) in lowering_rules
        }
        self._rules_by_node_id = lowered
        self._dequantized_tensors = {
            str(v.name)
            for node in model.graph
            for v in node.outputs
            if v.name
            and id(node) in lowered
            and (v.is_graph_output() or any(id(use.node) not in lowered for use in v.uses()))
        }

    # ---- what operators ask --------------------------------------------------------------------------------------

    def input_qparams(self, node: ir.Node, index: int) -> Affine:
        """Return how `node` reads input `index`."""
        return self._qparams(ir.input_name(node, index))

    def output_qparams(self, node: ir.Node) -> Affine:
        """Return how `node`'s output is held."""
        return self._qparams(ir.output_name(node))

    def _qparams(self, name: str) -> Affine:
        if name not in self.plan.tensors:
            raise ModelError(
                f"the plan has no scale for tensor '{name}'; was it made for another model or skip "
                "list?"
            )
        return self.plan.tensors[name]

    def get_integer_input(self, node: ir.Node, index: int) -> ir.Value:
        """Return input `index` of `node` in integers, inserting Quant or Requant where it is needed."""
        return self.get_requantized_input(node, index, self.input_qparams(node, index))

    def get_requantized_input(self, node: ir.Node, index: int, wanted: Affine) -> ir.Value:
        """Return input `index` of `node` held as `wanted`, however the plan has it read."""
        name = ir.input_name(node, index)
        own = self._qparams(name)
        value = self._integers.get((name, own)) or self._quantize(name, own)
        if wanted != own:
            value = self._integers.get((name, wanted)) or self._requantize(name, value, own, wanted)
        return value

    def get_input_at_qparams(self, node: ir.Node, index: int, q: Affine) -> ir.Value:
        """Return input `index` of `node` held as `q`, which the operator fixes and the plan does not speak of."""
        name = ir.input_name(node, index)
        return self._integers.get((name, q)) or self._quantize(name, q)

    def has_float_output(self, node: ir.Node) -> bool:
        """Whether `node` gives float values.

        The plan has no scale for its output, and nothing in integers reads it.
        """
        readers = [use.node for use in node.outputs[0].uses()]
        inside = any(id(reader) in self._rules_by_node_id for reader in readers)
        return (
            self._rules_by_node_id[id(node)].allows_wide_output
            and ir.output_name(node) not in self.plan.tensors
            and not inside
        )

    def real(self, node: ir.Node, index: int) -> ir.Value:
        """Return input `index` of `node` as it is, such as an index."""
        return self._floats[ir.input_name(node, index)]

    def inputs(self, node: ir.Node) -> list[ir.Value]:
        """Return all inputs of `node` in integers."""
        return [self.get_integer_input(node, index) for index in range(len(node.inputs))]

    def weight(
        self, node: ir.Node, index: int, view: ArrayTransform = identity_transform
    ) -> ir.Value:
        """Return constant input `index`, rearranged by `view`, quantized at the plan's scale."""
        return self.add_quantized_constant(node, index, self.input_qparams(node, index), view)

    def add_quantized_constant(
        self,
        node: ir.Node,
        index: int,
        q: Affine,
        view: ArrayTransform = identity_transform,
        name: str = "",
    ) -> ir.Value:
        """Return constant input `index`, rearranged by `view`, held as `q`, under `name` or its own."""
        source = ConstantSource(ir.input_name(node, index), view, q, q.dtype)
        return self._add_parameter(node, index, source, name)

    def bias(
        self,
        node: ir.Node,
        index: int,
        scale: npt.ArrayLike,
        view: ArrayTransform = identity_transform,
        name: str = "",
    ) -> list[ir.Value]:
        """Return the bias at `scale` in int32 (int64 with 16-bit operands) as a list of one.

        Empty without a bias.
        scale : one, or one for each element.
        """
        if len(node.inputs) <= index or ir.const_value(node.inputs[index]) is None:
            return []
        held = make_bias_qparams(scale, self.has_wide_operands(node))
        return [
            self._add_parameter(
                node,
                index,
                ConstantSource(ir.input_name(node, index), view, held, held.dtype),
                name,
            )
        ]

    def widen_to_int16(self, value: ir.Value) -> ir.Value:
        """Return the integer initializer `value` in int16."""
        held = ir.require_const_value(value)
        wide = self.array(f"{value.name}_wide", held.astype(np.int16))
        self._sources[str(wide.name)] = replace(
            self._sources[str(value.name)], dtype=np.dtype(np.int16)
        )
        return wide

    def _add_parameter(
        self, node: ir.Node, index: int, source: ConstantSource, name: str
    ) -> ir.Value:
        array = ir.require_const_value(node.inputs[index])
        value = self.array(name or source.name, source.quantize(array), keeps_name=not name)
        self._sources[str(value.name)] = source
        return value

    def has_wide_operands(self, node: ir.Node) -> bool:
        """Whether `node` multiplies 16-bit operands, so that its bias is int64."""
        return max(self.input_qparams(node, 0).bits, self.input_qparams(node, 1).bits) > 8

    def add_accumulator_constant(
        self, name: str, values: np.ndarray, scale: float, wide: bool = False
    ) -> ir.Value:
        """Return `values`, which no initializer holds as they are, at `scale` in int32, or int64 where `wide`."""
        return self.array(name, make_bias_qparams(scale, wide).integers(values))

    def array(self, name: str, array: np.ndarray, keeps_name: bool = False) -> ir.Value:
        """Return an initializer called `name`, or `name` with a number when that holds something else.

        keeps_name : it is what became of the float model's initializer `name`; other names give way
        to the float model's.
        """
        alike = self._constants_by_base_name.setdefault(name, [])
        for value in alike:
            known = ir.const_value(value)
            if known is not None and known.dtype == array.dtype and np.array_equal(known, array):
                return value
        name = name if keeps_name and name not in self._initializers else self._reserve_name(name)
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self._initializers[name] = value
        alike.append(value)
        return value

    def _reserve_name(self, name: str) -> str:
        """Return `name`, or `name` with a number where a tensor of either graph has it.

        It is taken from now on.
        """
        found = ir.unique_name(name, self._used_tensor_names)
        self._used_tensor_names.add(found)
        return found

    def emit(
        self,
        form: Format,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        domain: str | None = None,
        extra_outputs: Sequence[tuple[str, Sequence[int | None], int]] = (),
    ) -> None:
        """Append the integer node for the float `node`.

        Its name, its output, the row's attributes added.
        The output is float where it `has_float_output`. domain : where it is not the format's.
        extra_outputs : further outputs that nobody reads but the format has: (what, shape, bits).
        """
        self._forms.setdefault(str(node.name), []).append(form)
        name = ir.output_name(node)
        if self.has_float_output(node):
            self._layers[name] = name
            like, title = node.outputs[0], str(node.name)
            self._floats[name] = self._append(
                form, inputs, attrs, title, name, like=like, q=None, domain=domain
            )
            return
        q = self.output_qparams(node)
        integer_name = (
            self._make_integer_name(name, q) if name in self._dequantized_tensors else name
        )
        like, title = node.outputs[0], str(node.name)
        value = self._append(
            form, inputs, attrs, title, integer_name, like=like, q=q, domain=domain
        )
        self._integers[name, q] = value
        self._layers[integer_name] = name
        self._add_extra_outputs(name, extra_outputs)

    def emit_intermediate(
        self,
        form: Format,
        node: ir.Node,
        suffix: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        shape: Sequence[int | None],
        q: Affine,
        extra_outputs: Sequence[tuple[str, Sequence[int | None], int]] = (),
    ) -> ir.Value:
        """Append a node on the way to the float `node`'s output.

        Return its output, `<node's output>_<what>`.
        """
        self._forms.setdefault(str(node.name), []).append(form)
        like = ir.Value(shape=ir.Shape(["N" if d is None else d for d in shape]))
        name = ir.output_name(node)
        own, title = (
            self._reserve_name(f"{name}_{suffix}"),
            ir.unique_name(f"{node.name}_{suffix}", self._used_node_names),
        )
        value = self._append(form, inputs, attrs, title, own, like, q)
        self._intermediates[name, suffix] = value
        self._layers[own] = name
        self._add_extra_outputs(name, extra_outputs)
        return value

    def emit_float_output(self, node: ir.Node, index: int, what: str, scale: float) -> None:
        """Make output `index` of the float `node` from the output `what` of the integer nodes made for it."""
        source = self._intermediates[ir.output_name(node), what]
        value = node.outputs[index]
        name = str(value.name)
        self._floats[name] = self._append_conversion(
            DEQUANT, name, source, DEQUANT.scales(Affine(scale)), name, value
        )

    def bind_extra_output(self, node: ir.Node, index: int, what: str) -> None:
        """Make the output `what` of the integer nodes output `index` of the float `node`, held as the plan says."""
        name = str(node.outputs[index].name)
        q = self._qparams(name)
        value = self._intermediates[ir.output_name(node), what]
        value.name = self._make_integer_name(name, q) if name in self._dequantized_tensors else name
        self._integers[name, q] = value

    def _add_extra_outputs(
        self, name: str, also: Sequence[tuple[str, Sequence[int | None], int]]
    ) -> None:
        """Give the last node further outputs `<name>_<what>`."""
        self._nodes[-1].resize_outputs(1 + len(also))
        for extra, (what, shape, bits) in zip(self._nodes[-1].outputs[1:], also, strict=True):
            extra.name, extra.type = (
                self._reserve_name(f"{name}_{what}"),
                ir.TensorType(integer_storage_type(bits)),
            )
            self._intermediates[name, what] = extra
            extra.shape = self._make_shape(
                ir.Value(shape=ir.Shape(["N" if d is None else d for d in shape]))
            )

    # ---- borders -------------------------------------------------------------------------------------------------

    def _make_integer_name(self, name: str, q: Affine, what: str = "q") -> str:
        """Return a name for the float tensor `name` in integers, and note which tensor that is."""
        found = self._reserve_name(f"{name}_{what}" if q.bits == 8 else f"{name}_{what}{q.bits}")
        self._float_names[found] = name
        return found

    def _append_conversion(
        self,
        form: Format,
        name: str,
        source: ir.Value,
        attrs: Mapping[str, Any],
        output: str,
        like: ir.Value,
        q: Affine | None = None,
    ) -> ir.Value:
        """Append a Quant, Dequant or Requant of the float tensor `name`; return what it writes."""
        title = ir.unique_name(f"{form.name}_{name}", self._used_node_names)
        return self._append(form, [source], attrs, title, output, like, q)

    def _quantize(self, name: str, q: Affine) -> ir.Value:
        source = self._floats.get(name)
        if source is None:
            raise InternalError(f"tensor '{name}' is read in integers before it exists")
        output = self._make_integer_name(name, q)
        value = self._append_conversion(QUANT, name, source, QUANT.scales(q), output, source, q)
        self._integers[name, q] = value
        return value

    def _requantize(self, name: str, value: ir.Value, own: Affine, q: Affine) -> ir.Value:
        output = self._make_integer_name(name, q, "requant")
        result = self._append_conversion(
            REQUANT, name, value, REQUANT.scales(own, q), output, value, q
        )
        self._integers[name, q] = result
        return result

    def _get_or_dequantize(self, name: str) -> ir.Value:
        if name not in self._floats:
            q = self._qparams(name)
            source = self._integers[name, q]
            self._floats[name] = self._append_conversion(
                DEQUANT, name, source, DEQUANT.scales(q), name, source
            )
        return self._floats[name]

    def _append(
        self,
        form: Format,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        name: str,
        output: str,
        like: ir.Value,
        q: Affine | None,
        domain: str | None = None,
    ) -> ir.Value:
        extra: dict[str, Any] = {}
        domain = form.domain if domain is None else domain
        if unknown := attrs.keys() - form.allowed_attributes:
            raise InternalError(
                f"{form.name} {name} is written with attributes that it does not have: "
                f"{sorted(unknown)}"
            )
        if domain:
            extra = {
                **self.target.node_attributes.get("", {}),
                **self.target.node_attributes.get(form.name, {}),
            }
        node = ir.make_node(
            form.name,
            inputs,
            dict(sorted({**attrs, **extra}.items())),
            name=name,
            output=output,
            domain=domain,
        )
        self._used_node_names.add(name)
        value = node.outputs[0]
        value.type = ir.TensorType(ir.DataType.FLOAT if q is None else integer_storage_type(q.bits))
        value.shape = self._make_shape(like)
        self._nodes.append(node)
        return value

    def _make_shape(self, like: ir.Value) -> ir.Shape | None:
        if like.shape is None:
            return None
        dims = list(like.shape)
        if self.target.single_sample and dims and not isinstance(dims[0], int):
            dims[0] = 1
        return ir.Shape(dims)

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> LoweringResult:
        """Build and return the integer graph, with what became of the float one."""
        inputs = []
        for value in self.model.graph.inputs:
            copy = ir.Value(name=value.name, type=value.type, shape=self._make_shape(value))
            inputs.append(copy)
            self._floats[str(value.name)] = copy
        for node in self.model.graph:
            if id(node) in self._rules_by_node_id:
                op = self._rules_by_node_id[id(node)]
                op.lower(node, self)
                for index in op.quantized_outputs(node):
                    name = str(node.outputs[index].name)
                    if name in self._dequantized_tensors:
                        self._get_or_dequantize(name)
            else:
                self._copy_float_node(node)
        for value in self.model.graph.outputs:
            if str(value.name) not in self._floats:
                raise ModelError(
                    f"graph output '{value.name}' is a constant; take it out of the model's outputs"
                )
        outputs = [self._floats[str(value.name)] for value in self.model.graph.outputs]
        return LoweringResult(
            self._build_model(inputs, outputs),
            self._float_names,
            self._layers,
            self._sources,
            self._forms,
        )

    def _copy_float_node(self, node: ir.Node) -> None:
        """Take over a float node as it is."""
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is None:
                inputs.append(None)
            elif (array := ir.const_value(value)) is not None:
                inputs.append(self.array(str(value.name), array, keeps_name=True))
            else:
                inputs.append(self._floats[str(value.name)])
        results = [
            ir.Value(name=v.name, type=v.type, shape=self._make_shape(v)) for v in node.outputs
        ]
        self._has_float_nodes = True
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            dict(node.attributes),
            outputs=results,
            name=node.name,
        )
        self._nodes.append(copy)
        self._floats.update({str(v.name): v for v in results if v.name})

    def _build_model(self, inputs: list[ir.Value], outputs: list[ir.Value]) -> ir.Model:
        least = self.target.opset
        version = (
            max(least, self.model.opset_imports.get("", least)) if self._has_float_nodes else least
        )
        opsets = {"": version, "thinker": 1}
        functions = (
            list(self.model.functions.values())
            if any(n.domain == ir.FUNCTION_DOMAIN for n in self._nodes)
            else []
        )
        if functions:
            opsets[ir.FUNCTION_DOMAIN] = 1
        ir.import_opsets(opsets, self._nodes, self.model)
        used = {id(v) for node in self._nodes for v in node.inputs if v is not None}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            opset_imports=opsets,
            name=self.model.graph.name or "lingeronnx",
            initializers=[v for v in self._initializers.values() if id(v) in used],
        )
        props = {"lingeronnx.platform": self.target.name}
        if BATCH_AXES_KEY in self.model.metadata_props:
            props[BATCH_AXES_KEY] = self.model.metadata_props[BATCH_AXES_KEY]
        if self.plan.synthetic:
            props[CALIBRATION] = SYNTHETIC_VALUE
        if self.plan.transforms:
            props["lingeronnx.transforms"] = json.dumps(
                {name: list(t.factor) for name, t in sorted(self.plan.transforms.items())}
            )
        whole = ir.Model(
            graph,
            ir_version=8 if functions else self.target.ir_version,
            producer_name="lingeronnx",
            functions=functions,
            metadata_props=props,
        )
        read = used | {id(v) for v in outputs}
        if self._has_float_nodes and any(
            read.isdisjoint(map(id, node.outputs)) for node in self._nodes
        ):
            ir.remove_unused(whole)  # what computed a shape that an integer form no longer asks for
        return whole
