"""Typed access to node attributes, their validation when a file is read, and the graphs in them.

`check_attributes` compares attribute types with the ONNX schemas of standard operators in any
opset. Operators of quantized graphs may have numbers, lists of numbers and strings. Nothing here
knows the semantics of an operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from ..common.errors import ModelError

__all__ = [
    "QUANTIZED_DOMAINS",
    "AttributeValue",
    "Attributes",
    "check_attributes",
    "get_int",
    "get_ints",
    "get_number",
    "get_numbers",
    "node_label",
    "get_scales",
    "iter_nodes_recursive",
    "iter_subgraphs",
]

#: Value of an attribute that is not a graph; None if the node does not have it.
AttributeValue = float | str | Sequence[float] | Sequence[str] | np.ndarray | None

#: Attributes of a node by name.
Attributes = Mapping[str, AttributeValue]


def get_number(attrs: Attributes, key: str, default: float | None = None) -> float:
    """Return the numeric attribute `key`, or `default` if it is absent or None.

    Raises ModelError if the value, or the default in its place, is not an int or float; so an
    absent attribute without a default is an error.
    """
    value = attrs.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float):
        raise ModelError(f"attribute {key} is {value!r}; it must be a number")
    return value


def get_int(attrs: Attributes, key: str, default: int | None = None) -> int:
    """Return the numeric attribute `key` as an integer, or `default` if it is absent.

    A fraction is truncated towards zero. Raises ModelError if it is not a finite number, or absent
    without a default.
    """
    value = get_number(attrs, key, default)
    if not math.isfinite(value):
        raise ModelError(f"attribute {key} is {value}; it must be an integer")
    return int(value)


def get_numbers(attrs: Attributes, key: str, default: Sequence[float] | None = None) -> list[float]:
    """Return the attribute `key`, a list of numbers, as a new list; `default` if absent or empty.

    Without a default, an empty list is returned as it is, and an absent attribute raises
    ModelError. Raises ModelError too if the value is not a sequence or an element is not an int or
    float.
    """
    value = attrs.get(key)
    if not isinstance(value, Sequence):
        if value is None and default is not None:
            return list(default)
        raise ModelError(f"attribute {key} is {value!r}; it must be a list of numbers")
    if not value and default is not None:
        return list(default)
    numbers = [element for element in value if isinstance(element, int | float)]
    if len(numbers) != len(value):
        raise ModelError(f"attribute {key} is {value!r}; it must be a list of numbers")
    return numbers


def get_scales(attrs: Attributes, key: str) -> float | list[float]:
    """Return the attribute `key`: one number, or for a sequence a list with a number per channel.

    Raises ModelError if it is absent or anything else. An empty list is returned as it is.
    """
    if isinstance(attrs.get(key), Sequence):
        return get_numbers(attrs, key)
    return get_number(attrs, key)


def get_ints(attrs: Attributes, key: str, default: Sequence[int] | None = None) -> list[int]:
    """Return the attribute `key`, a list of numbers, as integers; `default` if absent or empty.

    Fractions are truncated towards zero. Raises ModelError if the value is no list of finite
    numbers, or absent without a default.
    """
    values = get_numbers(attrs, key, default)
    return [get_int({key: value}, key) for value in values]


# ---- types in a file -----------------------------------------------------------------------------

#: Domains of quantized graphs. Graphs of old generations do not import theirs.
QUANTIZED_DOMAINS = ("thinker", "linger")

_STANDARD_DOMAINS = ("", "ai.onnx")

#: Attribute types of operators in quantized graphs: numbers, lists of numbers, and strings.
_QUANTIZED_ATTRIBUTE_TYPES = (
    AttributeProto.INT,
    AttributeProto.FLOAT,
    AttributeProto.STRING,
    AttributeProto.INTS,
    AttributeProto.FLOATS,
)

_GRAPH_ATTRIBUTE_TYPES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)

#: Attributes that every node of a quantized graph may have, including standard operators.
_STRING_ATTRIBUTES = {
    name: int(AttributeProto.STRING)
    for name in ("platform", "platform_quant", "quant_mode", "castor_mode")
}


def check_attributes(proto: ModelProto) -> None:
    """Raise ModelError for an attribute of the wrong type or value, or a wrong operand count.

    Nodes of quantized domains may only have numbers, lists of numbers and strings. Standard
    operators are compared with ONNX's schemas; if the model's opset is absent or newer than the
    installed onnx, or has no such operator, only the attributes of quantized graphs must be
    strings. Nodes of other domains are not checked; nodes in subgraphs are. Float attributes of
    standard operators must be finite, also in functions, except for a few in which an infinity has
    a meaning.
    """
    standard_versions = [
        entry.version for entry in proto.opset_import if entry.domain in _STANDARD_DOMAINS
    ]
    version = standard_versions[0] if standard_versions else 0
    is_known_version = 0 < version <= onnx.defs.onnx_opset_version()
    for node in iter_nodes_recursive(proto.graph.node):
        if node.domain in QUANTIZED_DOMAINS:
            _check_quantized_node(node)
        elif node.domain in _STANDARD_DOMAINS:
            contract = _UNKNOWN_CONTRACT
            if is_known_version:
                contract = _operator_contract(node.op_type, version)
            _check_standard_node(node, contract)
    for function in proto.functions:
        for node in iter_nodes_recursive(function.node):
            if node.domain in _STANDARD_DOMAINS:
                _check_finite(node)


def node_label(node: NodeProto) -> str:
    """Return "<operator> <name>" for error messages.

    An unnamed node is called after its first output; without outputs, it is "<operator> without a
    name".
    """
    name = node.name or next(iter(node.output), "without a name")
    return f"{node.op_type} {name}"


def _check_standard_node(node: NodeProto, contract: _OperatorContract) -> None:
    """Raise ModelError if a standard operator violates its contract.

    This is an attribute of another type, no input at all although at least one is required, or more
    outputs than `max_outputs`.
    """
    _check_attribute_types(node, contract.attribute_types)
    _check_finite(node)
    if contract.min_inputs and not node.input:
        raise ModelError(f"{node_label(node)}: it has no input; the file is malformed")
    if len(node.output) > contract.max_outputs:
        raise ModelError(
            f"{node_label(node)}: it has {len(node.output)} outputs, but the operator has at most "
            f"{contract.max_outputs}; the file is malformed"
        )


def _check_quantized_node(node: NodeProto) -> None:
    """Raise ModelError if an attribute of `node`, of a quantized domain, has an unsupported type.

    Supported are numbers, lists of numbers and strings; the platform and mode attributes must be
    strings.
    """
    for attribute in node.attribute:
        if attribute.type not in _QUANTIZED_ATTRIBUTE_TYPES:
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is of type "
                f"{_attribute_type_name(attribute.type)}; it must be a number, a list of numbers "
                "or a string; the file is malformed"
            )
    _check_attribute_types(node, _STRING_ATTRIBUTES)


def _check_attribute_types(node: NodeProto, types: Mapping[str, int]) -> None:
    """Raise ModelError if an attribute's type differs from that in `types` (name -> type).

    An attribute that is not in `types` may have any type, except that a standard operator may not
    have an unlisted graph or list of graphs.
    """
    for attribute in node.attribute:
        if (
            attribute.name not in types
            and attribute.type in _GRAPH_ATTRIBUTE_TYPES
            and node.domain in _STANDARD_DOMAINS
        ):
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is a graph, but the "
                "operator has no such attribute; the file is malformed"
            )
        expected_type = types.get(attribute.name, attribute.type)
        if attribute.type != expected_type:
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' must be of type "
                f"{_attribute_type_name(expected_type)}; the file is malformed"
            )


def _attribute_type_name(attribute_type: int) -> str:
    """Return the name of the ONNX `attribute_type`, such as "INT"; if unknown, its number."""
    if attribute_type in AttributeProto.AttributeType.values():
        name: str = AttributeProto.AttributeType.Name(attribute_type)
        return name
    return str(attribute_type)


class _OperatorContract(NamedTuple):
    """Types of the attributes of a standard operator by name, and limits of its operands.

    The limits are the number of required inputs, and the largest number of outputs.
    """

    attribute_types: Mapping[str, int]
    min_inputs: int = 0
    max_outputs: float = math.inf


#: Float attributes of standard operators in which an infinity is meaningful: no bound, or a value.
_MAY_BE_INFINITE = frozenset(
    {
        ("Clip", "min"),
        ("Clip", "max"),
        ("Pad", "value"),
        ("Resize", "extrapolation_value"),
        ("LSTM", "clip"),
        ("GRU", "clip"),
        ("RNN", "clip"),
    }
)


def _check_finite(node: NodeProto) -> None:
    """Raise ModelError if a float attribute of a standard operator is NaN, or wrongly infinite.

    The value of a Constant may be either: it is checked where it is used.
    """
    for attribute in node.attribute:
        if attribute.type not in (AttributeProto.FLOAT, AttributeProto.FLOATS):
            continue
        is_scalar = attribute.type == AttributeProto.FLOAT
        for value in [attribute.f] if is_scalar else attribute.floats:
            if math.isfinite(value) or node.op_type == "Constant":
                continue
            if math.isinf(value) and (node.op_type, attribute.name) in _MAY_BE_INFINITE:
                continue
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is {value}; it must be a "
                "finite number: check the training that wrote it, and export the model again"
            )


_UNKNOWN_CONTRACT = _OperatorContract(_STRING_ATTRIBUTES)


@cache
def _operator_contract(op_type: str, version: int) -> _OperatorContract:
    """Return attribute types and operand limits of the operator `op_type` in opset `version`.

    Only the vendor's string attributes, without limits, if that opset has no such operator. Operand
    limits are those of `version`. Attributes that only other opsets have are included, with their
    type there: exporters write them and they are read.
    """
    try:
        current = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return _UNKNOWN_CONTRACT
    types = dict(_STRING_ATTRIBUTES)
    for schema in [*_list_schemas(op_type), current]:
        types.update({name: spec.type.value for name, spec in schema.attributes.items()})  # type: ignore[attr-defined]
    return _OperatorContract(types, int(current.min_input), int(current.max_output))


def _list_schemas(op_type: str) -> list[onnx.defs.OpSchema]:
    """Return the schemas of all versions of the standard operator `op_type`, the oldest first."""
    schemas: list[onnx.defs.OpSchema] = []
    version = onnx.defs.onnx_opset_version()
    while onnx.defs.has(op_type, version, ""):
        schemas.append(onnx.defs.get_schema(op_type, version, ""))
        version = schemas[-1].since_version - 1
    return schemas[::-1]


def iter_subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs in the attributes of `node`, not those nested in them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def iter_nodes_recursive(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield `nodes` and the nodes of all nested subgraphs, each node before those inside it."""
    for node in nodes:
        yield node
        for graph in iter_subgraphs(node):
            yield from iter_nodes_recursive(graph.node)
