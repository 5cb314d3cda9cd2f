"""Read a graph: constants, attributes, operators, shapes, producers and consumers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import onnx

from ..common.errors import InternalError, ModelError
from ._onnx_ir import Attr, AttributeType, DataType, Graph, Model, Node, Value

__all__ = [
    "ConstantOperand",
    "DEFAULT_OPSET",
    "FUNCTION_DOMAIN",
    "base_op_type",
    "const_value",
    "find_constant",
    "formal_input_name",
    "get_attr",
    "get_axes",
    "get_input",
    "get_opset",
    "get_sample_dims",
    "get_shape",
    "get_subgraphs",
    "has_folded_batch",
    "has_subgraphs",
    "import_opsets",
    "input_name",
    "is_batch_traced",
    "is_constant",
    "is_exclusive_initializer",
    "is_float32",
    "is_standard_op",
    "iter_all_nodes",
    "iter_subgraphs",
    "iter_values",
    "mark_folded_batch",
    "match_constant_operand",
    "output_name",
    "producer",
    "read_json_metadata",
    "require_const_value",
    "require_input",
    "require_producer",
    "require_shape",
    "sole_consumer",
    "find_ancestors",
    "iter_read_values",
]

#: Domain of composite float operators: model-local functions that onnxruntime inlines.
FUNCTION_DOMAIN = "lingeronnx"

#: Opset of a model that does not declare one.
DEFAULT_OPSET = 13


def iter_subgraphs(node: Node) -> Iterator[Graph]:
    """Yield the graphs in the attributes of `node`, not those nested in them."""
    for attribute in node.attributes.values():
        yield from get_subgraphs(attribute)


def iter_all_nodes(model: Model, include_composites: bool = True) -> Iterator[Node]:
    """Yield the nodes of `model`, of its subgraphs and of its functions.

    Without `include_composites`, nodes of functions of `FUNCTION_DOMAIN` are left out.
    """
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        if include_composites or function.domain != FUNCTION_DOMAIN:
            yield from function.all_nodes()


def find_constant(value: Value | None) -> np.ndarray | None:
    """Return the array of an initializer or of a Constant node with attribute `value`, else None.

    None also for a graph input with a default value, and for Constant nodes with other attributes.
    Raises ModelError if the data do not match type and shape.
    """
    node = producer(value)
    if (
        node is not None
        and node.op_type == "Constant"
        and not node.domain
        and "value" in node.attributes
    ):
        return np.asarray(get_attr(node, "value"))
    return const_value(value)


def const_value(value: Value | None) -> np.ndarray | None:
    """Return the array of an initializer that is not a graph input, or None.

    Raises
    ------
    ModelError
        The size of the data does not match the element type and shape.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    try:
        return value.const_value.numpy()
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"constant '{value.name}': the size of its data does not match its type and shape; the "
            "file is malformed, write it again"
        ) from error


def is_constant(value: Value | None) -> bool:
    """Whether `value` is an initializer that is not a graph input, whatever its data."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def require_const_value(value: Value | None) -> np.ndarray:
    """Return the array of the initializer `value`; raise InternalError if it is no constant.

    A graph input with a default value is no constant.
    """
    array = const_value(value)
    if array is None:
        raise InternalError(f"{_value_label(value)} is not a constant")
    return array


def _value_label(value: Value | None) -> str:
    """Return the name of `value` for messages, or "an absent input" for None."""
    return str(value.name) if value is not None else "an absent input"


def get_attr(node: Node, name: str, default: Any = None) -> Any:  # noqa: ANN401 - any attribute
    """Return attribute `name` as a Python value, or `default` if the node does not have it.

    That is an int, float, str, list, or for a tensor an array. Raises ModelError if the data of a
    tensor do not match its type and shape.
    """
    if name not in node.attributes:
        return default
    attribute = node.attributes[name]
    value = attribute.value
    if attribute.type == AttributeType.TENSOR:
        try:
            return value.numpy()
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"{node.op_type} {node.name}: the tensor in attribute '{name}' is malformed; "
                "export the model again"
            ) from error
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def get_opset(model: Model) -> int:
    """Return the standard opset version of `model`, or `DEFAULT_OPSET` if it declares none."""
    return model.opset_imports.get("") or DEFAULT_OPSET


def base_op_type(node: Node) -> str:
    """Return the operator of `node`; in `FUNCTION_DOMAIN` only the part before the first "_"."""
    return node.op_type.partition("_")[0] if node.domain == FUNCTION_DOMAIN else str(node.op_type)


def read_json_metadata(model: Model, key: str) -> dict[str, Any]:
    """Return the metadata `key` of `model` as a JSON object, empty if there is no such key.

    Raises ModelError if the value is not a JSON object.
    """
    try:
        content = json.loads(model.metadata_props.get(key, "{}"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ModelError(
            f"metadata '{key}' is not a JSON object; the file is malformed, export it again"
        )
    return content


def get_axes(node: Node, index: int = 1) -> list[int] | None:
    """Return the axes of `node`: attribute `axes`, or if that is absent, constant input `index`.

    Newer opsets have them as input. None if both are absent or the input is computed at run time.
    """
    axes: list[int] | None = get_attr(node, "axes")
    if axes is None and len(node.inputs) > index:
        array = const_value(node.inputs[index])
        axes = None if array is None else [int(axis) for axis in array.reshape(-1)]
    return axes


def formal_input_name(node: Node, index: int) -> str:
    """Return the name of input `index` in the newest ONNX schema, such as "B".

    An index beyond the last formal input gets the name of the last. "" for an unknown operator or
    one without inputs.
    """
    try:
        formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    except onnx.defs.SchemaError:
        return ""
    return str(formal[min(index, len(formal) - 1)].name) if formal else ""


def is_standard_op(node: Node | None, *op_types: str) -> TypeGuard[Node]:
    """Whether `node` is not None, and is one of the operators `op_types` of the standard domain."""
    return node is not None and not node.domain and node.op_type in op_types


def is_float32(value: Value | None) -> bool:
    """Whether `value` is not None, and its element type is known to be float32."""
    return value is not None and value.dtype == DataType.FLOAT


class ConstantOperand(NamedTuple):
    """Operands of a binary operator, one of which is constant."""

    source: Value
    array: np.ndarray
    is_first: bool  # the constant is operand 0


def match_constant_operand(node: Node) -> ConstantOperand | None:
    """Return the operands of a node with two inputs if exactly one is an initializer.

    None for any other number of inputs, if both or neither are constant, and if the other one is
    absent.
    """
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    first_array, second_array = const_value(first), const_value(second)
    if first is not None and first_array is None and second_array is not None:
        return ConstantOperand(first, second_array, False)
    if second is not None and second_array is None and first_array is not None:
        return ConstantOperand(second, first_array, True)
    return None


def has_subgraphs(node: Node) -> bool:
    """Whether an attribute of `node` is a graph or a list of graphs."""
    return any(
        a.type in (AttributeType.GRAPH, AttributeType.GRAPHS) for a in node.attributes.values()
    )


def get_subgraphs(attribute: Attr) -> list[Graph]:
    """Return the subgraphs stored in `attribute`, not those nested in them; [] for other types."""
    if attribute.type == AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == AttributeType.GRAPHS else []


def import_opsets(opsets: dict[str, int], nodes: Iterable[Node], model: Model) -> None:
    """Add the opset imports of `model` that `nodes` and their subgraphs need to `opsets`, in place.

    `opsets` maps a domain to its version. Domains that it already has keep their version; domains
    that `model` does not import are left out.
    """
    domains = set()
    for node in nodes:
        domains.add(node.domain)
        for subgraph in iter_subgraphs(node):
            domains.update(inner.domain for inner in subgraph.all_nodes())
    for domain in domains & model.graph.opset_imports.keys():
        opsets.setdefault(domain, model.graph.opset_imports[domain])


def get_input(node: Node, index: int) -> Value | None:
    """Return input `index` of `node`, None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def require_input(node: Node, index: int = 0) -> Value:
    """Return input `index` of `node`, which must be present, else raise InternalError."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"{node.op_type} {node.name} has no input {index}")
    return value


def input_name(node: Node, index: int = 0) -> str:
    """Return the name of input `index` of `node`; InternalError if that input is absent."""
    return str(require_input(node, index).name)


def output_name(node: Node) -> str:
    """Return the name of the first output of `node`."""
    return str(node.outputs[0].name)


def get_shape(value: Value | None) -> tuple[int | None, ...] | None:
    """Return the shape of `value` with None for unknown dimensions; None if the rank is unknown.

    A symbolic dimension such as "N" is unknown. None also if `value` is None.
    """
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape.dims)


def get_sample_dims(value: Value | None) -> list[int]:
    """Return the sizes of the axes of `value` after axis 0, 1 for unknown ones.

    [] for an unknown rank.
    """
    return [dim or 1 for dim in (get_shape(value) or ())[1:]]


def require_shape(value: Value | None) -> tuple[int | None, ...]:
    """Return the shape of `value` with None for unknown dimensions.

    InternalError for an unknown rank. After shape inference, every rank is known.
    """
    shape = get_shape(value)
    if shape is None:
        raise InternalError(f"{_value_label(value)} has no shape")
    return shape


def mark_folded_batch(value: Value, folded: bool) -> None:
    """Record in `value` whether its axis 0 is the batch multiplied by other axes (`folded`).

    Such an axis grows with the batch, but holds several rows of each sample.
    """
    value.meta["lingeronnx.folded_batch"] = folded


def has_folded_batch(value: Value) -> bool:
    """Whether axis 0 of `value` was recorded as the batch multiplied by other axes.

    False by default.
    """
    return bool(value.meta.get("lingeronnx.folded_batch", False))


def is_batch_traced(value: Value) -> bool:
    """Whether it was recorded what axis 0 of `value` is (`mark_folded_batch`)."""
    return "lingeronnx.folded_batch" in value.meta


def producer(value: Value | None) -> Node | None:
    """Return the node that computes `value`, or None for graph inputs and constants."""
    return None if value is None else value.producer()


def require_producer(value: Value | None) -> Node:
    """Return the node that computes `value`; raise InternalError for graph inputs and constants."""
    node = producer(value)
    if node is None:
        raise InternalError(f"{_value_label(value)} has no producer")
    return node


def sole_consumer(value: Value) -> Node | None:
    """Return the only node that reads `value`, if it reads it once, or None.

    Also None if `value` is a graph output, which the caller of the model reads. Uses inside
    subgraphs count.
    """
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def is_exclusive_initializer(value: Value) -> bool:
    """Whether `value` is an initializer read once by a single node and can be removed with it.

    False for the default value of a graph input.
    """
    return (
        value.is_initializer() and not value.is_graph_input() and sole_consumer(value) is not None
    )


def iter_values(model: Model) -> Iterator[Value]:
    """Yield the computed tensors in graph order: graph inputs, then the outputs of each node."""
    for value in model.graph.inputs:
        if value.const_value is None:
            yield value
    for node in model.graph:
        for value in node.outputs:
            if value.name:
                yield value


def iter_read_values(node: Node) -> Iterator[Value | None]:
    """Yield the inputs of `node`, then tensors of its graph that its subgraphs consume.

    Absent inputs are None. Tensors are repeated if they are read more than once.
    """
    yield from node.inputs
    for attribute in node.attributes.values():
        if attribute.type != AttributeType.GRAPH:
            continue
        for inner_node in list(attribute.value.all_nodes()):
            for value in inner_node.inputs:
                if value is not None and _get_owning_graph(value) is node.graph:
                    yield value


def _get_owning_graph(value: Value) -> object:
    """Return the graph of the node that computes `value`, or of which it is an input.

    None if neither is known.
    """
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def find_ancestors(graph: Iterable[Node], names: Collection[str]) -> list[Node]:
    """Return the nodes of `graph` that the tensors `names` depend on, in graph order.

    Producers are included; the inputs of a node include those of its subgraphs.
    """
    needed, nodes = set(names), []
    for node in reversed(list(graph)):
        if any(value.name in needed for value in node.outputs):
            nodes.append(node)
            needed.update(str(value.name) for value in iter_read_values(node) if value is not None)
    return nodes[::-1]
