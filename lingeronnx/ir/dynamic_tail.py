"""Split off the part of a model whose tensor shapes depend on input values, and rejoin it.

NonMaxSuppression, NonZero and similar operators return a different number of elements for each
sample. Such nodes and all nodes downstream run on the host: integers gain nothing there, samples
cannot be stacked, and shapes of one run do not hold for the next. The same applies to control flow
that depends on input values, and to unknown operators. Shapes that follow from the input shapes are
static in this sense. A model with more layers in the tail than before it is not split.

Works on protobuf models; nothing here depends on data or on runners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import onnx

from . import float_ops, ir
from .attributes import iter_subgraphs

__all__ = ["DynamicTail", "append_tail", "split_dynamic_tail"]

#: Domains of supported operators: computed by onnxruntime, integer ones by the simulator.
_KNOWN_DOMAINS = (
    "",
    "ai.onnx",
    ir.FUNCTION_DOMAIN,
    "linger",
    "thinker",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "ai.onnx.training",
    "com.microsoft",
    "com.microsoft.nchwc",
)
_FUNCTIONS_IR_VERSION = 8  # the first IR version with model-local functions
_MAX_INFERENCE_BYTES = 1 << 28  # maximum size of the weights for which types are inferred


class DynamicTail(NamedTuple):
    """A model split into a body with static shapes and a tail with data-dependent shapes.

    Attributes
    ----------
    body
        The part that can be quantized.
    model
        The tail, which reads tensors of `body`.
    outputs
        Graph outputs of the complete model, in order.
    host_reasons
        Node of the tail -> why it runs on the host.
    single_sample_shapes
        Graph input -> shape, for inputs whose batch size is fixed to one.
    """

    body: ir.Model
    model: ir.Model
    outputs: tuple[str, ...]
    host_reasons: dict[str, str]
    single_sample_shapes: dict[str, tuple[int | None, ...]]

    @property
    def has_unknown_operator(self) -> bool:
        """Whether an operator of the tail has a foreign domain and is no function of the model.

        Such an operator can be run neither by onnxruntime nor by the simulator.
        """
        return any(_is_unknown_operator(self.model, node) for node in self.model.graph)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the tail's graph inputs: tensors of the body that the tail reads."""
        return tuple(str(v.name) for v in self.model.graph.inputs)


def split_dynamic_tail(model: ir.Model) -> DynamicTail | None:
    """Split `model` where tensor shapes start to depend on input values.

    Does not modify `model`. Returns None if all shapes are static, if more than half of the layers
    or all nodes would be in the tail, or if the body would have no output.
    """
    shape_ops = {*float_ops.DATA_DEPENDENT_SHAPE_OPS, *float_ops.SHAPE_INPUTS}
    if not any(n.op_type in shape_ops or _is_unknown_operator(model, n) for n in model.graph):
        return None
    reasons = _find_tail_nodes(model)
    if not _is_split_useful(model, reasons):
        return None
    full = ir.to_proto(model)
    infos = _infer_value_infos(full)
    tail_tensors = _collect_outputs(node for node in full.graph.node if node.name in reasons)
    recomputed = _find_recomputed_nodes(full.graph, reasons, tail_tensors, infos)
    body = _extract_nodes(full, {node.name for node in full.graph.node} - reasons.keys())
    tail = _extract_nodes(full, reasons.keys() | recomputed)

    output_names = [value.name for value in full.graph.output]
    input_names = _get_input_names(full.graph)
    tail_inputs = _find_tail_inputs(body.graph, tail.graph, input_names)
    graph_boundary = {*output_names, *input_names}
    body_outputs = [name for name in output_names if name not in tail_tensors]
    body_outputs += [name for name in tail_inputs if name not in graph_boundary]
    if not body_outputs:
        return None
    body.graph.output.extend(map(infos.__getitem__, body_outputs))
    body_model = ir.from_proto(body)
    ir.remove_unused(body_model)
    del tail.graph.input[:]
    tail.graph.input.extend(map(infos.__getitem__, tail_inputs))
    tail.graph.output.extend(infos[name] for name in output_names if name in tail_tensors)
    return DynamicTail(
        body=body_model,
        model=ir.from_proto(tail),
        outputs=tuple(output_names),
        host_reasons=_explain_nodes(tail.graph, reasons),
        single_sample_shapes=_find_single_sample_shapes(model),
    )


def _collect_outputs(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the names of all outputs of `nodes`."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.output)
    return names


def _get_input_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs of `graph` that are not initializers."""
    names = {value.name for value in graph.input}
    return names.difference(tensor.name for tensor in graph.initializer)


def _explain_nodes(tail: onnx.GraphProto, reasons: dict[str, str]) -> dict[str, str]:
    """Map each node of the tail, by name, to the reason why it runs on the host.

    Nodes that are not in `reasons` (node name -> reason) are recomputed for the others.
    """
    recomputed_reason = "its consumers have shapes that depend on input values"
    return {node.name: reasons.get(node.name, recomputed_reason) for node in tail.node}


def _find_single_sample_shapes(model: ir.Model) -> dict[str, tuple[int | None, ...]]:
    """Map each graph input whose axis 0 has the fixed size 1 to its shape.

    A dimension of None is unknown. Inputs that are initializers are left out.
    """
    shapes = {}
    for value in model.graph.inputs:
        shape = ir.get_shape(value) or ()
        if value.const_value is None and shape[:1] == (1,):
            shapes[str(value.name)] = shape
    return shapes


def _is_split_useful(model: ir.Model, reasons: dict[str, str]) -> bool:
    """Whether there is a tail, with at most half of the layers and not all nodes.

    `reasons` has the nodes of the tail by name. A model without layers passes the first condition.
    """
    if not reasons or all(str(node.name) in reasons for node in model.graph):
        return False
    layer_in_tail = [
        str(node.name) in reasons
        for node in model.graph
        if node.op_type in float_ops.LAYER_OPS and not node.domain
    ]
    return 2 * sum(layer_in_tail) <= len(layer_in_tail)


def _extract_nodes(full: onnx.ModelProto, node_names: Collection[str]) -> onnx.ModelProto:
    """Copy the model `full` with only the nodes `node_names`, and without graph outputs.

    Kept are the initializers that these nodes read or that are graph outputs of `full`.
    """
    part = onnx.ModelProto()
    part.CopyFrom(full)
    for field in (part.graph.node, part.graph.output, part.graph.initializer):
        del field[:]
    used_names = {value.name for value in full.graph.output}
    for node in full.graph.node:
        if node.name in node_names:
            part.graph.node.append(node)
            used_names.update(_iter_read_names(node))
    part.graph.initializer.extend(
        tensor for tensor in full.graph.initializer if tensor.name in used_names
    )
    return part


def _find_tail_inputs(
    body: onnx.GraphProto, tail: onnx.GraphProto, graph_inputs: set[str]
) -> list[str]:
    """List the tensors that nodes of the tail read from the body or the graph inputs.

    In the order of first use, each once. Initializers, and tensors that the tail computes itself,
    are not among them.
    """
    available = (graph_inputs | _collect_outputs(body.node)) - _collect_outputs(tail.node)
    read_names: dict[str, None] = {}
    for node in tail.node:
        read_names.update(dict.fromkeys(_iter_read_names(node)))
    return [name for name in read_names if name in available]


def append_tail(body: ir.Model, tail: DynamicTail) -> ir.Model:
    """Return a new model of `body`, which may have been changed since the split, and the tail.

    Its graph outputs are those of the original model, in their order. Tail names that clash with
    names in `body` get a number. Inputs whose batch size was fixed to one in the original model
    have it again. Modifies neither `body` nor `tail`.
    """
    joined, appended = ir.to_proto(body), ir.to_proto(tail.model)
    _make_names_unique(joined.graph, appended.graph, set(tail.input_names))
    body_outputs = {value.name for value in joined.graph.output}
    joined.graph.node.extend(appended.graph.node)
    joined.graph.initializer.extend(appended.graph.initializer)
    infos = {value.name: value for value in (*joined.graph.output, *appended.graph.output)}
    del joined.graph.output[:]
    joined.graph.output.extend(infos[name] for name in tail.outputs)
    joined.graph.value_info.extend(infos[name] for name in body_outputs if name not in tail.outputs)
    _merge_imports(joined, appended)
    model = ir.from_proto(joined)
    for value in model.graph.inputs:
        if str(value.name) in tail.single_sample_shapes:
            value.shape = ir.Shape(tail.single_sample_shapes[str(value.name)])
    return model


def _make_names_unique(
    graph: onnx.GraphProto, appended: onnx.GraphProto, shared_names: set[str]
) -> None:
    """Rename tensors and nodes of `appended` that have a name of `graph`, in place.

    `shared_names` are tensors of `graph` that `appended` reads; they and the outputs of `appended`
    keep their names.
    """
    used_names = _collect_outputs(graph.node)
    used_names.update(tensor.name for tensor in graph.initializer)
    used_names.update(value.name for value in graph.input)
    fixed_names = shared_names | {value.name for value in appended.output}
    clashing_names = (_collect_names(appended) - fixed_names) & used_names
    _rename_tensors(appended, {name: ir.unique_name(name, used_names) for name in clashing_names})
    node_names = {node.name for node in graph.node}
    for node in appended.node:
        node.name = ir.unique_name(node.name, node_names)


def _merge_imports(model: onnx.ModelProto, appended: onnx.ModelProto) -> None:
    """Add the opset imports, IR version and functions of `appended` to `model`, in place.

    Of a common domain the later version counts; functions of the same domain and name are not
    replaced. The IR version is raised at most to that of the first IR with functions.
    """
    imports = {entry.domain: entry for entry in model.opset_import}
    for entry in appended.opset_import:
        if entry.domain in imports:  # integer operators are the same in all later opsets
            imports[entry.domain].version = max(imports[entry.domain].version, entry.version)
        else:
            model.opset_import.append(entry)
    model.ir_version = max(model.ir_version, min(appended.ir_version, _FUNCTIONS_IR_VERSION))
    function_keys = {(function.domain, function.name) for function in model.functions}
    model.functions.extend(f for f in appended.functions if (f.domain, f.name) not in function_keys)


def _find_tail_nodes(model: ir.Model) -> dict[str, str]:
    """Find the nodes with data-dependent shapes or unknown operators, and all nodes downstream.

    Returns a mapping from node name to the reason why the node runs on the host. Graph inputs with
    one element, [] or [1], do not count as data, and sizes of tensors (Shape, Size) do not either.
    """
    data_values: set[ir.Value] = set()
    for value in model.graph.inputs:
        if value.const_value is None and ir.get_shape(value) not in ((), (1,)):
            data_values.add(value)
    dynamic_values: set[ir.Value] = set()
    reasons: dict[str, str] = {}
    for node in model.graph:
        inputs = set(_iter_read_values(node))
        reason = _explain_tail_node(model, node, data_values)
        if inputs & dynamic_values:
            reason = "the shape of an input depends on input values of the model"
        if reason is not None:
            reasons[str(node.name)] = reason
            dynamic_values.update(node.outputs)
        is_shape_query = not node.domain and node.op_type in float_ops.SHAPE_QUERY_OPS
        if not is_shape_query and inputs & data_values:
            data_values.update(node.outputs)
    return reasons


def _explain_tail_node(model: ir.Model, node: ir.Node, data_values: set[ir.Value]) -> str | None:
    """Return the reason why the tail starts at `node`, or None if it does not.

    It starts where output shapes depend on the elements of `data_values`, and at unknown operators.
    """
    if not node.domain and _has_data_dependent_shape(node, data_values):
        if node.op_type in float_ops.CONTROL_FLOW_OPS:
            return "which of its operators run, or how often, depends on input values"
        return "its output shape depends on input values and differs between samples"
    if _is_unknown_operator(model, node):
        return f"the operator {ir.display_op_type(node)} is unknown"
    return None


def _is_unknown_operator(model: ir.Model, node: ir.Node) -> bool:
    """Whether `node` has a domain that nothing here computes, and is no function of `model`."""
    if node.domain in _KNOWN_DOMAINS:
        return False
    return all((node.domain, node.op_type) != key[:2] for key in model.functions)


def _has_data_dependent_shape(node: ir.Node, data_values: set[ir.Value]) -> bool:
    """Whether output shapes of `node` depend on elements of the tensors `data_values`.

    These are computed from input data. It holds for operators that always do, for inputs that give
    a shape, and for a Loop whose condition may change, if they read such a tensor.
    """
    if node.op_type in float_ops.DATA_DEPENDENT_SHAPE_OPS:
        return any(value in data_values for value in node.inputs)
    for index in float_ops.SHAPE_INPUTS.get(node.op_type, ()):
        if index < len(node.inputs) and node.inputs[index] in data_values:
            return True
    if node.op_type != "Loop" or _has_invariant_condition(node):
        return False
    return any(value in data_values for value in _iter_read_values(node))


def _has_invariant_condition(node: ir.Node) -> bool:
    """Whether the condition of a Loop never changes, so that its trip count decides alone.

    True if the condition output of the body is, behind any Identity nodes, its condition input or a
    constant. False for a Loop without a body.
    """
    if "body" not in node.attributes:  # a malformed file, which onnxruntime rejects
        return False
    body = node.attributes["body"].as_graph()
    value: ir.Value | None = body.outputs[0]
    producer = ir.producer(value)
    while producer is not None and producer.op_type == "Identity":
        value = producer.inputs[0]
        producer = ir.producer(value)
    if value is body.inputs[1] or ir.const_value(value) is not None:
        return True
    return producer is not None and producer.op_type == "Constant"


def _iter_read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the tensors that `node` and the nodes of its subgraphs read, constants included."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        for graph in ir.get_subgraphs(attribute):
            for inner in graph.all_nodes():
                yield from (value for value in inner.inputs if value is not None)


# ---- protobuf ------------------------------------------------------------------------------------


def _iter_read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that `node` and its subgraphs read.

    These are inputs of nodes and outputs of subgraphs, with repetitions; names defined inside a
    subgraph are included.
    """
    yield from (name for name in node.input if name)
    for graph in iter_subgraphs(node):
        for inner in graph.node:
            yield from _iter_read_names(inner)
        yield from (value.name for value in graph.output)


def _find_recomputed_nodes(
    graph: onnx.GraphProto, reasons: dict[str, str], tail_tensors: set[str], infos: _ValueInfoMap
) -> set[str]:
    """Return the names of the body nodes that the tail repeats.

    The body can only pass float tensors with a batch axis to the tail, so the tail computes all
    other tensors it reads (integers, scalars) from such tensors itself. `reasons` has the nodes of
    the tail by name, `tail_tensors` are their outputs, and `infos` has the types of all tensors.
    """
    producers = {name: node for node in graph.node for name in node.output}
    recomputed: set[str] = set()
    stack: list[str] = []
    for node in graph.node:
        if node.name in reasons:
            stack += _iter_read_names(node)
    while stack:
        name = stack.pop()
        producer = producers.get(name)
        if producer is None or name in tail_tensors or producer.name in recomputed:
            continue
        if not _is_batched_float(infos[name]):
            recomputed.add(producer.name)
            stack += _iter_read_names(producer)
    return recomputed


def _is_batched_float(info: onnx.ValueInfoProto) -> bool:
    """Whether the tensor `info` is float32 and has axes; an unknown shape counts as axes.

    The body can pass such a tensor to the tail.
    """
    tensor_type = info.type.tensor_type
    if tensor_type.elem_type != onnx.TensorProto.FLOAT:
        return False
    return not tensor_type.HasField("shape") or bool(tensor_type.shape.dim)


class _ValueInfoMap(dict[str, onnx.ValueInfoProto]):
    """Type and shape of tensors by name; a tensor that is missing is float32 of unknown shape."""

    def __missing__(self, name: str) -> onnx.ValueInfoProto:
        """Return an entry of type float32 and unknown shape for `name`, without storing it."""
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _infer_value_infos(full: onnx.ModelProto) -> _ValueInfoMap:
    """Return the types of the tensors of the main graph that the model declares or onnx infers.

    Inference is skipped if the initializers have `_MAX_INFERENCE_BYTES` or more; if it fails, only
    declared types are returned.
    """
    graph = full.graph
    if sum(tensor.ByteSize() for tensor in graph.initializer) < _MAX_INFERENCE_BYTES:
        with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            graph = onnx.shape_inference.infer_shapes(full).graph
    infos = _ValueInfoMap()
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.WhichOneof("value"):
            infos[info.name] = info
    return infos


def _collect_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of initializers and of all node inputs and outputs in the main graph."""
    names = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(name for name in (*node.input, *node.output) if name)
    return names


def _rename_tensors(graph: onnx.GraphProto, new_names: dict[str, str]) -> None:
    """Rename tensors in `graph` and in its nested subgraphs, in place; `new_names` is {old: new}.

    Inputs and outputs of `graph` itself keep their names.
    """
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [new_names.get(name, name) for name in field]
        for subgraph in iter_subgraphs(node):
            _rename_tensors(subgraph, new_names)
            for value in subgraph.output:
                value.name = new_names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = new_names.get(tensor.name, tensor.name)
