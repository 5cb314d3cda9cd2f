"""Find unused names for nodes and tensors, and rename them.

The user's node that each node was created for is recorded in its metadata in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ._onnx_ir import AttributeType, Graph, Model, Node, Value, oir
from .graph_queries import base_op_type, iter_values

__all__ = [
    "assign_node_names",
    "get_output_names",
    "get_subgraph_tensor_names",
    "get_tensor_names",
    "rename",
    "reserve_name",
    "unique_name",
    "unique_tensor_name",
    "constant_base_name",
    "display_op_type",
    "has_constant_base_name",
    "mark_fused",
    "mark_origin",
    "origin_name",
    "set_constant_base_name",
]

#: Metadata key of the user's node that a node was created for. Exists in memory only.
_ORIGIN = "lingeronnx.origin"

#: Metadata key of the operator of that user's node.
_ORIGIN_OPERATOR = "lingeronnx.operator"

#: Operators that only passes create, in place of an operator of the user's.
_PASS_ONLY_OPS = frozenset({"BatchNormalization", "Curve", "Linear"})

#: Metadata key of the base name for constants that are created for a node.
_CONSTANT_BASE_NAME = "lingeronnx.shared"


def assign_node_names(model: Model) -> None:
    """Give every node of the main graph a unique name, in place.

    An unnamed node becomes "<operator>_<its first output>". Of nodes that share a name, the first
    of the user's keeps it; the others, and nodes created for another (`origin_name`), get a number.
    """
    used_names: set[str] = set()
    for node in sorted(model.graph, key=lambda node: _ORIGIN in node.meta):
        suffix = node.outputs[0].name if node.outputs else len(used_names)
        node.name = unique_name(node.name or f"{node.op_type}_{suffix}", used_names)
        used_names.add(node.name)


def unique_tensor_name(model: Model, base: str) -> str:
    """Return `base`, with a number if a tensor of the main graph of `model` has that name.

    The name is not reserved.
    """
    return unique_name(base, get_tensor_names(model))


def get_output_names(model: Model) -> list[str]:
    """Return the names of the graph outputs of `model`, in order."""
    return [str(value.name) for value in model.graph.outputs]


def get_tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors of the main graph of `model`, constants included."""
    return {str(value.name) for value in iter_values(model)} | set(model.graph.initializers)


def unique_name(base: str, used_names: Collection[str]) -> str:
    """Return `base`, or if it is in `used_names` the first unused of `base`_2, `base`_3, ..."""
    name, count = base, 1
    while name in used_names:
        count += 1
        name = f"{base}_{count}"
    return name


def reserve_name(base: str, used_names: set[str]) -> str:
    """Return `base`, or the first unused of `base`_2, `base`_3, ..., and add it to `used_names`."""
    name = unique_name(base, used_names)
    used_names.add(name)
    return name


def rename(model: Model, tensors: Mapping[str, str], nodes: Mapping[str, str]) -> None:
    """Rename tensors, including constants, and nodes of the main graph.

    No new name may be an old one too. Constant data may be shared with another graph, so a renamed
    constant gets a new tensor object.

    Parameters
    ----------
    model
        Changed in place.
    tensors, nodes
        Old name -> new name.
    """
    graph = model.graph
    for value in list(graph.initializers.values()):
        new_name = tensors.get(str(value.name))
        if new_name is not None and value.const_value is not None:
            value.const_value = oir.tensor(value.const_value.numpy(), name=new_name)
    order = {id(value): index for index, value in enumerate(graph.initializers.values())}
    all_values = (*graph.inputs, *graph.initializers.values(), *_iter_outputs(graph))
    unique_values = {id(value): value for value in all_values}
    for value in unique_values.values():
        value.name = tensors.get(str(value.name), value.name)
    constants = sorted(graph.initializers.values(), key=lambda value: order[id(value)])
    graph.initializers.clear()
    graph.initializers.update({str(value.name): value for value in constants})
    for node in graph:
        node.name = nodes.get(str(node.name), node.name)


def _iter_outputs(graph: Graph) -> Iterator[Value]:
    """Yield the named outputs of the nodes of `graph`, in graph order, without subgraphs."""
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def get_subgraph_tensor_names(model: Model) -> set[str]:
    """Return the names of all tensors in nested subgraphs, which outer tensors may not have.

    Subgraphs in lists of graphs are not searched.
    """
    names: set[str] = set()
    stack = [model.graph]
    while stack:
        graph = stack.pop()
        if graph is not model.graph:
            values = (*graph.inputs, *graph.initializers.values(), *_iter_outputs(graph))
            names.update(str(value.name) for value in values)
        for node in graph:
            attributes = node.attributes.values()
            stack += [a.as_graph() for a in attributes if a.type == AttributeType.GRAPH]
    return names


def mark_origin(node: Node, old: Node) -> None:
    """Record in `node` the name and operator of the user's node for which `old` exists.

    If `old` was itself created for another node, that one is recorded, else `old`.
    """
    node.meta[_ORIGIN] = origin_name(old)
    node.meta[_ORIGIN_OPERATOR] = old.meta.get(_ORIGIN_OPERATOR, base_op_type(old))


def origin_name(node: Node) -> str:
    """Return the name of the user's node that `node` was created for, or the node's own name."""
    return str(node.meta.get(_ORIGIN, node.name))


def mark_fused(node: Node, old: Sequence[Node]) -> None:
    """Record that `node` replaces all nodes of `old`: it shows their operators to users.

    They are joined by ", ", each once. `display_op_type` uses them only if the operator of `node`
    is one that only passes create.
    """
    op_types = dict.fromkeys(display_op_type(old_node) for old_node in old)
    node.meta[_ORIGIN_OPERATOR] = ", ".join(op_types)


def display_op_type(node: Node) -> str:
    """Return the operator of `node` as users know it.

    For an operator that only passes create, this is the operator of the model it was created from.
    """
    op_type = base_op_type(node)
    if op_type in _PASS_ONLY_OPS:
        return str(node.meta.get(_ORIGIN_OPERATOR, op_type))
    return op_type


def set_constant_base_name(node: Node, name: str) -> None:
    """Set the base name of constants created for `node`; nodes of one name share them."""
    node.meta[_CONSTANT_BASE_NAME] = name


def constant_base_name(node: Node) -> str:
    """Return the base name of constants that are created for `node`.

    This is the name that was set for them (nodes of one base name share constants), or the name of
    the node's first output.
    """
    return str(node.meta.get(_CONSTANT_BASE_NAME, node.outputs[0].name))


def has_constant_base_name(node: Node) -> bool:
    """Whether a base name was set for constants of `node`, which it shares with others."""
    return _CONSTANT_BASE_NAME in node.meta
