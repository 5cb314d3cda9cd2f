"""Change a graph in place: create, replace and remove initializers, nodes and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ._onnx_ir import DataType, Model, Node, Shape, TensorType, Value, common_passes, oir
from .graph_names import mark_origin, reserve_name, unique_tensor_name
from .graph_queries import (
    const_value,
    has_subgraphs,
    is_exclusive_initializer,
    iter_subgraphs,
    iter_values,
)
from .model_files import detach_large_constants

__all__ = [
    "absorb_consumer",
    "add_initializer",
    "bypass_node",
    "can_bypass_node",
    "convert_input_to_initializer",
    "infer_types",
    "inline_bodies",
    "lift_constants",
    "make_node",
    "remove_unused",
    "rename_initializer",
    "replace_nodes",
    "set_attr",
    "set_constant_input",
    "set_initializer_value",
]

#: Domain of operators while their function bodies are inlined, and the metadata key that names the
#: function of a node.
_BODY_DOMAIN = _BODY_KEY = "lingeronnx.body"


def add_initializer(model: Model, name: str, array: np.ndarray) -> Value:
    """Add the constant `array` to `model` under the unused name `name` and return its value."""
    tensor = oir.Tensor(np.asarray(array, order="C"), name=name)
    value = Value(
        name=name,
        shape=Shape(array.shape),
        type=TensorType(tensor.dtype),
        const_value=tensor,
    )
    model.graph.register_initializer(value)
    return value


def set_initializer_value(value: Value, array: np.ndarray) -> None:
    """Replace the data of the initializer `value` by `array`, of the same shape and type."""
    value.const_value = oir.Tensor(np.asarray(array, order="C"), name=value.name)


def convert_input_to_initializer(model: Model, value: Value, array: np.ndarray) -> None:
    """Convert the graph input `value` to an initializer with the data `array`, in place.

    Its shape and element type become those of `array`.
    """
    model.graph.inputs.remove(value)
    value.const_value = oir.Tensor(np.asarray(array, order="C"), name=value.name)
    value.shape, value.type = Shape(array.shape), TensorType(value.const_value.dtype)
    model.graph.register_initializer(value)


def set_constant_input(
    model: Model, node: Node, index: int, array: np.ndarray, suffix: str
) -> Value:
    """Replace input `index` of `node` by a new initializer with `array`, and return its value.

    An initializer that only `node` reads is removed, and the new one takes its name. One that is
    shared or a graph output stays unchanged, and the new one is named `<name>_<suffix>` (after the
    first output of `node` if there was no input), with a number if that is taken.
    """
    old = node.inputs[index]
    if old is not None and is_exclusive_initializer(old):
        name = str(old.name)
        node.replace_input_with(index, None)
        del model.graph.initializers[name]
    else:
        base = old.name if old is not None and old.name else f"{node.outputs[0].name}"
        name = unique_tensor_name(model, f"{base}_{suffix}")
    value = add_initializer(model, name, array)
    node.replace_input_with(index, value)
    return value


def _to_attribute(name: str, value: object) -> Any:  # noqa: ANN401 - onnx_ir exports no union type
    """Convert a list of numbers to an attribute, and return any other value unchanged for onnx_ir.

    onnx_ir would first test every number for being a tensor or a graph, which takes longer than
    everything else about a node.
    """
    if isinstance(value, list | tuple) and value:
        if all(isinstance(element, int) for element in value):
            return oir.AttrInt64s(name, value)
        if all(isinstance(element, float) for element in value):
            return oir.AttrFloat32s(name, value)
    return value


def make_node(
    op_type: str,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    output: str,
    name: str = "",
    origin: Node | None = None,
    suffix: str = "",
    domain: str = "",
    like: Value | None = None,
) -> Node:
    """Create a node with one output.

    Parameters
    ----------
    op_type, inputs, attributes, domain
        As in ONNX. An attribute is a Python value.
    output
        Name of the output.
    name
        Name of the node. Ignored if `origin` is given.
    origin
        The node that the new one is created for, recorded by `mark_origin`. The new node is called
        `<origin>_<suffix>`, or like `origin` if `suffix` is empty.
    suffix
        Suffix of the name of `origin`.
    like
        Tensor whose shape and type the output takes.
    """
    if origin is not None:
        name = f"{origin.name}_{suffix}" if suffix else str(origin.name)
    result = Value(name=output)
    if like is not None:
        result.shape, result.type = like.shape, like.type
    converted = {key: _to_attribute(key, value) for key, value in (attributes or {}).items()}
    node = oir.node(op_type, inputs, converted, domain=domain, outputs=[result], name=name)
    if origin is not None:
        mark_origin(node, origin)
    return node


def replace_nodes(
    model: Model,
    old_nodes: Iterable[Node],
    new_nodes: Sequence[Node],
    other_outputs: Mapping[int, Value] | None = None,
) -> None:
    """Replace `old_nodes` by `new_nodes` in the main graph of `model`.

    The output of the last new node takes over the name and the consumers of the first output of the
    last old one; `other_outputs` maps indices of further outputs of it to their replacements.
    """
    removed = list(old_nodes)
    new_outputs = {0: new_nodes[-1].outputs[0], **(other_outputs or {})}
    old_outputs = [removed[-1].outputs[index] for index in new_outputs]
    names = [value.name for value in old_outputs]
    oir.convenience.replace_nodes_and_values(
        model.graph,
        removed[-1],
        removed,
        list(new_nodes),
        old_outputs,
        list(new_outputs.values()),
    )
    for value, name in zip(new_outputs.values(), names, strict=True):
        value.name = name


def inline_bodies(model: Model, bodies: Mapping[Node, onnx.FunctionProto]) -> None:
    """Replace each node of `bodies` by its function body, in place.

    The new nodes, those in subgraphs of a body included, are marked as created for the replaced
    node (`mark_origin`) and called "<its name>_<operator>", with a number if that is taken.
    Model-local functions stay. Errors of onnx_ir are passed on.
    """
    replaced: dict[str, tuple[Node, tuple[str, str]]] = {}
    for number, (node, body) in enumerate(bodies.items()):
        function_name = f"{node.op_type}_{number}"
        local_body = onnx.FunctionProto()
        local_body.CopyFrom(body)
        local_body.domain, local_body.name = _BODY_DOMAIN, function_name
        function = oir.serde.deserialize_function(local_body)
        model.functions[_BODY_DOMAIN, function_name, ""] = function
        replaced[function_name] = node, (node.domain, node.op_type)
        node.domain, node.op_type = _BODY_DOMAIN, function_name
        node.metadata_props[_BODY_KEY] = function_name
    common_passes.InlinePass(criteria=lambda function: function.domain == _BODY_DOMAIN)(model)
    for node, (domain, op_type) in replaced.values():
        node.domain, node.op_type = domain, op_type
    new_nodes, used_names = list[Node](), set[str]()
    for node in model.graph.all_nodes():
        if _BODY_KEY in node.metadata_props:
            new_nodes.append(node)
        else:
            used_names.add(str(node.name))
    for node in new_nodes:
        old, _ = replaced[node.metadata_props.pop(_BODY_KEY)]
        node.name = reserve_name(f"{old.name}_{node.op_type}", used_names)
        mark_origin(node, old)


def remove_unused(model: Model) -> None:
    """Remove nodes, initializers and functions whose results are not used, in place.

    Nodes and initializers that only subgraphs of removed nodes read are removed too.
    """
    nodes = [node for node in model.graph if has_subgraphs(node)]
    common_passes.RemoveUnusedNodesPass()(model)
    while removed := [node for node in nodes if node.graph is None]:
        _clear_subgraph_inputs(removed)
        nodes = [node for node in nodes if node.graph is not None]
        common_passes.RemoveUnusedNodesPass()(model)
    if model.functions:
        common_passes.RemoveUnusedFunctionsPass()(model)


def _clear_subgraph_inputs(removed_nodes: Iterable[Node]) -> None:
    """Set the inputs of all nodes in the subgraphs of removed nodes to None, in place.

    onnx_ir would otherwise still count them as consumers of outer tensors.
    """
    for node in removed_nodes:
        for subgraph in iter_subgraphs(node):
            for inner in subgraph.all_nodes():
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)


def lift_constants(model: Model) -> bool:
    """Convert the Constant nodes of `model` to initializers, in place.

    Return whether there were any.
    """
    lift = common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    return lift(model).modified


def infer_types(model: Model) -> None:
    """Set the element type that onnx infers on tensors of the main graph that have none, in place.

    Shapes are not changed. If onnx fails to infer, nothing is.
    """
    untyped = {str(value.name): value for value in iter_values(model) if value.dtype is None}
    if not untyped:
        return
    try:
        graph = onnx.shape_inference.infer_shapes(detach_large_constants(model)[0]).graph
    except Exception:  # no types can be inferred for a graph that onnx cannot read
        return
    for info in (*graph.value_info, *graph.output):
        elem_type = info.type.tensor_type.elem_type
        if info.name in untyped and elem_type:
            untyped[info.name].type = TensorType(DataType(elem_type))


def bypass_node(model: Model, node: Node, replacement: Value) -> None:
    """Remove `node`, which has one output, from `model` and let its consumers read `replacement`.

    If the output is a graph output, `replacement` replaces it and takes over its name; so it must
    not be a graph input, another graph output or an initializer then.
    """
    out = node.outputs[0]
    if out.is_graph_output():
        name = out.name
        out.replace_all_uses_with(replacement, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        replacement.name = name
        return
    out.replace_all_uses_with(replacement)
    model.graph.remove(node, safe=True)


def can_bypass_node(node: Node, replacement: Value) -> bool:
    """Whether `node` may be removed, with its consumers reading `replacement`, by names.

    False only if the output of `node` is a graph output and `replacement` is a graph input, a graph
    output or an initializer: both names are needed then.
    """
    pinned = (
        replacement.is_graph_input()
        or replacement.is_graph_output()
        or replacement.is_initializer()
    )
    return not (node.outputs[0].is_graph_output() and pinned)


def absorb_consumer(model: Model, node: Node, consumer: Node) -> None:
    """Remove `consumer`, whose computation its producer `node` takes over.

    The first output of `node` gets the consumers and name of the first output of `consumer`, and
    its type and shape if they are known.
    """
    out, result = consumer.outputs[0], node.outputs[0]
    name, value_type, shape = out.name, out.type, out.shape
    out.replace_all_uses_with(result, replace_graph_outputs=True)
    model.graph.remove(consumer, safe=True)
    result.name, result.type, result.shape = name, value_type or result.type, shape or result.shape


def rename_initializer(model: Model, value: Value, name: str) -> None:
    """Rename the initializer `value` to the unused name `name`."""
    array = const_value(value)
    assert array is not None
    replacement = add_initializer(model, name, array)
    for user, index in list(value.uses()):
        user.replace_input_with(index, replacement)
    del model.graph.initializers[str(value.name)]


def set_attr(node: Node, name: str, value: Any) -> None:  # noqa: ANN401 - as in get_attr
    """Set attribute `name` of `node` to a Python value; an array becomes a tensor."""
    value = oir.Tensor(value) if isinstance(value, np.ndarray) else _to_attribute(name, value)
    node.attributes[name] = oir.convenience.convert_attribute(name, value)
