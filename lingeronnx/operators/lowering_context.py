"""Build the integer graph: nodes, conversions and constants that lowering rules emit.

Tensors keep the names of the float graph. If a tensor exists in float and in integers, the integer
one is called `name_q` (`name_q16` for 16 bits), with a number if that is in use. There is one
Quant, Dequant or Requant per tensor and conversion. The lowering rules are passed in by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..common.errors import InternalError, ModelError
from ..ir import ir
from ..ir.batch_axes import BATCH_AXES_KEY
from ..ir.folded_factors import FOLDED_FACTORS_KEY
from ..ir.plan import (
    Affine,
    ArrayTransform,
    ConstantSource,
    Plan,
    identity_transform,
    make_bias_qparams,
)
from ..ir.plan.synthetic_calibration import CALIBRATION_KEY as CALIBRATION
from ..ir.plan.synthetic_calibration import SYNTHETIC_VALUE
from ..targets import Target
from .float_model import integer_storage_type
from .integer_ops import DEQUANT, QUANT, REQUANT, Format

__all__ = ["LoweringContext", "LoweringResult", "SupportsLowering"]


class LoweringResult(NamedTuple):
    """An integer graph and its relation to the float graph.

    Attributes
    ----------
    graph
        The integer graph.
    floats
        Integer tensor -> float tensor that it represents, if the names differ.
    layer_outputs
        Tensor -> first output of the float node that it was emitted for.
    constant_sources
        Integer initializer -> the float initializer that it was quantized from.
    integer_ops
        Float node -> integer operators that replace it, in order.
    """

    graph: ir.Model
    floats: Mapping[str, str]
    layer_outputs: Mapping[str, str]
    constant_sources: Mapping[str, ConstantSource]
    integer_ops: Mapping[str, Sequence[Format]]


class SupportsLowering(Protocol):
    """Interface of a lowering rule.

    `allows_wide_output`: whether the output may be float if it has no integer consumers.
    """

    allows_wide_output: bool

    def lower(self, node: ir.Node, context: LoweringContext) -> None:
        """Emit the integer operators that replace the float `node` to `context`."""

    def quantized_outputs(self, node: ir.Node) -> Sequence[int]:
        """Return the indices of the outputs of `node` that are written as integers."""


class LoweringContext:
    """The integer graph under construction, to which lowering rules emit nodes.

    Parameters
    ----------
    model
        Normalized float graph.
    plan
        Quantization parameters of all tensors.
    target
        Target of the integer graph.
    lowering_rules
        Rule of each float node, by the node's name; nodes without a rule stay in float.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        target: Target,
        lowering_rules: Mapping[str, SupportsLowering],
    ) -> None:
        """Start an empty integer graph for the float graph `model`.

        `lowering_rules` maps node names to rules; other nodes stay in float. The tensors of lowered
        nodes that float nodes or outputs consume are determined here.
        """
        self.model, self.plan, self.target = model, plan, target
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        #: By the requested name; if that was in use, the constant has another name.
        self._constants_by_base_name: dict[str, list[ir.Value]] = {}
        #: Sources of quantized initializers, by name.
        self._sources: dict[str, ConstantSource] = {}
        self._float_names: dict[str, str] = {}
        self._layers: dict[str, str] = {}
        self._forms: dict[str, list[Format]] = {}
        #: Intermediate tensors, by the output of their float node and by suffix.
        self._intermediates: dict[tuple[str, str], ir.Value] = {}
        self._used_tensor_names = ir.get_tensor_names(model)
        self._used_node_names = {str(node.name) for node in model.graph}
        self._floats: dict[str, ir.Value] = {}
        self._integers: dict[tuple[str, Affine], ir.Value] = {}
        self._has_float_nodes = False
        self._rules_by_node_id: dict[int, SupportsLowering] = {}
        for node in model.graph:
            if str(node.name) in lowering_rules:
                self._rules_by_node_id[id(node)] = lowering_rules[str(node.name)]
        self._dequantized_tensors: set[str] = set()
        for node in model.graph:
            if id(node) not in self._rules_by_node_id:
                continue
            for value in node.outputs:
                if value.name and self._needs_float_value(value):
                    self._dequantized_tensors.add(str(value.name))

    def _needs_float_value(self, value: ir.Value) -> bool:
        """Whether `value` is a graph output or has a consumer that stays in float."""
        if value.is_graph_output():
            return True
        return any(id(use.node) not in self._rules_by_node_id for use in value.uses())

    def input_qparams(self, node: ir.Node, index: int) -> Affine:
        """Return the plan's quantization parameters of input `index` of `node`.

        Raises ModelError if the plan has none for this tensor.
        """
        return self._qparams(ir.input_name(node, index))

    def output_qparams(self, node: ir.Node) -> Affine:
        """Return the plan's quantization parameters of the first output of `node`.

        Raises ModelError if the plan has none for this tensor.
        """
        return self._qparams(ir.output_name(node))

    def _qparams(self, name: str) -> Affine:
        """Return the plan's quantization parameters of tensor `name`; ModelError if it has none."""
        if name not in self.plan.tensors:
            raise ModelError(
                f"the plan has no scale for tensor '{name}'; it was made for another model or skip "
                "list"
            )
        return self.plan.tensors[name]

    def get_integer_input(
        self, node: ir.Node, index: int, qparams: Affine | None = None
    ) -> ir.Value:
        """Return input `index` of `node` as integers with `qparams`; None: those of the plan.

        A tensor that exists in float only is first quantized with the plan's parameters. If these
        differ from `qparams`, a Requant is emitted, once per tensor and parameters.
        """
        name = ir.input_name(node, index)
        planned = self._qparams(name)
        value = self._integers.get((name, planned)) or self._quantize(name, planned)
        if qparams is None or qparams == planned:
            return value
        known = self._integers.get((name, qparams))
        return known or self._requantize(name, value, planned, qparams)

    def get_input_at_qparams(self, node: ir.Node, index: int, q: Affine) -> ir.Value:
        """Return input `index` of `node` as integers with parameters `q` of the operator.

        The plan's parameters are not used. A Quant of the float tensor is emitted unless the tensor
        exists with `q` already.
        """
        name = ir.input_name(node, index)
        return self._integers.get((name, q)) or self._quantize(name, q)

    def has_float_output(self, node: ir.Node) -> bool:
        """Whether the integer operator of `node` outputs float values.

        That is the case if its rule allows wide outputs, the plan has no scale for its output, and
        no consumer is an integer node.
        """
        if not self._rules_by_node_id[id(node)].allows_wide_output:
            return False
        if ir.output_name(node) in self.plan.tensors:
            return False
        consumers = [use.node for use in node.outputs[0].uses()]
        return not any(id(consumer) in self._rules_by_node_id for consumer in consumers)

    def real(self, node: ir.Node, index: int) -> ir.Value:
        """Return input `index` of `node` in float, without quantization, such as an index."""
        return self._floats[ir.input_name(node, index)]

    def inputs(self, node: ir.Node) -> list[ir.Value]:
        """Return all inputs of `node` in integers with the plan's parameters.

        Quants are emitted for tensors that exist in float only.
        """
        return [self.get_integer_input(node, index) for index in range(len(node.inputs))]

    def weight(
        self, node: ir.Node, index: int, view: ArrayTransform = identity_transform
    ) -> ir.Value:
        """Add constant input `index` of `node`, quantized with the plan's parameters.

        `view` transforms the float array first. Returns the integer initializer.
        """
        return self.add_quantized_constant(node, index, self.input_qparams(node, index), view)

    def add_quantized_constant(
        self,
        node: ir.Node,
        index: int,
        q: Affine,
        view: ArrayTransform = identity_transform,
        name: str = "",
    ) -> ir.Value:
        """Add constant input `index` of `node` as an initializer, quantized with `q`.

        `view` transforms the float array first. The initializer is called `name`, or as the input
        if that is empty. Returns the integer initializer.
        """
        source = ConstantSource(ir.input_name(node, index), view, q, q.dtype)
        array = ir.require_const_value(node.inputs[index])
        value = self.array(name or source.name, source.quantize(array), keeps_name=not name)
        self._sources[str(value.name)] = source
        return value

    def bias(
        self,
        node: ir.Node,
        index: int,
        scale: npt.ArrayLike,
        view: ArrayTransform = identity_transform,
        name: str = "",
    ) -> list[ir.Value]:
        """Add the bias, constant input `index`, quantized at `scale` (one, or one per element).

        It is int32, or int64 for 16-bit operands; `view` transforms the float array first. Returns
        a list of one initializer, empty if the node has no constant there.
        """
        if len(node.inputs) <= index or ir.const_value(node.inputs[index]) is None:
            return []
        qparams = make_bias_qparams(scale, self.has_wide_operands(node))
        return [self.add_quantized_constant(node, index, qparams, view, name)]

    def widen_to_int16(self, value: ir.Value) -> ir.Value:
        """Return a new int16 initializer with the values of the integer initializer `value`.

        It is recorded as quantized from the same float constant.
        """
        array = ir.require_const_value(value)
        wide = self.array(f"{value.name}_wide", array.astype(np.int16))
        source = self._sources[str(value.name)]
        self._sources[str(wide.name)] = source._replace(dtype=np.dtype(np.int16))
        return wide

    def has_wide_operands(self, node: ir.Node) -> bool:
        """Whether input 0 or 1 of `node` has more than 8 bits, so that its bias is int64."""
        return max(self.input_qparams(node, 0).bits, self.input_qparams(node, 1).bits) > 8

    def add_accumulator_constant(
        self, name: str, values: np.ndarray, scale: float, wide: bool = False
    ) -> ir.Value:
        """Add computed real `values`, quantized at `scale`, in int32, or int64 if `wide`.

        It is called `name`, with a number if that is in use. Returns the initializer.
        """
        return self.array(name, make_bias_qparams(scale, wide).integers(values))

    def array(self, name: str, array: np.ndarray, keeps_name: bool = False) -> ir.Value:
        """Add an initializer with the values `array`, and return it.

        An equal one (values and type) that was requested by the same name is returned instead.

        Parameters
        ----------
        name
            Requested name; a number is appended if it is in use.
        array
            Values.
        keeps_name
            Whether the constant replaces the float initializer `name` and may have its name.
        """
        same_name = self._constants_by_base_name.setdefault(name, [])
        for value in same_name:
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
        same_name.append(value)
        return value

    def _reserve_name(self, name: str) -> str:
        """Return `name`, with a number if a tensor has that name already, and reserve it."""
        unique_name = ir.unique_name(name, self._used_tensor_names)
        self._used_tensor_names.add(unique_name)
        return unique_name

    def emit(
        self,
        form: Format,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        domain: str | None = None,
        extra_outputs: Sequence[tuple[str, Sequence[int | None], int]] = (),
    ) -> None:
        """Append the integer node that computes the first output of the float `node`.

        The node gets the names of `node` and its output, and the attributes of the target. The
        integer tensor has another name if the output is needed in float, too. The output is float
        if the rule allows wide outputs, the plan has no scale for it and no consumer is an integer
        node.

        Parameters
        ----------
        form
            Integer operator.
        node
            Float node.
        inputs
            Inputs of the integer node.
        attrs
            Attributes of the integer node.
        domain
            Domain, if it is not that of `form`.
        extra_outputs
            Further outputs of the operator: (suffix, shape, bits).
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
        integer_name = name
        if name in self._dequantized_tensors:
            integer_name = self._make_integer_name(name, q)
        like, title = node.outputs[0], str(node.name)
        value = self._append(
            form, inputs, attrs, title, integer_name, like=like, q=q, domain=domain
        )
        self._integers[name, q] = value
        self._layers[integer_name] = name
        if extra_outputs:
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
        """Append a further integer node for the float `node` and return its output.

        The output is called `<output of node>_<suffix>`, with the given shape and parameters `q`;
        None in a shape is the batch. `extra_outputs` are (suffix, shape, bits).
        """
        self._forms.setdefault(str(node.name), []).append(form)
        like = ir.Value(shape=ir.Shape(["N" if d is None else d for d in shape]))
        name = ir.output_name(node)
        output = self._reserve_name(f"{name}_{suffix}")
        title = ir.unique_name(f"{node.name}_{suffix}", self._used_node_names)
        value = self._append(form, inputs, attrs, title, output, like, q)
        self._intermediates[name, suffix] = value
        self._layers[output] = name
        if extra_outputs:
            self._add_extra_outputs(name, extra_outputs)
        return value

    def emit_float_output(self, node: ir.Node, index: int, suffix: str, scale: float) -> None:
        """Emit a Dequant at `scale` from intermediate tensor `suffix` to output `index` of `node`.

        From then on that output of the float node exists in float.
        """
        source = self._intermediates[ir.output_name(node), suffix]
        value = node.outputs[index]
        name = str(value.name)
        self._floats[name] = self._append_conversion(
            DEQUANT, name, source, DEQUANT.make_qparams_attributes(Affine(scale)), name, value
        )

    def bind_extra_output(self, node: ir.Node, index: int, suffix: str) -> None:
        """Use the intermediate tensor `suffix` of `node` as the integers of its output `index`.

        It is renamed to the output's name, or to a derived one if the output is also needed in
        float.
        """
        name = str(node.outputs[index].name)
        q = self._qparams(name)
        value = self._intermediates[ir.output_name(node), suffix]
        if name in self._dequantized_tensors:
            value.name = self._make_integer_name(name, q)
        else:
            value.name = name
        self._integers[name, q] = value

    def _add_extra_outputs(
        self, name: str, extra_outputs: Sequence[tuple[str, Sequence[int | None], int]]
    ) -> None:
        """Add outputs `<name>_<suffix>` to the last node, from (suffix, shape, bits), in place.

        None in a shape is the batch. They can be found as intermediate tensors of the output
        `name`.
        """
        last_node = self._nodes[-1]
        last_node.resize_outputs(1 + len(extra_outputs))
        for value, (suffix, shape, bits) in zip(last_node.outputs[1:], extra_outputs, strict=True):
            value.name = self._reserve_name(f"{name}_{suffix}")
            value.type = ir.TensorType(integer_storage_type(bits, min_bits=8))
            dims = ir.Shape(["N" if dim is None else dim for dim in shape])
            value.shape = self._make_shape(ir.Value(shape=dims))
            self._intermediates[name, suffix] = value

    def _make_integer_name(self, name: str, q: Affine, suffix: str = "q") -> str:
        """Reserve a name for the float tensor `name` in integers, and record the relation.

        It is ``NAME_SUFFIX``, with the bits unless they are 8.
        """
        bits = "" if q.bits == 8 else q.bits
        integer_name = self._reserve_name(f"{name}_{suffix}{bits}")
        self._float_names[integer_name] = name
        return integer_name

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
        """Append a Quant, Dequant or Requant (`form`) of the tensor `name`, and return its output.

        `source` is its input and `output` the name of the result, with the shape of `like`. The
        result is float if `q` is None, else integers with `q`.
        """
        title = ir.unique_name(f"{form.name}_{name}", self._used_node_names)
        return self._append(form, [source], attrs, title, output, like, q)

    def _quantize(self, name: str, q: Affine) -> ir.Value:
        """Emit a Quant of the float tensor `name` with parameters `q`; return its output.

        The result is found by later calls with the same `q`. Raises InternalError if the float
        tensor does not exist yet.
        """
        source = self._floats.get(name)
        if source is None:
            raise InternalError(f"tensor '{name}' is consumed in integers before it exists")
        output = self._make_integer_name(name, q)
        value = self._append_conversion(
            QUANT, name, source, QUANT.make_qparams_attributes(q), output, source, q
        )
        self._integers[name, q] = value
        return value

    def _requantize(self, name: str, value: ir.Value, source_q: Affine, q: Affine) -> ir.Value:
        """Emit a Requant of the integers `value` of tensor `name` from `source_q` to `q`.

        Returns its output, which is found by later calls with the same `q`.
        """
        output = self._make_integer_name(name, q, "requant")
        attrs = REQUANT.make_qparams_attributes(source_q, q)
        result = self._append_conversion(REQUANT, name, value, attrs, output, value, q)
        self._integers[name, q] = result
        return result

    def _get_or_dequantize(self, name: str) -> ir.Value:
        """Return the tensor `name` in float.

        Emits a Dequant of its integers if it has no float form.
        """
        if name not in self._floats:
            q = self._qparams(name)
            source = self._integers[name, q]
            self._floats[name] = self._append_conversion(
                DEQUANT, name, source, DEQUANT.make_qparams_attributes(q), name, source
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
        """Append a node of operator `form` with one output, and return the output.

        It is float if `q` is None, else an integer of the width of `q`, with the shape of `like`.
        Nodes in a domain get the target's attributes too. `domain` None means that of `form`.
        Raises InternalError for attributes that `form` does not have.
        """
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
        dtype = ir.DataType.FLOAT if q is None else integer_storage_type(q.bits, min_bits=8)
        value.type = ir.TensorType(dtype)
        value.shape = self._make_shape(like)
        self._nodes.append(node)
        return value

    def _make_shape(self, like: ir.Value) -> ir.Shape | None:
        """Return the shape of `like`, or None if it is unknown.

        On single-sample targets a first axis of unknown length becomes 1.
        """
        if like.shape is None:
            return None
        dims = list(like.shape)
        if self.target.single_sample and dims and not isinstance(dims[0], int):
            dims[0] = 1
        return ir.Shape(dims)

    def run(self) -> LoweringResult:
        """Lower all nodes and return the integer graph with its relation to the float graph.

        Raises ModelError if a graph output is a constant.
        """
        inputs = []
        for value in self.model.graph.inputs:
            copy = ir.Value(name=value.name, type=value.type, shape=self._make_shape(value))
            inputs.append(copy)
            self._floats[str(value.name)] = copy
        for node in self.model.graph:
            rule = self._rules_by_node_id.get(id(node))
            if rule is None:
                self._copy_float_node(node)
                continue
            rule.lower(node, self)
            for index in rule.quantized_outputs(node):
                name = str(node.outputs[index].name)
                if name in self._dequantized_tensors:
                    self._get_or_dequantize(name)
        for value in self.model.graph.outputs:
            if str(value.name) not in self._floats:
                raise ModelError(
                    f"graph output '{value.name}' is a constant; remove it from the model's outputs"
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
        """Append a copy of a node that stays in float, reading the float form of its inputs.

        The inputs must exist in float already; constants are added as initializers. Its outputs
        exist in float from then on.
        """
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
        """Assemble the model from the emitted nodes, with the initializers that they use.

        If there are float nodes, it has at least the float model's opset, the functions that it
        uses, and no unused nodes.
        """
        opset = self.target.opset
        if self._has_float_nodes:
            opset = max(opset, self.model.opset_imports.get("", opset))
        opsets = {"": opset, "thinker": 1}
        functions: list[ir.Function] = []
        if any(node.domain == ir.FUNCTION_DOMAIN for node in self._nodes):
            functions = list(self.model.functions.values())
        if functions:
            opsets[ir.FUNCTION_DOMAIN] = 1
        ir.import_opsets(opsets, self._nodes, self.model)
        used: set[int] = set()
        for node in self._nodes:
            used.update(id(value) for value in node.inputs if value is not None)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            opset_imports=opsets,
            name=self.model.graph.name or "lingeronnx",
            initializers=[v for v in self._initializers.values() if id(v) in used],
        )
        model = ir.Model(
            graph,
            ir_version=8 if functions else self.target.ir_version,
            producer_name="lingeronnx",
            functions=functions,
            metadata_props=self._make_metadata(),
        )
        used.update(map(id, outputs))
        if self._has_float_nodes and any(
            used.isdisjoint(map(id, node.outputs)) for node in self._nodes
        ):
            ir.remove_unused(model)  # shape computations that integer operators do not need
        return model

    def _make_metadata(self) -> dict[str, str]:
        """Return the metadata of the integer graph: key -> text.

        The platform always; batch axes, folded factors, a mark of synthetic scales, and transforms
        (JSON) if there are any.
        """
        props = {"lingeronnx.platform": self.target.name}
        for key in (BATCH_AXES_KEY, FOLDED_FACTORS_KEY):
            if key in self.model.metadata_props:
                props[key] = self.model.metadata_props[key]
        if self.plan.synthetic:
            props[CALIBRATION] = SYNTHETIC_VALUE
        if self.plan.transforms:
            factors = {name: list(t.factor) for name, t in sorted(self.plan.transforms.items())}
            props["lingeronnx.transforms"] = json.dumps(factors)
        return props
