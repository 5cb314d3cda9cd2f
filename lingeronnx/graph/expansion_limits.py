"""How much a small file may ask for.

Nodes once its functions stand where they are called, turns of its loops.
Both are counted before anything is inlined or run. Functions that call the next one twice double at
each level; the turns of a loop may be a single number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import ModelError
from .write_verification import iter_nodes_recursive

__all__ = ["MAX_UNROLLED_ITERATIONS", "check_expansion_limits"]

#: The turns up to which a loop may be written out.
MAX_UNROLLED_ITERATIONS = 64

# Nodes that functions and short loops may make: so many, and these times those that stand in the
# file.
_MIN_NODE_LIMIT, _NODE_LIMIT_FACTOR = 1_000, 20

# Nodes that loops may run whose turns are known: a few seconds.
_MAX_EXECUTED_NODES = 2_000_000

_SATURATED_COUNT = 1 << 62  # enough; numbers of any length would only cost
_INTEGER_TYPES = (TensorProto.INT64, TensorProto.BOOL)

#: A function: domain, name, overload. Constants of one number, by name.
_FunctionKey = tuple[str, str, str]
_ScalarConstants = Mapping[str, int]


@dataclass(frozen=True)
class _ExpandedSize:
    """nodes : once all is inlined and written out.

    Steps : nodes that are run, those of a loop in each turn.
    """

    nodes: int = 0
    executed_nodes: int = 0

    def __add__(self, other: _ExpandedSize) -> _ExpandedSize:
        return _ExpandedSize(
            min(self.nodes + other.nodes, _SATURATED_COUNT),
            min(self.executed_nodes + other.executed_nodes, _SATURATED_COUNT),
        )

    def repeat(self, turns: int) -> _ExpandedSize:
        """Return the extent in a loop of so many turns."""
        nodes = self.nodes * turns if turns <= MAX_UNROLLED_ITERATIONS else self.nodes
        return _ExpandedSize(
            min(nodes, _SATURATED_COUNT), min(self.executed_nodes * turns, _SATURATED_COUNT)
        )


def check_expansion_limits(model: ModelProto) -> None:
    """Raise ModelError for functions that call themselves or make too many nodes, and for loops that run too many."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    known: dict[_FunctionKey, _ExpandedSize] = {}
    for key in _sort_callees_first(functions):
        known[key] = _measure_nodes(functions[key].node, {}, known)
    scope = _collect_scalar_constants(model.graph, {})
    whole, largest = _ExpandedSize(), [(_ExpandedSize(), NodeProto())] * 2
    for node in model.graph.node:
        extent = _measure_node(node, scope, known)
        whole += extent
        largest = [
            max(largest[0], (extent, node), key=lambda of: of[0].nodes),
            max(largest[1], (extent, node), key=lambda of: of[0].executed_nodes),
        ]
    written = sum(
        1
        for _ in iter_nodes_recursive(
            [*model.graph.node, *(n for f in model.functions for n in f.node)]
        )
    )
    most = _MIN_NODE_LIMIT + _NODE_LIMIT_FACTOR * written
    if whole.nodes > most:
        extent, node = largest[0]
        raise ModelError(
            f"{_node_label(node)}: functions in functions, or loops in loops, make "
            f"{_format_count(extent.nodes)} nodes "
            "of it; of "
            f"the {written} in this file {most} may come; export the model without functions and "
            "with fewer turns"
        )
    if whole.executed_nodes > _MAX_EXECUTED_NODES + whole.nodes:
        extent, node = largest[1]
        raise ModelError(
            f"{_node_label(node)}: its loops run {_format_count(extent.executed_nodes)} nodes; "
            f"{_MAX_EXECUTED_NODES} "
            "are the "
            "limit; export the "
            "model with fewer turns"
        )


def _format_count(count: int) -> str:
    return f"more than {count - 1}" if count == _SATURATED_COUNT else str(count)


def _node_label(node: NodeProto) -> str:
    return f"{node.op_type} {node.name or next(iter(node.output), 'without a name')}"


def _measure_nodes(
    nodes: Iterable[NodeProto], scope: _ScalarConstants, known: Mapping[_FunctionKey, _ExpandedSize]
) -> _ExpandedSize:
    return sum((_measure_node(node, scope, known) for node in nodes), _ExpandedSize())


def _measure_node(
    node: NodeProto, scope: _ScalarConstants, function_sizes: Mapping[_FunctionKey, _ExpandedSize]
) -> _ExpandedSize:
    """Return what `node` makes; scope : the constants it may read.

    Known : the functions that may be called.
    """
    called = function_sizes.get((node.domain, node.op_type, node.overload))
    if called is not None:
        return called
    inner = sum(
        (
            _measure_nodes(body.node, _collect_scalar_constants(body, scope), function_sizes)
            for body in _get_subgraphs(node)
        ),
        _ExpandedSize(),
    )
    return _ExpandedSize(1, 1) + inner.repeat(_loop_trip_count(node, scope))


def _loop_trip_count(node: NodeProto, scope: _ScalarConstants) -> int:
    """Return how often the loop `node` turns, 1 where that is not known."""
    if (
        node.op_type != "Loop"
        or node.domain not in ("", "ai.onnx")
        or not node.input
        or not node.input[0]
    ):
        return 1
    bodies = _get_subgraphs(node)
    return (
        max(scope.get(node.input[0], 1), 1)
        if bodies and _never_exits_early(bodies[0], scope)
        else 1
    )


def _never_exits_early(body: GraphProto, scope: _ScalarConstants) -> bool:
    """Whether no turn of a loop ends it: its condition is the one it was given, or a constant."""
    if not body.output or len(body.input) < 2:
        return True
    constants, makers = (
        _collect_scalar_constants(body, scope),
        {name: node for node in body.node for name in node.output},
    )
    name = body.output[0].name
    for _ in body.node:  # no more links than nodes
        maker = makers.get(name)
        if maker is None or maker.op_type not in ("Identity", "Cast") or not maker.input:
            break
        name = maker.input[0]
    return name == body.input[1].name or bool(constants.get(name, 0))


def _collect_scalar_constants(graph: GraphProto, outer: _ScalarConstants) -> dict[str, int]:
    """Return the constants of one number that nodes of `graph` may read.

    `outer` : those around it.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.HasField("t"):
                    constants[node.output[0]] = attribute.t
                elif attribute.name == "value_int":
                    constants[node.output[0]] = onnx.helper.make_tensor(
                        "", TensorProto.INT64, (), [attribute.i]
                    )
    return {
        **outer,
        **{
            name: value
            for name, tensor in constants.items()
            if (value := _scalar_value(tensor)) is not None
        },
    }


def _scalar_value(tensor: TensorProto) -> int | None:
    """Return the only integer of `tensor`; None for any other."""
    if tensor.data_type not in _INTEGER_TYPES or any(size != 1 for size in tensor.dims):
        return None
    if tensor.raw_data:
        return int.from_bytes(
            tensor.raw_data, "little", signed=tensor.data_type == TensorProto.INT64
        )
    return next(iter([*tensor.int64_data, *tensor.int32_data]), None)


def _get_subgraphs(node: NodeProto) -> list[GraphProto]:
    graphs = [
        [attribute.g] if attribute.HasField("g") else attribute.graphs
        for attribute in node.attribute
    ]
    return [graph for body in graphs for graph in body]


def _sort_callees_first(functions: Mapping[_FunctionKey, FunctionProto]) -> Iterator[_FunctionKey]:
    """Yield every function behind those that it calls; ModelError where one calls itself."""
    calls = {
        key: {
            k
            for n in iter_nodes_recursive(f.node)
            if (k := (n.domain, n.op_type, n.overload)) in functions
        }
        for key, f in functions.items()
    }
    callers: dict[_FunctionKey, list[_FunctionKey]] = {key: [] for key in functions}
    for key, called in calls.items():
        for other in called:
            callers[other].append(key)
    ready = [key for key, called in calls.items() if not called]
    while ready:
        key = ready.pop()
        yield key
        for caller in callers[key]:
            calls[caller].discard(key)
            if not calls[caller]:
                ready.append(caller)
    if left := [key for key, called in calls.items() if called]:
        raise ModelError(
            f"function {left[0][1]} calls itself, or one that does; a graph has no cycle"
        )
