"""What the attributes of a node may hold, and how one is read where its kind is known.

Of which type each is is looked at once, when a file is read (`check_attributes`): as ONNX says of
its own operators, in any opset; numbers, lists and texts for ours. Nothing here knows what an
operator computes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto

from ..errors import ModelError
from .write_verification import iter_nodes_recursive

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
]

#: What an attribute that is no graph holds; None where a node leaves it out.
AttributeValue = float | str | Sequence[float] | Sequence[str] | np.ndarray | None

#: Attributes of a node by name.
Attributes = Mapping[str, AttributeValue]


def get_number(attrs: Attributes, key: str, default: float | None = None) -> float:
    """Return an attribute that is one number, `default` where it is absent.

    ModelError for anything else.
    """
    value = attrs.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float):
        raise ModelError(f"attribute {key} is {value!r}; it must be a number")
    return value


def get_int(attrs: Attributes, key: str, default: int | None = None) -> int:
    """Return `get_number` as an integer; ModelError where it is none."""
    value = get_number(attrs, key, default)
    if not math.isfinite(value):
        raise ModelError(f"attribute {key} is {value}; it must be a whole number")
    return int(value)


def get_numbers(attrs: Attributes, key: str, default: Sequence[float] | None = None) -> list[float]:
    """Return an attribute that is a list of numbers, `default` where it is absent or empty.

    ModelError otherwise.
    """
    value = attrs.get(key)
    if default is not None and (value is None or (isinstance(value, Sequence) and not value)):
        return list(default)
    numerals = (
        [each for each in value if isinstance(each, int | float)]
        if isinstance(value, Sequence)
        else None
    )
    if numerals is None or not isinstance(value, Sequence) or len(numerals) != len(value):
        raise ModelError(f"attribute {key} is {value!r}; it must be a list of numbers")
    return numerals


def get_scales(attrs: Attributes, key: str) -> float | list[float]:
    """Return an attribute that is one number, or a list with one for each channel.

    ModelError for anything else.
    """
    return (
        get_numbers(attrs, key) if isinstance(attrs.get(key), Sequence) else get_number(attrs, key)
    )


def get_ints(attrs: Attributes, key: str, default: Sequence[int] | None = None) -> list[int]:
    """Return `get_numbers` as integers."""
    values = get_numbers(attrs, key, default)
    return [get_int({key: value}, key) for value in values]


# ---- types in a file -------------------------------------------------------------------------------------------------

#: Domains of quantized graphs; old generations do not import theirs.
QUANTIZED_DOMAINS = ("thinker", "linger")

_STANDARD_DOMAINS = ("", "ai.onnx")

#: What operators of quantized graphs have: numbers, lists of them, and texts.
_QUANTIZED_ATTRIBUTE_TYPES = (
    AttributeProto.INT,
    AttributeProto.FLOAT,
    AttributeProto.STRING,
    AttributeProto.INTS,
    AttributeProto.FLOATS,
)

_GRAPH_ATTRIBUTE_TYPES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)

#: What any node of a quantized graph may say of itself, those of standard operators too.
_STRING_ATTRIBUTES = {
    name: int(AttributeProto.STRING)
    for name in ("platform", "platform_quant", "quant_mode", "castor_mode")
}


def check_attributes(proto: ModelProto) -> None:
    """Raise ModelError for an attribute of another type than its operator has, and for an operator without an input."""
    version = next(
        (entry.version for entry in proto.opset_import if entry.domain in _STANDARD_DOMAINS), None
    )
    newest = onnx.defs.onnx_opset_version()
    for node in iter_nodes_recursive(proto.graph.node):
        if node.domain in QUANTIZED_DOMAINS:
            _check_quantized_node(node)
        elif node.domain in _STANDARD_DOMAINS:
            known = (
                _UNKNOWN_CONTRACT
                if version is None or not 0 < version <= newest
                else _operator_contract(node.op_type, version)
            )
            _check_attribute_types(node, known.attribute_types)
            if known.min_inputs and not node.input:
                raise ModelError(f"{node_label(node)}: it has no input; the file is damaged")
            if len(node.output) > known.max_outputs:
                raise ModelError(
                    f"{node_label(node)}: it has {len(node.output)} outputs; the operator gives "
                    f"{known.max_outputs} at "
                    "most; "
                    "the "
                    "file is damaged"
                )


def node_label(node: NodeProto) -> str:
    """Return how errors name a node."""
    name = node.name or (node.output[0] if node.output else "without a name")
    return f"{node.op_type} {name}"


def _check_quantized_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type not in _QUANTIZED_ATTRIBUTE_TYPES:
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is of type "
                f"{_attribute_type_name(attribute.type)}; it must be a "
                "number, a list of numbers or a text; the file is damaged"
            )
    _check_attribute_types(node, _STRING_ATTRIBUTES)


def _check_attribute_types(node: NodeProto, types: Mapping[str, int]) -> None:
    for attribute in node.attribute:
        if (
            attribute.name not in types
            and attribute.type in _GRAPH_ATTRIBUTE_TYPES
            and node.domain in _STANDARD_DOMAINS
        ):
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is a graph; the operator "
                "has none of that name; "
                "the "
                "file is damaged"
            )
        wanted = types.get(attribute.name, attribute.type)
        if wanted != attribute.type:
            raise ModelError(
                f"{node_label(node)}: its attribute '{attribute.name}' is of another type than "
                f"{_attribute_type_name(wanted)}; "
                "the file is damaged"
            )


def _attribute_type_name(number: int) -> str:
    known = AttributeProto.AttributeType.values()
    return AttributeProto.AttributeType.Name(number) if number in known else str(number)


@dataclass(frozen=True)
class _OperatorContract:
    """What is known of a standard operator.

    The types of its attributes, its least inputs and most outputs.
    """

    attribute_types: Mapping[str, int]
    min_inputs: int = 0
    max_outputs: float = math.inf


_UNKNOWN_CONTRACT = _OperatorContract(_STRING_ATTRIBUTES)


@cache
def _operator_contract(kind: str, version: int) -> _OperatorContract:
    """Return what an opset says of an operator, nothing where it has none of that name.

    A node may have an attribute of another opset: it is read all the same, so it is of the type
    that it has there.
    """
    schemas = sorted(_schemas_by_operator().get(kind, ()), key=lambda schema: schema.since_version)
    types = dict(_STRING_ATTRIBUTES)
    try:
        schemas.append(own := onnx.defs.get_schema(kind, version, ""))
    except onnx.defs.SchemaError:
        return _UNKNOWN_CONTRACT
    for schema in schemas:
        types.update({name: spec.type.value for name, spec in schema.attributes.items()})  # type: ignore[attr-defined]
    return _OperatorContract(types, int(own.min_input), int(own.max_output))


@cache
def _schemas_by_operator() -> Mapping[str, list[onnx.defs.OpSchema]]:
    """Return the schemas of all opsets by standard operator."""
    found = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    return found
