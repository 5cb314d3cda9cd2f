"""Limit how much a small file can expand: nodes after function inlining, and loop iterations.

Both are counted before anything is inlined or run. Functions that call the next one twice double
the node count at each level, and the trip count of a loop may be a single number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..common.errors import ModelError
from .attributes import iter_nodes_recursive, iter_subgraphs

__all__ = ["MAX_UNROLLED_ITERATIONS", "check_expansion_limits"]

#: Maximum trip count up to which a loop is unrolled.
MAX_UNROLLED_ITERATIONS = 64

# Limit of nodes after inlining and unrolling: minimum + factor * nodes in the file.
_MIN_NODE_LIMIT, _NODE_LIMIT_FACTOR = 1_000, 20

# Limit of nodes executed in loops of known trip count: a few seconds.
_MAX_EXECUTED_NODES = 2_000_000

_SATURATED_COUNT = 1 << 62  # counts saturate here: larger integers would only be slow
_INTEGER_TYPES = (TensorProto.INT64, TensorProto.BOOL)

#: Identifies a function: domain, name, overload.
_FunctionKey = tuple[str, str, str]

#: Tensor name -> value of integer constants with one element.
_ScalarConstants = Mapping[str, int]


@dataclass(frozen=True)
class _ExpandedSize:
    """Size of a part of a model after expansion.

    Attributes
    ----------
    nodes
        Nodes after inlining functions and unrolling short loops.
    executed_nodes
        Nodes that are executed, counting those of a loop body once per iteration.
    """

    nodes: int = 0
    executed_nodes: int = 0

    def __add__(self, other: _ExpandedSize) -> _ExpandedSize:
        """Return the size of both parts together, each count at most _SATURATED_COUNT."""
        return _ExpandedSize(
            min(self.nodes + other.nodes, _SATURATED_COUNT),
            min(self.executed_nodes + other.executed_nodes, _SATURATED_COUNT),
        )

    def repeat(self, trip_count: int) -> _ExpandedSize:
        """Return the size of a loop of `trip_count` iterations whose body has this size.

        `nodes` is multiplied only if `trip_count` is at most MAX_UNROLLED_ITERATIONS,
        `executed_nodes` always; each is at most _SATURATED_COUNT.
        """
        nodes = self.nodes * trip_count if trip_count <= MAX_UNROLLED_ITERATIONS else self.nodes
        return _ExpandedSize(
            min(nodes, _SATURATED_COUNT), min(self.executed_nodes * trip_count, _SATURATED_COUNT)
        )


def check_expansion_limits(model: ModelProto) -> None:
    """Raise ModelError if functions are recursive or the model expands to too many nodes.

    After functions are inlined and loops of up to MAX_UNROLLED_ITERATIONS unrolled, at most
    _MIN_NODE_LIMIT + _NODE_LIMIT_FACTOR times the nodes of the file are allowed (subgraphs and
    functions counted). Loops may execute at most _MAX_EXECUTED_NODES more nodes than that expansion
    has. The message names the node of the main graph that contributes most.
    """
    if not model.functions and not any(list(iter_subgraphs(node)) for node in model.graph.node):
        return  # nothing expands
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    function_sizes: dict[_FunctionKey, _ExpandedSize] = {}
    for key in _sort_callees_first(functions):
        function_sizes[key] = _measure_nodes(functions[key].node, {}, function_sizes)
    scope = _collect_scalar_constants(model.graph, {})
    sizes = [_measure_node(node, scope, function_sizes) for node in model.graph.node]
    total = sum(sizes, _ExpandedSize())
    file_nodes = [*model.graph.node]
    for function in model.functions:
        file_nodes += function.node
    file_node_count = sum(1 for _ in iter_nodes_recursive(file_nodes))
    max_nodes = _MIN_NODE_LIMIT + _NODE_LIMIT_FACTOR * file_node_count
    if total.nodes > max_nodes:
        index = max(range(len(sizes)), key=lambda i: sizes[i].nodes)
        raise ModelError(
            f"{_node_label(model.graph.node[index])}: nested functions or loops expand to "
            f"{_format_count(sizes[index].nodes)} nodes; the limit for the {file_node_count} nodes "
            f"of this file is {max_nodes}; export the model without functions and with fewer loop "
            "iterations"
        )
    if total.executed_nodes > _MAX_EXECUTED_NODES + total.nodes:
        index = max(range(len(sizes)), key=lambda i: sizes[i].executed_nodes)
        raise ModelError(
            f"{_node_label(model.graph.node[index])}: its loops execute "
            f"{_format_count(sizes[index].executed_nodes)} nodes; the limit is "
            f"{_MAX_EXECUTED_NODES}; export the model with fewer loop iterations"
        )


def _format_count(count: int) -> str:
    """Return `count` as text, or "more than <limit - 1>" for the count at which sizes saturate."""
    return f"more than {count - 1}" if count == _SATURATED_COUNT else str(count)


def _node_label(node: NodeProto) -> str:
    """Return "<operator> <name>" of `node` for messages.

    Without a name, that of its first output.
    """
    return f"{node.op_type} {node.name or next(iter(node.output), 'without a name')}"


def _measure_nodes(
    nodes: Iterable[NodeProto],
    scope: _ScalarConstants,
    function_sizes: Mapping[_FunctionKey, _ExpandedSize],
) -> _ExpandedSize:
    """Sum the expanded sizes of nodes that may read the constants `scope`."""
    return sum((_measure_node(node, scope, function_sizes) for node in nodes), _ExpandedSize())


def _measure_node(
    node: NodeProto, scope: _ScalarConstants, function_sizes: Mapping[_FunctionKey, _ExpandedSize]
) -> _ExpandedSize:
    """Compute the expanded size of `node`, which may read the constants `scope`.

    A call of a function in `function_sizes` has the function's size. Any other node counts as one,
    plus its subgraphs, those of a Loop once per iteration (`_ExpandedSize.repeat`).
    """
    called_size = function_sizes.get((node.domain, node.op_type, node.overload))
    if called_size is not None:
        return called_size
    body_size = _ExpandedSize()
    for body in iter_subgraphs(node):
        constants = _collect_scalar_constants(body, scope)
        body_size += _measure_nodes(body.node, constants, function_sizes)
    return _ExpandedSize(1, 1) + body_size.repeat(_loop_trip_count(node, scope))


def _loop_trip_count(node: NodeProto, scope: _ScalarConstants) -> int:
    """Return the trip count of a Loop that runs to its end, at least 1.

    1 also for other nodes, and if the count is not a known constant or the loop may exit early.
    """
    if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
        return 1
    if not node.input or not node.input[0]:
        return 1
    body = next(iter_subgraphs(node), None)
    if body is None or not _never_exits_early(body, scope):
        return 1
    return max(scope.get(node.input[0], 1), 1)


def _never_exits_early(body: GraphProto, scope: _ScalarConstants) -> bool:
    """Whether the exit condition of a loop body is its own input or a constant other than 0.

    It is traced through Identity and Cast; `scope` has the constants of enclosing graphs. True too
    for a malformed body with fewer than two inputs or no output.
    """
    if not body.output or len(body.input) < 2:
        return True
    constants = _collect_scalar_constants(body, scope)
    producers = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    for _ in body.node:  # the chain is at most as long as the body
        node = producers.get(name)
        if node is None or node.op_type not in ("Identity", "Cast") or not node.input:
            break
        name = node.input[0]
    return name == body.input[1].name or bool(constants.get(name, 0))


def _collect_scalar_constants(graph: GraphProto, outer: _ScalarConstants) -> dict[str, int]:
    """Map the names of one-element int64 and bool constants of `graph` to their values.

    Initializers and outputs of Constant nodes count. The constants `outer` of enclosing graphs are
    included, unless `graph` has one of the same name.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensor = _constant_tensor(node)
            if tensor is not None:
                tensors[node.output[0]] = tensor
    constants = dict(outer)
    for name, tensor in tensors.items():
        value = _scalar_value(tensor)
        if value is not None:
            constants[name] = value
    return constants


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node with attribute `value` or `value_int`, else None."""
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.HasField("t"):
            tensor: TensorProto = attribute.t
            return tensor
        if attribute.name == "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, (), [attribute.i])
    return None


def _scalar_value(tensor: TensorProto) -> int | None:
    """Return the value of an int64 or bool tensor with one element, or None for any other.

    None too if the tensor has no data in memory.
    """
    if tensor.data_type not in _INTEGER_TYPES or any(size != 1 for size in tensor.dims):
        return None
    if tensor.raw_data:
        return int.from_bytes(
            tensor.raw_data, "little", signed=tensor.data_type == TensorProto.INT64
        )
    return next(iter([*tensor.int64_data, *tensor.int32_data]), None)


def _sort_callees_first(functions: Mapping[_FunctionKey, FunctionProto]) -> Iterator[_FunctionKey]:
    """Yield the key of each function after those of all functions that it calls.

    Raises ModelError at the end if functions call themselves, directly or indirectly; these and
    their callers are not yielded.
    """
    open_callees = {key: _find_callees(f) & functions.keys() for key, f in functions.items()}
    callers = _find_callers(open_callees)
    ready = [key for key, callees in open_callees.items() if not callees]
    while ready:
        key = ready.pop()
        yield key
        for caller in callers[key]:
            open_callees[caller].discard(key)
            if not open_callees[caller]:
                ready.append(caller)
    recursive_keys = [key for key, callees in open_callees.items() if callees]
    if recursive_keys:
        raise ModelError(
            f"function {recursive_keys[0][1]} calls itself, directly or through another function; "
            "remove the recursion"
        )


def _find_callers(
    callees: Mapping[_FunctionKey, set[_FunctionKey]],
) -> dict[_FunctionKey, list[_FunctionKey]]:
    """Invert {caller: callees}: return {function: its callers}, [] for functions without one."""
    callers: dict[_FunctionKey, list[_FunctionKey]] = {key: [] for key in callees}
    for key, called_keys in callees.items():
        for called_key in called_keys:
            callers[called_key].append(key)
    return callers


def _find_callees(function: FunctionProto) -> set[_FunctionKey]:
    """Return (domain, operator, overload) of all nodes in `function` and its subgraphs.

    Some of them may be functions of the model.
    """
    nodes = iter_nodes_recursive(function.node)
    return {(node.domain, node.op_type, node.overload) for node in nodes}
